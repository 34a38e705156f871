"""LiveVoice Plan Text: what would be spoken of a text, before anything is."""

from __future__ import annotations

from comfy_api.latest import io

from ..engine import Reading, plan
from .speech import reading_input, text_problem


class PlanText(io.ComfyNode):
    """Shows the text in words, and what becomes of every character. Needs no model."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoicePlanText",
            display_name="LiveVoice Plan Text",
            category="audio/LiveVoice",
            description="Shows how a text will be spoken, in which pieces, how long it will take, "
            "and what is left out. Needs no model.",
            inputs=[
                io.String.Input(
                    "text", multiline=True, dynamic_prompts=False, tooltip="What to say."
                ),
                reading_input(),
            ],
            outputs=[
                io.String.Output(
                    display_name="spoken_text",
                    tooltip="The text in words, one piece a line, tags included.",
                ),
                io.String.Output(
                    display_name="notes", tooltip="Warnings, and what is left out and why."
                ),
                io.Float.Output(display_name="seconds", tooltip="How long it will take, roughly."),
                io.String.Output(
                    display_name="json",
                    tooltip="The pieces with their gaps and places in the text, and for every "
                    "character the piece that speaks it or the reason why none does.",
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, text: str | None) -> bool | str:
        """Refuse a text with nothing to speak."""
        return text_problem(text)

    @classmethod
    def execute(cls, text: str, reading: Reading | None = None) -> io.NodeOutput:
        """Plan it."""
        script = plan(text, reading)
        return io.NodeOutput(
            script.text, "\n".join(script.notes), round(script.seconds, 1), script.json()
        )
