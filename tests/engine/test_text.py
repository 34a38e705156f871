"""Laws of the plan, over arbitrary Unicode; what exactly is made of real texts is in text_cases."""

import json
import unicodedata

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st
from livevoice.engine.duration import cap_s, estimate_s
from livevoice.engine.script import Reading, Script
from livevoice.engine.tags import CONTROL_TOKENS, TAGS
from livevoice.engine.text import plan, split

TOKEN = regex.compile("|".join(map(regex.escape, CONTROL_TOKENS)))
RAW = Reading(normalise=False)

# Pieces that people paste, and that rules look for; hypothesis puts them together.
SNIPPETS = st.sampled_from(
    ["<|emotion:anger|>", "<emotion:sadness>", "<|sfx:laughter|>", "[laughs]", "[pause:1.5]",
     "<break time='500ms'/>", "<speak>", "</b>", "<|audio|>", "<|", "|>", "**", "__", "`", "# ",
     "- ", "\n", "\n\n", " ", "\u2028", "\u2029", "\u00a0", ". ", "。", "! ", ", ", "—", "3.14",
     "1,000", "$5", "9:30 PM", "2026-05-16", "https://a.com/b", "a@b.com", "Mr. ", "e.g. ", "😀",
     "👩‍💻", "🇩🇪", "é", "e\u0301", "\u0301", "ภาษา", "नमस्ते", "שלום", "مرحبا", "你好", "こんにちは",
     "안녕", "Hello", "world", "\x00", "\ud800", "\U000f0000", "&amp;", "&lt;|audio|&gt;", "½"]
)  # fmt: skip
ANYTHING = st.one_of(
    st.text(alphabet=st.characters(), max_size=200),
    st.lists(st.one_of(SNIPPETS, st.text(max_size=5)), max_size=40).map("".join),
)
LIMITS = st.sampled_from([0.5, 2.0, 15.0])


def planned(text: str, reading: Reading) -> Script | None:
    try:
        return plan(text, reading)
    except ValueError:  # nothing to speak
        return None


@given(ANYTHING, LIMITS, st.booleans())
@settings(max_examples=300, deadline=None)
@example("<<||>a", 2.0, True)
@example("&lt;|emotion:anger|&gt; a", 2.0, True)
def test_every_character_is_accounted_for_once(text: str, limit_s: float, normalise: bool):
    script = planned(text, Reading(limit_s=limit_s, normalise=normalise))
    if script is None:
        return
    place, last = 0, -1
    for part in script.account:
        assert part.start == place < part.end
        place = part.end
        assert (part.utterance is None) == bool(part.reason)
        if part.utterance is not None:
            assert part.utterance >= last  # in order: nothing is spoken twice
            last = part.utterance
    assert place == len(text)
    for index, each in enumerate(script.utterances):  # words of one long number may be shared
        owned = [part for part in script.account if part.utterance == index]
        assert bool(each.text) == (each.start < each.end)
        assert all(each.start <= part.start < part.end <= each.end for part in owned)


@given(ANYTHING, LIMITS)
@settings(max_examples=300, deadline=None)
@example("A\x1f\u0300", 15.0)
def test_what_is_spoken_is_what_was_written(text: str, limit_s: float):
    """Without the normaliser the words come out letter by letter, each once, in order."""
    script = planned(text, Reading(limit_s=limit_s, normalise=False))
    if script is None or "&" in text or "[" in text or "<" in text:
        return
    kept = "".join(text[p.start : p.end] for p in script.account if p.utterance is not None)
    spoken = "".join(each.text for each in script.utterances)
    assert letters(spoken) == letters(kept)


def letters(text: str) -> str:
    return unicodedata.normalize("NFC", "".join(text.split()))


@given(ANYTHING, LIMITS, st.booleans())
@settings(max_examples=300, deadline=None)
@example("<LAUGHTER>00", 0.5, False)
@example("0%", 0.5, False)
@example("00<LAUGHTER>", 0.5, False)
def test_utterances_are_bounded_and_speak(text: str, limit_s: float, normalise: bool):
    script = planned(text, Reading(limit_s=limit_s, normalise=normalise))
    for utterance in script.utterances if script else ():
        words = TOKEN.sub("", utterance.text)
        is_one_sound = len(regex.findall(r"\X", words)) < 8 and "<|sfx:" in utterance.text
        is_uncut = regex.fullmatch(r"\X[\p{P}\p{S}]?", words)  # such as "0%"
        assert utterance.estimate_s <= limit_s + 1e-6 or is_one_sound or is_uncut
        assert bool(regex.search(r"[\p{L}\p{N}]", words)) == bool(utterance.text)
        assert utterance.text == utterance.text.strip()
        assert 0.0 <= utterance.gap_s <= 10.0 * len(text)


@given(ANYTHING, LIMITS, st.booleans())
@settings(max_examples=300, deadline=None)
def test_no_cut_inside_a_tag_or_a_grapheme(text: str, limit_s: float, normalise: bool):
    whole = planned(text, Reading(limit_s=60.0, normalise=normalise))
    script = planned(text, Reading(limit_s=limit_s, normalise=normalise))
    for utterance in script.utterances if script else ():
        assert "<|" not in TOKEN.sub("", utterance.text)
        assert "|>" not in TOKEN.sub("", utterance.text)
    if whole and script:  # as many graphemes as without the cuts
        assert len(graphemes(whole)) == len(graphemes(script))


def graphemes(script: Script) -> list[str]:
    words = (TOKEN.sub("", each.text) for each in script.utterances)
    return [
        each
        for text in words
        for each in regex.findall(r"\X", text)
        if regex.search(r"[\p{L}\p{N}]", each)
    ]


@given(st.lists(st.text("abcdefg", min_size=1, max_size=9), min_size=1, max_size=80))
@settings(max_examples=50, deadline=None)
def test_words_stay_whole(words: list[str]):
    pieces = [each.text for each in plan(" ".join(words), Reading(limit_s=2.0)).utterances]
    assert " ".join(pieces).split() == words


@pytest.mark.parametrize(
    "text",
    ["", " \n ", "...", "—", "?!", "\u200b", "***", "😀😀", "<|emotion:anger|>", "<|audio|>",
     "<speak></speak>", "[pause:0]", "\ud83d"],
)  # fmt: skip
def test_nothing_to_speak_is_refused(text: str):
    with pytest.raises(ValueError, match="nothing to speak"):
        plan(text)


def test_the_refusal_says_what_was_left_out():
    with pytest.raises(ValueError, match=r"<\|emotion:angr\|> is not a tag .* <\|emotion:anger\|>"):
        plan("<|emotion:angr|>")


def test_silence_alone_is_silence():
    (only,) = plan("[pause:2]").utterances
    assert (only.text, only.gap_s) == ("", 2.0)
    (only,) = plan("<|prosody:pause|>").utterances
    assert (only.text, only.gap_s) == ("", 0.55)


def test_sound_effect_alone_is_spoken():
    assert split("<|sfx:laughter|>")[0].text == "<|sfx:laughter|>Haha"


def test_an_hour_of_text_is_planned_at_once():
    sentence = "The old lighthouse keeper, aged 71, polished the brass lamp every evening. "
    script = plan(sentence * 800)
    assert 3000 < sum(each.estimate_s for each in script.utterances) < 4500
    assert max(each.estimate_s for each in script.utterances) <= 15.0


@pytest.mark.parametrize(
    ("text", "spoken", "n_pieces"),
    [
        (" " * 50_000 + "a", "a", 1),
        ("<" * 20_000 + "a", "<<<a", 1),
        ("**" * 10_000 + "a", "***a", 1),
        ("[" * 20_000 + "a", "[[[a", 1),
        ("a.b" * 10_000, "a.b" * 10_000, 132),
        ("1," * 20_000, "one," * 20_000, 351),
        ("a@" * 10_000, "a@" * 10_000, 244),
    ],
)
def test_long_runs_of_signs_are_read_to_their_end(text: str, spoken: str, n_pieces: int):
    """Where patterns that go back over a run for each of its signs would not come to an end."""
    script = plan(text, Reading())
    assert "".join(each.text for each in script.utterances).replace(" ", "") == spoken
    assert len(script.utterances) == n_pieces
    assert script.account[-1].end == len(text)


def test_a_long_run_of_list_signs_is_read_to_its_end():
    text = "\n-" * 10_000 + "a"
    script = plan(text, Reading())
    assert script.utterances[-1].text.endswith("-a")
    assert script.account[-1].end == len(text)


def test_gaps_by_kind_of_cut():
    reading = Reading(limit_s=1.5, gap_s=0.2, paragraph_s=0.7)
    script = plan("One two three four. Five six seven, eight nine ten.\n\nEnd.", reading)
    assert [(each.text, each.gap_s) for each in script.utterances] == [
        ("One two three four.", 0.2),
        ("Five six seven,", 0.0),
        ("eight nine ten.", 0.7),
        ("End.", 0.0),
    ]
    crossfaded = plan(
        "One two three four. Five six.\n\nEnd.", Reading(limit_s=1.5, crossfade_s=0.05)
    )
    assert [each.gap_s for each in crossfaded.utterances] == [-0.05, 0.5, 0.0]


def test_pauses_are_exact_summed_and_clamped():
    script = plan(
        "[pause:0.5]One.[pause:500ms] <break time='1s'/>\n\nTwo. [pause:30] Three.[pause]"
    )
    assert [each.gap_s for each in script.utterances] == [0.5, 1.5, 10.0, 0.5]
    assert [each.text for each in script.utterances] == ["", "One.", "Two.", "Three."]
    assert script.warnings == ("[pause:30]: a pause lasts 10 s at most, shortened to that",)


def test_whole_text_tags_are_carried_and_others_end_with_their_paragraph():
    script = plan(
        "<|emotion:anger|><|prosody:speed_fast|>One.\n\n<emotion:sadness>Two. Three.\n\nFour."
    )
    assert [each.text for each in script.utterances] == [
        "<|emotion:anger|><|prosody:speed_fast|>One.",
        "<|emotion:sadness|><|prosody:speed_fast|>Two. Three.",
        "<|emotion:anger|><|prosody:speed_fast|>Four.",
    ]


def test_strong_emotion_warns_with_a_voice_and_the_anchor_moves_it():
    text = "<|emotion:anger|>Oh really, you did that?"
    assert not plan(text).warnings
    (warning,) = plan(text, has_voice=True).warnings
    assert "can override the cloned voice" in warning
    assert "'anchor'" in warning
    anchored = plan(text, Reading(anchor=True), has_voice=True)
    assert anchored.utterances[0].text == "Oh <|emotion:anger|>really, you did that?"
    assert not anchored.warnings


def test_all_43_tags_in_the_spellings_that_people_type():
    assert len(TAGS) == 43
    for name, tag in TAGS.items():
        upper = name.upper().replace("_", " ")
        for typed in (f"<|{name}|>", f"<{name}>", f"<|{upper}|>", f"<|{name}>", f"<{name}|>",
                      f"[{name}]", f"< | {name} | >",
                      f"<{name.replace(':', ' : ')}/>"):  # fmt: skip
            script = plan(f"{typed}Hello there.")
            assert tag.token in script.text, typed
            assert not regex.search("is not a tag", str(script.warnings)), typed


def test_notes_show_what_is_left_out():
    script = plan("Hi 😀 <b>you</b>​ and <|audio|>me.")
    assert script.notes == (
        "<|audio|> is reserved for the prompt's layout and was left out",
        "not spoken, emoji: 😀",
        "not spoken, markup: SSML or HTML: <b> </b>",
        "not spoken, character without a sound: U+200B",
        "not spoken, control tag: <|audio|>",
    )
    assert json.loads(script.json())["account"][0] == {
        "start": 0, "end": 2, "utterance": 0, "reason": "",
    }  # fmt: skip


def test_options_out_of_range_are_refused():
    for options in ({"limit_s": 0.1}, {"gap_s": -1}, {"crossfade_s": 2}, {"paragraph_s": 11}):
        with pytest.raises(ValueError, match="must be"):
            Reading(**options)


def test_estimates_follow_the_script():
    assert estimate_s("Good morning, how are you today?") == pytest.approx(2.0, abs=0.5)
    assert estimate_s("今天天气很好") == pytest.approx(1.3, abs=0.4)
    assert estimate_s("सुप्रभात, आप कैसे हैं?") == pytest.approx(1.6, abs=0.5)
    assert estimate_s("12:45") > 1.0
    assert estimate_s("<|emotion:anger|>") == 0.0
    assert cap_s("Yes.") < 4.0
    assert 7.0 < cap_s("Good morning, how are you today?") < 8.0
