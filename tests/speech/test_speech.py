"""The whole chain, heard: ten sentences that the starter was not trained on."""

import time

import pytest
from livevoice.engine import Engine, SamplingParams
from speech.heard import SENTENCES
from speech.recogniser import hear, word_errors

pytestmark = pytest.mark.speech


def test_word_errors_by_hand():
    assert word_errors("The cat sat.", "the cat sat") == (0, 3)
    assert word_errors("The cat sat.", "a cat") == (2, 3)
    assert word_errors("one two", "one and two and three and four") == (2, 2)
    assert word_errors("fifty-one, twenty and seven", "51, 20 and 7") == (0, 5)
    assert word_errors("grey ice-cream, okay?", "Gray ice cream OK") == (0, 4)


def test_starter_is_understood_and_ends_by_itself():
    start = time.monotonic()
    engine = Engine("starter", "cpu")
    defaults = engine.checkpoint.generation_defaults
    errors = said = 0
    for index, sentence in enumerate(SENTENCES):
        speech = engine.generate(sentence, SamplingParams(**defaults, seed=index))
        if index == 0:
            took = time.monotonic() - start
            print(f"first sentence: {speech.codes.seconds:.1f} s in {took:.1f} s with loading")
        assert speech.codes.stop_reason == "eoc", sentence
        heard = hear(speech.waveform, engine.sample_rate)
        wrong, n_words = word_errors(sentence, heard)
        print(f"{wrong}/{n_words}  {heard.strip()}")
        errors, said = errors + wrong, said + n_words
    print(f"word error rate {errors / said:.1%} of {said} words")
    assert errors / said <= 0.12
