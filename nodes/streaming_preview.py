"""LiveVoice Streaming Preview: speaks a text and plays it on the node while it is being spoken."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import folder_paths
from comfy_api.latest import io
from torch import Tensor

from ..engine import Chunk, Reading, SamplingParams, Script, Voice, join, plan
from .audio import to_audio, to_wav
from .preview import Preview
from .residency import EnginePatcher
from .speech import keep_partial_input, reading_input, speak, text_inputs, text_problem


class StreamingPreview(io.ComfyNode):
    """Text to sound in one node, by listening to the generation while it runs."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoiceStreamingPreview",
            display_name="LiveVoice Streaming Preview",
            category="audio/LiveVoice",
            description="Speaks a text and plays it on the node while it is being spoken. Gives "
            "the same sound as Text to Codes and Codes to Waveform with the same settings and no "
            "retries.",
            inputs=[*text_inputs(), keep_partial_input(), reading_input()],
            outputs=[io.Audio.Output(display_name="audio", tooltip="24 kHz, mono.")],
            hidden=[io.Hidden.unique_id, io.Hidden.extra_pnginfo],
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
        voice: Voice | None = None,
        reading: Reading | None = None,
        **sampling: float,
    ) -> io.NodeOutput:
        """Speak and be heard. No retries: what has been heard can't be taken back."""
        chunks: list[Chunk] = []

        def listen(chunk: Chunk) -> None:
            chunks.append(chunk)
            preview.send(chunk.waveform)

        with cls._preview(model, plan(text, reading)) as preview:
            codes = speak(
                model,
                text,
                SamplingParams(**sampling),
                max_seconds=max_seconds,
                keep_partial=keep_partial,
                voice=voice,
                reading=reading,
                listen=listen,
                on_frame=preview.on_frame,
            )
            if codes.stop_reason == "cancelled":  # the last frames had not become a chunk yet
                preview.hush()  # before they are decoded, which takes its time
                model.make_resident()
                waveform = model.engine.decode(codes)
                preview.send(waveform[preview.n_samples :])
                preview.end("cancelled")
            else:
                waveform = join(chunks)
        audio = to_audio(waveform, model.engine.sample_rate)
        return io.NodeOutput(audio, ui=_result(waveform, preview, model.engine.sample_rate))

    @classmethod
    def _preview(cls, model: EnginePatcher, script: Script) -> Preview:
        workflow = (cls.hidden.extra_pnginfo or {}).get("workflow") or {}
        return Preview(
            cls.hidden.unique_id,
            workflow_id=str(workflow.get("id", "")),
            sample_rate=model.engine.sample_rate,
            frame_rate_hz=model.engine.checkpoint.codec_config.frame_rate_hz,
            expected_s=script.seconds,
        )


def _result(waveform: Tensor, preview: Preview, sample_rate: int) -> dict[str, Any]:
    """What ComfyUI shows and stores: the clip as a temporary file, and whose clip it is."""
    folder = Path(folder_paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    name = f"livevoice_{uuid.uuid4().hex}.wav"
    (folder / name).write_bytes(to_wav(waveform, sample_rate))
    return {
        "audio": [{"filename": name, "subfolder": "", "type": "temp"}],
        "livevoice_preview": [preview.run],
    }
