"""Tags, pauses and mark-up that people write into a text: recognised, and taken out of the words.

What acts (a control tag, a pause) becomes one private character, a *mark*, which no later rule can
cut or misread; everything else that is not to be spoken goes, each with its reason and, where the
writer may have meant something, a warning.
"""

# ruff: noqa: RUF001, SIM905  (tables of signs and words of many scripts)
from __future__ import annotations

import html
from collections import Counter
from dataclasses import dataclass

import regex

from .tags import Tag, is_almost, is_sound_word, is_structural, nearest, resolve, sound_word
from .traced import Traced

PAUSE_LIMIT_S = 10.0
DEFAULT_PAUSE_S = 0.5
_FIRST_MARK = 0xF0000  # the private planes 15 and 16: 131,068 marks, equal ones shared
MARK = r"[\U000F0000-\U0010FFFD]"

_STRENGTHS = {
    "none": 0.0, "x-weak": 0.1, "weak": 0.2, "medium": 0.5, "strong": 0.8, "x-strong": 1.2,
}  # fmt: skip
_LENGTHS = {"short": 0.25, "": DEFAULT_PAUSE_S, "long": 1.0}
_SSML = frozenset(
    "speak voice prosody emphasis say-as sub phoneme audio p s w mark lang lexicon metadata meta "
    "desc par seq media token break".split()
)
_HTML = frozenset(
    "a abbr b big blockquote body br center cite code dd del div dl dt em font h1 h2 h3 h4 h5 h6 "
    "head hr html i img ins kbd li link nobr ol pre q script section small span strike strong "
    "style sup table tbody td th thead title tr tt u ul".split()
)
_BLOCKS = frozenset("p div br hr li h1 h2 h3 h4 h5 h6 tr blockquote title dd dt".split())

_TIME = (
    r"(?P<n>\d{1,9}(?:[.,]\d{1,9})?|[.,]\d{1,9})\s*"
    r"(?P<unit>ms|msecs?|milliseconds?|s|secs?|seconds?)?"
)
_PAUSE_NAME = r"(?P<length>short|long)?[\s_-]*(?:pause|silence|silent|wait|stop|break|slnc|delay)"
_COMMENT = regex.compile(
    r"<!--.*?-->|<!\[CDATA\[|\]\]>|<\?[^<>]*\?>|<!DOCTYPE[^<>]*>", regex.S | regex.I
)
_BREAK = regex.compile(r"<\s*break\b(?P<attributes>[^<>]*)>|<\s*/\s*break\s*>", regex.I)
_ATTRIBUTE = regex.compile(r"""(time|strength)\s*=\s*["'“”]?\s*([\w.,\-]+)""", regex.I)
_PAUSE = regex.compile(
    r"(?!\(\s*(?:silent|wait|stop|break|delay))"  # "(stop 2)" is a place on a line
    rf"(?:\[\[?|<\|?|\{{|\()\s*{_PAUSE_NAME}\s*(?:[:=]\s*|\s)\s*{_TIME}\s*(?:\]\]?|\|?/?>|\}}|\))"
    rf"|<#\s*{_TIME}\s*#>",
    regex.I,
)
_BARE_PAUSE = regex.compile(
    r"[\[<(]\s*(?P<length>short|long)?[\s_-]*(?:pause|silence)\s*/?[\]>)]", regex.I
)
_CATEGORY = r"(?:emotion|style|sfx|prosody|env)"
_TAG = regex.compile(
    r"<\s*\|(?P<typed>[^|<>\n]{0,60})\|?\s*>|<(?P<typed>[^|<>\n]{1,60})\|\s*>"
    rf"|<\s*(?P<typed>/?\s*{_CATEGORY}\s*[:=][^|<>\n]{{0,60}}?)\s*/?>"
    rf"|[\[{{]\s*\|?(?P<typed>{_CATEGORY}\s*[:=][^\[\]{{}}|\n]{{0,60}}?)\s*\|?[\]}}]"
    rf"|<\|(?P<typed>{_CATEGORY}:[a-z_]{{1,40}})(?=[\s\p{{P}}])",
    regex.I,
)
_BRACKETED = regex.compile(r"\[\s*(?P<typed>\p{L}{2,12})\s*\]")
_ELEMENT = regex.compile(r"<\s*/?\s*(?P<name>[a-zA-Z][\w:.-]{0,40})(?P<rest>\s[^<>]*|/)?>")
_ENTITY = regex.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,31});")
STRAY_BAR = regex.compile(r"(?<=<)\|+|\|+(?=>)")
"""What would make a literal tag out of words."""
BROKEN_TAG = "markup: bar of a broken tag"


@dataclass(frozen=True)
class Mark:
    """What one private character stands for: a control tag, with its sound word, or a pause."""

    tag: Tag | None = None
    sound: str = ""
    pause_s: float = 0.0

    @property
    def text(self) -> str:
        """As the model reads it."""
        return f"{self.tag.token}{self.sound}" if self.tag else ""


class Marks:
    """The marks of one text."""

    def __init__(self) -> None:
        self.all: list[Mark] = []
        self._index: dict[Mark, int] = {}

    def character(self, mark: Mark) -> str:
        """The private character that stands for ``mark``."""
        if mark not in self._index:
            self._index[mark] = len(self.all)
            self.all.append(mark)
        number = _FIRST_MARK + self._index[mark]
        return chr(number + 2 if number > 0xFFFFD else number)  # not the two non-characters

    def get(self, character: str) -> Mark | None:
        """What a private character stands for; None for any other."""
        number = ord(character) - _FIRST_MARK
        if number < 0:
            return None
        return self.all[number - 2 if number > 0xFFFF else number]

    def render(self, text: str) -> str:
        """``text`` as the model reads it."""
        return regex.sub(MARK, lambda match: self.get(match.group()).text, text)


class Reader:
    """Reads one text's mark-up; collects marks and warnings."""

    def __init__(self) -> None:
        self.marks = Marks()
        self.warnings: list[str] = []
        self._unsupported: Counter[str] = Counter()

    def read(self, text: Traced) -> Traced:
        """Take the mark-up out of ``text``, which holds no private characters yet."""
        for pattern, replace, reason in (
            (_COMMENT, " ", "markup: comment"),
            (_BREAK, self._break, "pause"),
            (_PAUSE, self._pause, "pause"),
            (_BARE_PAUSE, self._bare_pause, "pause"),
            (_TAG, self._tag, "control tag"),
            (_BRACKETED, self._bracketed, "control tag"),
            (_ELEMENT, self._element, "markup: SSML or HTML"),
            (_ENTITY, self._entity, "markup: entity"),
        ):
            text = text.rewrite(pattern, replace, reason)
        text = self._with_sounds(text.rewrite(STRAY_BAR, "", BROKEN_TAG))
        if self._unsupported:
            names = ", ".join(f"<{name}>" for name in sorted(self._unsupported))
            self.warn(f"{names}: SSML that is not supported was left out, its text is spoken")
        return text

    def warn(self, sentence: str) -> None:
        """Keep a warning, once."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def _silence(self, seconds: float, typed: str) -> str:
        if seconds > PAUSE_LIMIT_S:
            self.warn(f"{typed}: a pause lasts {PAUSE_LIMIT_S:g} s at most, shortened to that")
        return self.marks.character(Mark(pause_s=round(min(seconds, PAUSE_LIMIT_S), 3)))

    def _break(self, match: regex.Match) -> str:
        found = {key.lower(): value for key, value in _ATTRIBUTE.findall(match["attributes"] or "")}
        if time := regex.fullmatch(_TIME, found.get("time", ""), regex.I):
            return self._silence(_seconds(time), match.group())
        if "time" in found or match["attributes"] is None:
            if "time" in found:
                self.warn(f"{match.group()}: the time is not understood, write 1.5s or 500ms")
            return " "
        strength = found.get("strength", "medium").lower()
        return self._silence(_STRENGTHS.get(strength, DEFAULT_PAUSE_S), match.group())

    def _pause(self, match: regex.Match) -> str:
        is_macos = "slnc" in match.group().lower()  # milliseconds there
        return self._silence(_seconds(match, "ms" if is_macos else "s"), match.group())

    def _bare_pause(self, match: regex.Match) -> str:
        return self._silence(_LENGTHS[(match["length"] or "").lower()], match.group())

    def _tag(self, match: regex.Match) -> str:
        typed = match["typed"].strip()
        if typed.startswith("/"):
            self.warn(f"{match.group()}: a tag has no end, it holds for its sentence or paragraph")
            return " "
        if tag := resolve(typed):
            return self.marks.character(Mark(tag))
        if is_structural(typed):
            self.warn(f"{match.group()} is reserved for the prompt's layout and was left out")
        else:
            self.warn(
                f"{match.group()} is not a tag that the model knows and was left out; "
                f"the nearest is {nearest(typed).token}"
            )
        return " "

    def _bracketed(self, match: regex.Match) -> str | None:
        """A word in square brackets is a tag only if it is a sound that people make."""
        tag = resolve(match["typed"])
        return self.marks.character(Mark(tag)) if tag and tag.group == "sfx" else None

    def _element(self, match: regex.Match) -> str | None:
        name = match["name"].lower()
        if name in _SSML or name in _HTML or ":" in name:
            if name not in _HTML and name not in ("speak", "p", "s"):
                self._unsupported[name] += 1
            return "\n\n" if name in _BLOCKS else " " if name == "s" else ""
        if match["rest"]:
            return None
        if (tag := resolve(name)) is not None:
            return "" if "/" in match.group() else self.marks.character(Mark(tag))
        return self._tag_with_a_slip(match) if is_almost(name) else None

    def _tag_with_a_slip(self, match: regex.Match) -> str:
        self.warn(
            f"{match.group()} is not a tag that the model knows and was left out; "
            f"the nearest is {nearest(match['name']).token}"
        )
        return " "

    def _entity(self, match: regex.Match) -> str | None:
        new = html.unescape(match.group())
        return None if regex.search(r"[\p{C}--[\u200C\u200D]]", new, regex.V1) else new

    def _with_sounds(self, text: Traced) -> Traced:
        """Give each sound effect its sound word, glued to it."""
        sounds = [each for each in self.marks.all if each.tag and each.tag.group == "sfx"]
        if not sounds:
            return text
        characters = "".join(self.marks.character(each) for each in sounds)

        def complete(match: regex.Match) -> str | None:
            mark = self.marks.get(match.group()[0])
            if is_sound_word(mark.tag, match["word"] or ""):
                return match.group()[0]
            sound = sound_word(mark.tag)
            self.warn(f"{mark.tag.token} needs its sound word, '{sound}' was added")
            comma = "," if match["word"] else ""
            space = " " if match["word"] or len(match.group()) > 1 else ""
            return self.marks.character(Mark(mark.tag, sound + comma)) + space

        pattern = regex.compile(rf"[{characters}]\s*(?=(?P<word>[\p{{L}}\p{{M}}\p{{N}}'’]+)|)")
        return text.rewrite(pattern, complete, "control tag")


def _seconds(match: regex.Match, default_unit: str = "s") -> float:
    number = float(match["n"].replace(",", "."))
    unit = (match["unit"] or default_unit).lower()
    return number / 1000 if unit.startswith("m") else number
