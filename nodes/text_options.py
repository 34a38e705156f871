"""LiveVoice Text Options: how a text is read, cut and joined."""

from __future__ import annotations

from comfy_api.latest import io

from ..engine import Reading
from .wires import READING

_DEFAULTS = Reading()
_LANGUAGES = [
    "auto", "en", "de", "fr", "es", "it", "pt", "nl", "sv", "da", "no", "pl", "cs", "ru", "uk",
    "ro", "hu", "fi", "tr", "id", "vi", "th", "ar", "fa", "he", "ja", "ko", "none",
]  # fmt: skip


class TextOptions(io.ComfyNode):
    """Options that most texts can do without, so they have a node of their own."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoiceTextOptions",
            display_name="LiveVoice Text Options",
            category="audio/LiveVoice",
            description="How a text is put into words, cut into pieces and joined again. Connect "
            "it to the reading input of Text to Codes or Streaming Preview.",
            inputs=[*_word_inputs(), *_joining_inputs(), *_voice_inputs()],
            outputs=[READING.Output(display_name="reading", tooltip="These options.")],
        )

    @classmethod
    def execute(cls, joining: str, crossfade_s: float, **options: object) -> io.NodeOutput:
        """Gather them."""
        return io.NodeOutput(
            Reading(crossfade_s=crossfade_s if joining == "crossfade" else 0.0, **options)
        )


def _word_inputs() -> list[io.Input]:
    return [
        io.Boolean.Input(
            "normalise",
            default=_DEFAULTS.normalise,
            tooltip="Puts into words what is written in signs: numbers, money, dates, times, "
            "units, addresses; and takes out markdown and emoji. English in full, numbers in other "
            "languages. The starter voice needs it.",
        ),
        io.Combo.Input(
            "language",
            options=_LANGUAGES,
            default=_DEFAULTS.language,
            tooltip="Language of the numbers: auto guesses it and leaves figures as they are where "
            "their words depend on the sentence, none leaves all figures as they are.",
        ),
    ]


def _joining_inputs() -> list[io.Input]:
    return [
        io.Float.Input(
            "limit_s",
            default=_DEFAULTS.limit_s,
            min=1.0,
            max=60.0,
            step=0.5,
            tooltip="Longest piece that is spoken at once, by estimate, 1 to 60 seconds. Cuts are "
            "made between paragraphs, sentences, clauses or words, in this order. Shorter is "
            "safer, longer flows better. The starter voice likes 6.",
        ),
        io.Combo.Input(
            "joining",
            options=["silence", "crossfade"],
            default="silence",
            tooltip="What comes between the sentences at which a text was cut: silence, or a "
            "crossfade that blends the end of one piece into the start of the next.",
        ),
        io.Float.Input(
            "gap_s",
            default=_DEFAULTS.gap_s,
            min=0.0,
            max=10.0,
            step=0.01,
            tooltip="That silence, 0 to 10 seconds.",
        ),
        io.Float.Input(
            "crossfade_s",
            default=0.05,
            min=0.01,
            max=1.0,
            step=0.01,
            tooltip="Length of that crossfade, 0.01 to 1 second.",
        ),
        io.Float.Input(
            "paragraph_s",
            default=_DEFAULTS.paragraph_s,
            min=0.0,
            max=10.0,
            step=0.05,
            tooltip="Silence for a blank line, 0 to 10 seconds. Pauses written into the text, such "
            "as [pause:1.5] or [pause:500ms], are made as written.",
        ),
    ]


def _voice_inputs() -> list[io.Input]:
    return [
        io.Boolean.Input(
            "same_voice",
            default=_DEFAULTS.same_voice,
            tooltip="Without a voice: on, the first piece is the voice of all others; off, the "
            "model chooses for each piece.",
        ),
        io.Boolean.Input(
            "anchor",
            default=_DEFAULTS.anchor,
            tooltip="Puts a strong emotion at the start of a piece behind its first word, because "
            "in front it can override a cloned voice.",
        ),
    ]
