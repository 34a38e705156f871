"""LiveVoice Report: what was spoken, for people, for programs, and as subtitles."""

from __future__ import annotations

from comfy_api.latest import io

from ..engine import Codes, report
from .wires import CODES


class Report(io.ComfyNode):
    """Reads it off the codes."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoiceReport",
            display_name="LiveVoice Report",
            category="audio/LiveVoice",
            description="Tells what was spoken and when: a report, the same as JSON, and subtitles "
            "whose times are those of the sound.",
            inputs=[CODES.Input("codes", tooltip="From any node that gives codes.")],
            outputs=[
                io.String.Output(display_name="report", tooltip="One line for each piece."),
                io.String.Output(
                    display_name="json",
                    tooltip="For each piece: text, times, frames, seed, attempt, why it ended, "
                    "whether its length is plausible.",
                ),
                io.String.Output(display_name="srt", tooltip="Subtitles, as of an .srt file."),
                io.Float.Output(display_name="seconds", tooltip="Duration of the whole sound."),
            ],
        )

    @classmethod
    def execute(cls, codes: Codes) -> io.NodeOutput:
        """Read it off."""
        found = report(codes)
        return io.NodeOutput(found.text(), found.json(), found.srt(), found.seconds)
