"""How long a text takes to speak, by character and script.

Rates are rough on purpose: they bound how much is spoken at once and when speech that does not end
is cut off.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from .tags import TAGS, TOKEN

_SECONDS_PER_LETTER = 0.065  # 15 characters a second of ordinary English, the spaces counted
_SECONDS_PER_DIGIT = 0.3
_SECONDS_PER_SYMBOL = 0.3  # "%", "&", "+": read as a word
_SECONDS_PER_TAG = {"pause": 1.0, "sfx": 1.0}
_SYLLABARIES = {
    "CJK": 0.22, "HIRAGANA": 0.14, "KATAKANA": 0.14, "HANGUL": 0.17, "BOPOMOFO": 0.14,
    "YI": 0.2, "ETHIOPIC": 0.16, "CHEROKEE": 0.16, "CANADIAN": 0.16, "VAI": 0.16,
}  # fmt: skip
_UNWRITTEN_VOWELS = {"ARABIC": 0.085, "HEBREW": 0.1, "SYRIAC": 0.085, "THAANA": 0.065}
_ABUGIDAS = dict.fromkeys(
    ("DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU", "KANNADA",
     "MALAYALAM", "SINHALA", "MYANMAR", "KHMER", "LAO", "TIBETAN", "THAI"),
    0.11,
)  # fmt: skip
_BY_SCRIPT = {**_SYLLABARIES, **_UNWRITTEN_VOWELS, **_ABUGIDAS}
_GROUP = {tag.token: tag.group for tag in TAGS.values()}


def estimate_s(text: str) -> float:
    """Expected duration of spoken ``text`` in seconds; control tags count for what they add."""
    tags = sum(_SECONDS_PER_TAG.get(_GROUP[token], 0.0) for token in TOKEN.findall(text))
    return tags + sum(map(character_s, TOKEN.sub("", text)))


@lru_cache(maxsize=4096)
def character_s(character: str) -> float:
    """Expected duration of one character in seconds."""
    kind = unicodedata.category(character)
    if kind[0] == "N":
        return _SECONDS_PER_DIGIT
    if kind[0] == "M" or kind == "Cf":
        return 0.0  # spoken with its letter
    if kind[0] == "S" or character in "@%&#":
        return _SECONDS_PER_SYMBOL
    script = unicodedata.name(character, "").partition(" ")[0]
    return _BY_SCRIPT.get(script, _SECONDS_PER_LETTER)


def cap_s(text: str) -> float:
    """Longest duration that speech of ``text`` may have, in seconds.

    Twice the estimate and three seconds: slow speakers end well before it, speech that has lost its
    end does not. Checked against the teacher's durations: real speech stays below 1.2 estimates.
    """
    return 2.0 * estimate_s(text) + 3.0
