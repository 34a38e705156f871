"""LiveVoice Save Voice: keeps a voice as a file that can be passed on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from comfy_api.latest import io

from ..engine import Voice, load_voice, save_voice
from . import voices
from .wires import VOICE


class SaveVoice(io.ComfyNode):
    """Writes to ``models/tts/voices``, and never over another voice."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoiceSaveVoice",
            display_name="LiveVoice Save Voice",
            category="audio/LiveVoice",
            description="Saves a voice as one small file in models/tts/voices, where Load Voice "
            "finds it. Pass on only voices whose owners agreed to it.",
            inputs=[
                VOICE.Input("voice", tooltip="From LiveVoice Voice or Load Voice."),
                io.String.Input(
                    "name",
                    default="",
                    tooltip="Name of the voice and of the file; empty keeps the voice's own. When "
                    "there is another voice of that name, a number is appended to the file's.",
                ),
                io.String.Input(
                    "licence",
                    multiline=True,
                    dynamic_prompts=False,
                    default="",
                    tooltip="Whose voice it is and what it may be used for, kept in the file; "
                    "empty keeps what is there.",
                ),
                io.String.Input(
                    "preview_text",
                    multiline=True,
                    dynamic_prompts=False,
                    default="",
                    tooltip="What Preview Voice says with it; empty keeps what is there.",
                ),
            ],
            outputs=[
                VOICE.Output(display_name="voice", tooltip="The voice as it was saved."),
                io.String.Output(display_name="file", tooltip="Its name in models/tts/voices."),
            ],
            is_output_node=True,
        )

    @classmethod
    def validate_inputs(cls, name: str | None) -> bool | str:
        """Refuse what can't be a name; None is one that comes over a wire."""
        return voices.name_problem(name)

    @classmethod
    def execute(cls, voice: Voice, name: str, licence: str, preview_text: str) -> io.NodeOutput:
        """Write the file."""
        given = {"name": name, "licence": licence, "preview_text": preview_text}
        named = {key: text.strip() for key, text in given.items() if text.strip()}
        voice = replace(voice, **named)
        file = voices.place_for(voice.name, lambda there: _is_same(there, voice))
        save_voice(voice, file)
        return io.NodeOutput(voice, file.name, ui={"text": [f"saved as {file.name}"]})


def _is_same(file: Path, voice: Voice) -> bool:
    """Whether ``file`` holds that voice, so that only its labels can be lost."""
    try:
        return load_voice(file).content_hash == voice.content_hash
    except ValueError:
        return False
