"""Shows users who holds the memory: on the loader's node whenever that changes, and at a route."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import comfy.model_management as management
from aiohttp import web
from server import PromptServer

from ..engine import STATUS_ROUTE, Engine, Status, status

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

logger = logging.getLogger(__name__)
_LOADER = "LiveVoiceLoadModel"


class Readout:
    """Text on the nodes that have named an engine: what it holds, and what others do."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._nodes: dict[str, str | None] = {}  # node → the browser that it was run from

    def watch(self, node_id: str | None) -> None:
        """Show it on this node from now on; called while the node runs."""
        server = _server()
        if node_id is not None and server is not None:
            self._nodes[node_id] = server.client_id
            self.show()

    def show(self) -> None:
        """Show what is held now; never raises, for it is called where memory is freed."""
        try:
            server = _server()
            nodes = [node for node in self._nodes if server and _is_loader(server, node)]
            if server and nodes:
                text = line(status([self._engine], management.get_torch_device()))
                if self._engine.is_fallback:
                    text = f"{self._engine.backend_reason} · {text}"
                for node in nodes:
                    server.send_progress_text(text, node, self._nodes[node])
        except Exception:
            logger.exception("LiveVoice: the memory could not be shown")


def _server() -> PromptServer | None:
    return getattr(PromptServer, "instance", None)


def line(found: Status) -> str:
    """Of one engine, for its node."""
    return " · ".join([*map(str, found.engines), found.rest()])


def _is_loader(server: PromptServer, node_id: str) -> bool:
    """Whether the workflow that runs, or ran last, still has our loader under this number.

    Another workflow may be on the page by now, whose node of this number is something else.
    """
    running, _ = server.prompt_queue.get_current_queue_volatile()
    prompts = [item[2] for item in running]
    if not prompts:
        last = getattr(server, "last_prompt_id", None)
        prompts = [each["prompt"][2] for each in server.prompt_queue.get_history(last).values()]
    return any(prompt.get(node_id, {}).get("class_type") == _LOADER for prompt in prompts)


def register_status(patchers: Callable[[], Iterable[ModelPatcher]]) -> None:
    """Answer at the route with the memory of ComfyUI's device and of these engines."""

    def found() -> Status:
        return status([each.engine for each in patchers()], management.get_torch_device())

    async def answer(_: web.Request) -> web.Response:
        # In a thread: it waits for an engine that is loading, and the server must not.
        told = await asyncio.get_running_loop().run_in_executor(None, found)
        return web.json_response(told.as_json())

    PromptServer.instance.routes.get(STATUS_ROUTE)(answer)
