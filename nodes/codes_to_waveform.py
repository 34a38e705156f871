"""LiveVoice Codes to Waveform: turns codes into sound."""

from __future__ import annotations

from dataclasses import replace

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
        """Decode, one utterance at a time so that cancel is heard in between."""
        model.make_resident()
        bar = ProgressBar(len(codes.utterances))
        waveforms = [torch.empty(0)]
        for utterance in codes.utterances:
            management.throw_exception_if_processing_interrupted()
            with recognised_out_of_memory():
                waveforms.append(model.engine.decode(replace(codes, utterances=(utterance,))))
            bar.update(1)
        return io.NodeOutput(to_audio(torch.cat(waveforms), model.engine.sample_rate))
