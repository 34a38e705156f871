"""LiveVoice Dialogue: speaks a script with several voices."""

from __future__ import annotations

import re
from collections import Counter

import comfy.model_management as management
from comfy_api.latest import io

from ..engine import Codes, Reading, SamplingParams, Voice, assemble, parse_turns, speak_turns
from .audio import to_audio
from .progress import progress
from .residency import EnginePatcher, recognised_out_of_memory
from .speech import UNLOADED, reading_input, text_inputs
from .wires import CODES, VOICE

_N_VOICES = 6
_SCRIPT = """[hibari] Good morning! Did you hear the news?
[rms] What news do you mean?
[hibari] The train leaves at seven, and we have to hurry."""


class Dialogue(io.ComfyNode):
    """Each turn is spoken by itself, with its own voice and seed."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Describe the node."""
        model, *shared = (each for each in text_inputs() if each.id not in ("text", "voice"))
        return io.Schema(
            node_id="LiveVoiceDialogue",
            display_name="LiveVoice Dialogue",
            category="audio/LiveVoice",
            description="Speaks a script with a voice for each name. Turns do not depend on each "
            "other: changing one leaves the others as they are, and they are not spoken again.",
            inputs=[
                model,
                io.String.Input(
                    "script",
                    multiline=True,
                    dynamic_prompts=False,
                    default=_SCRIPT,
                    tooltip="Lines that begin with [Name] or Name: are turns; lines without a name "
                    "belong to the turn above. The names are those of the voices.",
                ),
                *_voice_inputs(),
                io.Float.Input(
                    "gap_seconds",
                    default=0.4,
                    min=0.0,
                    max=10.0,
                    step=0.04,
                    tooltip="Silence between two turns, 0 to 10 seconds, in frames of 0.04.",
                ),
                *shared,
                io.Int.Input(
                    "retries",
                    default=2,
                    min=0,
                    max=5,
                    tooltip="How often a piece of a turn that did not end by itself is tried "
                    "again, 0 to 5.",
                ),
                io.String.Input(
                    "retakes",
                    default="",
                    tooltip="Numbers of turns to speak in another way, such as 2, 5; all others "
                    "stay as they are. A number given twice asks for the third way, and so on.",
                ),
                reading_input(),
            ],
            outputs=[
                io.Audio.Output(display_name="audio", tooltip="24 kHz, mono, gaps included."),
                CODES.Output(display_name="codes", tooltip="All turns, not yet sound."),
                io.String.Output(
                    display_name="timing",
                    tooltip="A tab-separated table of the turns: speaker, start and end in seconds "
                    "and frames, why each ended, its seed, its text.",
                ),
                io.String.Output(display_name="srt", tooltip="Subtitles, as of an .srt file."),
            ],
        )

    @classmethod
    def validate_inputs(cls, retakes: str | None) -> bool | str:
        """Refuse retakes that are no numbers; None is a text that comes over a wire."""
        try:
            _takes(retakes or "")
        except ValueError as error:
            return str(error)
        return True

    @classmethod
    def execute(
        cls,
        model: EnginePatcher,
        script: str,
        gap_seconds: float,
        max_seconds: float,
        retries: int,
        retakes: str,
        reading: Reading | None = None,
        **others: object,
    ) -> io.NodeOutput:
        """Speak every turn; ``others`` holds the voices and the fields of SamplingParams."""
        voices = _by_name([others.pop(f"voice_{n}", None) for n in range(1, _N_VOICES + 1)])
        turns = parse_turns(script, voices)
        sampling = SamplingParams(**others)
        takes = _takes(retakes, len(turns))
        model.make_resident()
        spoken: list[Codes] = []
        with recognised_out_of_memory():
            for codes in speak_turns(
                model.engine, turns, voices, sampling, takes=takes,
                max_seconds=max_seconds or None, retries=retries,
                reading=reading,
                on_frame=progress(),
            ):  # fmt: skip
                spoken.append(codes)
                management.throw_exception_if_processing_interrupted()
            if spoken[-1].stop_reason == "cancelled":
                raise RuntimeError(UNLOADED)
            model.make_resident()
            dialogue = assemble(
                model.engine, turns, spoken, sampling, gap_seconds,
                management.throw_exception_if_processing_interrupted,
            )  # fmt: skip
        audio = to_audio(dialogue.waveform, dialogue.sample_rate)
        return io.NodeOutput(audio, dialogue.codes, dialogue.table(), dialogue.srt())


def _voice_inputs() -> list[io.Input]:
    return [
        VOICE.Input(
            f"voice_{n}",
            optional=n > 1,
            tooltip="A speaker; called in the script by the voice's name"
            + (f", or Speaker {n} when it has none." if n == 1 else "."),
        )
        for n in range(1, _N_VOICES + 1)
    ]


def _by_name(voices: list[Voice | None]) -> dict[str, Voice]:
    """Voices by the names that scripts call them.

    Raises:
        ValueError: two of one name.
    """
    named = [(each.name or f"Speaker {n}", each) for n, each in enumerate(voices, 1) if each]
    for name, count in Counter(name for name, _ in named).items():
        if count > 1:
            raise ValueError(
                f"dialogue: {count} voices are called '{name}'; give one another name where it is "
                "loaded"
            )
    return dict(named)


def _takes(retakes: str, n_turns: int | None = None) -> dict[int, int]:
    """Which take of which turn, from a list of turn numbers.

    Raises:
        ValueError: something else than numbers of turns.
    """
    numbers = re.split(r"[,;\s]+", retakes.strip()) if retakes.strip() else []
    for number in numbers:
        last = n_turns or 10**6
        if not re.fullmatch(r"[0-9]{1,6}", number) or not 1 <= int(number) <= last:
            there_are = f"1 … {n_turns}" if n_turns else "1, 2, …"
            raise ValueError(f"dialogue: retakes: '{number[:20]}' is no turn, they are {there_are}")
    return dict(Counter(map(int, numbers)))
