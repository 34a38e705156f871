"""LiveVoice Load Voice: reads a voice that was saved, or makes one of a recording in the folder."""

from __future__ import annotations

from dataclasses import replace

from comfy_api.latest import io

from ..engine import Voice, check_name, load_voice
from . import voices
from .residency import EnginePatcher
from .voice import make_voice
from .wires import MODEL, VOICE


class LoadVoice(io.ComfyNode):
    """Offers the starter's voices and the ``voices`` folders of every tts model folder."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        names = voices.names()
        return io.Schema(
            node_id="LiveVoiceLoadVoice",
            display_name="LiveVoice Load Voice",
            category="audio/LiveVoice",
            description="Loads a voice from models/tts/voices: a file of Save Voice, or a "
            "recording with its transcript (anna.wav and anna.txt). The starter's voices suit the "
            "starter model only.",
            inputs=[
                io.Combo.Input(
                    "voice",
                    options=names,
                    default=names[0],
                    tooltip="A voice file, or a recording that has a transcript beside it. Those "
                    "that begin with 'starter/' come with LiveVoice.",
                ),
                io.String.Input(
                    "name",
                    default="",
                    tooltip="What dialogues call the speaker; empty keeps the voice's own name.",
                ),
                MODEL.Input(
                    "model",
                    optional=True,
                    tooltip="Needed for recordings only: its codec encodes them.",
                ),
            ],
            outputs=[
                VOICE.Output(display_name="voice", tooltip="For the nodes that speak."),
                io.String.Output(
                    display_name="report",
                    tooltip="Its name, transcript and licence, and what may be wrong with it.",
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, voice: str | None, name: str | None) -> bool | str:
        """Refuse a voice that is not there, and what can't be a name; None comes over a wire."""
        try:
            check_name((name or "").strip())
            return voice is None or bool(voices.find(voice))
        except ValueError as error:
            return str(error)

    @classmethod
    def fingerprint_inputs(cls, voice: str | None, **_: object) -> object:
        """Another value when the files were replaced."""
        return voices.find(voice).stamp if voice else None

    @classmethod
    def execute(cls, voice: str, name: str, model: EnginePatcher | None = None) -> io.NodeOutput:
        """Read it, or have the recording encoded."""
        file = voices.find(voice)
        loaded = load_voice(file.path) if file.transcript is None else _encode(file, model)
        if name.strip():
            loaded = replace(loaded, name=name.strip())
        return io.NodeOutput(loaded, _report(loaded))


def _encode(file: voices.VoiceFile, model: EnginePatcher | None) -> Voice:
    """Make a voice of a recording and its transcript; seen before, it is not encoded again."""
    if model is None:
        raise ValueError(
            f"voice: {file.path.name} is a recording; connect the model that will speak, to encode "
            "it, or load a voice file"
        )
    try:
        from comfy_extras import nodes_audio  # here, for it imports torchaudio
    except ImportError as error:
        raise RuntimeError(
            f"voice: ComfyUI can't read {file.path.name} without torchaudio; install the one of "
            f"your torch's version ({error})"
        ) from error
    try:
        waveform, sample_rate = nodes_audio.load(str(file.path))
    except Exception as error:
        # Whatever the decoder says of a broken file, the user needs to know which one it is.
        raise ValueError(f"voice: can't read {file.path.name}: {error}") from error
    audio = {"waveform": waveform.unsqueeze(0), "sample_rate": sample_rate}
    return make_voice(model, audio, file.read_transcript(), file.name)


def _report(voice: Voice) -> str:
    lines = [f"{voice.name}: {len(voice.codes)} frames, {voice.content_hash[:16]}"]
    labels = {"transcript": voice.transcript, "licence": voice.licence}
    lines += [f"{label}: {text}" for label, text in labels.items() if text]
    return "\n".join([*lines, *voice.notices])
