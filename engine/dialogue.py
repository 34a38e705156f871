"""Several voices: turns, each spoken by itself, become one sound with known times.

Owns the draws of each turn and the times; the script's grammar is that of ``turns.py``. Every turn
is a generation of its own, as the model was made for; what one turn says never depends on another.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .codes import Codes, SpokenUtterance
from .generation import Generation, OnFrame, Request
from .sampling import SamplingParams
from .script import LONGEST_GAP_S, Reading
from .speaking import Role
from .text import plan
from .turns import Turn
from .voice import Voice

if TYPE_CHECKING:
    from .engine import Engine

GAP_S = 0.4  # between turns of a conversation; the reference cookbook leaves 0.6 s
_REMEMBERED_TURNS = 512

_TAG = re.compile(r"<\|[^|<>]*\|>")


@dataclass(frozen=True)
class SpokenTurn:
    """A turn as codes, and where in the dialogue it lies.

    Attributes:
        turn: what was to be said.
        codes: what was said; its ``sampling.seed`` makes it again.
        start_frame: first frame of it in the dialogue.
        end_frame: first frame after it.
    """

    turn: Turn
    codes: Codes
    start_frame: int
    end_frame: int


@dataclass(frozen=True)
class Dialogue:
    """All turns, and their sound.

    Attributes:
        turns: in order.
        codes: the utterances of all turns with the gaps between them, as if of one text.
        waveform: float32 ``[samples]``, gaps included.
        sample_rate: in Hz.
        frame_rate_hz: frames a second.
    """

    turns: tuple[SpokenTurn, ...]
    codes: Codes
    waveform: Tensor
    sample_rate: int
    frame_rate_hz: int

    def table(self) -> str:
        """Times and fate of every turn, tab-separated, one a line under a head line."""
        lines = ["turn\tspeaker\tstart_s\tend_s\tstart_frame\tend_frame\tended\tseed\ttext"]
        for number, each in enumerate(self.turns, start=1):
            times = (each.start_frame / self.frame_rate_hz, each.end_frame / self.frame_rate_hz)
            cells = [
                number, each.turn.speaker, *(f"{time:.2f}" for time in times), each.start_frame,
                each.end_frame, each.codes.stop_reason, each.codes.sampling.seed,
                " ".join(each.turn.text.split()),
            ]  # fmt: skip
            lines.append("\t".join(map(str, cells)))
        return "\n".join(lines)

    def srt(self) -> str:
        """Subtitles in SubRip format: ``Name: text`` from a turn's first frame to its last."""
        blocks = []
        for number, each in enumerate(self.turns, start=1):
            start, end = (
                _clock(1000 * frame // self.frame_rate_hz)
                for frame in (each.start_frame, each.end_frame)
            )
            text = " ".join(_TAG.sub("", each.turn.text).split())
            blocks.append(f"{number}\n{start} --> {end}\n{each.turn.speaker}: {text}\n")
        return "\n".join(blocks)


def speak_turns(
    engine: Engine,
    turns: Iterable[Turn],
    voices: Mapping[str, Voice],
    sampling: SamplingParams,
    *,
    takes: Mapping[int, int] | None = None,
    on_frame: OnFrame | None = None,
    **options: object,
) -> Iterator[Codes]:
    """Speak turns, side by side where the backend can; those spoken before are remembered.

    Args:
        engine: speaks.
        turns: of :func:`.turns.parse_turns`.
        voices: by the turns' speakers.
        sampling: parameters, and the seed that each turn's own seed is derived from.
        takes: which take of a turn (numbered from 1) is wanted, where it is not the first (0).
        on_frame: called once a frame with (frames so far, frames expected) of all that has to be
            spoken; what it raises ends the dialogue, and turns that are whole stay remembered.
        **options: of the engine's ``stream``: max_seconds, retries, reading.

    Yields:
        The codes of each turn, in order; none after one that was cancelled by an unload.

    Raises:
        ValueError: as the engine's ``stream``.
    """
    lines: list[_Line] = []
    for number, turn in enumerate(turns, start=1):
        own = replace(sampling, seed=turn_seed(sampling.seed, turn, (takes or {}).get(number, 0)))
        lines.append(_Line(turn, voices[turn.speaker], own, options))
    known = {line.key: engine.spoken.get(line.key) for line in lines}
    new = [line for line in lines if known[line.key] is None]
    generation = _generation(engine, new, sampling, on_frame, **options)
    frames = generation.frames()
    try:
        for line in lines:
            codes = known[line.key]
            if codes is None:
                while generation.n_heard < line.end and next(frames, None):
                    pass
                codes = line.codes(generation)
            yield codes
            if codes.stop_reason == "cancelled":
                return
    finally:
        generation.close()
        for line in new:
            engine.spoken.put(line.key, line.codes(generation))


class _Line:
    """A turn that may have to be spoken: its draws, and which utterances of the whole are its."""

    def __init__(
        self, turn: Turn, voice: Voice, sampling: SamplingParams, options: Mapping[str, object]
    ) -> None:
        self.voice, self.sampling = voice, sampling
        self.key = (turn.text, voice.content_hash, sampling, *sorted(options.items()))
        self.script = plan(turn.text, options.get("reading"), has_voice=True)
        self.first = 0

    @property
    def end(self) -> int:
        return self.first + len(self.script.utterances)

    def codes(self, generation: Generation) -> Codes:
        """What was spoken of it so far."""
        codes = generation.codes
        own = codes.utterances[self.first : self.end]
        if len(own) < len(self.script.utterances):
            nothing = torch.empty((0, self.voice.codes.shape[1]), dtype=torch.int64)
            own = (*own, SpokenUtterance("", nothing, "cancelled"))
        return replace(codes, utterances=own, sampling=self.sampling, notes=self.script.notes)


def _generation(
    engine: Engine,
    lines: list[_Line],
    sampling: SamplingParams,
    on_frame: OnFrame | None,
    *,
    max_seconds: float | None = None,
    retries: int = 0,
    reading: Reading | None = None,  # noqa: ARG001  (the scripts are made already)
) -> Generation:
    """One generation of all lines, in which every utterance has the voice and seed of its line."""
    roles: dict[int, Role] = {}
    for line in lines:
        line.first = len(roles)
        for number in range(len(line.script.utterances)):
            roles[len(roles)] = Role(line.sampling, line.voice, number)
    return engine.generation(
        Request(
            utterances=tuple(each for line in lines for each in line.script.utterances),
            sampling=sampling,
            voice=None,
            max_seconds=max_seconds,
            retries=retries,
            on_frame=on_frame or (lambda _done, _total: None),
            roles=roles,
        )
    )


def turn_seed(seed: int, turn: Turn, take: int = 0) -> int:
    """Seed of one take of one turn, 64 bits: by its words, so that no other turn changes it."""
    digest = hashlib.sha256(f"{seed}\n{take}\n{turn.seed_key}".encode())
    return int.from_bytes(digest.digest()[:8], "little")


def assemble(
    engine: Engine,
    turns: Iterable[Turn],
    spoken: Iterable[Codes],
    sampling: SamplingParams,
    gap_s: float = GAP_S,
    on_chunk: Callable[[], object] = lambda: None,
) -> Dialogue:
    """Lay turns out and decode them.

    Between two turns lie ``gap_s`` of silence, and as much more as lets the next one begin with a
    whole frame.

    Args:
        engine: decodes.
        turns: in order.
        spoken: their codes; those of a cancelled dialogue may be fewer.
        sampling: parameters that the turns were spoken with.
        gap_s: 0 to 600 seconds.
        on_chunk: called after each chunk of sound; what it raises ends the decoding.

    Raises:
        ValueError: no turn, a gap out of range, or codes of another codec.
    """
    if not 0 <= gap_s <= LONGEST_GAP_S:
        raise ValueError(f"dialogue: the gap must be 0 … {LONGEST_GAP_S:.0f} s, got {gap_s}")
    config = engine.checkpoint.codec_config
    hop, rate = config.hop_samples, config.sample_rate
    laid: list[SpokenTurn] = []
    utterances: list[SpokenUtterance] = []
    notes: list[str] = []
    start = 0  # in samples, of whole frames
    for turn, codes in zip(turns, spoken, strict=False):
        *others, last = codes.utterances
        end = start + sum(len(each.frames) * hop + round(each.gap_s * rate) for each in others)
        end += len(last.frames) * hop
        laid.append(SpokenTurn(turn, codes, start // hop, -(-end // hop)))
        start = -(-(end + round((max(0.0, last.gap_s) + gap_s) * rate)) // hop) * hop
        gap = min((start - end) / rate, LONGEST_GAP_S)
        utterances += [*others, replace(last, gap_s=gap)]
        notes += codes.notes
    if not laid:
        raise ValueError("dialogue: no turn was spoken")
    utterances[-1] = replace(utterances[-1], gap_s=0.0)
    merged = replace(
        laid[0].codes, utterances=tuple(utterances), sampling=sampling, notes=tuple(notes)
    )
    chunks = []
    for chunk in engine.decode_chunks(merged):
        chunks.append(chunk)
        on_chunk()
    return Dialogue(tuple(laid), merged, torch.cat(chunks), rate, config.frame_rate_hz)


class SpokenTurns:
    """Turns spoken before, so that a changed or re-rolled turn is the only one to be spoken anew.

    Codes are a function of the key, so this changes nothing but the time.
    """

    def __init__(self) -> None:
        self._codes: OrderedDict[tuple, Codes] = OrderedDict()

    def get(self, key: tuple) -> Codes | None:
        """The codes, or None."""
        if key in self._codes:
            self._codes.move_to_end(key)
        return self._codes.get(key)

    def put(self, key: tuple, codes: Codes) -> None:
        """Remember codes that are whole; the oldest are forgotten."""
        if codes.stop_reason == "cancelled":
            return
        self._codes[key] = codes
        while len(self._codes) > _REMEMBERED_TURNS:
            self._codes.popitem(last=False)


def _clock(ms: int) -> str:
    seconds, ms = divmod(ms, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02},{ms:03}"
