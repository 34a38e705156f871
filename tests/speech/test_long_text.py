"""Three minutes of English: no sentence is missing, none is spoken twice."""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher
from itertools import chain
from pathlib import Path

import pytest
import regex
from livevoice.engine import Codes, Engine, Reading, SamplingParams, report
from speech.recogniser import hear, word_errors, words

pytestmark = pytest.mark.speech

TEXT = (Path(__file__).parent / "chapter.txt").read_text("utf-8")
WINDOW_S = 25.0  # the recogniser listens to half a minute at once
N_WORDS = 3


def sentences(text: str) -> list[list[str]]:
    parts = regex.split(r"(?<=[.!?][\"”]?)\s+|\n\n", text)
    return [words(part) for part in parts if words(part)]


def missing(said: list[list[str]], heard: list[str]) -> list[str]:
    """Sentences of whose words fewer than half were heard, in their place."""
    flat = list(chain.from_iterable(said))
    matched = set()
    for block in SequenceMatcher(None, flat, heard, autojunk=False).get_matching_blocks():
        matched.update(range(block.a, block.a + block.size))
    lost, start = [], 0
    for sentence in said:
        n = sum(place in matched for place in range(start, start + len(sentence)))
        start += len(sentence)
        if 2 * n < len(sentence):
            lost.append(" ".join(sentence))
    return lost


def repeated(said: list[list[str]], heard: list[str]) -> list[str]:
    """Sentences of whose three-word runs at least half were heard more often than said."""
    n_said = runs(list(chain.from_iterable(said)))
    n_heard = runs(heard)
    doubled = []
    for sentence in said:
        own = list(runs(sentence))
        too_often = sum(n_heard[run] > n_said[run] for run in own)
        if own and 2 * too_often >= len(own):
            doubled.append(" ".join(sentence))
    return doubled


def runs(found: list[str]) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(found[n:] for n in range(N_WORDS)), strict=False))


def windows(codes: Codes) -> list[Codes]:
    """The codes in parts that are short enough to be heard at once."""
    parts: list[list] = [[]]
    seconds = 0.0
    for each in codes.utterances:
        length = len(each.frames) / codes.frame_rate_hz + each.gap_s
        if parts[-1] and seconds + length > WINDOW_S:
            parts.append([])
            seconds = 0.0
        parts[-1].append(each)
        seconds += length
    return [Codes(tuple(part), codes.sampling, codes.codec_id) for part in parts]


def test_missing_and_repeated_by_hand():
    said = sentences("The cat sat down. A dog came by. It rained all day.")
    assert missing(said, words("the cat sat down it rained all day")) == ["a dog came by"]
    heard = words("the cat sat down a dog came by a dog came by it rained all day")
    assert missing(said, heard) == []
    assert repeated(said, heard) == ["a dog came by"]
    assert repeated(said, words("the cat sat down a dog came by it rained all day")) == []


def test_three_minutes_are_spoken_whole_and_once():
    engine = Engine("starter", "cpu")
    sampling = SamplingParams(**engine.checkpoint.generation_defaults, seed=1)
    codes = engine.codes(TEXT, sampling, retries=2, reading=Reading(limit_s=6.0))
    print(report(codes).text().splitlines()[0])
    assert codes.stop_reason == "eoc"
    assert report(codes).seconds > 170
    heard = " ".join(hear(engine.decode(part), engine.sample_rate) for part in windows(codes))
    said = sentences(TEXT)
    assert list(chain.from_iterable(said)) == words(codes.text)  # nothing is lost on the way
    wrong, n_words = word_errors(TEXT, heard)
    print(f"word error rate {wrong / n_words:.1%} of {n_words} words")
    assert missing(said, words(heard)) == []
    assert repeated(said, words(heard)) == []
    assert wrong / n_words <= 0.08
