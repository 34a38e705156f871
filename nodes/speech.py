"""What the speaking nodes share: their inputs, the run of one generation, and its report.

Owns how a generation meets ComfyUI: progress bar, cancel button, partial results. The loop itself
is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import comfy.model_management as management
from comfy.utils import ProgressBar
from comfy_api.latest import io

from ..engine import Chunk, Codes, SamplingParams, split
from .residency import EnginePatcher, recognised_out_of_memory
from .wires import MODEL, VOICE

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
            "is spoken in pieces of about 15 seconds, cut between sentences.",
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
        return text is None or bool(split(text))
    except ValueError as error:
        return str(error)


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
    """Run one generation under ComfyUI's eyes.

    Args:
        model: whose engine speaks.
        text: what to say.
        sampling: parameters and seed.
        max_seconds: cap on each utterance; 0 derives it from the text.
        keep_partial: on cancel, return what was made instead of raising.
        listen: gets each chunk of sound as it is made; without it the codec does not run.
        on_frame: called once a frame with (frames so far, frames expected at most).
        **options: of the engine's ``stream``: voice, retries.

    Raises:
        InterruptProcessingException: cancelled; it is no Exception in newer ComfyUI.
        ValueError: nothing to speak, or parameters out of range.
        RuntimeError: the engine was unloaded while it spoke.
    """
    generation = model.engine.stream(
        text,
        sampling,
        max_seconds=max_seconds or None,
        on_frame=_progress(on_frame),
        **options,
    )
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
        raise RuntimeError("LiveVoice: the model was unloaded while it spoke; run it again")
    return codes


def report(codes: Codes) -> str:
    """What was spoken, one line an utterance: seconds, frames, why it ended, which attempt."""
    lines = [
        f"{number}: {len(each.frames) / codes.frame_rate_hz:.2f} s, {len(each.frames)} frames, "
        f"{each.stop_reason}, attempt {each.attempt + 1}: {each.text}"
        for number, each in enumerate(codes.utterances, start=1)
    ]
    total = f"{codes.seconds:.2f} s, {len(codes.frames)} frames, {codes.stop_reason}"
    return "\n".join([total, *lines])


def _progress(also: Callable[[int, int], None] | None) -> Callable[[int, int], None]:
    """Called once a frame: moves the node's bar, raises when cancel was pressed."""
    bar = ProgressBar(1)

    def on_frame(done_frames: int, cap_frames: int) -> None:
        management.throw_exception_if_processing_interrupted()
        bar.update_absolute(done_frames, cap_frames)
        if also:
            also(done_frames, cap_frames)

    return on_frame
