"""The delay pattern: codebook ``n`` runs ``n`` rows late. Owns ramp-in, un-delay and end of speech.

Knows code ids and rows; nothing of logits, sampling or sound. Rows are indexed j from 0; a *row* is
one decode step, a *frame* is one codec frame. Protocol: Higgs Audio v3, as its reference server
defines it (sglang-omni ``codebook_layout.py`` and ``sampler.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from .config import ModelConfig


def delay(codes: Tensor, config: ModelConfig) -> Tensor:
    """Lay frames out as delayed rows, with BOC before and EOC after each codebook.

    Args:
        codes: int64 ``[T, N]``, one row per frame.
        config: gives N and the BOC and EOC ids.

    Returns:
        int64 ``[T + N - 1, N]``; row j, codebook n is ``codes[j - n, n]``.
    """
    n_frames, N = codes.shape
    rows = torch.full((n_frames + N - 1, N), config.eoc, dtype=torch.int64)
    for n in range(N):
        rows[:n, n] = config.boc
        rows[n : n + n_frames, n] = codes[:, n]
    return rows


def undelay(rows: Tensor) -> Tensor:
    """Realign delayed rows into frames: frame t lies on the diagonal ``rows[t + n, n]``.

    Args:
        rows: int64 ``[T + N - 1, N]``.

    Returns:
        int64 ``[T, N]``.

    Raises:
        ValueError: ``rows`` is too short to complete one frame.
    """
    n_rows, N = rows.shape
    n_frames = n_rows - N + 1
    if n_frames < 1:
        raise ValueError(f"undelay: one frame needs {N} rows, got {n_rows}")
    return torch.stack([rows[n : n + n_frames, n] for n in range(N)], dim=1)


def force_boc(row: Tensor, j: int, boc: int) -> Tensor:
    """Apply the ramp-in to row ``j`` in place: codebooks that have not started yet say BOC."""
    row[j + 1 :] = boc
    return row


class EndOfSpeech:
    """Watches delayed rows and tells which one is the last.

    After the ramp-in of N rows, the row in which codebook 0 says EOC starts a countdown: N - 2 more
    rows complete the other codebooks of the last frame. Nothing is forced meanwhile.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._n_codebooks = config.n_codebooks
        self._eoc = config.eoc
        self._n_rows = 0
        self._remaining: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether EOC was seen and all rows of the last frame have come."""
        return self._remaining == 0

    @property
    def is_ending(self) -> bool:
        """Whether EOC was seen."""
        return self._remaining is not None

    def push(self, row: Sequence[int] | Tensor) -> bool:
        """Take the next row, N codes; True when it is the last."""
        if self._remaining is not None:
            self._remaining = max(0, self._remaining - 1)
        elif self._n_rows >= self._n_codebooks and int(row[0]) == self._eoc:
            self._remaining = self._n_codebooks - 2
        self._n_rows += 1
        return self.has_ended


class Undelay:
    """Streaming un-delay: rows in, frames out, each as soon as its last codebook has arrived.

    Special ids (BOC, EOC) that were sampled in mid-speech leave as code 0, as in the reference
    server: the codec has no entry for them. Rows and frames are plain numbers: making tensors of
    eight costs more than all else that is done with them.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._n_codebooks = config.n_codebooks
        self._codebook_size = config.codebook_size
        self._rows: deque[Sequence[int]] = deque(maxlen=config.n_codebooks)

    def push(self, row: Sequence[int]) -> tuple[int, ...] | None:
        """Take the next row, N codes; return the frame that it completes, N codes."""
        self._rows.append(row)
        if len(self._rows) < self._n_codebooks:
            return None
        size = self._codebook_size
        diagonal = [delayed[n] for n, delayed in enumerate(self._rows)]
        return tuple([code if code < size else 0 for code in diagonal])
