"""A browser and a server for all browser tests, and tabs that are closed again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..comfy.comfyui import BACK_ENDS, NEWEST, ROOT, Server
from .page import ComfyPage, chromium, settings

HERE = Path(__file__).parent
PACK = HERE / "pack"
WEB = ROOT / "nodes" / "web"


@pytest.fixture(scope="session")
def browser():
    pytest.importorskip("playwright")
    if not shutil.which("chromium"):
        pytest.skip("no Chromium here; on Debian or Ubuntu: sudo apt-get install chromium")
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def serve_modules():
    """Opens a page that can import the pack's modules, without ComfyUI: ``(page, origin)``."""

    def serve(page, origin: str) -> None:
        def answer(route) -> None:
            name = route.request.url.removeprefix(f"{origin}/")
            path = next(
                (folder / name for folder in (WEB, HERE) if (folder / name).is_file()), None
            )
            if path is None:
                route.fulfill(body="<!doctype html>", content_type="text/html")
            else:
                route.fulfill(body=path.read_text("utf-8"), content_type="text/javascript")

        page.route(f"{origin}/**", answer)
        page.goto(origin)

    return serve


def run_server(*flags: str):
    packs = {"LiveVoice": ROOT, "browser tests": PACK}
    with Server(packs, version=NEWEST, flags=("--cpu", *flags), env={"OMP_NUM_THREADS": "1"}) as it:
        settings(it, Comfy_Minimap_Visible=False)
        yield it


@pytest.fixture(scope="session")
def server():
    """A server with the front end that its ComfyUI asks for."""
    yield from run_server()


@pytest.fixture(scope="session")
def newest_front_end():
    """A server with the newest front end (front_end.txt)."""
    static = BACK_ENDS / "front end"
    if not static.is_dir():
        pytest.skip("the newest front end is not unpacked; make test puts it there")
    yield from run_server("--front-end-root", str(static))


@pytest.fixture
def tabs(browser):
    """Opens tabs on a server: ``tabs(server)``; each call is another session of the front end."""
    contexts = []

    def open_tab(server: Server, *, host: str = "127.0.0.1", **options) -> ComfyPage:
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 800}, **options))
        page = contexts[-1].new_page()
        return ComfyPage(page, server.url.replace("127.0.0.1", host)).open()

    yield open_tab
    for context in contexts:
        context.close()
