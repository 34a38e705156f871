"""LiveVoice Load Model: names a checkpoint and hands out its engine, not loaded yet."""

from __future__ import annotations

from comfy_api.latest import io

from ..engine import STARTER
from . import checkpoints
from .residency import patcher_of
from .wires import MODEL


class LoadModel(io.ComfyNode):
    """Opens a checkpoint: headers only, the weights come when something is spoken."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoiceLoadModel",
            display_name="LiveVoice Load Model",
            category="audio/LiveVoice",
            description="Opens a voice model from models/tts. The weights are loaded when they are "
            "first needed, and ComfyUI unloads them when it needs the room. The node shows what "
            "they hold.",
            inputs=[
                io.Combo.Input(
                    "checkpoint",
                    options=checkpoints.names(),
                    default=STARTER,
                    tooltip="A checkpoint in models/tts: model.safetensors, with config.json and "
                    "tokenizer.json beside it. 'starter' comes with LiveVoice: tiny, English, "
                    "rough. For the real voice get bosonai/higgs-audio-v3-tts-4b.",
                ),
                io.Combo.Input(
                    "device",
                    options=["auto", "cpu", "cuda"],
                    default="auto",
                    tooltip="Where it runs. auto follows ComfyUI: its NVIDIA GPU when it uses one, "
                    "else the CPU. On the CPU only the starter is fast enough.",
                ),
                io.Combo.Input(
                    "precision",
                    options=["auto", "bf16", "fp8", "fp32"],
                    default="auto",
                    tooltip="Format of the weights. auto takes fp8 where the GPU has it, else "
                    "bf16. fp8 is half the size and faster, bf16 is the checkpoint as it is, fp32 "
                    "is for the CPU.",
                ),
            ],
            outputs=[MODEL.Output(display_name="model", tooltip="For the nodes that speak.")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, checkpoint: str | None) -> bool | str:
        """Refuse a checkpoint that is not there, and say how to get it."""
        try:
            return checkpoint is None or bool(checkpoints.path_of(checkpoint))
        except ValueError as error:
            return str(error)

    @classmethod
    def fingerprint_inputs(cls, checkpoint: str | None, **_: object) -> object:
        """Another value when the checkpoint's files were replaced; None when it is not known."""
        return checkpoint and checkpoints.stamps(checkpoints.path_of(checkpoint))

    @classmethod
    def execute(cls, checkpoint: str, device: str, precision: str) -> io.NodeOutput:
        """Open it, or hand out the one that is open."""
        patcher = patcher_of(checkpoints.path_of(checkpoint), device, precision)
        patcher.model.readout.watch(cls.hidden.unique_id)
        return io.NodeOutput(patcher)
