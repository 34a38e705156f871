"""LiveVoice Voice: makes a voice of a recording."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import comfy.model_management as management
import torch
from comfy_api.latest import io
from torch import Tensor

from ..engine import Voice as EngineVoice
from .progress import progress, tell
from .residency import EnginePatcher, recognised_out_of_memory
from .voices import name_problem
from .wires import MODEL, VOICE


class Voice(io.ComfyNode):
    """A recording and its words, as the model hears them."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        return io.Schema(
            node_id="LiveVoiceVoice",
            display_name="LiveVoice Voice",
            category="audio/LiveVoice",
            description="Makes a voice of a recording, for the nodes that speak. Clone only people "
            "who agreed to it. Needs the real checkpoint: the starter knows its own voices only.",
            inputs=[
                MODEL.Input("model", tooltip="The model that will speak: its codec encodes."),
                io.Audio.Input(
                    "audio",
                    tooltip="One person speaking, without music or noise; 5 to 20 seconds are "
                    "best, 1 to 100 are possible. Any sample rate and channels.",
                ),
                io.String.Input(
                    "transcript",
                    multiline=True,
                    dynamic_prompts=False,
                    default="",
                    tooltip="What the recording says, word for word. Without it the voice is less "
                    "alike; with other words the speech goes wrong.",
                ),
                io.String.Input(
                    "name",
                    default="My voice",
                    tooltip="What dialogues call the speaker, and Save Voice the file.",
                ),
            ],
            outputs=[
                VOICE.Output(display_name="voice", tooltip="For the nodes that speak."),
                io.String.Output(
                    display_name="report",
                    tooltip="How long it is, and what may be wrong with the recording.",
                ),
            ],
        )

    @classmethod
    def validate_inputs(cls, name: str | None) -> bool | str:
        """Refuse what can't be a name; None is one that comes over a wire."""
        return name_problem(name)

    @classmethod
    def execute(
        cls, model: EnginePatcher, audio: dict[str, Any], transcript: str, name: str
    ) -> io.NodeOutput:
        """Encode, or take the codes of the last time."""
        voice = make_voice(model, audio, transcript, name.strip())
        return io.NodeOutput(voice, report(model, voice))


def make_voice(
    model: EnginePatcher, audio: dict[str, Any] | None, transcript: str, name: str
) -> EngineVoice:
    """Make a voice of AUDIO with the model's encoder; the model itself need not be loaded.

    What was noticed is shown on the running node.

    Raises:
        InterruptProcessingException: cancelled; it is no Exception in newer ComfyUI.
        ValueError: no audio, or one that can't be used; says why.
    """
    recording, sample_rate, n_clips = _recording(audio)

    def make_room(n_bytes: int) -> None:
        if model.engine.device.type == "cuda":
            management.free_memory(n_bytes, model.load_device)

    with recognised_out_of_memory():
        voice = model.engine.voice(
            recording,
            sample_rate,
            transcript,
            name=name,
            make_room=make_room,
            on_step=progress(),
        )
    if n_clips > 1:
        joined = f"voice: {n_clips} clips were joined; the transcript must be of all, in order"
        voice = replace(voice, notices=(joined, *voice.notices))
    if voice.notices:
        tell("\n".join(voice.notices))
    return voice


def report(model: EnginePatcher, voice: EngineVoice) -> str:
    """What the voice is, and what was noticed when it was made, one sentence a line."""
    rate = model.engine.checkpoint.codec_config.frame_rate_hz
    head = f"{voice.name or 'voice'}: {voice.seconds(rate):.2f} s, {len(voice.codes)} frames, "
    return "\n".join([f"{head}{voice.content_hash[:16]}", *voice.notices])


def _recording(audio: dict[str, Any] | None) -> tuple[Tensor, int, int]:
    """AUDIO as one recording, float32 ``[channels, samples]``, its sample rate, how many clips.

    The first axis counts clips: taken for channels, it makes voices that speak half as fast.
    """
    if audio is None:
        raise ValueError("voice: there is no audio (does the video have a sound track?)")
    waveform = audio["waveform"]
    if waveform.ndim != 3:
        raise ValueError(
            f"voice: audio must be [clips, channels, samples], got {list(waveform.shape)}"
        )
    joined = waveform.detach().to("cpu", torch.float32).transpose(0, 1).flatten(1)
    return joined, int(audio["sample_rate"]), len(waveform)
