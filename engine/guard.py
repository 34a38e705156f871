"""The no-runaway contract: notices speech that repeats itself or has fallen silent.

Fed with frames, in order; the same frames give the same verdict, streamed or not. The cap on the
length is the caller's (:func:`.text.cap_s`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

REPEAT_FRAMES = 32  # equal frames in a row: 1.3 s of one sound, never speech
HOLD_FRAMES = 8  # equal frames that may leave before it is clear whether the run ends
SILENCE_FRAMES = 75  # 3 s: the longest pause tag makes half of it
SILENCE_RMS = 10 ** (-50 / 20)  # relative to full scale; the starter's quietest speech is at -30 dB
_CHECK_EVERY_FRAMES = 25

Frame = tuple[int, ...]


class RunawayGuard:
    """Watches one utterance.

    Args:
        decode_window: codes int64 ``[T, N]`` → waveform, asked only when silence is suspected.
    """

    def __init__(self, decode_window: Callable[[Tensor], Tensor]) -> None:
        self._decode_window = decode_window
        self._recent: deque[Frame] = deque(maxlen=SILENCE_FRAMES)
        self._held: list[Frame] = []
        self._run = 0  # length of the run of equal frames that ends with the newest
        self._n_frames = 0
        self.verdict: str | None = None
        """None while all is well, else the stop reason "repeat" or "silence"."""

    def push(self, frame: Frame) -> list[Frame]:
        """Take the next frame, N codes; return the frames that may leave, in order.

        Frames of a long run of equal ones are held back until the run ends; when it does not end
        they are dropped, so that neither a listener nor the codes get them.
        """
        is_equal = bool(self._recent) and frame == self._recent[-1]
        self._run = self._run + 1 if is_equal else 1
        self._recent.append(frame)
        self._n_frames += 1
        if self._run >= REPEAT_FRAMES:
            self.verdict = "repeat"
            return []
        if self._n_frames % _CHECK_EVERY_FRAMES == 0 and self._is_silent():
            self.verdict = "silence"
        if self._run > HOLD_FRAMES:
            self._held.append(frame)
            return []
        if not self._held:
            return [frame]
        released, self._held = [*self._held, frame], []
        return released

    def flush(self) -> list[Frame]:
        """Frames still held back when the speech has ended well."""
        released, self._held = self._held, []
        return released

    def _is_silent(self) -> bool:
        """Whether the last three seconds are silence.

        Speech changes codebook 0 all the time: only a window with few different codes there is
        worth decoding.
        """
        if len(self._recent) < SILENCE_FRAMES:
            return False
        if len({frame[0] for frame in self._recent}) > SILENCE_FRAMES // 2:
            return False
        window = torch.tensor(tuple(self._recent), dtype=torch.int64)
        return float(self._decode_window(window).square().mean().sqrt()) < SILENCE_RMS
