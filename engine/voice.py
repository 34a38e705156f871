"""A voice: the reference codes and transcript that a prompt shows the model before the text.

Knows codes and words; nothing of prompts, files or sound.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_NOT_IN_NAMES = (
    '/\\:\uff1a*?"<>|[]'  # separators on any system, and what marks a speaker in scripts
)
_MAX_NAME = 60


@dataclass(frozen=True, eq=False)
class Voice:
    """Reference speech as codes.

    Attributes:
        codes: int64 ``[T, N]``, one row per 40 ms frame of the reference.
        transcript: what the reference says; may be empty.
        name: shown to users, and what a script calls the speaker.
        licence: note on what the voice may be used for.
        preview_text: what the voice is tried out with; may be empty.
        codec_id: the codec that the codes belong to; empty when that is not known.
        notices: what its maker should know (the recording was cut, …), one sentence each.
    """

    codes: Tensor
    transcript: str = ""
    name: str = ""
    licence: str = ""
    preview_text: str = ""
    codec_id: str = ""
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or not self.codes.numel():
            raise ValueError(
                f"voice: codes must be [frames, codebooks] with at least one frame, "
                f"got shape {list(self.codes.shape)}"
            )
        if self.codes.is_floating_point() or self.codes.is_complex():
            raise ValueError(f"voice: codes must be integers, got {self.codes.dtype}")
        check_name(self.name)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of all that the speech depends on: codes, transcript and codec."""
        codes = self.codes.to("cpu", torch.int64).contiguous().numpy().astype("<i8")
        digest = hashlib.sha256(repr((codes.shape, self.codec_id)).encode())
        digest.update(codes.tobytes())
        digest.update(self.transcript.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def seconds(self, frame_rate_hz: int) -> float:
        """Duration of the reference."""
        return len(self.codes) / frame_rate_hz

    def check_fits(self, n_codebooks: int, codebook_size: int, codec_id: str = "") -> None:
        """Refuse to be spoken by a model that these codes mean nothing to.

        Args:
            n_codebooks: of the model.
            codebook_size: codes that each of them has.
            codec_id: of the checkpoint; empty leaves it unchecked, as a voice without one does.

        Raises:
            ValueError: another number of codebooks, another codec, or codes that it does not have.
        """
        again = "make the voice again with this checkpoint"
        if self.codes.shape[1] != n_codebooks:
            raise ValueError(
                f"voice: has {self.codes.shape[1]} codebooks, the model speaks {n_codebooks}; "
                f"{again}"
            )
        if codec_id and self.codec_id and self.codec_id != codec_id:
            raise ValueError(
                f"voice: '{self.name}' was made with the codec of another checkpoint; {again}"
            )
        low, high = int(self.codes.min()), int(self.codes.max())
        if low < 0 or high >= codebook_size:
            raise ValueError(
                f"voice: '{self.name}' has codes {low} … {high}, the codec has 0 … "
                f"{codebook_size - 1}; {again}"
            )


def check_name(name: str) -> None:
    """Refuse a name that a file can't have on some system, or that a script can't call.

    Raises:
        ValueError: separators, control characters, brackets, a colon, or too long; empty is fine.
    """
    wrong = [each for each in name if each in _NOT_IN_NAMES or not each.isprintable()]
    if wrong:
        raise ValueError(f"voice: a name can't hold {wrong[0]!r}, got {name[:_MAX_NAME]!r}")
    if len(name) > _MAX_NAME:
        raise ValueError(f"voice: a name has at most {_MAX_NAME} characters, got {len(name)}")
    if name.strip(" .") != name:
        raise ValueError(f"voice: a name begins and ends with neither dot nor space, got {name!r}")
