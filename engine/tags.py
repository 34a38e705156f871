"""The model's 43 public control tags, and the spellings in which people type them.

The one table of what may reach the model as a control token. Source: the checkpoint's model card
and PROMPTING.md.
"""

# ruff: noqa: SIM905  (tables of signs and words of many scripts)
from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches

import regex


@dataclass(frozen=True)
class Tag:
    """One control tag.

    Attributes:
        name: "emotion:anger".
        group: tags of one group exclude each other: emotion, style, speed, pitch, expressive; and
            those that act where they stand: pause, sfx.
    """

    name: str
    group: str

    @property
    def token(self) -> str:
        """As the tokenizer knows it."""
        return f"<|{self.name}|>"

    @property
    def is_delivery(self) -> bool:
        """Whether it colours what follows, instead of acting where it stands."""
        return self.group not in ("pause", "sfx")

    @property
    def is_strong(self) -> bool:
        """Whether it is known to override a cloned voice when it comes first."""
        return self.name in _STRONG


_EMOTIONS = (
    "elation amusement enthusiasm determination pride contentment affection relief contemplation "
    "confusion surprise awe longing arousal anger fear disgust bitterness sadness shame "
    "helplessness"
)
_PROSODY = {
    "speed_very_slow": "speed", "speed_slow": "speed",
    "speed_fast": "speed", "speed_very_fast": "speed",
    "pitch_low": "pitch", "pitch_high": "pitch",
    "expressive_high": "expressive", "expressive_low": "expressive",
    "pause": "pause", "long_pause": "pause",
}  # fmt: skip
_SOUNDS = {
    "cough": ("Ahem", r"a+hem+|e+hem+|cou+gh"),
    "laughter": ("Haha", r"[bmw]*a*(?:h+[aeio]+)+h*|lol"),
    "crying": ("Boohoo", r"boo+hoo+|so+b|wa+h*|huhu"),
    "screaming": ("Aaah", r"a+r*g*h+|e+k"),
    "burping": ("Burp", r"bu+rp"),
    "humming": ("Hmm", r"h*m+|hu+m+"),
    "sigh": ("Ahh", r"uh+|a+h+|ha+h*|oh+|phew|si+gh"),
    "sniff": ("Sff", r"s+n*i*f+"),
    "sneeze": ("Achoo", r"a+choo+"),
}
"""Sound effect → the sound word that must follow it, and what else may stand there for it."""

_STRONG = {
    f"emotion:{name}"
    for name in ("elation enthusiasm amusement surprise arousal anger fear disgust bitterness "
                 "sadness helplessness").split()
}  # fmt: skip

TAGS = {
    tag.name: tag
    for tag in (
        *(Tag(f"emotion:{name}", "emotion") for name in _EMOTIONS.split()),
        *(Tag(f"style:{name}", "style") for name in ("singing", "shouting", "whispering")),
        *(Tag(f"sfx:{name}", "sfx") for name in _SOUNDS),
        *(Tag(f"prosody:{name}", group) for name, group in _PROSODY.items()),
    )
}
"""Name → tag, all that are public."""

CONTROL_TOKENS = frozenset(tag.token for tag in TAGS.values())
"""What may reach the model as a control token; every other special token is plain text."""

TOKEN = regex.compile("|".join(regex.escape(token) for token in sorted(CONTROL_TOKENS)))
"""Finds them in a text."""

CATEGORIES = ("emotion", "style", "sfx", "prosody")

_BY_SHORT_NAME = {name.partition(":")[2]: tag for name, tag in TAGS.items()}
_OTHER_WORDS = {
    "laugh": "laughter", "laughs": "laughter", "laughing": "laughter",
    "coughs": "cough", "coughing": "cough", "cry": "crying", "cries": "crying",
    "scream": "screaming", "screams": "screaming", "burp": "burping", "burps": "burping",
    "hum": "humming", "hums": "humming", "sighs": "sigh", "sighing": "sigh",
    "sniffs": "sniff", "sniffing": "sniff", "sneezes": "sneeze", "sneezing": "sneeze",
    "sing": "singing", "sings": "singing", "shout": "shouting", "shouts": "shouting",
    "whisper": "whispering", "whispers": "whispering",
    "slow": "speed_slow", "fast": "speed_fast",
    "very_slow": "speed_very_slow", "very_fast": "speed_very_fast",
    "low_pitch": "pitch_low", "high_pitch": "pitch_high",
}  # fmt: skip
_STRUCTURAL = frozenset(
    "asr streaming_asr tts streaming_tts audio_cont_txt audio audio_end text text_end eoc user "
    "assistant system await_audio ref_audio ref_text chatml endoftext im_start im_end".split()
)


def plain(text: str) -> str:
    """``text`` without control tokens, white space folded."""
    return " ".join(TOKEN.sub(" ", text).split())


def resolve(typed: str) -> Tag | None:
    """The tag that someone means by what stands between its brackets, or None."""
    name = _tidy(typed)
    category, _, short = name.rpartition(":")
    found = TAGS.get(name) or TAGS.get(f"{category}:{_OTHER_WORDS.get(short)}")
    if found or category in CATEGORIES[:1]:  # a wrong emotion is never another kind of tag
        return found
    for spelling in (short, f"{category}_{short}"):
        found = _BY_SHORT_NAME.get(_OTHER_WORDS.get(spelling, spelling))
        if found:
            return found
    return None


def nearest(typed: str) -> Tag:
    """The known tag that is spelled most like ``typed``."""
    category, _, short = _tidy(typed).rpartition(":")
    known = {
        name.partition(":")[2]: tag
        for name, tag in TAGS.items()
        if category not in CATEGORIES or name.startswith(f"{category}:")
    }
    return known[max(known, key=lambda name: SequenceMatcher(None, short, name).ratio())]


def is_almost(typed: str) -> bool:
    """Whether ``typed`` is a known name with a slip in it."""
    short = _tidy(typed).rpartition(":")[2]
    return bool(get_close_matches(short, _BY_SHORT_NAME, n=1, cutoff=0.84))


def is_structural(typed: str) -> bool:
    """Whether it names a token that only a prompt's layout may hold."""
    return _tidy(typed) in _STRUCTURAL


def sound_word(tag: Tag) -> str:
    """The word that makes a sound effect heard."""
    return _SOUNDS[tag.name.partition(":")[2]][0]


def is_sound_word(tag: Tag, word: str) -> bool:
    """Whether ``word`` may follow that sound effect as its sound."""
    pattern = _SOUNDS[tag.name.partition(":")[2]][1]
    return regex.fullmatch(pattern, word.casefold()) is not None


def _tidy(typed: str) -> str:
    """In lower case, with one colon and underscores."""
    name = regex.sub(r"\s*[:=]\s*", ":", typed.strip(" |:/").lower(), count=1)
    return regex.sub(r"[\s\-]+", "_", name)
