"""Which code follows: the sampling parameters, the random stream and the reference sampler.

Every draw is a function of (seed, stream, row, codebook, code) alone: a counter-based generator
without state, so that the CUDA backend makes the same draws, and nothing else that draws random
numbers can change them. Knows logits; nothing of the model or of the delay pattern.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

GREEDY_TEMPERATURE = 1e-5
"""At or below this temperature the most probable code is taken (as the reference server does)."""

_ROWS_PER_BLOCK = 16  # rows of noise made in one vectorised call: amortises numpy's call overhead


@dataclass(frozen=True)
class SamplingParams:
    """How codes are drawn from the logits.

    Attributes:
        temperature: divides the logits; 0 (up to 1e-5) takes the most probable code.
        top_k: keeps the k most probable codes; 0 keeps all.
        top_p: keeps the most probable codes up to this cumulative probability; 1 keeps all.
        seed: 0 … 2**64 - 1.
    """

    temperature: float = 0.8
    top_k: int = 50
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 10.0:
            raise ValueError(f"temperature must be between 0 and 10, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (off) or more, got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1 (off), got {self.top_p}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be between 0 and 2**64 - 1, got {self.seed}")

    @property
    def is_greedy(self) -> bool:
        """Whether no random number is drawn."""
        return self.temperature <= GREEDY_TEMPERATURE


def stream_id(utterance: int, attempt: int) -> int:
    """Number of the random stream of one attempt at one utterance (24 bits and 8 bits)."""
    return (utterance & 0xFFFFFF) | (attempt & 0xFF) << 24


def philox(counter: tuple[np.ndarray, ...], seed: int) -> np.ndarray:
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

    Args:
        counter: four uint32 arrays of one shape (or broadcastable), the counter's words.
        seed: 64 bits, low word first in the key.

    Returns:
        uint32 ``[..., 4]``.
    """
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in np.broadcast_arrays(*counter))
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        product_0 = c0 * np.uint64(0xD2511F53)
        product_1 = c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (product_1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            product_1 & low,
            (product_0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            product_0 & low,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


class GumbelNoise:
    """Gumbel noise of one random stream, by row.

    Adding it to logits and taking the argmax draws from their softmax (the Gumbel-max trick),
    without a normalisation or a running sum.
    """

    def __init__(self, seed: int, stream: int, n_codebooks: int, vocab: int) -> None:
        self._seed, self._stream = seed, stream
        self._n_codebooks, self._vocab = n_codebooks, vocab
        self._first_row = -_ROWS_PER_BLOCK
        self._block: Tensor | None = None

    def row(self, j: int) -> Tensor:
        """Noise of row ``j``: float32 ``[N, V]``."""
        if self._block is None or not 0 <= j - self._first_row < _ROWS_PER_BLOCK:
            self._first_row = j - j % _ROWS_PER_BLOCK
            self._block = self._make(self._first_row)
        return self._block[j - self._first_row]

    def _make(self, first_row: int) -> Tensor:
        rows = np.arange(first_row, first_row + _ROWS_PER_BLOCK).reshape(-1, 1, 1)
        codebooks = np.arange(self._n_codebooks).reshape(1, -1, 1)
        quads = np.arange(-(-self._vocab // 4)).reshape(1, 1, -1)
        words = philox((quads, codebooks, rows, np.asarray(self._stream)), self._seed)
        words = words.reshape(_ROWS_PER_BLOCK, self._n_codebooks, -1)[..., : self._vocab]
        # The 23 high bits, centred in their interval: exact in float32, never 0 and never 1.
        uniform = ((words >> 9).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
        return torch.from_numpy(-np.log(-np.log(uniform)))


def filter_logits(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Divide by the temperature, then put -inf where top-k or top-p drops a code.

    Args:
        logits: float32 ``[N, V]``.
        sampling: not greedy.

    Returns:
        float32 ``[N, V]``, same device.
    """
    logits = logits / sampling.temperature
    vocab = logits.shape[-1]
    if 0 < sampling.top_k < vocab:
        kth = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)  # codes equal to the k-th stay
    if sampling.top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probability = ordered.softmax(dim=-1)
        before = probability.cumsum(dim=-1) - probability
        dropped = before > sampling.top_p
        dropped[:, 0] = False
        logits = logits.masked_fill(dropped.scatter(-1, order, dropped), -torch.inf)
    return logits


def sample(logits: Tensor, sampling: SamplingParams, noise: Tensor | None) -> Tensor:
    """Draw one code per codebook, independently.

    Args:
        logits: float32 ``[N, V]``.
        sampling: the parameters.
        noise: Gumbel noise ``[N, V]`` of this row; None when greedy.

    Returns:
        int64 ``[N]``; of equal values the lowest code wins.
    """
    if sampling.is_greedy or noise is None:
        return logits.argmax(dim=-1)
    return (filter_logits(logits, sampling) + noise.to(logits.device)).argmax(dim=-1)
