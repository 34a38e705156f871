"""Lets ComfyUI's page find this pack's files when the pack's folder has an unusual name.

ComfyUI serves them under the folder's name. aiohttp (3.14) keeps what a route begins with in quoted
form and looks a request up in plain form, so names that a URL has to quote, such as those with
spaces or letters beyond ASCII, are found only as a variable.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from aiohttp import web
from server import PromptServer

_PACK = Path(__file__).parents[1]


def serve_folders() -> None:
    """Serve scripts under a plain name, help and templates under the pack's, if it needs that."""
    name = _PACK.name
    if quote(name) == name:
        return
    import nodes as comfy_nodes  # ComfyUI's own module, loaded long before

    comfy_nodes.EXTENSION_WEB_DIRS.setdefault("livevoice", str(_PACK / "nodes" / "web"))
    # Only these: scripts that are found under two names would run twice.
    if "{" not in name:  # it would be read as a variable
        pack = f"{{pack:{re.escape(name)}}}"
        _route(f"/extensions/{pack}/docs", _PACK / "nodes" / "web" / "docs")
        _route(f"/workflow_templates/{pack}", _PACK / "workflows")


def _route(url: str, folder: Path) -> None:
    place = folder.resolve()

    async def answer(request: web.Request) -> web.FileResponse:
        file = (place / request.match_info["file"]).resolve()
        if not file.is_relative_to(place) or not file.is_file():
            raise web.HTTPNotFound
        return web.FileResponse(file)

    PromptServer.instance.routes.get(f"{url}/{{file:.+}}")(answer)
