"""Takes the pictures of the streaming preview that the README shows: before, while and after.

As a program, from the repository's root: ``python -m tests.browser.screenshots``. Writes
``workflows/live_preview_<renderer>_<theme>.png``; the templates' pictures are of `thumbnails.py`.
"""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

from PIL import Image

from ..comfy.comfyui import ROOT, Server
from .page import ComfyPage, chromium, settings, wait
from .workflows import SPEAK, node, paced, say

TEXT = "Good morning! The train leaves at seven, and the coffee is ready."
FOLDER = ROOT / "workflows"
PACK = Path(__file__).parent / "pack"
GAP_PX = 12
COLOURS = 192
_AWAY = 3000  # where the nodes stand that are not to be seen


def workflow(seed: int) -> dict[str, Any]:
    """The speaking node alone in sight."""
    shown = say(paced(1.5), TEXT, seed=seed)
    shown["nodes"] = [each for each in shown["nodes"] if each["type"] != "MarkdownNote"]
    for each in shown["nodes"]:
        each["pos"] = [0, 0] if each["id"] == SPEAK else [-_AWAY, each["id"] * 10]
    node(shown, SPEAK)["size"] = [420, 500]
    return shown


def picture(tab: ComfyPage) -> Image.Image:
    """The speaking node as it looks now."""
    box = tab.page.evaluate(
        """() => {
            const node = app.graph.getNodeById(2);
            const [scale, [left, top]] = [app.canvas.ds.scale, app.canvas.ds.offset];
            const { x, y } = app.canvas.canvas.getBoundingClientRect();
            const [edge, title] = [8, 56];
            return {
                x: x + (left - edge) * scale, y: y + (top - title - edge) * scale,
                width: (node.size[0] + 2 * edge) * scale,
                height: (node.size[1] + title + 2 * edge) * scale,
            };
        }"""
    )
    return Image.open(io.BytesIO(tab.page.screenshot(clip=box))).convert("RGB")


def look_at_node(tab: ComfyPage) -> None:
    """Put the node into the middle, full size."""
    time.sleep(1.0)  # the view moves by itself after a workflow was opened
    tab.page.evaluate(
        "() => { app.canvas.ds.scale = 1; app.canvas.ds.offset = [240, 220];"
        " app.canvas.setDirty(true, true); }"
    )
    time.sleep(0.7)


def strip(tab: ComfyPage, seed: int) -> Image.Image:
    """Before, while and after, side by side."""
    tab.load(workflow(seed))
    look_at_node(tab)
    pictures = [picture(tab)]
    tab.run()
    tab.wait_for_state("playing", timeout_s=120)
    time.sleep(1.3)
    pictures.append(picture(tab))
    wait(lambda: tab.state() == "stopped")
    time.sleep(0.7)
    pictures.append(picture(tab))
    width, height = pictures[0].size
    whole = Image.new("RGB", (3 * width + 2 * GAP_PX, height), pictures[0].getpixel((0, 0)))
    for number, each in enumerate(pictures):
        whole.paste(each, (number * (width + GAP_PX), 0))
    return whole


def main() -> None:
    """Take them all."""
    packs = {"LiveVoice": ROOT, "browser tests": PACK}
    with Server(packs, flags=("--cpu",)) as server, chromium() as browser:
        settings(server, Comfy_Minimap_Visible=False)
        for seed, (renderer, theme) in enumerate(
            (renderer, theme) for renderer in ("litegraph", "nodes2") for theme in ("dark", "light")
        ):
            is_vue = renderer == "nodes2"
            settings(server, Comfy_VueNodes_Enabled=is_vue, Comfy_ColorPalette=theme)
            page = browser.new_page(
                viewport={"width": 1000, "height": 900}, device_scale_factor=1.5
            )
            whole = strip(ComfyPage(page, server.url).open(), seed)
            path = FOLDER / f"live_preview_{renderer}_{theme}.png"
            whole.quantize(COLOURS).save(path, optimize=True)
            print(f"{path.name}: {path.stat().st_size // 1000} kB")
            page.close()


if __name__ == "__main__":
    main()
