"""Codes: what was spoken, before it is sound. Kept, saved, loaded and decoded again.

Owns the data that travels from generation to the codec, and its file format. Knows nothing of
models.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .sampling import SamplingParams
from .script import LONGEST_GAP_S

STOP_REASONS = ("eoc", "silence", "repeat", "cap", "cancelled")
"""Why speech ended, best first: end-of-speech code, long silence, repeated rows, cap, cancelled."""

_FORMAT = "livevoice_codes"
_VERSION = 1  # gaps and notes are optional: files without them are read too


@dataclass(frozen=True)
class SpokenUtterance:
    """One utterance as codes.

    Attributes:
        text: what was to be spoken.
        frames: int64 ``[T, N]``, codes 0 … codebook_size - 1, one row per 40 ms.
        stop_reason: one of :data:`STOP_REASONS`.
        attempt: 0 for the first try; others used the sub-seed of that number.
        gap_s: silence after it, in seconds; below 0 the next one overlaps it by that much.
    """

    text: str
    frames: Tensor
    stop_reason: str
    attempt: int = 0
    gap_s: float = 0.0


@dataclass(frozen=True)
class Codes:
    """All utterances of one text.

    Attributes:
        utterances: in order; the last one may be partial when cancelled.
        sampling: the parameters, with the seed.
        codec_id: identifies the codec that can decode them.
        frame_rate_hz: frames per second.
        checkpoint: name of what spoke them.
        notes: what the writer of the text should know, one sentence each.
    """

    utterances: tuple[SpokenUtterance, ...]
    sampling: SamplingParams
    codec_id: str
    frame_rate_hz: int = 25
    checkpoint: str = field(default="", compare=False)
    notes: tuple[str, ...] = ()

    @property
    def frames(self) -> Tensor:
        """All frames, int64 ``[sum T, N]``."""
        if not self.utterances:
            return torch.empty((0, 0), dtype=torch.int64)
        return torch.cat([utterance.frames for utterance in self.utterances])

    @property
    def seconds(self) -> float:
        """Duration of the speech, without gaps."""
        return sum(len(utterance.frames) for utterance in self.utterances) / self.frame_rate_hz

    @property
    def text(self) -> str:
        """The texts of all utterances, one a line."""
        return "\n".join(utterance.text for utterance in self.utterances if utterance.text)

    def index_of(self, number: int) -> int:
        """Index of the utterance that people call ``number``: from 1, silence not counted.

        Raises:
            ValueError: there is none.
        """
        spoken = [index for index, each in enumerate(self.utterances) if each.text]
        if not 1 <= number <= len(spoken):
            raise ValueError(f"codes: there is no utterance {number}, they are 1 … {len(spoken)}")
        return spoken[number - 1]

    @property
    def stop_reason(self) -> str:
        """The worst stop reason of all utterances."""
        reasons = [utterance.stop_reason for utterance in self.utterances] or ["cancelled"]
        return max(reasons, key=STOP_REASONS.index)

    def save(self, path: Path) -> None:
        """Write one safetensors file: ``frames`` int16 ``[sum T, N]`` and JSON metadata."""
        header = {
            "format": _FORMAT,
            "version": _VERSION,
            "sampling": asdict(self.sampling),
            "codec_id": self.codec_id,
            "frame_rate_hz": self.frame_rate_hz,
            "checkpoint": self.checkpoint,
            "notes": self.notes,
            "utterances": [
                {
                    "text": utterance.text,
                    "n_frames": len(utterance.frames),
                    "stop_reason": utterance.stop_reason,
                    "attempt": utterance.attempt,
                    "gap_s": utterance.gap_s,
                }
                for utterance in self.utterances
            ],
        }
        if not self.utterances:
            raise ValueError("codes: nothing to save, no utterance was spoken")
        frames = self.frames.to(torch.int16).contiguous()
        save_file({"frames": frames}, path, metadata={_FORMAT: json.dumps(header)})

    @classmethod
    def load(cls, path: Path) -> Codes:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: not a codes file, or one that contradicts itself.
        """
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})[_FORMAT])
                frames = file.get_tensor("frames").to(torch.int64)
            return cls._from_header(header, frames)
        except FileNotFoundError as error:
            raise ValueError(f"codes: no file {path}") from error
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"codes: {Path(path).name} is not a LiveVoice codes file: {error}"
            ) from error

    @classmethod
    def _from_header(cls, header: dict[str, Any], frames: Tensor) -> Codes:
        if header["version"] != _VERSION:
            raise ValueError(f"version {header['version']}, this LiveVoice reads {_VERSION}")
        lengths = [int(entry["n_frames"]) for entry in header["utterances"]]
        if frames.ndim != 2 or sum(lengths) != len(frames) or min(lengths, default=-1) < 0:
            raise ValueError(f"{sum(lengths)} frames are listed, {list(frames.shape)} are there")
        if bool((frames < 0).any()):
            raise ValueError("codes must not be negative")
        for entry in header["utterances"]:
            if entry["stop_reason"] not in STOP_REASONS:
                raise ValueError(f"unknown stop reason '{entry['stop_reason']}'")
            if not -1.0 <= float(entry.get("gap_s", 0.0)) <= LONGEST_GAP_S:
                raise ValueError(f"a gap of {entry['gap_s']} s")
        utterances = tuple(
            SpokenUtterance(
                str(entry["text"]),
                part,
                entry["stop_reason"],
                int(entry.get("attempt", 0)),
                float(entry.get("gap_s", 0.0)),
            )
            for entry, part in zip(header["utterances"], frames.split(lengths), strict=True)
        )
        return cls(
            utterances,
            SamplingParams(**header["sampling"]),
            str(header["codec_id"]),
            int(header["frame_rate_hz"]),
            str(header.get("checkpoint", "")),
            tuple(str(note) for note in header.get("notes", ())),
        )
