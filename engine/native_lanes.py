"""The CUDA engine's lanes behind the protocol: several sequences in one step.

Knows how a prompt gets into a lane; the step itself is in ``csrc``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .prompt import Prompt
from .sampling import SamplingParams

COLDEST = 1e-6
"""Lowest temperature that the engine divides by; a greedy draw does not look at it."""


class NativeLanes:
    """Lanes of one ``_C.Engine``; see :class:`~.backend.Lanes`.

    Args:
        engine: holds the shared prefix and has opened the lanes behind it.
        read: brings a piece of a prompt, from a position on, into a lane.
        n_prefix: positions of the shared prefix.
    """

    def __init__(
        self, engine: Any, read: Callable[[Prompt, int, int], None], n_prefix: int
    ) -> None:
        self._engine, self._read, self._n_prefix = engine, read, n_prefix

    def start(
        self, lane: int, prompt: Prompt, sampling: SamplingParams, *, stream: int, max_rows: int
    ) -> None:
        """See :class:`~.backend.Lanes`.

        A voice's block that is not shared is a piece of its own here too, as
        :meth:`.native.NativeBackend.prefill` says why.
        """
        prefix, rest = prompt.split()
        if len(prefix) and not self._n_prefix:
            self._read(prefix, 0, lane)
        self._read(rest, len(prefix), lane)
        self._engine.start_lane(
            lane, max(sampling.temperature, COLDEST), sampling.is_greedy, sampling.top_k,
            sampling.top_p, sampling.seed, stream, max_rows,
        )  # fmt: skip

    def stop(self, lane: int) -> None:
        """See :class:`~.backend.Lanes`."""
        self._engine.stop_lane(lane)

    def step(self) -> list[list[int] | None]:
        """See :class:`~.backend.Lanes`.

        Raises:
            RuntimeError: the engine is being unloaded.
        """
        rows = self._engine.next_rows()
        if rows is None:
            raise RuntimeError("native backend: unloaded")
        return rows
