"""LiveVoice Streaming Preview: speaks a text and plays it on the node."""

from __future__ import annotations

from comfy_api.latest import io, ui

from ..engine import Chunk, SamplingParams, join
from .audio import to_audio
from .residency import EnginePatcher
from .speech import keep_partial_input, speak, text_inputs, text_problem


class StreamingPreview(io.ComfyNode):
    """Text to sound in one node, by listening to the generation while it runs."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoiceStreamingPreview",
            display_name="LiveVoice Streaming Preview",
            category="audio/LiveVoice",
            description="Speaks a text and plays it on the node. Gives the same sound as Text to "
            "Codes and Codes to Waveform with the same settings and no retries.",
            inputs=[*text_inputs(), keep_partial_input()],
            outputs=[io.Audio.Output(display_name="audio", tooltip="24 kHz, mono.")],
            is_output_node=True,
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
        keep_partial: bool,
        **sampling: float,
    ) -> io.NodeOutput:
        """Speak and listen. No retries: what has been heard can't be taken back."""
        chunks: list[Chunk] = []
        codes = speak(
            model,
            text,
            SamplingParams(**sampling),
            max_seconds=max_seconds,
            keep_partial=keep_partial,
            listen=chunks.append,
        )
        if codes.stop_reason == "cancelled":  # the last frames had not become a chunk yet
            model.make_resident()
            waveform = model.engine.decode(codes)
        else:
            waveform = join(chunks)
        audio = to_audio(waveform, model.engine.sample_rate)
        return io.NodeOutput(audio, ui=ui.PreviewAudio(audio, cls=cls))
