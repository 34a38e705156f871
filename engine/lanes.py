"""Several utterances in one step: which sequence is in which lane, and what comes out of each.

A *lane* is one of the sequences that a backend decodes together, so that the weights are read once
for all of them. Owns the lanes' turns; knows utterances by their rows only. One sequence alone is
the case of one lane, by the backend's ordinary calls.

The KV cache is cut into equal lanes behind what all sequences begin with. They are cut for the
usual length of speech, not for the longest possible one, or few would fit. Speech that fills its
lane is spoken again in a longer one, from the start: a lane's rows do not depend on its length, so
the rows that are known come once more, and the speech goes on behind them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from .prompt import Prompt
from .sampling import SamplingParams
from .speaking import Speaking

if TYPE_CHECKING:
    from .backend import Backend, Lanes
    from .engine import Engine

Step = tuple[Speaking, bool]
"""An utterance that got a row, and whether the row completed a frame."""


class SeparateLanes:
    """Lanes that share nothing: each is a sequence of a backend of its own, by its ordinary calls.

    Args:
        backends: one for each lane.
    """

    def __init__(self, backends: Iterable[Backend]) -> None:
        self._backends = list(backends)
        self._rows: list[Iterator[Tensor] | None] = [None] * len(self._backends)

    def start(
        self, lane: int, prompt: Prompt, sampling: SamplingParams, *, stream: int, max_rows: int
    ) -> None:
        """See :class:`~.backend.Lanes`."""
        self._backends[lane].prefill(prompt)
        rows = self._backends[lane].decode(sampling, stream=stream, max_rows=max_rows)
        self._rows[lane] = rows

    def stop(self, lane: int) -> None:
        """See :class:`~.backend.Lanes`."""
        self._rows[lane] = None

    def step(self) -> list[list[int] | None]:
        """See :class:`~.backend.Lanes`."""
        rows = (next(rows, None) if rows else None for rows in self._rows)
        return [None if row is None else row.tolist() for row in rows]


def alone(engine: Engine, epoch: int, speaking: Iterable[Speaking]) -> Iterator[Step]:
    """Speak one after the other, by the backend's ordinary calls."""
    return _Lanes(engine, epoch, deque(speaking), lambda backend: (SeparateLanes([backend]), 1))()


def together(
    engine: Engine, epoch: int, speaking: Iterable[Speaking], prefix: Prompt
) -> Iterator[Step]:
    """Speak side by side; results are those of each utterance in a lane by itself.

    Args:
        engine: whose backend speaks.
        epoch: of the generation; see :meth:`.engine.Engine.current`.
        speaking: in the order that they are wanted in; those of which :func:`fits` is true.
        prefix: what all their prompts begin with; may be of no positions.

    Raises:
        Superseded: the engine was unloaded.
    """
    waiting = deque(speaking)
    while waiting:
        usual = max(_rows(each, prefix, each.usual_rows) for each in waiting)
        cut = _cut(engine, epoch, prefix, usual, len(waiting))
        lanes = _Lanes(engine, epoch, waiting, cut.open, cut.max_rows)
        yield from lanes()
        if lanes.short:
            longest = max(_rows(each, prefix, each.cap_rows) for each in lanes.short)
            cut = _cut(engine, epoch, prefix, longest, len(lanes.short))
            yield from _Lanes(engine, epoch, lanes.short, cut.open)()


def fits(engine: Engine, epoch: int, speaking: Speaking, prefix: Prompt) -> bool:
    """Whether the backend has two or more lanes of the usual length for this utterance."""
    with engine.current(epoch) as backend:
        if backend.max_lanes(len(prefix), 1) < 2:
            return False  # and its prompt need not be built yet
        return backend.max_lanes(len(prefix), _rows(speaking, prefix, speaking.usual_rows)) > 1


def shared_prefix(prompt: Prompt, *, one_voice: bool) -> Prompt:
    """What lanes begin with together: the voice's block of ``prompt``, or nothing."""
    return (prompt if one_voice else replace(prompt, n_prefix=0)).split()[0]


def _rows(speaking: Speaking, prefix: Prompt, max_rows: int) -> int:
    """Positions that an utterance takes behind the prefix."""
    return len(speaking.prompt) - len(prefix) + max_rows


@dataclass(frozen=True)
class _Cut:
    """How the context is cut: so many lanes of ``n_rows`` positions behind ``prefix``."""

    prefix: Prompt
    n_lanes: int
    n_rows: int

    def open(self, backend: Backend) -> tuple[Lanes, int]:
        return backend.lanes(self.n_lanes, self.prefix, self.n_rows), self.n_lanes

    def max_rows(self, speaking: Speaking) -> int:
        """Rows of speech that a lane has room for."""
        return self.n_rows - _rows(speaking, self.prefix, 0)


def _cut(engine: Engine, epoch: int, prefix: Prompt, n_rows: int, n_wanted: int) -> _Cut:
    """As many lanes of at least ``n_rows`` positions as fit and are wanted; one is always cut."""
    with engine.current(epoch) as backend:
        n_lanes = max(1, min(backend.max_lanes(len(prefix), n_rows), n_wanted))
        return _Cut(prefix, n_lanes, (backend.context_rows - len(prefix)) // n_lanes)


class _Lanes:
    """Lanes that are kept full until nothing waits, or until one of them was too short.

    Args:
        engine: whose backend speaks.
        epoch: of the generation.
        waiting: taken from its left.
        open_lanes: makes the lanes, and says how many there are.
        max_rows: rows of speech that a lane has room for; None where there is no longer lane.
    """

    def __init__(
        self,
        engine: Engine,
        epoch: int,
        waiting: deque[Speaking],
        open_lanes: Callable[[Backend], tuple[Lanes, int]],
        max_rows: Callable[[Speaking], int] | None = None,
    ) -> None:
        self._engine, self._epoch = engine, epoch
        self._waiting, self._open, self._max_rows = waiting, open_lanes, max_rows
        self._running: list[Speaking | None] = []
        self._n_known: list[int] = []  # rows to come that the utterance of the lane has already
        self.short: deque[Speaking] = deque()
        """Whose speech filled its lane; nothing else enters then, so that they come soon."""

    def __call__(self) -> Iterator[Step]:
        engine, epoch = self._engine, self._epoch
        with engine.current(epoch) as backend:
            lanes, n_lanes = self._open(backend)
        self._running, self._n_known = [None] * n_lanes, [0] * n_lanes
        while True:
            for lane, speaking in enumerate(self._running):
                if speaking is None and self._waiting and not self.short:
                    self._start(lanes, lane, self._waiting.popleft())
            if not any(self._running):
                return
            with engine.current(epoch):
                rows = lanes.step()
            for lane, row in enumerate(rows):
                if (speaking := self._running[lane]) is not None:
                    is_frame = self._take(lane, speaking, row)
                    if self._running[lane] is None:
                        with engine.current(epoch):
                            lanes.stop(lane)
                    yield speaking, is_frame

    def _start(self, lanes: Lanes, lane: int, speaking: Speaking) -> None:
        max_rows = speaking.cap_rows
        if self._max_rows is not None:
            max_rows = min(max_rows, self._max_rows(speaking))
        with self._engine.current(self._epoch):
            lanes.start(
                lane, speaking.prompt, speaking.role.sampling,
                stream=speaking.stream, max_rows=max_rows,
            )  # fmt: skip
        self._running[lane], self._n_known[lane] = speaking, speaking.n_rows

    def _take(self, lane: int, speaking: Speaking, row: list[int] | None) -> bool:
        """Give a lane's row to its utterance, and free the lane when that needs it no more."""
        is_frame = False
        if row is not None:
            if self._n_known[lane]:
                self._n_known[lane] -= 1
                return False
            is_frame = speaking.push(row)
        elif self._max_rows is not None:
            self._running[lane] = None
            self.short.append(speaking)
            return False
        else:
            speaking.end()
        if speaking.reason is not None:
            self._running[lane] = None
            if speaking.begin_again():
                self._waiting.appendleft(speaking)
        return is_frame
