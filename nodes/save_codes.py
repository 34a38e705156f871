"""LiveVoice Save Codes: keeps codes as a file in ComfyUI's output folder."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import folder_paths
from comfy_api.latest import io

from ..engine import Codes
from .wires import CODES


class SaveCodes(io.ComfyNode):
    """Codes are small (0.4 kB a second) and exact: save them, decode them later."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoiceSaveCodes",
            display_name="LiveVoice Save Codes",
            category="audio/LiveVoice",
            description="Saves codes as a safetensors file in the output folder, with their text, "
            "seed, settings and stop reason.",
            inputs=[
                CODES.Input("codes", tooltip="From Text to Codes or Load Codes."),
                io.String.Input(
                    "filename_prefix",
                    default="codes/LiveVoice",
                    tooltip="Where in the output folder and how the file is called; a number is "
                    "appended. May hold %year%, %month%, %day%, %hour%, %minute%, %second%.",
                ),
            ],
            outputs=[
                CODES.Output(display_name="codes", tooltip="The same codes."),
                io.String.Output(display_name="file", tooltip="Its name, for Load Codes."),
            ],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, codes: Codes, filename_prefix: str) -> io.NodeOutput:
        """Write the file."""
        folder, stem, counter, subfolder, _ = folder_paths.get_save_image_path(
            filename_prefix, folder_paths.get_output_directory()
        )
        # The underscore behind the number is how ComfyUI finds the next free one.
        name = f"{stem}_{counter:05}_.safetensors"
        codes.save(Path(folder) / name)
        saved = {"filename": name, "subfolder": subfolder, "type": "output"}
        file = str(PurePosixPath(*Path(subfolder).parts, name))
        return io.NodeOutput(codes, file, ui={"codes": [saved]})
