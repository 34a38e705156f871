import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from livevoice.engine.text import UTTERANCE_LIMIT_S, cap_s, estimate_s, split


def texts(text: str, limit_s: float = UTTERANCE_LIMIT_S) -> list[str]:
    return [utterance.text for utterance in split(text, limit_s)]


def test_short_text_is_one_utterance():
    assert texts("Good morning. How are you?") == ["Good morning. How are you?"]


def test_paragraphs_are_cut_and_white_space_is_folded():
    assert texts("One\n line.\n\n  Two. ") == ["One line.", "Two."]


def test_sentences_before_clauses_before_words():
    assert texts("One two three. Four five six.", 1.5) == ["One two three.", "Four five six."]
    assert texts("One two three, four five six.", 1.5) == ["One two three,", "four five six."]
    assert texts("One two three four five six", 1.5) == ["One two three four", "five six"]
    assert texts("今天天气很好。我们去公园。", 2.0) == ["今天天气很好。", "我们去公园。"]


def test_punctuation_is_never_an_utterance():
    assert texts('"Why?" — "Because." — !', 0.5)[-1].endswith("!")
    assert all(any(c.isalnum() for c in each) for each in texts('"Why?" — "Because." — !', 0.5))


@pytest.mark.parametrize("text", ["", " \n ", "...", "—", "?!"])
def test_nothing_to_speak_is_refused(text: str):
    with pytest.raises(ValueError, match="nothing to speak"):
        split(text)


def test_tag_alone_is_spoken():
    assert texts("<|sfx:laughter|>") == ["<|sfx:laughter|>"]


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300), st.sampled_from([1.0, 5.0]))
@settings(max_examples=200, deadline=None)
def test_nothing_is_lost_or_doubled(text: str, limit_s: float):
    try:
        pieces = texts(text, limit_s)
    except ValueError:
        return
    assert "".join("".join(pieces).split()) == "".join(text.split())


@given(st.lists(st.text("abcdefg", min_size=1, max_size=9), min_size=1, max_size=80))
@settings(max_examples=50, deadline=None)
def test_utterances_are_bounded(words: list[str]):
    assert all(estimate_s(piece) <= 2.0 for piece in texts(" ".join(words), 2.0))


def test_estimates_follow_the_script():
    assert estimate_s("Good morning, how are you today?") == pytest.approx(2.0, abs=0.5)
    assert estimate_s("今天天气很好") == pytest.approx(1.3, abs=0.4)
    assert estimate_s("12:45") > 1.0
    assert cap_s("Yes.") < 4.0
    assert 7.0 < cap_s("Good morning, how are you today?") < 8.0
