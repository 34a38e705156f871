"""Everything that knows ComfyUI: one node a file, each a schema and a short ``execute``."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .checkpoints import register_folder
from .codes_to_waveform import CodesToWaveform
from .load_codes import LoadCodes
from .load_model import LoadModel
from .save_codes import SaveCodes
from .streaming_preview import StreamingPreview
from .text_to_codes import TextToCodes


class LiveVoiceExtension(ComfyExtension):
    """What ComfyUI gets from this pack."""

    async def on_load(self) -> None:
        """Register the model folder."""
        register_folder()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """List the nodes."""
        return [
            LoadModel,
            TextToCodes,
            CodesToWaveform,
            StreamingPreview,
            SaveCodes,
            LoadCodes,
        ]
