"""A backend whose speech costs nothing and is decided by the text: for tests of the scheduler."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator

import torch
from livevoice.engine.config import ModelConfig
from livevoice.engine.lanes import SeparateLanes
from livevoice.engine.prompt import Prompt

N, EOC = 8, 1025


def rows_of(text: str, stream: int) -> Iterator[list[int]]:
    """Rows of a text that ends with its length in frames.

    Attempts of a length that 5 divides never end before the second one; where 7 divides it, all
    codes are the same.
    """
    n_frames = int(re.findall(r"\d+", text)[-1])
    draws = random.Random(f"{text} {stream}")
    is_endless = n_frames % 5 == 0 and n_frames > 20 and stream >> 24 == 0
    j = 0
    while True:
        code = 1 if n_frames % 7 == 0 else draws.randrange(1024)
        ends = j >= max(N, n_frames) and not is_endless
        yield [EOC if ends else code, *[(code + n) % 1024 for n in range(1, N)]]
        j += 1


class RowsBackend:
    """The backend protocol over :func:`rows_of`."""

    name, precision, device = "rows", "none", torch.device("cpu")
    resident_bytes = 0

    def __init__(self, config: ModelConfig, context_rows: int = 2048) -> None:
        self.config, self.context_rows = config, context_rows
        self.most_lanes = 1
        self.texts: dict[tuple[int, ...], str] = {}
        self.busy: Counter[int] = Counter()  # steps by how many lanes spoke

    def prefill(self, prompt: Prompt) -> None:
        self._text = self.texts[tuple(prompt.ids.tolist())]

    def decode(self, _sampling, *, stream: int, max_rows: int) -> Iterator[torch.Tensor]:
        rows = rows_of(self._text, stream)
        return (torch.tensor(next(rows)) for _ in range(max_rows))

    def max_lanes(self, prefix_rows: int, lane_rows: int) -> int:
        return min(self.most_lanes, (self.context_rows - prefix_rows) // lane_rows)

    def lanes(self, n_lanes: int, prefix: Prompt, lane_rows: int) -> SeparateLanes:
        assert len(prefix) + n_lanes * lane_rows <= self.context_rows
        return RowsLanes(self, n_lanes, lane_rows)

    def unload(self) -> None:
        pass


class RowsLanes:
    """Lanes of a :class:`RowsBackend`: plain lists, as the native ones give them."""

    def __init__(self, backend: RowsBackend, n_lanes: int, lane_rows: int) -> None:
        self._backend, self._lane_rows = backend, lane_rows
        self._rows: list[Iterator[list[int]] | None] = [None] * n_lanes

    def start(self, lane: int, prompt: Prompt, _sampling, *, stream: int, max_rows: int) -> None:
        assert self._rows[lane] is None
        assert len(prompt) + max_rows <= self._lane_rows
        rows = rows_of(self._backend.texts[tuple(prompt.ids.tolist())], stream)
        self._rows[lane] = (next(rows) for _ in range(max_rows))

    def stop(self, lane: int) -> None:
        self._rows[lane] = None

    def step(self) -> list[list[int] | None]:
        assert any(self._rows)
        self._backend.busy[sum(rows is not None for rows in self._rows)] += 1
        return [None if rows is None else next(rows, None) for rows in self._rows]
