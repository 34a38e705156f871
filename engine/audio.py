"""Waveform arithmetic: channels, sample rates, silence. Torch alone, any device.

A waveform is float32 ``[samples]`` here; ``[channels, samples]`` only where it says so. Knows
nothing of files or of ComfyUI's AUDIO.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

# The filter of torchaudio.functional.resample with its defaults, which the codec was trained with.
_ZERO_CROSSINGS = 6  # of the sinc, on either side
_ROLLOFF = 0.99  # cut-off as a part of the lower Nyquist frequency
_BLOCK_TAPS = 1 << 23  # numbers gathered at a time: 32 MiB

SILENCE_DB = -42.0
_RMS_FRAME_MS = 10
_KEPT_MS = 50


def check_waveform(waveform: Tensor, max_rank: int = 1) -> None:
    """Refuse what is not sound.

    Raises:
        ValueError: wrong rank, no samples, not floating point, NaN or infinity.
    """
    if not 1 <= waveform.ndim <= max_rank:
        wanted = "[samples]" if max_rank == 1 else "[samples] or [channels, samples]"
        raise ValueError(f"audio: waveform must be {wanted}, got shape {list(waveform.shape)}")
    if not waveform.numel():
        raise ValueError(f"audio: waveform is empty, shape {list(waveform.shape)}")
    if not waveform.is_floating_point():
        raise ValueError(f"audio: waveform must be floating point, got {waveform.dtype}")
    finite = torch.isfinite(waveform)
    if not finite.all():
        sample = int((~finite).nonzero()[0, -1])
        raise ValueError(f"audio: waveform is not finite at sample {sample}; is the file broken?")


def to_mono(waveform: Tensor) -> Tensor:
    """Average the channels of float ``[channels, samples]`` (or ``[samples]``) to ``[samples]``."""
    check_waveform(waveform, max_rank=2)
    return waveform.float().reshape(-1, waveform.shape[-1]).mean(dim=0)


def resample(waveform: Tensor, from_hz: int, to_hz: int) -> Tensor:
    """Change the sample rate by band-limited interpolation with a Hann-windowed sinc.

    Equal to ``torchaudio.functional.resample`` with its defaults, in float64: its float32 filters
    are off by up to 2e-5 at rates such as 22,050 Hz. Formula: J. O. Smith, "Digital
    Audio Resampling", with the sinc's cut-off at 99 % of the lower Nyquist frequency. Each output
    sample gathers just the taps under its own window, so rates without a common divisor (24,000
    and 44,101 Hz) cost no more than others.

    Args:
        waveform: float ``[samples]``.
        from_hz: its rate, a positive integer.
        to_hz: the wanted rate, a positive integer.

    Returns:
        float32 ``[ceil(samples · to_hz / from_hz)]``.
    """
    check_waveform(waveform)
    if from_hz != int(from_hz) or to_hz != int(to_hz) or from_hz < 1 or to_hz < 1:
        raise ValueError(f"audio: sample rates are positive integers, got {from_hz} and {to_hz}")
    waveform = waveform.float()
    divisor = math.gcd(int(from_hz), int(to_hz))
    before, after = int(from_hz) // divisor, int(to_hz) // divisor
    if before == after:
        return waveform
    kernels, first = (part.to(waveform.device) for part in _sinc_kernels(before, after))
    n_taps = kernels.shape[1]
    width = n_taps // 2
    # taps[i] is the neighbourhood that starts `width` samples before sample i.
    taps = functional.pad(waveform, (width, n_taps)).unfold(0, n_taps, 1)
    n_out = -(-len(waveform) * after // before)
    blocks = []
    for start in range(0, n_out, max(1, _BLOCK_TAPS // n_taps)):
        sample = torch.arange(
            start, min(n_out, start + _BLOCK_TAPS // n_taps), device=kernels.device
        )
        cycle, phase = sample // after, sample % after
        blocks.append((taps[cycle * before + first[phase]] * kernels[phase]).sum(dim=1))
    return torch.cat(blocks)


@lru_cache(maxsize=8)
def _sinc_kernels(before: int, after: int) -> tuple[Tensor, Tensor]:
    """Filters of all phases for a rate change ``before : after`` without common divisor.

    Output sample ``q · after + i`` lies at ``q · before + i · before / after`` in input samples.

    Returns:
        float32 ``[after, taps]``: the filter of phase i, centred on its whole part.
        int64 ``[after]``: that whole part, ``floor(i · before / after)``.
    """
    cutoff = min(before, after) * _ROLLOFF / before  # in half cycles per input sample
    width = math.ceil(_ZERO_CROSSINGS / cutoff)
    phase = torch.arange(after)
    whole = phase * before // after
    fraction = (phase * before - whole * after).double() / after
    taps = torch.arange(-width, width + 1).double()
    t = (taps[None] - fraction[:, None]) * cutoff
    hann = (
        torch.cos(t.clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS) * math.pi / _ZERO_CROSSINGS / 2) ** 2
    )
    return (torch.sinc(t) * hann * cutoff).float(), whole


def trim_silence(waveform: Tensor, sample_rate: int, *, threshold_db: float = SILENCE_DB) -> Tensor:
    """Cut silence off both ends and keep 50 ms of it.

    Silent is a stretch of 10 ms whose RMS is ``threshold_db`` below that of the loudest: relative,
    so that a quiet recording is not taken for silence.

    Args:
        waveform: float ``[samples]``.
        sample_rate: in Hz.
        threshold_db: below 0.

    Returns:
        A view into ``waveform``.

    Raises:
        ValueError: nothing but digital silence.
    """
    check_waveform(waveform)
    frame = max(1, sample_rate * _RMS_FRAME_MS // 1000)
    padded = functional.pad(waveform, (0, -len(waveform) % frame))
    rms = padded.reshape(-1, frame).square().mean(dim=1).sqrt()
    if not rms.max() > 0:
        raise ValueError("audio: waveform is silent from beginning to end")
    loud = (rms > rms.max() * 10 ** (threshold_db / 20)).nonzero()
    kept = sample_rate * _KEPT_MS // 1000
    start = max(0, int(loud[0]) * frame - kept)
    return waveform[start : (int(loud[-1]) + 1) * frame + kept]
