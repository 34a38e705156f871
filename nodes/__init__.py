"""Everything that knows ComfyUI: one node a file, each a schema and a short ``execute``."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from comfy_api.latest import ComfyExtension, io

from .checkpoints import register_folder
from .codes_to_waveform import CodesToWaveform
from .dialogue import Dialogue
from .load_codes import LoadCodes
from .load_model import LoadModel
from .load_voice import LoadVoice
from .plan_text import PlanText
from .preview import register_route
from .preview_voice import PreviewVoice
from .report import Report
from .reroll import Reroll
from .residency import live
from .save_codes import SaveCodes
from .save_voice import SaveVoice
from .status import register_status
from .streaming_preview import StreamingPreview
from .text_options import TextOptions
from .text_to_codes import TextToCodes
from .voice import Voice


class LiveVoiceExtension(ComfyExtension):
    """What ComfyUI gets from this pack."""

    async def on_load(self) -> None:
        """Register the model folder, the web folder and the previews' route."""
        register_folder()
        register_route()
        register_status(live)
        _serve_web_folder()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """List the nodes."""
        return [
            LoadModel,
            TextToCodes,
            CodesToWaveform,
            StreamingPreview,
            SaveCodes,
            LoadCodes,
            TextOptions,
            PlanText,
            Report,
            Reroll,
            Voice,
            LoadVoice,
            SaveVoice,
            PreviewVoice,
            Dialogue,
        ]


def _serve_web_folder() -> None:
    """Serve ``web/`` under a plain name as well, when the pack's folder has another kind of name.

    ComfyUI serves it under the folder's name, and aiohttp (3.14) finds no static folder whose name
    has to be quoted in a URL, as spaces and letters beyond ASCII have.
    """
    import nodes as comfy_nodes  # ComfyUI's own module, loaded long before

    web = Path(__file__).parent / "web"
    name = web.parents[1].name
    if quote(name) != name:
        comfy_nodes.EXTENSION_WEB_DIRS.setdefault("livevoice", str(web))
