"""Text becomes utterances of bounded duration, and a text's duration is estimated.

Knows characters; nothing of tokens or sound. Rates are rough on purpose: they bound how much is
spoken at once and when speech that does not end is cut off.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

UTTERANCE_LIMIT_S = 15.0
"""Longest utterance by estimate; the starter was trained on up to 17 s, the real model on more."""

_TAG = re.compile(r"<\|[^|<>]*\|>")
_PARAGRAPH = re.compile(r"\n\s*\n")
# After sentence-ending punctuation (and closing quotes) where white space or CJK follows.
_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])[」』”’）]*")  # noqa: RUF001
_CLAUSE = re.compile(r"(?<=[,;:—])\s+|(?<=[，、；：])")  # noqa: RUF001
_WORD = re.compile(r"\s+")

_SECONDS_PER_LETTER = 0.065  # 15 characters a second of ordinary English
_SECONDS_PER_DIGIT = 0.3
_SECONDS_PER_TAG = 1.0
_WIDE = {"CJK": 0.22, "HIRAGANA": 0.14, "KATAKANA": 0.14, "HANGUL": 0.17, "BOPOMOFO": 0.14}


@dataclass(frozen=True)
class Utterance:
    """A piece of text that is spoken in one generation."""

    text: str

    @property
    def estimate_s(self) -> float:
        """Expected duration in seconds."""
        return estimate_s(self.text)


def estimate_s(text: str) -> float:
    """Expected duration of spoken ``text`` in seconds, by character and script."""
    seconds = _SECONDS_PER_TAG * len(_TAG.findall(text))
    return seconds + sum(_character_s(character) for character in _TAG.sub("", text))


def _character_s(character: str) -> float:
    kind = unicodedata.category(character)
    if kind[0] == "N":
        return _SECONDS_PER_DIGIT
    if kind[0] == "M":
        return 0.0  # combining marks are spoken with their letter
    if kind == "Lo":
        script = unicodedata.name(character, "").split(" ", 1)[0]
        return _WIDE.get(script, _SECONDS_PER_LETTER)
    return _SECONDS_PER_LETTER


def cap_s(text: str) -> float:
    """Longest duration that speech of ``text`` may have, in seconds.

    Twice the estimate and three seconds: slow speakers end well before it, speech that has lost its
    end does not. Checked against the teacher's durations: real speech stays below 1.2 estimates.
    """
    return 2.0 * estimate_s(text) + 3.0


def split(text: str, limit_s: float = UTTERANCE_LIMIT_S) -> list[Utterance]:
    """Cut text into utterances of at most about ``limit_s`` seconds by estimate.

    Cuts at paragraphs, then sentences, clauses and words, in this order; never inside a word.

    Raises:
        ValueError: there is nothing to speak.
    """
    if not any(character.isalnum() for character in _TAG.sub("", text)) and not _TAG.search(text):
        raise ValueError("text: nothing to speak, it has no letter, digit or tag; type some words")
    return [
        Utterance(piece)
        for paragraph in _PARAGRAPH.split(text)
        for piece in _pack(" ".join(paragraph.split()), limit_s, (_SENTENCE, _CLAUSE, _WORD))
    ]


def _pack(text: str, limit_s: float, cuts: tuple[re.Pattern[str], ...]) -> list[str]:
    """Greedily join pieces at the coarsest cut; pieces that are too long are cut finer."""
    if not text:
        return []
    if not cuts or estimate_s(text) <= limit_s:
        return [text]
    packed: list[str] = []
    for piece in _pieces(text, cuts[0]):
        if packed and estimate_s(packed[-1] + piece) <= limit_s:
            packed[-1] += piece
        else:
            packed += [piece] if estimate_s(piece) <= limit_s else _pack(piece, limit_s, cuts[1:])
    return _without_dumb([piece.strip() for piece in packed if piece.strip()])


def _pieces(text: str, cut: re.Pattern[str]) -> list[str]:
    """``text`` cut after each match; white space and quotes stay with the piece before."""
    ends = [match.end() for match in cut.finditer(text) if match.end() < len(text)]
    starts = [0, *ends]
    return [text[a:b] for a, b in zip(starts, [*ends, len(text)], strict=True) if b > a]


def _without_dumb(pieces: list[str]) -> list[str]:
    """Join pieces that hold nothing to speak (``—``, ``"``) to their neighbour before."""
    joined: list[str] = []
    for piece in pieces:
        if joined and not any(character.isalnum() for character in piece):
            joined[-1] += f" {piece}"
        else:
            joined.append(piece)
    return joined
