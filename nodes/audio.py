"""ComfyUI's AUDIO ↔ the engine's waveform. The one place that knows AUDIO's layout.

AUDIO is ``{"waveform": float32 [batch, channels, samples] on the CPU, "sample_rate": int}``,
values in -1 … 1.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

_WAV_HEADER = struct.Struct("<4sI8sIHHIIHH4sI")
_WAV_FLOAT = 3  # WAVE_FORMAT_IEEE_FLOAT


def to_audio(waveform: Tensor, sample_rate: int) -> dict[str, Any]:
    """One mono waveform, float32 ``[samples]``, as AUDIO.

    Raises:
        ValueError: there is no sample, which players and savers can't take.
    """
    if waveform.numel() == 0:
        raise ValueError("audio: nothing was spoken; try another seed or more text")
    samples = waveform.detach().to("cpu", torch.float32).contiguous()
    return {"waveform": samples.reshape(1, 1, -1), "sample_rate": sample_rate}


def from_audio(audio: dict[str, Any] | None) -> tuple[Tensor, int]:
    """AUDIO as one mono waveform, float32 ``[samples]``, channels averaged, and its sample rate.

    Raises:
        ValueError: no audio, an empty one, or several clips.
    """
    if audio is None:
        raise ValueError("audio: there is none (does the video have a sound track?)")
    waveform = audio["waveform"]
    if waveform.ndim != 3 or waveform.shape[0] != 1:
        raise ValueError(
            f"audio: one clip of shape [1, channels, samples] is needed, got {list(waveform.shape)}"
        )
    if waveform.numel() == 0:
        raise ValueError("audio: the clip is empty")
    return waveform[0].detach().to("cpu", torch.float32).mean(dim=0), int(audio["sample_rate"])


def to_wav(waveform: Tensor, sample_rate: int) -> bytes:
    """One mono waveform, float32 ``[samples]``, as a WAV file of the same floats, bit by bit."""
    data = waveform.detach().cpu().numpy().astype("<f4", copy=False).tobytes()
    header = _WAV_HEADER.pack(
        b"RIFF", _WAV_HEADER.size - 8 + len(data), b"WAVEfmt ",
        16, _WAV_FLOAT, 1, sample_rate, 4 * sample_rate, 4, 32,
        b"data", len(data),
    )  # fmt: skip
    return header + data
