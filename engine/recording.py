"""A recording that a voice is made of: what is wrong with it, and the part that is encoded.

Every check comes before any model work, each with its own sentence. Knows samples and the length of
words; nothing of models or files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .audio import check_waveform, to_mono, trim_silence
from .duration import estimate_s

MIN_S = 1.0
MAX_S = 100.0  # what the reference server takes; also bounds the prompt
_SILENT_PEAK = 1e-4  # -80 dB
_QUIET_PEAK = 1e-2  # -40 dB: below, speech drowns in the noise of most microphones
_LOUD_PEAK = 4.0  # of a full scale of 1: beyond, the samples are in another unit
_FULL_SCALE = 0.99
_CLIPPED_NOTICE, _CLIPPED_REFUSED = 0.001, 0.05  # parts of all samples


@dataclass(frozen=True)
class Recording:
    """A recording fit to be encoded.

    Attributes:
        waveform: float32 ``[samples]``, mono, without silent ends, 1 to 100 s.
        sample_rate: in Hz.
        notices: what its owner should know, one sentence each.
    """

    waveform: Tensor
    sample_rate: int
    notices: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.waveform) / self.sample_rate


def prepare(waveform: Tensor, sample_rate: int) -> Recording:
    """Check a recording and cut it to what is encoded. The loudness is left as it is.

    Args:
        waveform: float ``[samples]`` or ``[channels, samples]``, full scale at 1.
        sample_rate: in Hz.

    Raises:
        ValueError: not sound, silent, far too quiet, clipped or shorter than 1 s.
    """
    _check_samples(waveform, sample_rate)
    mono = to_mono(waveform)
    peak = float(mono.abs().max())
    if peak < _SILENT_PEAK:
        raise ValueError("voice: the recording is silent; was it the right file or channel?")
    if peak < _QUIET_PEAK:
        peak_db = 20 * torch.tensor(peak).log10().item()
        raise ValueError(
            f"voice: the recording is far too quiet, its peak is at {peak_db:.0f} dB; "
            f"make it {-6 - peak_db:.0f} dB louder or record it closer"
        )
    notices = _clipping(waveform)
    trimmed = trim_silence(mono, sample_rate)
    seconds = len(trimmed) / sample_rate
    if seconds < MIN_S:
        raise ValueError(
            f"voice: the recording is {seconds:.1f} s between its silent ends, needs at least "
            f"{MIN_S:.0f} s; 5 to 20 s are best"
        )
    if seconds > MAX_S:
        trimmed = trimmed[: int(MAX_S * sample_rate)]
        notices.append(
            f"voice: the recording is {seconds:.0f} s long, only its first {MAX_S:.0f} s are used; "
            "cut the transcript there, too"
        )
    return Recording(trimmed, int(sample_rate), tuple(notices))


def _check_samples(waveform: Tensor, sample_rate: int) -> None:
    if not waveform.numel():
        raise ValueError("voice: the recording is empty; connect a clip with speech")
    if waveform.is_floating_point() and not torch.isfinite(waveform).all():
        raise ValueError("voice: the recording holds NaN or infinity; is the file broken?")
    check_waveform(waveform, max_rank=2)
    if sample_rate != int(sample_rate) or sample_rate < 1:
        raise ValueError(f"voice: the sample rate must be a positive integer, got {sample_rate}")
    peak = float(waveform.abs().max())
    if peak > _LOUD_PEAK:
        raise ValueError(
            f"voice: the recording's peak is {peak:.0f} times full scale; samples must be within "
            "-1 … 1"
        )


def _clipping(waveform: Tensor) -> list[str]:
    """A notice about clipped samples, those in runs of three or more at full scale, in any channel.

    Raises:
        ValueError: so many that the distortion would be cloned.
    """
    loud = waveform.abs() >= _FULL_SCALE * max(1.0, float(waveform.abs().max()))
    runs = loud[..., :-2] & loud[..., 1:-1] & loud[..., 2:]
    share = float(runs.float().mean(dim=-1).max()) if runs.numel() else 0.0
    sentence = f"voice: the recording is clipped, {share:.1%} of it is at full scale"
    if share >= _CLIPPED_REFUSED:
        raise ValueError(f"{sentence}; record it again at a lower level")
    return [f"{sentence}; the distortion may be heard"] if share >= _CLIPPED_NOTICE else []


def transcript_notices(transcript: str, seconds: float) -> list[str]:
    """A notice when no one can have said ``transcript`` in ``seconds``, or only that.

    The bounds are wide: the slowest reader stays well within. A transcript that is not the
    recording's is what makes clones run away or repeat it.
    """
    if not transcript.strip():
        return []
    expected_s = estimate_s(transcript)
    if expected_s > 1.8 * seconds + 1.0:
        relation = "much more text than"
    elif seconds > 2.5 * expected_s + 2.0:
        relation = "far too little text for"
    else:
        return []
    return [
        f"voice: the transcript ({expected_s:.0f} s by estimate) is {relation} {seconds:.1f} s of "
        "recording; does it belong to it, and are both complete?"
    ]
