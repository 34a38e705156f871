"""What the speaking nodes share: their inputs, and the run of one generation.

Owns how a generation meets ComfyUI: cancel button, partial results. The loop itself is the
engine's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import comfy.model_management as management
from comfy_api.latest import io

from ..engine import Chunk, Codes, Generation, SamplingParams, plan
from .progress import progress
from .residency import EnginePatcher, recognised_out_of_memory
from .wires import MODEL, READING, VOICE

UNLOADED = "LiveVoice: the model was unloaded while it spoke; run it again"

_DEFAULTS = SamplingParams()
_TEXT = "Good morning! This is LiveVoice, speaking from a workflow."


def text_inputs() -> list[Any]:
    """Inputs of every node that speaks a text, with the defaults of SamplingParams."""
    return [
        MODEL.Input("model", tooltip="The voice model, from LiveVoice Load Model."),
        VOICE.Input(
            "voice",
            optional=True,
            tooltip="Who speaks, from LiveVoice Voice or Load Voice; without, the model chooses.",
        ),
        io.String.Input(
            "text",
            multiline=True,
            dynamic_prompts=False,
            default=_TEXT,
            tooltip="What to say, of any length. An empty line starts a new paragraph. Long text "
            "is spoken in pieces of up to 15 seconds, cut between sentences. [pause:1.5] makes a "
            "pause, <emotion:anger> and the like change the delivery.",
        ),
        *sampling_inputs(),
        io.Float.Input(
            "max_seconds",
            default=0.0,
            min=0.0,
            max=120.0,
            step=1.0,
            tooltip="Cuts off each piece of speech after this many seconds, up to 120; 0 derives "
            "a limit from the text, so that speech that never ends is stopped.",
        ),
    ]


def sampling_inputs() -> list[Any]:
    """The fields of SamplingParams."""
    return [
        io.Int.Input(
            "seed",
            default=_DEFAULTS.seed,
            min=0,
            max=2**64 - 1,
            control_after_generate=True,
            tooltip="Chooses one of many ways to say it, 0 to 2^64 - 1. The same seed, text and "
            "settings give the same speech on the same machine.",
        ),
        io.Float.Input(
            "temperature",
            default=_DEFAULTS.temperature,
            min=0.0,
            max=2.0,
            step=0.05,
            tooltip="How freely codes are drawn, 0 to 2. Lower is steadier and flatter, higher is "
            "livelier and riskier; 0 always takes the most probable code. The starter voice "
            "likes 0.65.",
        ),
        io.Int.Input(
            "top_k",
            default=_DEFAULTS.top_k,
            min=0,
            max=1024,
            tooltip="Draws among the k most probable codes only, 1 to 1024; 0 draws among all. "
            "Lower is steadier. The starter voice likes 30.",
        ),
        io.Float.Input(
            "top_p",
            default=_DEFAULTS.top_p,
            min=0.01,
            max=1.0,
            step=0.01,
            tooltip="Draws among the most probable codes up to this share of probability, 0.01 to "
            "1; 1 switches it off. Lower is steadier.",
        ),
    ]


def keep_partial_input() -> Any:
    """The switch that decides what cancelling leaves."""
    return io.Boolean.Input(
        "keep_partial",
        default=False,
        tooltip="When cancelled while speaking: on returns what was spoken so far and the workflow "
        "goes on with it, off stops the workflow as usual.",
    )


def text_problem(text: str | None) -> str | bool:
    """What validate_inputs says about a text: True, or the engine's sentence.

    None is a text that comes over a wire, which is judged when it is there.
    """
    try:
        return text is None or bool(plan(text))
    except ValueError as error:
        return str(error)


def reading_input() -> Any:
    """The wire that says how the text is read."""
    return READING.Input(
        "reading",
        optional=True,
        tooltip="How the text is read, cut and joined, from LiveVoice Text Options; without, the "
        "defaults there.",
    )


def speak(
    model: EnginePatcher,
    text: str,
    sampling: SamplingParams,
    *,
    max_seconds: float,
    keep_partial: bool,
    listen: Callable[[Chunk], None] | None = None,
    on_frame: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Codes:
    """Speak a text under ComfyUI's eyes.

    Args:
        model: whose engine speaks.
        text: what to say.
        sampling: parameters and seed.
        max_seconds: cap on each utterance; 0 derives it from the text.
        keep_partial: on cancel, return what was made instead of raising.
        listen: gets each chunk of sound as it is made; without it the codec does not run.
        on_frame: called once a frame with (frames so far, frames expected in all).
        **options: of the engine's ``stream``: voice, retries, reading.

    Raises:
        InterruptProcessingException: cancelled; it is no Exception in newer ComfyUI.
        ValueError: nothing to speak, or parameters out of range.
        RuntimeError: the engine was unloaded while it spoke.
    """
    return run(
        model,
        lambda each_frame: model.engine.stream(
            text, sampling, max_seconds=max_seconds or None, on_frame=each_frame, **options
        ),
        keep_partial=keep_partial,
        listen=listen,
        on_frame=on_frame,
    )


def run(
    model: EnginePatcher,
    begin: Callable[[Callable[[int, int], None]], Generation],
    *,
    keep_partial: bool = False,
    listen: Callable[[Chunk], None] | None = None,
    on_frame: Callable[[int, int], None] | None = None,
) -> Codes:
    """Run the generation that ``begin`` makes of an ``on_frame``; the rest as :func:`speak`."""
    generation = begin(progress(on_frame))
    model.make_resident()
    try:
        with recognised_out_of_memory():
            for piece in generation if listen else generation.frames():
                if listen:
                    listen(piece)
    except management.InterruptProcessingException:
        if not keep_partial or not generation.codes.seconds:
            raise
    finally:
        generation.close()
    codes = generation.codes
    if codes.stop_reason == "cancelled" and not (keep_partial and codes.seconds):
        raise RuntimeError(UNLOADED)
    return codes
