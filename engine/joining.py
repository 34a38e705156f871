"""Joins the sound of utterances without clicks: by silence, or by a crossfade.

One joiner serves streaming and decoding, so both give the same bits. Holds back a few milliseconds
of the running utterance and nothing else, however long the text is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FADE_S = 0.005
"""Length of the ramps at a cut: too short to be heard as a fade, long enough not to click."""


class Joiner:
    """Takes one utterance after the other, each in chunks; returns what may leave.

    Args:
        sample_rate: samples per second.
    """

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._fade = round(FADE_S * sample_rate)
        self._ramp_in = torch.empty(0)  # weights of the running utterance's first samples
        self._under = torch.empty(0)  # end of the one before, faded, that lies under them
        self._held = torch.empty(0)
        self._n_taken = 0
        self._gap_s = 0.0

    def begin(self, gap_s: float) -> None:
        """An utterance begins, or begins again when its last attempt was void.

        Args:
            gap_s: silence after it, in seconds; below 0 the next one overlaps it by that much.
        """
        self._gap_s = gap_s
        self._held = torch.empty(0)
        self._n_taken = 0

    def push(self, waveform: Tensor) -> Tensor:
        """Take its next samples, float32 ``[samples]``; return those that may leave."""
        waveform = torch.cat([self._held, self._with_start(waveform)])
        self._n_taken += len(waveform) - len(self._held)
        n_ready = max(0, len(waveform) - self._reserve)
        self._held = waveform[n_ready:]
        return waveform[:n_ready]

    def end(self, is_last: bool) -> Tensor:
        """It is over: return the rest of it and the silence after it, float32 ``[samples]``."""
        held = torch.cat([self._held, self._under[self._n_taken :]])  # under a very short one
        n = min(self._reserve, len(held))
        self._held = self._under = self._ramp_in = torch.empty(0)
        if is_last and self._gap_s <= 0:
            return held
        ramp = _ramp(n)
        fading = held[len(held) - n :] * ramp.flip(0)
        body = held[: len(held) - n]
        if self._gap_s < 0:
            self._under, self._ramp_in = fading, ramp
            return body
        self._ramp_in = _ramp(self._fade)
        return torch.cat([body, fading, torch.zeros(round(self._gap_s * self._rate))])

    @property
    def _reserve(self) -> int:
        """Samples at its end that the next cut changes."""
        return round(-self._gap_s * self._rate) if self._gap_s < 0 else self._fade

    def _with_start(self, waveform: Tensor) -> Tensor:
        """The samples with their share of the fade from the utterance before."""
        start, n = self._n_taken, min(len(self._ramp_in) - self._n_taken, len(waveform))
        if n <= 0:
            return waveform
        waveform = waveform.clone()
        waveform[:n] *= self._ramp_in[start : start + n]
        under = self._under[start : start + n]
        waveform[: len(under)] += under
        return waveform


def _ramp(n: int) -> Tensor:
    """Raised cosine from 0 to 1, float32 ``[n]``; it and its mirror image add up to 1."""
    steps = (torch.arange(n, dtype=torch.float32) + 0.5) / max(n, 1)
    return 0.5 - 0.5 * torch.cos(math.pi * steps)
