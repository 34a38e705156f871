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

from . import lanes
from .codes import Codes, SpokenUtterance
from .duration import cap_s, estimate_s
from .joining import Joiner
from .sampling import SamplingParams
from .script import Utterance
from .speaking import Limits, Role, Speaking
from .tags import plain
from .voice import Voice

if TYPE_CHECKING:
    from .engine import Engine

logger = logging.getLogger(__name__)

OnFrame = Callable[[int, int], None]
"""Called once a frame with (frames so far, frames expected in all, at least as many)."""

VOICE_S = 1.5
"""Shortest utterance that serves as the voice of those after it."""

_USUAL_PACE = 1.2  # real speech stays below it, see :func:`.duration.cap_s`


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
        roles: voice and draws of each utterance, by index, where they are not those of all.
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
    roles: Mapping[int, Role] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Generation:
    """One text being spoken: iterate for chunks of sound, or :meth:`frames` for codes alone.

    ``codes`` holds what was made so far, also after a cancel or an error.
    """

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine = engine
        self._request = request
        self._done: list[SpokenUtterance] = []  # heard to their end, in order
        self._begun: dict[int, Speaking] = {}  # the others that were begun, by index
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
        engine = self._engine
        return Codes(
            (*self._done, *self._unheard()),
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

    @property
    def n_heard(self) -> int:
        """Utterances that were yielded to their end."""
        return len(self._done)

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
        yield from self._heard()
        if self._is_over:  # silence needs no weights
            return
        with self._engine.my_turn() as epoch:
            try:
                while not self._is_over:
                    yield from self._speak(epoch)
            except Superseded:
                logger.info("LiveVoice: generation cancelled, the engine was unloaded")

    @property
    def _is_over(self) -> bool:
        return len(self._done) == len(self._request.utterances)

    def _speak(self, epoch: int) -> Iterator[Frame]:
        """The utterances that may be spoken now; yields what is heard of them, in order."""
        for speaking, is_frame in self._sides(epoch):
            self._begun.setdefault(speaking.index, speaking)
            if speaking.index == len(self._done):
                yield from self._heard()
            if is_frame:
                n_frames = len(speaking.frames)
                self._request.on_frame(*self._progress.at(speaking.index, n_frames))
            if speaking.reason is not None:
                self._progress.finish(speaking.index, len(speaking.frames))

    def _sides(self, epoch: int) -> Iterator[lanes.Step]:
        """Who speaks now, and how: side by side as soon as it is settled by which voice.

        A text's first utterance is spoken alone, so that it is heard early, and because it may be
        the voice of the others. Turns of a dialogue are always spoken side by side, so that none
        depends on there being others.
        """
        engine, roles = self._engine, self._request.roles
        waiting = [self._speaking(index) for index in self._todo()]
        self._begun[waiting[0].index] = waiting[0]
        prefix = lanes.shared_prefix(waiting[0].prompt, one_voice=not roles)
        beside = [each for each in waiting if lanes.fits(engine, epoch, each, prefix)]
        if len(beside) > (0 if roles else 1):
            return lanes.together(engine, epoch, beside, prefix)
        return lanes.alone(engine, epoch, waiting)

    def _todo(self) -> list[int]:
        """Indices of the utterances that may be spoken now."""
        request = self._request
        is_settled = bool(request.roles) or not request.same_voice or self._voice() is not None
        is_first = not (request.roles or any(each.text for each in self._done))
        whole = {index for index, each in self._begun.items() if each.reason is not None}
        rest = range(len(self._done), len(request.utterances))
        todo = [index for index in rest if not (index in whole or self._needs_nobody(index))]
        return todo if is_settled and not is_first else todo[:1]

    def _heard(self) -> Iterator[Frame]:
        """What there is of the utterances whose turn to be heard it is."""
        request = self._request
        while not self._is_over:
            index = len(self._done)
            if self._needs_nobody(index):
                self._done.append(self._given(index))
                if index not in request.kept:
                    yield Frame(None, index, 0)
                continue
            speaking = self._begun.get(index)
            if speaking is None:
                return
            for codes in speaking.frames[speaking.n_heard :]:
                speaking.n_heard += 1
                yield Frame(torch.tensor(codes), index, speaking.attempt)
            if speaking.reason is None:
                return
            self._done.append(self._spoken(speaking))
            del self._begun[index]
            yield Frame(None, index, speaking.attempt)

    def _unheard(self) -> Iterator[SpokenUtterance]:
        """The utterance that is being heard, and all up to the last one that is whole."""
        whole = [index for index, each in self._begun.items() if each.reason is not None]
        first = len(self._done)
        for index in range(first, max([first, *whole]) + 1) if self._begun else ():
            begun = self._begun.get(index)
            yield self._given(index) if begun is None else self._spoken(begun)

    def _needs_nobody(self, index: int) -> bool:
        return index in self._request.kept or not self._request.utterances[index].text

    def _given(self, index: int) -> SpokenUtterance:
        """An utterance that nobody has begun: kept, silence, or cancelled before it came to it."""
        request, utterance = self._request, self._request.utterances[index]
        if index in request.kept:
            return request.kept[index]
        frames = torch.empty((0, self._engine.checkpoint.config.n_codebooks), dtype=torch.int64)
        reason, gap_s = ("cancelled", 0.0) if utterance.text else ("eoc", utterance.gap_s)
        return SpokenUtterance(utterance.text, frames, reason, request.first_attempt, gap_s)

    def _spoken(self, speaking: Speaking) -> SpokenUtterance:
        N = self._engine.checkpoint.config.n_codebooks
        frames = torch.tensor(speaking.frames, dtype=torch.int64).view(-1, N)
        gap_s = 0.0 if speaking.reason is None else self._request.utterances[speaking.index].gap_s
        reason = speaking.reason or "cancelled"
        return SpokenUtterance(speaking.text, frames, reason, speaking.attempt, gap_s)

    def _speaking(self, index: int) -> Speaking:
        request = self._request
        role = request.roles.get(index) or Role(request.sampling, self._voice(), index)
        rate = self._engine.checkpoint.codec_config.frame_rate_hz
        text = request.utterances[index].text
        cap = math.ceil((request.max_seconds or cap_s(text)) * rate)
        usual = math.ceil((_USUAL_PACE * self._pace(role.voice) * estimate_s(text) + 1) * rate)
        limits = Limits(cap, usual, request.first_attempt, request.retries)
        return Speaking(self._engine, index, text, role, limits)

    def _pace(self, voice: Voice | None) -> float:
        """Duration of this voice's speech over the estimate, 1 or more."""
        if voice is None or not voice.transcript.strip():
            return 1.0
        rate = self._engine.checkpoint.codec_config.frame_rate_hz
        return max(1.0, (voice.seconds(rate) + 3) / (estimate_s(voice.transcript) + 3))

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
        self._running: dict[int, int] = {}  # frames of those being spoken, by index

    def finish(self, index: int, n_frames: int) -> None:
        """The utterance came out ``n_frames`` long."""
        self._n_done += n_frames
        self._expected_done += self._expected[index]
        self._running.pop(index, None)

    def at(self, index: int, n_frames: int) -> tuple[int, int]:
        """(frames so far, frames expected in all) now that the utterance has ``n_frames``."""
        self._running[index] = n_frames
        pace = self._n_done / self._expected_done if self._expected_done else 1.0
        done = total = self._n_done
        later = self._total - self._expected_done
        for i, n in self._running.items():
            expected = self._expected[i]
            done += n
            total += max(pace * expected, n)
            later -= expected
        return done, math.ceil(total + max(pace * later, 0.0))


def join(chunks: Iterable[Chunk]) -> Tensor:
    """Join chunks into one waveform, float32 ``[samples]``, leaving out void attempts."""
    kept: list[Chunk] = []
    for chunk in chunks:
        if kept and kept[-1].utterance == chunk.utterance and kept[-1].attempt < chunk.attempt:
            kept = [each for each in kept if each.utterance != chunk.utterance]
        kept.append(chunk)
    return torch.cat([chunk.waveform for chunk in kept]) if kept else torch.empty(0)
