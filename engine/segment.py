"""Where a text may be cut: sentences, clauses, words and graphemes of any script.

Knows punctuation, abbreviations and scripts; nothing of tags (a mark is one character that is
neither letter nor space) or of sound.
"""

# ruff: noqa: RUF001, SIM905  (tables of signs and words of many scripts)
from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import regex

from .duration import character_s
from .markup import MARK
from .requirement import required

if TYPE_CHECKING:
    import budoux


class Cut(IntEnum):
    """How good a place for a cut is; the higher the better."""

    GRAPHEME = 0
    PART = 1  # of what should stay whole: between the words of a number, at the signs of an address
    WORD = 2
    CLAUSE = 3
    SENTENCE = 4
    PARAGRAPH = 5


# Scripts that write no space between words. Their own spaces part clauses.
_SPACED_CLAUSES = r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_UNSPACED = rf"\p{{Han}}\p{{Hiragana}}\p{{Katakana}}\p{{Tibetan}}{_SPACED_CLAUSES}"
_CLOSERS = r"(?:[\p{Pe}\p{Pf}\"'`*_]|\p{Pi}(?!\w))*"  # some languages close with Pi
_ENDERS = r"[\p{Sentence_Terminal}…⋯]"
_SENTENCE_END = regex.compile(
    # Wide full stops end a sentence anywhere, others only before white space or a mark.
    rf"(?P<wide>[。！？｡︒]+|(?<=[{_UNSPACED}])[.!?]+(?=[{_UNSPACED}])){_CLOSERS}\s*|(?P<stop>{_ENDERS}+)(?P<close>{_CLOSERS})(?:\s+|(?={MARK}))"
)
_CLAUSE_END = regex.compile(
    rf"(?:[，、；：､]|(?<=[{_UNSPACED}])[,;:](?=[{_UNSPACED}])){_CLOSERS}\s*"
    rf"|(?:[\p{{Terminal_Punctuation}}--{_ENDERS}]|[—–―]){_CLOSERS}\s+|—(?=\p{{L}})"
    rf"|\u2028|(?<=[{_SPACED_CLAUSES}])\s+|\s+(?=[\p{{Ps}}—–])",
    regex.V1,
)
_SPACE = regex.compile(r"\s+")
_RUN = regex.compile(rf"[{_UNSPACED}]{{2,}}")
_BALANCING_STEPS = 6  # to within 2 % of the limit
_LAST_WORD = regex.compile(r"[\p{L}\p{M}\p{N}.º-]*\Z")
_MERIDIEM = regex.compile(r"\b[AP] M\Z")
_MODELS = {
    "th": regex.compile(r"\p{Thai}"),
    "ja": regex.compile(r"[\p{Hiragana}\p{Katakana}]"),
    "zh": regex.compile(r"\p{Han}"),
}
_GRAPHEME = regex.compile(r"\X")
_TITLES = frozenset(
    # More of the sentence always follows.
    """mr mrs ms mx dr prof st sen rep gov gen col capt lt sgt cmdr rev hon messrs mt ft vs viz cf
    approx ca e.g i.e hr frau dipl ing bzw z.b d.h u.a abb str tel inkl exkl ggf vgl mm mme mlle
    mgr av bd sr sra srta dra ud uds sig dott avv г ул т.е т.к т.п тыс млн млрд руб проф акад dhr
    mevr bijv np ul""".split()
)
_PART = regex.compile(r"\s+|[/.?&=_:,-]+")
_CLOSING = regex.compile(r"[\p{M}\p{Pe}\p{Pf}\p{Terminal_Punctuation}…\"%]")
_OF_A_WORD = regex.compile(r"[\p{L}\p{M}\p{N}]")
_GERMAN_MONTH = regex.compile(
    r"Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember"
)
PROTECTED = regex.compile(
    r"(?:https?://|www\.)[^\s<>\"']+"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|(?<![\w.])(?:[\w-]+\.)+[a-z]{2,6}(?:/[^\s<>\"']*)?(?!\w)"
    r"|[+-]?\p{N}(?:[\p{N}.,:/'’·٫٬–-]|[\u00A0\u202F ](?=\p{N}{3}(?!\p{N})))*\p{N}"
    r"(?:\s?[%‰°]\p{L}?)?"
    r"|(?<!\p{L})(?:\p{L}\.\s?){2,}"
    rf"|(?<![\p{{L}}.])(?:{'|'.join(map(regex.escape, sorted(_TITLES)))})\.\s+\S",
    regex.I,
)
"""Numbers, addresses, dotted abbreviations, titles with their names: nothing is cut inside."""

_NUMBERED = frozenset(
    # Only before a figure.
    """no nos nr fig figs vol vols p pp ch chap sec art eq ed jan feb mar apr jun jul aug sep sept
    oct nov dec núm nº pág стр""".split()
)
_MAY_END = frozenset(
    # More follows unless a capital letter does.
    "etc al inc ltd co corp jr bros u.s u.k u.n a.m p.m b.c a.d ph.d т.д usw s.o".split()
)


def cut(
    text: str,
    limit_s: float,
    seconds_of: Callable[[str], float] = character_s,
    guarded: Iterable[tuple[int, int]] = (),
) -> list[tuple[int, int, Cut]]:
    """Cut ``text`` into pieces of at most ``limit_s`` by estimate, at the best places there are.

    Args:
        text: one paragraph.
        limit_s: bound; only a single grapheme may exceed it.
        seconds_of: duration of one character.
        guarded: further ranges (start, end) that are not cut, as long as they fit.

    Returns:
        (start, end, quality of the cut at its end) of each piece; together they are ``text``.
    """
    return _Cutter(text, limit_s, seconds_of, guarded).pieces(
        0, len(text), Cut.SENTENCE, Cut.PARAGRAPH
    )


class _Cutter:
    """Cuts one text, coarsest level first."""

    def __init__(
        self,
        text: str,
        limit_s: float,
        seconds_of: Callable[[str], float],
        guarded: Iterable[tuple[int, int]],
    ) -> None:
        self._text = text
        self._limit_s = limit_s
        self._clock = [0.0, *accumulate(map(seconds_of, text))]
        self._graphemes = {match.end() for match in _GRAPHEME.finditer(text)}
        own = (match.span() for match in PROTECTED.finditer(text))
        self._guarded = {
            place for span in (*own, *guarded) for place in range(span[0] + 1, span[1])
        }

    def pieces(self, start: int, end: int, level: Cut, last: Cut) -> list[tuple[int, int, Cut]]:
        """Pieces of ``text[start:end]``, cut at ``level`` or finer; ``last`` ends the last one."""
        if self._fits(start, end):
            return [(start, end, last)]
        places = [
            place for place in _PLACES[level](self._text, start, end) if self._may_cut(place, level)
        ]
        packed = self._packed([start, *places, end])
        if level == Cut.GRAPHEME:
            return [(a, b, last if b == end else level) for a, b in packed]
        finer = Cut(level - 1)
        return [
            piece
            for a, b in packed
            for piece in self.pieces(a, b, finer, last if b == end else level)
        ]

    def _fits(self, start: int, end: int) -> bool:
        return self._clock[end] - self._clock[start] <= self._limit_s

    def _may_cut(self, place: int, level: Cut) -> bool:
        """Never inside a grapheme, nor before what closes a word; in a number only at the last."""
        if place not in self._graphemes or (level > Cut.PART and place in self._guarded):
            return False
        return not (_CLOSING.match(self._text, place) and _OF_A_WORD.match(self._text, place - 1))

    def _packed(self, places: list[int]) -> list[tuple[int, int]]:
        """Neighbours joined as long as they fit, all about equally long."""
        fewest = self._joined(places, self._limit_s)
        total_s = self._clock[places[-1]] - self._clock[places[0]]
        low, high = min(total_s / len(fewest), self._limit_s), self._limit_s
        for _ in range(_BALANCING_STEPS):
            middle = (low + high) / 2
            packed = self._joined(places, middle)
            if len(packed) > len(fewest):
                low = middle
            else:
                fewest, high = packed, middle
        return fewest

    def _joined(self, places: list[int], limit_s: float) -> list[tuple[int, int]]:
        """Neighbours joined as long as they stay within ``limit_s``."""
        joined: list[tuple[int, int]] = []
        for start, end in pairwise(places):
            if joined and self._clock[end] - self._clock[joined[-1][0]] <= limit_s:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        return joined


def sentence_starts(text: str) -> list[int]:
    """Where sentences start in ``text``, the first one's 0 left out."""
    return _sentence_places(text, 0, len(text))


def _sentence_places(text: str, start: int, end: int) -> list[int]:
    found = _SENTENCE_END.finditer(text, start, end)
    return [match.end() for match in found if match.end() < end and _ends_sentence(text, match)]


def _ends_sentence(text: str, match: regex.Match) -> bool:
    """Whether the punctuation that was matched ends a sentence."""
    if match["wide"]:
        return True
    after = text[match.end() : match.end() + 1]
    if after.islower() and (match["close"] or match["stop"][-1] in ".…"):
        return False  # '"Why?" she asked', 'approx. five', 'well … maybe'
    if match["stop"] != "." or match["close"]:
        return True
    before = text[: match.start()]
    word = _LAST_WORD.search(before, max(0, len(before) - 20)).group().casefold()
    if word in _MAY_END:
        return after.isupper()
    if word in _NUMBERED:
        return not after.isdigit()
    if word.isdigit():
        is_item = len(word) < 3 and match.start() == len(word)  # "1. Buy milk"
        return not is_item and not _GERMAN_MONTH.match(text, match.end())
    is_initial = len(word) == 1 and word not in "ai" and after.isupper()
    if is_initial and _MERIDIEM.search(before, max(0, len(before) - 4)):
        return True
    return word not in _TITLES and not is_initial


def _clause_places(text: str, start: int, end: int) -> list[int]:
    return [m.end() for m in _CLAUSE_END.finditer(text, start, end) if start < m.end() < end]


def _word_places(text: str, start: int, end: int) -> list[int]:
    """After white space, and between the words of scripts that write none."""
    places = {match.end() for match in _SPACE.finditer(text, start, end)}
    for run in _RUN.finditer(text, start, end):
        place = run.start()
        for word in _words(run.group()):
            places.add(place)
            place += len(word)
        places.add(place)
    return sorted(place for place in places if start < place < end)


def _words(run: str) -> list[str]:
    """Words or phrases of a run without spaces; graphemes where no model knows the script."""
    for language, script in _MODELS.items():
        if script.search(run):
            return _parser(language).parse(run)
    return _GRAPHEME.findall(run)


@lru_cache(maxsize=3)
def _parser(language: str) -> budoux.Parser:
    budoux = required("budoux")
    load = {
        "th": budoux.load_default_thai_parser,
        "ja": budoux.load_default_japanese_parser,
        "zh": budoux.load_default_simplified_chinese_parser,
    }
    return load[language]()


def _part_places(text: str, start: int, end: int) -> list[int]:
    return [m.end() for m in _PART.finditer(text, start, end) if start < m.end() < end]


def _grapheme_places(text: str, start: int, end: int) -> list[int]:
    return [match.end() for match in _GRAPHEME.finditer(text, start, end) if match.end() < end]


_PLACES = {
    Cut.SENTENCE: _sentence_places,
    Cut.CLAUSE: _clause_places,
    Cut.WORD: _word_places,
    Cut.PART: _part_places,
    Cut.GRAPHEME: _grapheme_places,
}
