"""LiveVoice Load Codes: reads codes that were saved."""

from __future__ import annotations

from pathlib import Path

import folder_paths
from comfy_api.latest import io

from ..engine import Codes, report
from .wires import CODES


class LoadCodes(io.ComfyNode):
    """Reads from the output and input folders, and from nowhere else."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoiceLoadCodes",
            display_name="LiveVoice Load Codes",
            category="audio/LiveVoice",
            description="Loads codes that LiveVoice Save Codes wrote, from the output folder or "
            "the input folder.",
            inputs=[
                io.String.Input(
                    "file",
                    default="codes/LiveVoice_00001_.safetensors",
                    tooltip="Name of the file in the output folder, else in the input folder, "
                    "subfolder included; or the wire from Save Codes.",
                )
            ],
            outputs=[
                CODES.Output(display_name="codes", tooltip="The speech, not yet sound."),
                io.String.Output(
                    display_name="report",
                    tooltip="Seconds, frames, why it ended and which attempt, for each piece.",
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, file: str | None) -> bool | str:
        """Refuse a file that is not there; None is a name that comes over a wire."""
        try:
            return file is None or bool(_find(file))
        except ValueError as error:
            return str(error)

    @classmethod
    def fingerprint_inputs(cls, file: str | None) -> object:
        """Another value when the file was replaced."""
        if file is None:
            return None
        stat = _find(file).stat()
        return (stat.st_size, stat.st_mtime_ns)

    @classmethod
    def execute(cls, file: str) -> io.NodeOutput:
        """Read it."""
        codes = Codes.load(_find(file))
        return io.NodeOutput(codes, report(codes).text())


def _find(name: str) -> Path:
    """The file of that name in the output or input folder.

    Raises:
        ValueError: there is none, or the name leads out of the folders.
    """
    places = (folder_paths.get_output_directory(), folder_paths.get_input_directory())
    for place in (Path(place).resolve() for place in places):
        file = (place / name).resolve()
        if file.is_relative_to(place) and file.is_file():
            return file
    raise ValueError(f"codes: no file '{name}' in the output or input folder")
