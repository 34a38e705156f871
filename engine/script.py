"""A script: what will be spoken, in which pieces, with which silences, and what will not be.

Data only; :mod:`.text` makes it from a text.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from .duration import estimate_s

UTTERANCE_LIMIT_S = 15.0
"""Longest utterance by estimate; the starter was trained on up to 17 s, the real model on more."""

LONGEST_GAP_S = 600.0
"""Longest silence between utterances: single pauses are shorter, but add up."""

_N_EXAMPLES, _N_SHOWN = 3, 40


@dataclass(frozen=True)
class Reading:
    """How a text is read aloud.

    Attributes:
        limit_s: longest utterance by estimate, in seconds.
        gap_s: silence between utterances, in seconds.
        crossfade_s: overlap of utterances instead of that silence, in seconds; 0 is off.
        paragraph_s: silence for a blank line, in seconds.
        normalise: whether numbers, dates, addresses, markdown and emoji are put into words.
        language: of those words, ISO 639-1 code, or "auto".
        anchor: whether a strong emotion at a start waits for the first word, which keeps a cloned
            voice.
        same_voice: whether the first utterance is the voice of the others when there is no voice.

    Raises:
        ValueError: a duration out of range.
    """

    limit_s: float = UTTERANCE_LIMIT_S
    gap_s: float = 0.1
    crossfade_s: float = 0.0
    paragraph_s: float = 0.5
    normalise: bool = True
    language: str = "auto"
    anchor: bool = False
    same_voice: bool = True

    def __post_init__(self) -> None:
        ranges = {
            "limit_s": (0.5, 60),
            "gap_s": (0, 10),
            "crossfade_s": (0, 1),
            "paragraph_s": (0, 10),
        }
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be {low} … {high}, got {getattr(self, name)}")


@dataclass(frozen=True)
class Utterance:
    """A piece of text that is spoken in one generation.

    Attributes:
        text: as the model reads it; "" for silence alone.
        start: where in the original it starts.
        end: where in the original it ends.
        gap_s: silence after it, in seconds; below 0 the next one overlaps it by that much.
    """

    text: str
    start: int = 0
    end: int = 0
    gap_s: float = 0.0

    @property
    def estimate_s(self) -> float:
        """Expected duration in seconds, without the gap."""
        return estimate_s(self.text)


@dataclass(frozen=True)
class Part:
    """A range of the original: the utterance that speaks it, or the reason why none does."""

    start: int
    end: int
    utterance: int | None
    reason: str = ""


@dataclass(frozen=True)
class Script:
    """A text as it will be spoken.

    Attributes:
        source: the original.
        utterances: in order.
        account: what becomes of each character of the original; without gaps, in order.
        warnings: sentences for the writer.
    """

    source: str
    utterances: tuple[Utterance, ...]
    account: tuple[Part, ...]
    warnings: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Expected duration of it all."""
        return sum(each.estimate_s + each.gap_s for each in self.utterances)

    def json(self) -> str:
        """For machines: utterances, the account of every character, warnings."""
        fields = {**asdict(self), "seconds": self.seconds}
        return json.dumps(fields, ensure_ascii=False, indent=2)

    @property
    def text(self) -> str:
        """What is spoken, one utterance a line."""
        return "\n".join(each.text for each in self.utterances if each.text)

    @property
    def unspoken(self) -> tuple[tuple[str, str], ...]:
        """(characters, reason) of all that is not spoken, white space left out."""
        found = (
            (self.source[part.start : part.end].strip(), part.reason)
            for part in self.account
            if part.utterance is None
        )
        return tuple(each for each in found if each[0])

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings, and what is not spoken, with examples."""
        examples: dict[str, list[str]] = {}
        for characters, reason in self.unspoken:
            examples.setdefault(reason, []).append(_printable(characters))
        listed = (
            f"{reason}: {' '.join(dict.fromkeys(found[:_N_EXAMPLES]))}"
            + (f" … ({len(found)} times)" if len(found) > _N_EXAMPLES else "")
            for reason, found in examples.items()
        )
        return (*self.warnings, *(f"not spoken, {each}" for each in listed))


def _printable(characters: str) -> str:
    """For a report: invisible characters by number, and no more than fits a line."""
    shown = "".join(
        each if each.isprintable() else f"U+{ord(each):04X}" for each in characters[:_N_SHOWN]
    )
    return f"{shown}…" if len(characters) > _N_SHOWN else shown
