"""One text being spoken: the loop from utterances to frames and chunks of sound.

There is one loop, :meth:`Generation.frames`. Collecting it gives codes, the codec behind it gives a
stream of sound, joining the stream gives the whole, closing it cancels. Knows nothing of how the
weights are held: it asks the engine for the backend one row at a time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .codes import Codes, SpokenUtterance
from .delay import EndOfSpeech, Undelay
from .duration import cap_s
from .guard import RunawayGuard
from .sampling import SamplingParams, stream_id
from .script import Utterance
from .voice import Voice

if TYPE_CHECKING:
    from .engine import Engine

logger = logging.getLogger(__name__)

OnFrame = Callable[[int, int], None]
"""Called once a frame with (frames so far, frames expected at most)."""


@dataclass(frozen=True)
class Frame:
    """One frame: ``codes`` int64 ``[N]``, of which attempt at which utterance."""

    codes: Tensor
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
    """What is to be spoken, and how; the fields as :meth:`.engine.Engine.stream` takes them."""

    utterances: tuple[Utterance, ...]
    sampling: SamplingParams
    voice: Voice | None
    max_seconds: float | None
    retries: int
    on_frame: OnFrame


class Generation:
    """One text being spoken: iterate for chunks of sound, or :meth:`frames` for codes alone.

    ``codes`` holds what was made so far, also after a cancel or an error.
    """

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine = engine
        self._request = request
        self._done: list[SpokenUtterance] = []
        self._running: list[Tensor] = []  # frames of the running attempt
        self._running_text: str | None = None  # None between utterances
        self._attempt = 0
        self._frames: Iterator[Frame] | None = None
        n_frames = [self._cap_frames(each.text) for each in request.utterances]
        self._cap_total = sum(n_frames)

    @property
    def codes(self) -> Codes:
        """What was spoken so far; a running utterance counts as cancelled."""
        utterances = list(self._done)
        if self._running_text is not None:
            utterances.append(self._spoken("cancelled"))
        engine = self._engine
        return Codes(
            tuple(utterances),
            self._request.sampling,
            engine.checkpoint.codec_id,
            engine.checkpoint.codec_config.frame_rate_hz,
            engine.checkpoint.path.name,
        )

    def __iter__(self) -> Iterator[Chunk]:
        """Chunks of sound, each as soon as its frames and their right context are there."""
        try:
            for (utterance, attempt), frames in groupby(
                self.frames(), key=lambda frame: (frame.utterance, frame.attempt)
            ):
                codes = (frame.codes for frame in frames)
                for waveform in self._engine.decode_stream(codes):
                    yield Chunk(waveform, utterance, attempt)
        except Superseded:
            logger.info("LiveVoice: generation cancelled, the engine was unloaded")
        finally:
            self.close()

    def frames(self) -> Iterator[Frame]:
        """The one loop. Yields frames as they are completed; may be started once."""
        if self._frames is not None:
            raise RuntimeError("generation: already started; ask the engine for a new one")
        self._frames = self._run()
        return self._frames

    def close(self) -> None:
        """Cancel; idempotent. What was made stays in :attr:`codes`."""
        if self._frames is not None:
            self._frames.close()

    def _run(self) -> Iterator[Frame]:
        with self._engine.my_turn() as epoch:
            try:
                for index in range(len(self._request.utterances)):
                    yield from self._speak(index, epoch)
            except Superseded:
                logger.info("LiveVoice: generation cancelled, the engine was unloaded")

    def _speak(self, index: int, epoch: int) -> Iterator[Frame]:
        """One utterance, with its retries."""
        text = self._request.utterances[index].text
        tries = 1 if self._request.sampling.is_greedy else 1 + self._request.retries
        for attempt in range(tries):
            self._running, self._running_text, self._attempt = [], text, attempt
            reason = yield from self._attempt_once(index, attempt, epoch)
            if reason == "eoc" or attempt == tries - 1:
                break
            logger.warning(
                "LiveVoice: utterance %d did not end by itself (%s), trying sub-seed %d: %.60s",
                index, reason, attempt + 1, text,
            )  # fmt: skip
        self._done.append(self._spoken(reason))
        self._running, self._running_text = [], None

    def _spoken(self, reason: str) -> SpokenUtterance:
        N = self._engine.checkpoint.config.n_codebooks
        frames = [*self._running] or [torch.empty((0, N), dtype=torch.int64)]
        joined = torch.cat([frame.view(-1, N) for frame in frames])
        return SpokenUtterance(self._running_text or "", joined, reason, self._attempt)

    def _attempt_once(self, index: int, attempt: int, epoch: int) -> Iterator[Frame]:
        """One attempt at one utterance; returns the stop reason."""
        engine, request = self._engine, self._request
        config = engine.checkpoint.config
        end, undelay, guard = (
            EndOfSpeech(config),
            Undelay(config),
            RunawayGuard(engine.decode_window),
        )
        cap = self._cap_frames(self._running_text)
        for row in self._rows(stream_id(index, attempt), cap + config.n_codebooks - 1, epoch):
            end.push(row)
            frame = undelay.push(row)
            if frame is None:
                continue
            for released in guard.push(frame):
                yield self._take(released, index)
            n_before = sum(len(each.frames) for each in self._done)
            request.on_frame(n_before + len(self._running), self._cap_total)
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
        prompt = engine.prompts.build(self._running_text, request.voice)
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


def join(chunks: Iterable[Chunk]) -> Tensor:
    """Join chunks into one waveform, float32 ``[samples]``, leaving out void attempts."""
    kept: list[Chunk] = []
    for chunk in chunks:
        if kept and kept[-1].utterance == chunk.utterance and kept[-1].attempt < chunk.attempt:
            kept = [each for each in kept if each.utterance != chunk.utterance]
        kept.append(chunk)
    return torch.cat([chunk.waveform for chunk in kept]) if kept else torch.empty(0)
