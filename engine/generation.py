"""One text being spoken: the loop from utterances to frames and chunks of sound.

There is one loop, :meth:`Generation.frames`. Collecting it gives codes, the codec behind it gives a
stream of sound, joining the stream gives the whole, closing it cancels. Knows nothing of how the
weights are held: it asks the engine for the backend one row at a time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .codes import Codes, SpokenUtterance
from .delay import EndOfSpeech, Undelay
from .duration import cap_s
from .guard import RunawayGuard
from .joining import Joiner
from .sampling import SamplingParams, stream_id
from .script import Utterance
from .tags import plain
from .voice import Voice

if TYPE_CHECKING:
    from .engine import Engine

logger = logging.getLogger(__name__)

OnFrame = Callable[[int, int], None]
"""Called once a frame with (frames so far, frames expected in all, at least as many)."""

LAST_ATTEMPT = 0xFF
"""Highest sub-seed; see :func:`.sampling.stream_id`."""

VOICE_S = 1.5
"""Shortest utterance that serves as the voice of those after it."""


@dataclass(frozen=True)
class Frame:
    """One frame: ``codes`` int64 ``[N]``, of which attempt at which utterance.

    Inside the loop a frame without codes says that the utterance is over.
    """

    codes: Tensor | None
    utterance: int
    attempt: int


@dataclass(frozen=True)
class Chunk:
    """A piece of sound: float32 ``[samples]``, of which attempt at which utterance.

    A chunk with a higher attempt than the one before it starts its utterance again: what was made
    in the earlier attempt is void.
    """

    waveform: Tensor
    utterance: int
    attempt: int


class Superseded(Exception):  # noqa: N818  (a signal inside the engine, not an error)
    """The engine was unloaded or the generation closed while it ran."""


@dataclass(frozen=True)
class Request:
    """What is to be spoken, and how; the fields as :meth:`.engine.Engine.stream` takes them.

    Attributes:
        kept: utterances that were spoken before and stay, by index.
        first_attempt: sub-seed that the others begin with.
        same_voice: whether the first utterance is the voice of the others when there is none.
        notes: for :attr:`.codes.Codes.notes`.
    """

    utterances: tuple[Utterance, ...]
    sampling: SamplingParams
    voice: Voice | None
    max_seconds: float | None
    retries: int
    on_frame: OnFrame
    kept: Mapping[int, SpokenUtterance] = field(default_factory=dict)
    first_attempt: int = 0
    same_voice: bool = False
    notes: tuple[str, ...] = ()


class Generation:
    """One text being spoken: iterate for chunks of sound, or :meth:`frames` for codes alone.

    ``codes`` holds what was made so far, also after a cancel or an error.
    """

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine = engine
        self._request = request
        self._done: list[SpokenUtterance] = []
        self._running: list[Tensor] = []  # frames of the running attempt
        self._current: Utterance | None = None  # None between utterances
        self._attempt = 0
        self._steps: Iterator[Frame] | None = None
        rate = engine.checkpoint.codec_config.frame_rate_hz
        todo = [
            0.0 if index in request.kept else min(each.estimate_s, request.max_seconds or math.inf)
            for index, each in enumerate(request.utterances)
        ]
        self._progress = Progress([rate * seconds for seconds in todo])

    @property
    def codes(self) -> Codes:
        """What was spoken so far; a running utterance counts as cancelled."""
        utterances = list(self._done)
        if self._current is not None:
            utterances.append(self._spoken("cancelled"))
        engine = self._engine
        return Codes(
            tuple(utterances),
            self._request.sampling,
            engine.checkpoint.codec_id,
            engine.checkpoint.codec_config.frame_rate_hz,
            engine.checkpoint.path.name,
            self._request.notes,
        )

    def __iter__(self) -> Iterator[Chunk]:
        """Chunks of sound, each as soon as its frames and their right context are there."""
        joiner = Joiner(self._engine.sample_rate)
        last = len(self._request.utterances) - 1
        try:
            for (utterance, attempt), steps in groupby(
                self._start(), key=lambda step: (step.utterance, step.attempt)
            ):
                joiner.begin(self._request.utterances[utterance].gap_s)
                rest = _UntilOver(steps)
                for waveform in self._engine.decode_stream(rest):
                    yield Chunk(joiner.push(waveform), utterance, attempt)
                if rest.is_over and len(waveform := joiner.end(utterance == last)):
                    yield Chunk(waveform, utterance, attempt)
        except Superseded:
            logger.info("LiveVoice: generation cancelled, the engine was unloaded")
        finally:
            self.close()

    def frames(self) -> Iterator[Frame]:
        """The one loop. Yields frames as they are completed; may be started once."""
        return (step for step in self._start() if step.codes is not None)

    def close(self) -> None:
        """Cancel; idempotent. What was made stays in :attr:`codes`."""
        if self._steps is not None:
            self._steps.close()

    def _start(self) -> Iterator[Frame]:
        if self._steps is not None:
            raise RuntimeError("generation: already started; ask the engine for a new one")
        self._steps = self._run()
        return self._steps

    def _run(self) -> Iterator[Frame]:
        if not any(each.text for each in self._request.utterances):
            yield from self._be_silent()  # needs no weights
            return
        with self._engine.my_turn() as epoch:
            try:
                for index in range(len(self._request.utterances)):
                    yield from self._speak(index, epoch)
            except Superseded:
                logger.info("LiveVoice: generation cancelled, the engine was unloaded")

    def _be_silent(self) -> Iterator[Frame]:
        for index, utterance in enumerate(self._request.utterances):
            self._current = utterance
            self._finish("eoc")
            yield Frame(None, index, 0)

    def _speak(self, index: int, epoch: int) -> Iterator[Frame]:
        """One utterance, with its retries."""
        request, utterance = self._request, self._request.utterances[index]
        if index in request.kept:
            self._done.append(request.kept[index])
            return
        first = request.first_attempt
        self._running, self._current, self._attempt = [], utterance, first
        reason = "eoc"
        retries = 0 if request.sampling.is_greedy else request.retries
        last = min(first + retries, LAST_ATTEMPT) if utterance.text else first - 1
        for attempt in range(first, last + 1):
            self._running, self._attempt = [], attempt
            reason = yield from self._attempt_once(index, attempt, epoch)
            if reason == "eoc" or attempt == last:
                break
            logger.warning(
                "LiveVoice: utterance %d did not end by itself (%s), trying sub-seed %d: %.60s",
                index, reason, attempt + 1, utterance.text,
            )  # fmt: skip
        self._finish(reason)
        yield Frame(None, index, self._attempt)

    def _finish(self, reason: str) -> None:
        self._done.append(self._spoken(reason))
        self._progress.finish(len(self._done) - 1, len(self._running))
        self._running, self._current = [], None

    def _spoken(self, reason: str) -> SpokenUtterance:
        N = self._engine.checkpoint.config.n_codebooks
        frames = [*self._running] or [torch.empty((0, N), dtype=torch.int64)]
        joined = torch.cat([frame.view(-1, N) for frame in frames])
        utterance = self._current
        gap_s = 0.0 if reason == "cancelled" else utterance.gap_s
        return SpokenUtterance(utterance.text, joined, reason, self._attempt, gap_s)

    def _voice(self) -> Voice | None:
        """Who speaks the next utterance: without a voice, whoever spoke the first one."""
        request = self._request
        if request.voice is not None or not request.same_voice:
            return request.voice
        shortest = VOICE_S * self._engine.checkpoint.codec_config.frame_rate_hz
        for spoken in self._done:
            if spoken.stop_reason == "eoc" and len(spoken.frames) >= shortest:
                return Voice(spoken.frames, plain(spoken.text))
        return None

    def _attempt_once(self, index: int, attempt: int, epoch: int) -> Iterator[Frame]:
        """One attempt at one utterance; returns the stop reason."""
        engine, request = self._engine, self._request
        config = engine.checkpoint.config
        end, undelay, guard = (
            EndOfSpeech(config),
            Undelay(config),
            RunawayGuard(engine.decode_window),
        )
        cap = self._cap_frames(self._current.text)
        for row in self._rows(stream_id(index, attempt), cap + config.n_codebooks - 1, epoch):
            end.push(row)
            frame = undelay.push(row)
            if frame is None:
                continue
            for released in guard.push(frame):
                yield self._take(released, index)
            request.on_frame(*self._progress.at(index, len(self._running)))
            if guard.verdict is not None:
                return guard.verdict
        for released in guard.flush():
            yield self._take(released, index)
        return "eoc" if end.has_ended else "cap"

    def _take(self, codes: Tensor, index: int) -> Frame:
        self._running.append(codes)
        return Frame(codes, index, self._attempt)

    def _rows(self, stream: int, max_rows: int, epoch: int) -> Iterator[Tensor]:
        """Delayed rows of one attempt; the engine is locked for one row at a time."""
        engine, request = self._engine, self._request
        prompt = engine.prompts.build(self._current.text, self._voice())
        with engine.current(epoch) as backend:
            backend.prefill(prompt)
            rows = backend.decode(request.sampling, stream=stream, max_rows=max_rows)
        while True:
            with engine.current(epoch):
                row = next(rows, None)
            if row is None:
                return
            yield row

    def _cap_frames(self, text: str) -> int:
        rate = self._engine.checkpoint.codec_config.frame_rate_hz
        seconds = self._request.max_seconds or cap_s(text)
        return math.ceil(seconds * rate)


class _UntilOver:
    """The frames of one attempt, up to the one without codes; notes whether that came."""

    def __init__(self, steps: Iterator[Frame]) -> None:
        self._steps = steps
        self.is_over = False

    def __iter__(self) -> Iterator[Tensor]:
        for step in self._steps:
            if step.codes is None:
                self.is_over = True
                return
            yield step.codes


class Progress:
    """How much of a whole text is spoken; learns the speaker's pace from finished utterances.

    Args:
        expected: frames of each utterance by estimate; 0 for those that are not spoken now.
    """

    def __init__(self, expected: list[float]) -> None:
        self._expected = expected
        self._total = sum(expected)
        self._n_done = 0  # frames of finished utterances
        self._expected_done = 0.0  # what was expected of them

    def finish(self, index: int, n_frames: int) -> None:
        """The utterance came out ``n_frames`` long."""
        self._n_done += n_frames
        self._expected_done += self._expected[index]

    def at(self, index: int, n_frames: int) -> tuple[int, int]:
        """(frames so far, frames expected in all) while the utterance has ``n_frames``."""
        pace = self._n_done / self._expected_done if self._expected_done else 1.0
        this = pace * self._expected[index]
        later = pace * (self._total - self._expected_done) - this
        return self._n_done + n_frames, math.ceil(
            self._n_done + max(this, n_frames) + max(later, 0)
        )


def join(chunks: Iterable[Chunk]) -> Tensor:
    """Join chunks into one waveform, float32 ``[samples]``, leaving out void attempts."""
    kept: list[Chunk] = []
    for chunk in chunks:
        if kept and kept[-1].utterance == chunk.utterance and kept[-1].attempt < chunk.attempt:
            kept = [each for each in kept if each.utterance != chunk.utterance]
        kept.append(chunk)
    return torch.cat([chunk.waveform for chunk in kept]) if kept else torch.empty(0)
