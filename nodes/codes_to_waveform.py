"""LiveVoice Codes to Waveform: turns codes into sound."""

from __future__ import annotations

import comfy.model_management as management
import torch
from comfy.utils import ProgressBar
from comfy_api.latest import io

from ..engine import Codes
from .audio import to_audio
from .residency import EnginePatcher, recognised_out_of_memory
from .wires import CODES, MODEL


class CodesToWaveform(io.ComfyNode):
    """The codec's half of speaking."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoiceCodesToWaveform",
            display_name="LiveVoice Codes to Waveform",
            category="audio/LiveVoice",
            description="Turns codes into 24 kHz mono sound. The same codes always give the same "
            "sound.",
            inputs=[
                MODEL.Input("model", tooltip="The model that made the codes: its codec decodes."),
                CODES.Input("codes", tooltip="From Text to Codes or Load Codes."),
            ],
            outputs=[io.Audio.Output(display_name="audio", tooltip="24 kHz, mono.")],
        )

    @classmethod
    def execute(cls, model: EnginePatcher, codes: Codes) -> io.NodeOutput:
        """Decode chunk by chunk, so that cancel is heard in between."""
        model.make_resident()
        sample_rate = model.engine.sample_rate
        bar = ProgressBar(max(1, round(codes.seconds * sample_rate)))  # gaps take no time
        chunks = [torch.empty(0)]
        with recognised_out_of_memory():
            for chunk in model.engine.decode_chunks(codes):
                management.throw_exception_if_processing_interrupted()
                chunks.append(chunk)
                bar.update(len(chunk))
        return io.NodeOutput(to_audio(torch.cat(chunks), sample_rate))
