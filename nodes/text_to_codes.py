"""LiveVoice Text to Codes: speaks a text into codes, without turning them into sound."""

from __future__ import annotations

from comfy_api.latest import io

from ..engine import Reading, SamplingParams, Voice, report
from .progress import tell
from .residency import EnginePatcher
from .speech import keep_partial_input, reading_input, speak, text_inputs, text_problem
from .wires import CODES


class TextToCodes(io.ComfyNode):
    """The language model's half of speaking."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoiceTextToCodes",
            display_name="LiveVoice Text to Codes",
            category="audio/LiveVoice",
            description="Speaks a text into codes, 25 frames a second. Turn them into sound with "
            "LiveVoice Codes to Waveform, or keep them with LiveVoice Save Codes.",
            inputs=[
                *text_inputs(),
                io.Int.Input(
                    "retries",
                    default=2,
                    min=0,
                    max=5,
                    tooltip="How often a piece of speech that did not end by itself is tried "
                    "again, 0 to 5. Each try has its own sub-seed and is reported.",
                ),
                keep_partial_input(),
                reading_input(),
            ],
            outputs=[
                CODES.Output(display_name="codes", tooltip="The speech, not yet sound."),
                io.String.Output(
                    display_name="report",
                    tooltip="Times, frames, why it ended, which attempt and whether its length is "
                    "plausible, for each piece; warnings; what was not spoken.",
                ),
                io.String.Output(
                    display_name="spoken_text",
                    tooltip="The text as it is spoken, numbers in words, one piece a line.",
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, text: str | None) -> bool | str:
        """Refuse a text with nothing to speak."""
        return text_problem(text)

    @classmethod
    def execute(
        cls,
        model: EnginePatcher,
        text: str,
        max_seconds: float,
        retries: int,
        keep_partial: bool,
        voice: Voice | None = None,
        reading: Reading | None = None,
        **sampling: float,
    ) -> io.NodeOutput:
        """Speak; ``sampling`` holds the inputs that are fields of SamplingParams."""
        codes = speak(
            model,
            text,
            SamplingParams(**sampling),
            max_seconds=max_seconds,
            retries=retries,
            keep_partial=keep_partial,
            voice=voice,
            reading=reading,
        )
        found = report(codes)
        tell(found.summary())
        return io.NodeOutput(codes, found.text(), codes.text)
