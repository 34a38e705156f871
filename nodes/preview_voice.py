"""LiveVoice Preview Voice: what a voice sounds like."""

from __future__ import annotations

from comfy_api.latest import io

from ..engine import SamplingParams, Voice
from .audio import to_audio
from .residency import EnginePatcher, recognised_out_of_memory
from .speech import sampling_inputs, speak
from .wires import MODEL, VOICE

_TEXT = "Good morning! This is what I sound like, and I hope that you like it."
_SPEECH, _REFERENCE = "its preview text", "its reference"


class PreviewVoice(io.ComfyNode):
    """The voice says its preview text, or the reference itself is played."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoicePreviewVoice",
            display_name="LiveVoice Preview Voice",
            category="audio/LiveVoice",
            description="Lets a voice be heard: it says its preview text, or its reference is "
            "played as the model hears it, through the codec.",
            inputs=[
                MODEL.Input("model", tooltip="From LiveVoice Load Model."),
                VOICE.Input("voice", tooltip="From LiveVoice Voice or Load Voice."),
                io.Combo.Input(
                    "play",
                    options=[_SPEECH, _REFERENCE],
                    default=_SPEECH,
                    tooltip="The preview text, spoken with the voice, or the recording that it "
                    "was made of.",
                ),
                *sampling_inputs(),
            ],
            outputs=[io.Audio.Output(display_name="audio", tooltip="24 kHz, mono.")],
        )

    @classmethod
    def execute(
        cls, model: EnginePatcher, voice: Voice, play: str, **sampling: float
    ) -> io.NodeOutput:
        """Speak, or decode the reference's codes."""
        engine = model.engine
        if play == _REFERENCE:
            config = engine.checkpoint.config
            voice.check_fits(config.n_codebooks, config.codebook_size, engine.checkpoint.codec_id)
            model.make_resident()
            with recognised_out_of_memory():
                waveform = engine.decode_voice(voice)
            return io.NodeOutput(to_audio(waveform, engine.sample_rate))
        codes = speak(
            model,
            voice.preview_text or _TEXT,
            SamplingParams(**sampling),
            max_seconds=0.0,
            keep_partial=False,
            voice=voice,
        )
        model.make_resident()
        with recognised_out_of_memory():
            waveform = engine.decode(codes)
        return io.NodeOutput(to_audio(waveform, engine.sample_rate))
