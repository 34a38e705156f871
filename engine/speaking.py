"""One utterance being spoken: from delayed rows to frames, with its retries.

Owns the policy of an attempt: un-delay, the guard, the cap, when another attempt follows. Knows
nothing of where rows come from or of the order in which utterances are heard.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .delay import EndOfSpeech, Undelay
from .guard import RunawayGuard
from .prompt import Prompt
from .sampling import SamplingParams, stream_id
from .voice import Voice

if TYPE_CHECKING:
    from .engine import Engine

logger = logging.getLogger(__name__)

LAST_ATTEMPT = 0xFF
"""Highest sub-seed; see :func:`.sampling.stream_id`."""


@dataclass(frozen=True)
class Role:
    """Who speaks an utterance, and by which draws.

    Attributes:
        sampling: parameters and seed.
        voice: reference to speak like, or None.
        number: of the utterance among those of its text; chooses its random stream.
    """

    sampling: SamplingParams
    voice: Voice | None
    number: int


@dataclass(frozen=True)
class Limits:
    """How long speech may become, and how often it is tried.

    Attributes:
        cap_frames: where speech without an end is cut.
        usual_frames: what it stays below as a rule; sizes a lane, never changes the speech.
        first_attempt: sub-seed to begin with.
        retries: further attempts when it does not end by itself.
    """

    cap_frames: int
    usual_frames: int
    first_attempt: int = 0
    retries: int = 0


class Speaking:
    """One utterance on its way.

    Attributes:
        index: of the utterance in the request.
        text: as the model reads it.
        frames: of the running attempt, N codes each, as far as the guard let them go.
        n_heard: how many of them have left the generation.
        n_rows: rows that came in the running attempt.
        reason: why the attempt ended, one of :data:`.codes.STOP_REASONS`; None while it runs.
    """

    def __init__(self, engine: Engine, index: int, text: str, role: Role, limits: Limits) -> None:
        self._engine = engine
        self.index, self.text, self.role = index, text, role
        n_ramp = engine.checkpoint.config.n_codebooks - 1
        self.cap_rows = limits.cap_frames + n_ramp
        self.usual_rows = min(limits.usual_frames, limits.cap_frames) + n_ramp
        self.attempt = limits.first_attempt
        retries = 0 if role.sampling.is_greedy else limits.retries
        self._last_attempt = min(limits.first_attempt + retries, LAST_ATTEMPT)
        self._begin()

    @cached_property
    def prompt(self) -> Prompt:
        """What the model reads."""
        return self._engine.prompts.build(self.text, self.role.voice)

    @property
    def stream(self) -> int:
        """Number of the running attempt's random stream."""
        return stream_id(self.role.number, self.attempt)

    def push(self, row: Sequence[int]) -> bool:
        """Take the attempt's next row, N codes; return whether it completed a frame."""
        self.n_rows += 1
        is_last = self._end.push(row)
        frame = self._undelay.push(row)
        if frame is not None:
            self.frames += self._guard.push(frame)
            if self._guard.verdict is not None:
                self.reason = self._guard.verdict
                return True
        if is_last or self.n_rows >= self.cap_rows:
            self.end()
        return frame is not None

    def end(self) -> None:
        """No more rows come: the speech has ended, or there is no room for more."""
        self.frames += self._guard.flush()
        self.reason = "eoc" if self._end.has_ended else "cap"

    def begin_again(self) -> bool:
        """After an attempt that did not end by itself begin the next one; False if none is left."""
        if self.reason == "eoc" or self.attempt >= self._last_attempt:
            return False
        logger.warning(
            "LiveVoice: utterance %d did not end by itself (%s), trying sub-seed %d: %.60s",
            self.index, self.reason, self.attempt + 1, self.text,
        )  # fmt: skip
        self.attempt += 1
        self._begin()
        return True

    def _begin(self) -> None:
        config = self._engine.checkpoint.config
        self._end, self._undelay = EndOfSpeech(config), Undelay(config)
        self._guard = RunawayGuard(self._engine.decode_window)
        self.frames: list[tuple[int, ...]] = []
        self.n_heard = self.n_rows = 0
        self.reason: str | None = None
