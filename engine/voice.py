"""A voice: the reference codes and transcript that a prompt shows the model before the text.

Knows codes and words; nothing of prompts, files or sound.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Voice:
    """Reference speech as codes.

    Attributes:
        codes: int64 ``[T, N]``, one row per 40 ms frame of the reference.
        transcript: what the reference says; may be empty.
        name: shown to users.
    """

    codes: Tensor
    transcript: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or not len(self.codes):
            raise ValueError(
                f"voice: codes must be [frames, codebooks] with at least one frame, "
                f"got shape {list(self.codes.shape)}"
            )
