"""From what someone pasted to a script of utterances and silences, every character accounted for.

The straight line: unspeakable characters → tags, pauses and mark-up (:mod:`.markup`) → numbers and
the like (:mod:`.normalise`) → paragraphs → cuts (:mod:`.segment`) → utterances. Pure and fast;
knows nothing of tokens, models or sound.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace

import regex

from .duration import character_s, estimate_s
from .markup import BROKEN_TAG, MARK, STRAY_BAR, Mark, Reader
from .normalise import normalise
from .script import LONGEST_GAP_S, UTTERANCE_LIMIT_S, Part, Reading, Script, Utterance
from .segment import Cut, cut, sentence_starts
from .tags import Tag
from .traced import Traced

_UNSPEAKABLE = regex.compile(
    r"[[\p{C}\uFFFC]--[\t\n\v\f\r\x85\u200C\u200D\p{Prepended_Concatenation_Mark}]]", regex.V1
)
_GRAPHEME = regex.compile(r"\X")
_REPEATED = regex.compile(rf"((?!{MARK})[^\p{{L}}\p{{M}}\p{{N}}\s])\1{{3,}}")
_LONG_SPACES = regex.compile(r"\s{3,}|[^\S\n\r]{2,}")
_SPACES = regex.compile(r"(?:(?!(?<=\p{N})[\u00A0\u202F]\p{N})\s)+")
_INNER_SPACE = regex.compile(r"(?<=\S)\s+(?=\S)")
_NEW_LINE = regex.compile(r"\r\n|[\n\r\v\f\x85\u2028]")
_SPEAKABLE = regex.compile(r"[\p{L}\p{N}]")
_FIRST_WORD = regex.compile(rf"(?:(?!{MARK})\S)+\s+(?=[\p{{L}}\p{{N}}])")
_PARAGRAPH, _LINE = "\u2029", "\u2028"
_MODEL_PAUSES_S = {"prosody:pause": 0.55, "prosody:long_pause": 1.1}
"""Nominal length of the model's own pauses, for where no words stand beside them."""


def plan(text: str, reading: Reading | None = None, *, has_voice: bool = False) -> Script:
    """Decide what is spoken, in which pieces.

    Args:
        text: anything, of any length.
        reading: how it is read.
        has_voice: whether a cloned voice will speak; only for the warnings.

    Raises:
        ValueError: there is nothing to speak and no silence asked for.
    """
    return _Planner(text, reading or Reading(), has_voice).script()


def split(text: str, limit_s: float = UTTERANCE_LIMIT_S) -> list[Utterance]:
    """The utterances of :func:`plan` by default options."""
    return list(plan(text, Reading(limit_s=limit_s)).utterances)


class _Planner:
    """Makes one script: walks the text once, and keeps what has been said and what holds."""

    def __init__(self, source: str, reading: Reading, has_voice: bool) -> None:
        self._source = source
        self._reading = reading
        self._has_voice = has_voice
        self._reader = Reader()
        self._marks = self._reader.marks
        self._utterances: list[Utterance] = []
        self._last_cut = Cut.PARAGRAPH  # of the newest utterance
        self._silence_s: float | None = None  # asked for since the newest utterance
        self._owner: list[int | None] = [None] * len(source)
        self._of_text: dict[str, Tag] = {}  # group → delivery tag that holds for the whole text
        self._of_paragraph: dict[str, Tag] = {}

    def script(self) -> Script:
        text = self._prepared()
        for block in self._blocks(text):
            for piece, quality in self._pieces(block):
                self._say(piece, quality)
        self._end_utterance(is_last=True)
        if not self._utterances:
            reasons = "; ".join(self._reader.warnings)
            raise ValueError(
                "text: nothing to speak, it has no letter, digit or sound; type some words"
                + (f" ({reasons})" if reasons else "")
            )
        return Script(
            self._source,
            tuple(self._utterances),
            self._account(text),
            tuple(self._reader.warnings),
        )

    def _prepared(self) -> Traced:
        """The text with marks for tags and pauses, in words, white space folded."""
        text = Traced.of(self._source).rewrite(_UNSPEAKABLE, "", "character without a sound")
        if not unicodedata.is_normalized("NFC", text.text):
            text = text.rewrite(_GRAPHEME, lambda m: unicodedata.normalize("NFC", m.group()), "")
        text = text.rewrite(_LONG_SPACES, _shortened, "")  # so that rules meet short runs only
        text = self._reader.read(text)
        if self._reading.normalise:
            text = normalise(text, self._reading.language)
        text = text.rewrite(STRAY_BAR, "", BROKEN_TAG)
        text = text.rewrite(_REPEATED, lambda m: m[1] * 3, "repeated sign")
        text = text.rewrite(_SPACES, _folded, "")
        if delivery := self._characters(lambda mark: mark.tag and mark.tag.is_delivery):
            glue = regex.compile(rf"([{delivery}])\s+")
            text = text.rewrite(glue, lambda m: m[1], "")
        return text

    def _characters(self, wanted: Callable[[Mark], object]) -> str:
        """The private characters of the marks that are wanted."""
        return "".join(self._marks.character(mark) for mark in self._marks.all if wanted(mark))

    def _blocks(self, text: Traced) -> Iterator[Traced]:
        """What stands between blank lines and pauses, which are noted as they are passed."""
        pauses = self._characters(lambda mark: mark.tag is None)
        start = 0
        for match in regex.finditer(rf"[{pauses}{_PARAGRAPH}]", text.text):
            yield text[start : match.start()]
            start = match.end()
            if match.group() == _PARAGRAPH:
                self._of_paragraph.clear()
                self._last_cut = Cut.PARAGRAPH
            else:
                self._be_silent(self._marks.get(match.group()).pause_s)
        yield text[start:]

    def _pieces(self, block: Traced) -> Iterator[tuple[Traced, Cut]]:
        """The block cut to length; a delivery tag at a sentence's start starts a piece too."""
        places = [
            place
            for place in sentence_starts(block.text)
            if (mark := self._marks.get(block.text[place])) and mark.tag.is_delivery
        ]
        for start, end in zip([0, *places], [*places, len(block)], strict=True):
            part = block[start:end]
            ranges: list[tuple[int, int, Cut]] = []
            for a, b, quality in cut(
                part.text, self._reading.limit_s, self._seconds, part.replaced
            ):
                if ranges and not self._has_words(part.text[a:b]):
                    first = ranges[-1][0]  # what has no words joins the piece before, if it fits
                    if sum(map(self._seconds, part.text[first:b])) <= self._reading.limit_s:
                        a = ranges.pop()[0]
                ranges.append((a, b, quality if end == len(block) else min(quality, Cut.SENTENCE)))
            yield from ((part[a:b], quality) for a, b, quality in ranges)

    def _seconds(self, character: str) -> float:
        mark = self._marks.get(character)
        return estimate_s(mark.text) if mark else character_s(character)

    def _has_words(self, text: str) -> bool:
        """Whether there is something in it that makes a sound."""
        marks = (self._marks.get(character) for character in text)
        return any(mark and mark.sound for mark in marks) or bool(_SPEAKABLE.search(text))

    def _say(self, piece: Traced, quality: Cut) -> None:
        """The next utterance, if the piece makes one."""
        piece = piece.strip()
        n_tags = self._take_delivery(piece.text)
        body = piece.text[n_tags:]
        if not self._has_words(body):
            for mark in filter(None, map(self._marks.get, body)):
                self._be_silent(_MODEL_PAUSES_S.get(mark.tag.name, 0.0))
            return
        self._end_utterance()
        for character, (start, end) in zip(piece.text, piece.spans, strict=True):
            if not character.isspace():  # a folded run may span what is not spoken
                self._owner[start:end] = [len(self._utterances)] * (end - start)
        self._warn_of_late_tags(body)
        self._utterances.append(Utterance(self._with_delivery(body), piece.start, piece.end))
        self._last_cut = quality

    def _take_delivery(self, text: str) -> int:
        """Note the delivery tags that ``text`` starts with; returns how many there are."""
        has_begun = any(each.text for each in self._utterances)
        scope = self._of_paragraph if has_begun else self._of_text
        for n, character in enumerate(text):
            mark = self._marks.get(character)
            if mark is None or not mark.tag.is_delivery:
                return n
            scope[mark.tag.group] = mark.tag
        return len(text)

    def _with_delivery(self, body: str) -> str:
        """``body`` as the model reads it, behind the delivery tags that hold here."""
        tags = list({**self._of_text, **self._of_paragraph}.values())
        strong = [tag for tag in tags if tag.is_strong]
        first = _FIRST_WORD.match(body)
        if strong and first and self._reading.anchor:
            anchored = "".join(tag.token for tag in strong)
            tags = [tag for tag in tags if not tag.is_strong]
            body = f"{first.group().rstrip()} {anchored}{body[first.end() :]}"
        elif strong and self._has_voice:
            self._reader.warn(
                f"{strong[0].token} at the very start can override the cloned voice; switch "
                "'anchor' on to put it behind the first word"
            )
        text = "".join(tag.token for tag in tags) + self._marks.render(body)
        return text.replace(_LINE, " ")

    def _warn_of_late_tags(self, body: str) -> None:
        starts = [0, *sentence_starts(body)]
        for place, character in enumerate(body):
            mark = self._marks.get(character)
            if mark is None or not mark.tag.is_delivery:
                continue
            start = max(each for each in starts if each <= place)
            if len(body[start:place].split()) > 2:  # two words are an anchor for a strong emotion
                self._reader.warn(
                    f"{mark.tag.token} stands inside a sentence; it works best at its start"
                )

    def _be_silent(self, seconds: float) -> None:
        self._silence_s = (self._silence_s or 0.0) + seconds
        if self._silence_s > LONGEST_GAP_S:
            self._silence_s = LONGEST_GAP_S
            self._reader.warn(f"pauses in a row add up to {LONGEST_GAP_S:g} s at most")

    def _end_utterance(self, is_last: bool = False) -> None:
        """Settle the gap behind the newest utterance."""
        reading, silence_s = self._reading, self._silence_s
        self._silence_s = None
        if not self._utterances:
            if silence_s:
                self._utterances.append(Utterance("", gap_s=silence_s))
            return
        if silence_s is not None:
            gap_s = silence_s
        elif is_last:
            gap_s = 0.0
        elif self._last_cut == Cut.PARAGRAPH:
            gap_s = reading.paragraph_s
        elif reading.crossfade_s:
            gap_s = -reading.crossfade_s
        else:
            gap_s = reading.gap_s if self._last_cut == Cut.SENTENCE else 0.0
        self._utterances[-1] = replace(self._utterances[-1], gap_s=gap_s)

    def _account(self, text: Traced) -> tuple[Part, ...]:
        """Put the owners of all characters, and the reasons of those without one, in ranges."""
        reasons = [""] * len(self._source)
        for loss in filter(lambda each: each.reason, text.losses):
            reasons[loss.start : loss.end] = [loss.reason] * (loss.end - loss.start)
            if loss.is_gone:
                self._owner[loss.start : loss.end] = [None] * (loss.end - loss.start)
        for match in _INNER_SPACE.finditer(self._source):
            before, after = self._owner[match.start() - 1], self._owner[match.end()]
            if before == after and not any(reasons[match.start() : match.end()]):
                self._owner[match.start() : match.end()] = [before] * len(match.group())
        parts: list[Part] = []
        for place, (owner, reason) in enumerate(zip(self._owner, reasons, strict=True)):
            if owner is None:
                is_space = self._source[place].isspace()
                reason = reason or ("white space" if is_space else "nothing to speak")
            else:
                reason = ""
            if parts and (parts[-1].utterance, parts[-1].reason) == (owner, reason):
                parts[-1] = Part(parts[-1].start, place + 1, owner, reason)
            else:
                parts.append(Part(place, place + 1, owner, reason))
        return tuple(parts)


def _shortened(match: regex.Match) -> str:
    """At most one empty line of a run of white space, or one space."""
    return {_PARAGRAPH: "\n\n", _LINE: "\n"}.get(_folded(match), " ")


def _folded(match: regex.Match) -> str:
    """One separator for a run of white space: of paragraphs, of lines or of words."""
    n_lines = len(_NEW_LINE.findall(match.group()))
    if n_lines > 1 or _PARAGRAPH in match.group():
        return _PARAGRAPH
    return _LINE if n_lines else " "
