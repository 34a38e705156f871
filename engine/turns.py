"""The grammar of a dialogue's script: which line is whose.

Knows lines and names; nothing of voices or speech.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .duration import estimate_s
from .text import split

_IN_BRACKETS = re.compile(r"\s*\[(?P<name>[^\[\]]{1,80})\]\s*[:\uff1a]?(?P<text>.*)")
_BEFORE_COLON = re.compile(
    r"\s*(?P<name>[^\W\d_][^:\uff1a]{0,79}?)\s*(?P<colon>[:\uff1a])(?P<text>.*)"
)
_NAME_WORDS = 3  # "Note: …" may be meant as a name, "He told me this: …" is not
_PAUSE = re.compile(
    r"(?:short|long)?[\s_-]*(?:pause|silence|silent|wait|stop|break|slnc|delay)\b|[\d.,]", re.I
)


@dataclass(frozen=True)
class Turn:
    """One speaker's words.

    Attributes:
        speaker: as the voices are keyed.
        text: what to say.
        line: where in the script it starts, from 1.
        seed_key: the same for the same words of the same speaker; counts repetitions.
    """

    speaker: str
    text: str
    line: int
    seed_key: str

    @property
    def estimate_s(self) -> float:
        """Expected duration in seconds."""
        return estimate_s(self.text)


def parse_turns(script: str, names: Iterable[str]) -> tuple[Turn, ...]:
    """Read a script: ``[Name]`` or ``Name:`` begins a turn, all up to the next one belongs to it.

    Names are known in any case. Before a colon only something like a name is one: no clock time
    (12:30), no address (https://…), and no longer part of a sentence.

    Args:
        script: any number of lines.
        names: the speakers there are.

    Raises:
        ValueError: with the line: an unknown name (known ones are listed), words before the first
            name, a turn without words, two speakers of one name.
    """
    known = _by_key(names)
    turns: list[tuple[str, int, list[str]]] = []
    for number, line in enumerate(script.splitlines(), start=1):
        speaker, text = _speaker_of(line, known, number)
        if speaker is not None:
            turns.append((speaker, number, [text]))
        elif turns:
            turns[-1][2].append(line)
        elif line.strip():
            raise ValueError(
                f"dialogue: line {number} belongs to no one; begin it with a name, such as "
                f"'{_listed(known)[0]}: …'"
            )
    if not turns:
        raise ValueError("dialogue: the script is empty; write lines such as 'Name: Hello!'")
    return _numbered(turns)


def _by_key(names: Iterable[str]) -> dict[str, str]:
    known: dict[str, str] = {}
    for name in names:
        if not _key(name):
            raise ValueError("dialogue: a speaker has no name; name the voice")
        if _key(name) in known:
            raise ValueError(f"dialogue: two voices are called '{name}'; name them apart")
        known[_key(name)] = name
    if not known:
        raise ValueError("dialogue: there is no speaker; connect a voice")
    return known


def _key(name: str) -> str:
    """What two spellings of one name share: case, width, underscores and spaces do not count."""
    return " ".join(unicodedata.normalize("NFKC", name).replace("_", " ").casefold().split())


def _speaker_of(line: str, known: Mapping[str, str], number: int) -> tuple[str | None, str]:
    """Speaker that a line names and the words behind the name; (None, "") when it names none."""
    match = _IN_BRACKETS.fullmatch(line)
    if match:
        is_name = not _PAUSE.match(match["name"].strip())
    else:
        match = _BEFORE_COLON.fullmatch(line)
        is_name = match is not None and _looks_like_a_name(match)
    if match is not None and _key(match["name"]) in known:
        return known[_key(match["name"])], match["text"]
    if match is not None and is_name:
        name = match["name"].strip()
        raise ValueError(
            f"dialogue: line {number}: no voice is called '{name}'; there are "
            f"{', '.join(_listed(known))} (if it is no speaker, put it behind one)"
        )
    return None, ""


def _looks_like_a_name(match: re.Match[str]) -> bool:
    name, text = match["name"].strip(), match["text"]
    is_parted = not text or text[0].isspace() or match["colon"] != ":"
    return is_parted and len(name.split()) <= _NAME_WORDS and not re.search(r"[.!?,;\"<>|]", name)


def _listed(known: Mapping[str, str]) -> list[str]:
    return sorted(known.values(), key=str.casefold)


def _numbered(turns: list[tuple[str, int, list[str]]]) -> tuple[Turn, ...]:
    seen: Counter[str] = Counter()
    done = []
    for speaker, line, lines in turns:
        text = "\n".join(lines).strip()
        try:
            split(text)
        except ValueError as error:
            raise ValueError(f"dialogue: line {line}: {speaker} says nothing") from error
        same = f"{_key(speaker)}\n{text}"
        done.append(Turn(speaker, text, line, f"{seen[same]}\n{same}"))
        seen[same] += 1
    return tuple(done)
