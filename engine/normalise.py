"""What is written becomes what is said: numbers, dates, addresses, markdown, emoji.

Owns the order of the rules and the choice of the language; English has its rules in
:mod:`.english`, other languages get their numbers from :mod:`.numerals`. The rules run until
nothing changes, so normalising twice is normalising once.
"""

# ruff: noqa: RUF001, SIM905  (tables of signs and words of many scripts)
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import regex

from .english import RULES as ENGLISH
from .numerals import languages, number
from .traced import Traced

Rule = tuple[str, regex.Pattern, "Callable[[regex.Match], str | None] | str"]
"""(reason, what is written, what is said)."""

_MAX_ROUNDS = 10  # nested markdown; each round takes a layer off

_PICTURE = (
    r"(?:[[\p{Emoji_Presentation}\p{Extended_Pictographic}\p{Emoji_Modifier}\p{Regional_Indicator}]"
    r"--[©®™‼⁉ℹ\u2194-\u21AA〰〽㊗㊙]][\uFE0E\uFE0F\u200D]*)+"
)


def _inside(match: regex.Match) -> str:
    return match["inside"]


def _markdown(pattern: str, replace: Callable[[regex.Match], str | None] | str = "") -> Rule:
    return "markdown", regex.compile(pattern, regex.M), replace


_ITEM = r"(?:#{1,6}|[-*+•‣◦])[ \t]+"
_TABLE_RULE = r"[ \t]*:?-{3,}:?[ \t]*"
MARKDOWN: tuple[Rule, ...] = (
    _markdown(r"\\r\\n|\\n(?=\s|\\|[\p{Lu}\p{Lo}]|\Z)", "\n"),
    _markdown(r"^[ \t]*(?:```|~~~)[^\n`~]*$"),
    _markdown(rf"^[ \t]*\|?(?:{_TABLE_RULE}\|)+(?:{_TABLE_RULE})?$"),
    _markdown(r"^[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$"),
    _markdown(
        r"!?\[(?P<inside>[^\[\]\n]*)\]\((?:[^()\s]|\([^()\s]*\))*(?:\s\"[^\"\n]*\")?\)", _inside
    ),
    # A heading or a list's item ends with a full stop.
    _markdown(rf"(?<=^[ \t]*(?:{_ITEM}|\d{{1,3}}[.)][ \t]+)[^\n]*[\p{{L}}\p{{N}}])[ \t]*\n", ".\n"),
    _markdown(r"^[ \t]*(?:>[ \t]?)+(?=\s*\S)"),
    _markdown(rf"^[ \t]*{_ITEM}(?:\[[ xX]\][ \t]+)?(?=\S)"),
    _markdown(r"(\*{2,3}|~~|__)(?=[^\s*~])(?P<inside>[^*\n]+?)(?<=[^\s*~])\1", _inside),
    _markdown(r"(?<![\w*])\*(?=[^\s*])(?P<inside>[^*\n]+)(?<=[^\s*])\*(?![\w*])", _inside),
    _markdown(r"(?<!\w)_(?=[^\s_])(?P<inside>[^_\n]+)(?<=[^\s_])_(?!\w)", _inside),
    _markdown(r"`+(?P<inside>[^`\n]+)`+", _inside),
    _markdown(r"^[ \t]*\|[ \t]*|[ \t]*\|[ \t]*$"),
    _markdown(r"(?<=\S)[ \t]*\|[ \t]+(?=\S)", ", "),
)
EMOJI: tuple[Rule, ...] = (
    ("emoji", regex.compile(r"(?<=[0-9#*])\uFE0F?\u20E3"), ""),
    ("emoji", regex.compile(rf"[ \t]*{_PICTURE}(?=\s*(?:\p{{P}}|\Z))", regex.V1), ""),
    ("emoji", regex.compile(rf"{_PICTURE}", regex.V1), " "),
    ("emoji", regex.compile(r"[ \t]*(?<![\w:;=<])(?:[:;=]['-]?[)(DPp]|<3|xD)(?![\w)(])"), ""),
)

# Function words that are frequent and belong to one of these languages only.
_FUNCTION_WORDS = {
    "en": "the and of to is that it was for with you this are have not be they from my your",
    "de": "der das und ist nicht ich sie ein eine mit auf für von dem wir auch habe sind am um",
    "fr": "le les et est une des dans pour pas qui sur vous nous avec je il elle ne ai ont",
    "es": "el los las es una por para del se lo su como pero más y tengo hay años",
    "it": "gli e è una di che non sono della ho mi ma anche questo ha anni il",
    "pt": "os é uma em não para mais você eu foi mas na ao tenho anos",
    "nl": "het een en van niet ik dat op te zijn met voor je wij maar ook naar heb",
    "pl": "i w nie na się że jest z jak ale co tak po mam lat",
    "tr": "ve bir bu da için ile çok ben sen ama gibi var mı yıl",
    "sv": "och är det att som på av för med inte jag har den till",
}
_SCRIPTS = (
    ("ja", r"[\p{Hiragana}\p{Katakana}]"), ("ko", r"\p{Hangul}"), ("th", r"\p{Thai}"),
    ("he", r"\p{Hebrew}"), ("fa", "[پچژگ]"), ("ar", r"\p{Arabic}"), ("uk", "[їєґ]"),
    ("ru", r"\p{Cyrillic}"), ("bn", r"\p{Bengali}"), ("te", r"\p{Telugu}"), ("kn", r"\p{Kannada}"),
)  # fmt: skip
# Elsewhere a number's words depend on their neighbours, and the model knows better; who names the
# language gets its numbers all the same.
_CERTAIN = frozenset("en de fr es it pt nl sv da no tr id vi th ro".split())
_UNSPACED = frozenset(("ja", "ko", "th"))
_DECIMAL_POINTS = frozenset("ja ko th he zh".split())


def normalise(text: Traced, language: str = "auto") -> Traced:
    """Put into words what is written in signs.

    Args:
        text: to be changed; private characters stay.
        language: ISO 639-1 code, or "auto". Languages that num2words does not know keep their
            digits.
    """
    if language == "auto":
        language = guess(text.text)
        language = language if language in _CERTAIN else "und"
    rules = (*MARKDOWN, *EMOJI, *_rules(language))
    for _ in range(_MAX_ROUNDS):
        before = text.text
        for reason, pattern, replace in rules:
            text = text.rewrite(pattern, replace, reason)
        if text.text == before:
            break
    return text


def guess(text: str) -> str:
    """The language that a text is probably in: by script, in Latin letters by function words."""
    n_letters = len(regex.findall(r"\p{L}", text))
    n_latin = len(regex.findall(r"\p{Latin}", text))
    if n_latin < 0.75 * n_letters:  # names in Latin letters stand in texts of all scripts
        found = (language for language, script in _SCRIPTS if regex.search(script, text))
        return next(found, "zh" if regex.search(r"\p{Han}", text) else "und")
    words = regex.findall(r"\p{Latin}+", text[:20000].lower())
    counts = {
        language: sum(word in known for word in words)
        for language, known in ((code, set(ws.split())) for code, ws in _FUNCTION_WORDS.items())
    }
    best = max(counts, key=counts.get)
    return best if counts[best] > max(1, counts["en"]) else "en"


@lru_cache(maxsize=16)
def _rules(language: str) -> tuple[Rule, ...]:
    """The rules of one language for what is not a word."""
    if language == "en":
        return ENGLISH
    if language not in languages():
        return ()
    point = r"\." if language in _DECIMAL_POINTS else ","
    group = "," if language in _DECIMAL_POINTS else r"[. \u00A0\u202F]"
    letters = "" if language in _UNSPACED else r"\p{L}"  # "A4" is no number, elsewhere
    pattern = regex.compile(
        rf"(?<![\p{{Nd}}{letters}.,:/-])(?:(?<!\S)-)?"
        rf"(?:\p{{Nd}}{{1,3}}(?:{group}\p{{Nd}}{{3}})+|\p{{Nd}}+)(?:{point}\p{{Nd}}+)?"
        r"(?![\p{Nd}]|[.,:/-]\p{Nd}|(?<=(?<!\p{Nd})\p{Nd}{1,2})\.\s+\p{L})"  # "am 3. Mai"
    )

    def in_words(match: regex.Match) -> str:
        plain = regex.sub(group, "", match.group())
        is_year = plain == match.group() and regex.fullmatch(r"1[1-9]\d\d", plain)
        words = number(regex.sub(point, ".", plain), language, is_year=bool(is_year))
        is_glued = match.end() < len(match.string) and match.string[match.end()].isalpha()
        return f"{words} " if is_glued and language not in _UNSPACED else words

    return (("number", pattern, in_words),)
