"""How work is seen while it runs: the node's bar, and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable

import comfy.model_management as management
from comfy.utils import ProgressBar
from comfy_execution.utils import get_executing_context
from server import PromptServer

_LONG_S = 5.0  # shorter runs need no words
_EVERY_S = 1.0


def progress(also: Callable[[int, int], None] | None = None) -> Callable[[int, int], None]:
    """Called once a step, such as a frame: moves the node's bar, raises when cancel was pressed.

    Args:
        also: called with the same numbers.
    """
    bar, clock = ProgressBar(1), Clock(tell)

    def on_frame(done_frames: int, total_frames: int) -> None:
        management.throw_exception_if_processing_interrupted()
        bar.update_absolute(done_frames, total_frames)
        clock.tick(done_frames, total_frames)
        if also:
            also(done_frames, total_frames)

    return on_frame


class Clock:
    """Says once a second how much is done and how long the rest will take.

    Args:
        tell: gets the sentence.
        now: seconds on a clock that never goes back.
    """

    def __init__(
        self, tell: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._now = now
        self._start: float | None = None
        self._told = 0.0

    def tick(self, done: int, total: int) -> None:
        """So much of the work is done."""
        now = self._now()
        if self._start is None:  # the first frame comes after loading and reading the prompt
            self._start = self._told = now
            return
        left_s = (now - self._start) * (total - done) / max(1, done - 1)
        is_long = now - self._start + left_s > _LONG_S
        if is_long and now - self._told >= _EVERY_S:
            self._told = now
            self._tell(f"{100 * done // max(1, total)} %, about {_spoken(left_s)} to go")


def _spoken(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def tell(sentence: str) -> None:
    """Show a line of text on the running node."""
    context = get_executing_context()
    server = getattr(PromptServer, "instance", None)
    if context is not None and server is not None:
        server.send_progress_text(sentence, context.node_id)
