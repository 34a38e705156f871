"""Everything that knows ComfyUI: one node a file, each a schema and a short ``execute``."""

from __future__ import annotations

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
from .served import serve_folders
from .status import register_status
from .streaming_preview import StreamingPreview
from .text_options import TextOptions
from .text_to_codes import TextToCodes
from .voice import Voice


class LiveVoiceExtension(ComfyExtension):
    """What ComfyUI gets from this pack."""

    async def on_load(self) -> None:
        """Register the model folder, the folders of files, and the routes."""
        register_folder()
        register_route()
        register_status(live)
        serve_folders()

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
