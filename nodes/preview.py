"""Sends speech to the browser while it is being made, and keeps it for a page that missed some.

One :class:`Preview` is one run of a node. Its events go through ComfyUI's websocket to the client
that queued the prompt, numbered from 0, and into :class:`Recordings`, where a page asks for what it
missed (reloaded, reconnected, or too slow to be sent everything). Sound travels as float32, so that
what is heard equals the node's AUDIO bit by bit. Knows nothing of how speech is made.
"""

from __future__ import annotations

import base64
import threading
import time
from collections import OrderedDict, deque
from types import TracebackType
from typing import Any

import comfy.model_management as management
from aiohttp import web
from server import PromptServer
from torch import Tensor

EVENT = "livevoice.preview"
ROUTE = "/livevoice/preview"

Json = dict[str, Any]

_BUDGET_BYTES = 64 << 20  # of all recordings: 8 minutes of speech, as base64 of float32
_ANSWER_BYTES = 4 << 20  # of one answer to a page that catches up; it asks again for the rest
_BACKLOG_MESSAGES = (
    32  # waiting in ComfyUI's queue, which has no bound: a client is not taking them
)
_CANCEL_POLL_S = 0.04  # a frame of the largest model on a CPU takes seconds, cancel must not
_SPEED_WINDOW_S = 5.0


class Preview:
    """One run of a node, as its listener hears it; a context manager around the speaking.

    Args:
        node_id: execution id, "5:4" inside a subgraph.
        workflow_id: of the workflow that it was queued from; empty when unknown.
        sample_rate: of the chunks, in Hz.
        frame_rate_hz: frames a second of speech, for the speed.
        expected_s: estimated length of the speech.
    """

    def __init__(
        self,
        node_id: str,
        *,
        workflow_id: str,
        sample_rate: int,
        frame_rate_hz: float,
        expected_s: float,
    ) -> None:
        server = PromptServer.instance
        self._server = server
        # Taken now: both change with the next prompt. Without a client nobody listens, and an event
        # for None would go to every page.
        self._client_id: str | None = server.client_id
        self._place = {"prompt_id": getattr(server, "last_prompt_id", ""), "node_id": node_id}
        self.run: Json = {**self._place, "workflow_id": workflow_id}
        """What the page knows this run by."""
        self._sample_rate = sample_rate
        self._expected_s = expected_s
        self._speed = Speed(frame_rate_hz)
        self._seq = 0
        self._n_samples = 0
        self._over = threading.Event()

    def __enter__(self) -> Preview:
        """Announce the run and begin to watch for cancel."""
        if self._client_id is not None:
            recordings.begin(self._client_id, self.run)
            threading.Thread(target=self._watch_cancel, daemon=True).start()
        self._tell(
            "start",
            workflow_id=self.run["workflow_id"],
            sample_rate=self._sample_rate,
            expected_s=self._expected_s,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say how it ended, unless :meth:`end` did."""
        if self._over.is_set():
            return
        is_cancel = kind is not None and issubclass(kind, management.InterruptProcessingException)
        self.end("done" if kind is None else "cancelled" if is_cancel else "failed")

    @property
    def n_samples(self) -> int:
        """Samples sent so far."""
        return self._n_samples

    def on_frame(self, done_frames: int, cap_frames: int) -> None:  # noqa: ARG002  (OnFrame)
        """Take note of the speed; called once a frame."""
        self._speed.tick(done_frames)

    def send(self, waveform: Tensor) -> None:
        """Send a chunk, float32 ``[samples]``."""
        if self._client_id is None or not waveform.numel():
            return
        pcm = waveform.detach().cpu().numpy().astype("<f4", copy=False)
        self._tell(
            "chunk",
            start=self._n_samples,
            sample_rate=self._sample_rate,
            speed=round(self._speed.value, 3),
            sent_s=time.monotonic(),
            pcm=base64.b64encode(pcm.tobytes()).decode("ascii"),
        )
        self._n_samples += len(pcm)

    def hush(self) -> None:
        """Have the player fall silent; sound that still comes is kept and not played."""
        if self._client_id is not None:
            self._server.send_sync(EVENT, {"kind": "hush", **self._place}, self._client_id)

    def end(self, reason: str) -> None:
        """Say that no more will come: "done", "cancelled" or "failed"."""
        self._over.set()
        self._tell("end", reason=reason, speed=round(self._speed.value, 3))
        if self._client_id is not None:
            recordings.end(self._client_id, self._place["node_id"])

    def _tell(self, kind: str, **fields: Any) -> None:
        if self._client_id is None:
            return
        event = {"kind": kind, **self._place, "seq": self._seq, **fields}
        self._seq += 1
        recordings.add(self._client_id, event)
        # A skipped chunk is a gap in the numbers: the page asks for it when it can take it.
        if kind == "chunk" and self._server.messages.qsize() > _BACKLOG_MESSAGES:
            return
        self._server.send_sync(EVENT, event, self._client_id)

    def _watch_cancel(self) -> None:
        """Hush the player as soon as cancel is pressed; the generation hears it a frame later."""
        while not self._over.wait(_CANCEL_POLL_S):
            if management.processing_interrupted():
                self.hush()
                return


class Speed:
    """Seconds of speech made in a second, over the last few seconds; 0 while unknown."""

    def __init__(self, frame_rate_hz: float) -> None:
        self._frame_rate_hz = frame_rate_hz
        self._ticks: deque[tuple[float, int]] = deque()

    def tick(self, done_frames: int, now_s: float | None = None) -> None:
        """Take note that so many frames are done."""
        now_s = time.monotonic() if now_s is None else now_s
        self._ticks.append((now_s, done_frames))
        while now_s - self._ticks[0][0] > _SPEED_WINDOW_S and len(self._ticks) > 2:
            self._ticks.popleft()

    @property
    def value(self) -> float:
        """The speed now; the codec's time counts as soon as a frame has come after it."""
        if len(self._ticks) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._ticks[0], self._ticks[-1]
        return (last - first) / self._frame_rate_hz / max(1e-6, last_s - first_s)


class Recordings:
    """The events of recent runs, one run for each client and node, within a bound of memory.

    The oldest finished run goes first; a running one that fills the bound alone loses its oldest
    sound, and a page that asks for that learns from the numbers that it is gone.
    """

    def __init__(self, budget_bytes: int = _BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._runs: OrderedDict[tuple[str, str], _Run] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, client_id: str, opening: Json) -> None:
        """Start a run; it replaces the one before it of the same client and node."""
        key = (client_id, opening["node_id"])
        with self._lock:
            self._runs.pop(key, None)
            self._runs[key] = _Run(opening)

    def add(self, client_id: str, event: Json) -> None:
        """Keep an event of the run."""
        with self._lock:
            run = self._runs.get((client_id, event["node_id"]))
            if run is not None:
                run.add(event)
                self._make_room()

    def end(self, client_id: str, node_id: str) -> None:
        """Mark the run as finished."""
        with self._lock:
            run = self._runs.get((client_id, node_id))
            if run is not None:
                run.is_running = False

    def runs(self, client_id: str) -> list[Json]:
        """The client's runs: how each was opened, and whether it still runs."""
        with self._lock:
            return [
                {**run.opening, "is_running": run.is_running}
                for (owner, _), run in self._runs.items()
                if owner == client_id
            ]

    def events(self, client_id: str, node_id: str, prompt_id: str, from_seq: int) -> list[Json]:
        """Events of a run from a number on, in order, up to a few megabytes of them."""
        with self._lock:
            run = self._runs.get((client_id, node_id))
            if run is None or run.opening["prompt_id"] != prompt_id:
                return []
            found, n_bytes = [], 0
            for event in run.events:
                if event["seq"] >= from_seq and n_bytes < _ANSWER_BYTES:
                    found.append(event)
                    n_bytes += _n_bytes(event)
            return found

    @property
    def n_bytes(self) -> int:
        """Bytes of sound kept."""
        return sum(run.n_bytes for run in self._runs.values())

    def _make_room(self) -> None:
        while self.n_bytes > self._budget_bytes:
            old = next((key for key, run in self._runs.items() if not run.is_running), None)
            if old is not None:
                del self._runs[old]
            else:
                next(run for run in self._runs.values() if run.n_bytes).drop_oldest()


class _Run:
    """One run's events; the opening stays when sound is dropped."""

    def __init__(self, opening: Json) -> None:
        self.opening = opening
        self.events: deque[Json] = deque()
        self.is_running = True
        self.n_bytes = 0

    def add(self, event: Json) -> None:
        self.events.append(event)
        self.n_bytes += _n_bytes(event)

    def drop_oldest(self) -> None:
        oldest = next(event for event in self.events if _n_bytes(event))
        self.events.remove(oldest)
        self.n_bytes -= _n_bytes(oldest)


def _n_bytes(event: Json) -> int:
    return len(event.get("pcm", ""))


recordings = Recordings()
"""Of this process: the route and every run share it."""


def register_route() -> None:
    """Let pages ask for what they missed.

    ``?client_id=`` lists that client's runs; with ``node_id``, ``prompt_id`` and ``from`` it gives
    the events of one.
    """

    @PromptServer.instance.routes.get(ROUTE)
    async def answer(request: web.Request) -> web.Response:
        asked = request.rel_url.query
        client_id = asked.get("client_id", "")
        if "node_id" not in asked:
            return web.json_response({"runs": recordings.runs(client_id)})
        try:
            from_seq = int(asked.get("from", "0"))
        except ValueError:
            return web.json_response({"error": "from: a whole number is needed"}, status=400)
        events = recordings.events(
            client_id, asked["node_id"], asked.get("prompt_id", ""), from_seq
        )
        return web.json_response({"events": events})
