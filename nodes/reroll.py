"""LiveVoice Reroll: speaks one piece of a text again and leaves the others as they are."""

from __future__ import annotations

from comfy_api.latest import io

from ..engine import Codes, Voice, report
from .progress import tell
from .residency import EnginePatcher
from .speech import run
from .wires import CODES, MODEL, VOICE


class Reroll(io.ComfyNode):
    """One more take of one utterance."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoiceReroll",
            display_name="LiveVoice Reroll",
            category="audio/LiveVoice",
            description="Speaks one piece of codes again, another way. All others stay as they "
            "are, to the bit.",
            inputs=[
                MODEL.Input("model", tooltip="The model that made the codes."),
                CODES.Input("codes", tooltip="From Text to Codes, Load Codes or another Reroll."),
                VOICE.Input(
                    "voice", optional=True, tooltip="The voice that spoke them, if there was one."
                ),
                io.Int.Input(
                    "piece",
                    default=1,
                    min=1,
                    max=100_000,
                    tooltip="Number of the piece, as the report counts them from 1.",
                ),
                io.Int.Input(
                    "take",
                    default=1,
                    min=1,
                    max=255,
                    tooltip="Which other way to say it, 1 to 255; each is always the same.",
                ),
                io.Int.Input(
                    "retries",
                    default=2,
                    min=0,
                    max=5,
                    tooltip="How often it is tried again when it does not end by itself, 0 to 5.",
                ),
            ],
            outputs=[
                CODES.Output(display_name="codes", tooltip="All pieces, one of them new."),
                io.String.Output(display_name="report", tooltip="What is spoken now."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: EnginePatcher,
        codes: Codes,
        piece: int,
        take: int,
        retries: int,
        voice: Voice | None = None,
    ) -> io.NodeOutput:
        """Speak it again."""
        codes = run(
            model,
            lambda on_frame: model.engine.reroll(
                codes, codes.index_of(piece), take, voice=voice, retries=retries, on_frame=on_frame
            ),
        )
        found = report(codes)
        tell(found.summary())
        return io.NodeOutput(codes, found.text())
