"""Takes the pictures with which ComfyUI's page lists the templates.

As a program, from the repository's root: ``python -m tests.browser.thumbnails [template ...]``.
Writes ``workflows/<template>.jpg``: square, as the page's cards are, of the nodes that matter,
after they have run with the starter voice.
"""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from ..comfy.comfyui import ROOT, Server
from .page import ComfyPage, chromium, settings, wait

FOLDER = ROOT / "workflows"
PACK = Path(__file__).parent / "pack"
# Template → the nodes to see, and whether it is run before.
SHOWN: dict[str, tuple[list[int], bool]] = {
    "audiobook_chapter": ([5, 7, 8], True),
    "clone_a_voice": ([2, 3], False),
    "dialogue": ([5], False),
    "live_preview": ([2], True),
    "real_voice": ([1, 3], False),
    "save_and_redecode_codes": ([3, 4], True),
    "text_to_speech": ([2], True),
}
SIDE_PX = 640
_LEFT_PX, _TOP_PX = 240, 140  # where the page's own bars end
_TITLE = 30  # a node's title lies above its position, in units of the canvas
_MARGIN = 24


def look_at(tab: ComfyPage, nodes: list[int]) -> None:
    """Fit these nodes into the square."""
    tab.page.evaluate(
        """([ids, side, left, top, title, margin]) => {
            const nodes = ids.map((id) => app.graph.getNodeById(id));
            const x0 = Math.min(...nodes.map((it) => it.pos[0])) - margin;
            const y0 = Math.min(...nodes.map((it) => it.pos[1])) - title - margin;
            const x1 = Math.max(...nodes.map((it) => it.pos[0] + it.size[0])) + margin;
            const y1 = Math.max(...nodes.map((it) => it.pos[1] + it.size[1])) + margin;
            const scale = Math.min(side / (x1 - x0), side / (y1 - y0));
            const box = app.canvas.canvas.getBoundingClientRect();
            app.canvas.ds.scale = scale;
            app.canvas.ds.offset = [
                (left + side / 2 - box.x) / scale - (x0 + x1) / 2,
                (top + side / 2 - box.y) / scale - (y0 + y1) / 2,
            ];
            app.canvas.setDirty(true, true);
        }""",
        [nodes, SIDE_PX, _LEFT_PX, _TOP_PX, _TITLE, _MARGIN],
    )
    time.sleep(1.0)


def idle(server: Server) -> bool:
    """Whether nothing runs or waits."""
    queue = server.get("/queue")
    return not queue["queue_running"] and not queue["queue_pending"]


def picture(server: Server, tab: ComfyPage, name: str) -> Image.Image:
    """One template as it looks."""
    nodes, runs = SHOWN[name]
    tab.load(json.loads((FOLDER / f"{name}.json").read_text("utf-8")))
    time.sleep(1.5)  # the view moves by itself after a workflow was opened
    if runs:
        tab.run()
        time.sleep(1.0)
        if name == "live_preview":
            tab.wait_for_state("playing", timeout_s=120)
            time.sleep(2.0)
        else:
            wait(lambda: idle(server), 120)
            time.sleep(1.5)
    look_at(tab, nodes)
    clip = {"x": _LEFT_PX, "y": _TOP_PX, "width": SIDE_PX, "height": SIDE_PX}
    return Image.open(io.BytesIO(tab.page.screenshot(clip=clip))).convert("RGB")


def put_what_is_asked_for(base: Path) -> None:
    """Files of the names that templates ask for, so that nothing is marked as missing."""
    folder = base / "models" / "tts" / "higgs-audio-v3-tts-4b"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    soundfile.write(base / "input" / "my_voice.wav", np.zeros(24000), 24000)


def main(names: list[str]) -> None:
    """Take them."""
    packs: dict[str, Any] = {"LiveVoice": ROOT, "browser tests": PACK}
    with Server(packs, flags=("--cpu",)) as server, chromium() as browser:
        put_what_is_asked_for(server.base)
        settings(server, Comfy_Minimap_Visible=False, Comfy_VueNodes_Enabled=True)
        for name in names or sorted(SHOWN):
            page = browser.new_page(viewport={"width": 1180, "height": 900})
            taken = picture(server, ComfyPage(page, server.url).open(), name)
            page.close()
            path = FOLDER / f"{name}.jpg"
            taken.save(path, quality=82, optimize=True)
            print(f"{path.name}: {path.stat().st_size // 1000} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
