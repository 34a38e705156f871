"""Scripts, and turns that do not depend on each other."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from livevoice.engine import (
    Codes,
    Engine,
    SamplingParams,
    Voice,
    assemble,
    load_voice,
    parse_turns,
    speak_turns,
    starter_voices,
)
from livevoice.engine.dialogue import turn_seed

NAMES = ("Anna", "Bob", "Dr. Smith", "Speaker 1", "张三")
SAMPLING = SamplingParams(0.65, 30, 1.0, 5)
SCRIPT = "[rms] The train is late.\nslt: Is it?\nrms: Yes, it is.\nslt: Is it?"


def read(script: str) -> list[tuple[str, str]]:
    return [(turn.speaker, turn.text) for turn in parse_turns(script, NAMES)]


@pytest.mark.parametrize(
    ("script", "turns"),
    [
        ("Anna: Hello.\nBob: Hi!", [("Anna", "Hello."), ("Bob", "Hi!")]),
        ("[Anna] Hello.\n[Bob]\nHi!\nAnd so on.", [("Anna", "Hello."), ("Bob", "Hi!\nAnd so on.")]),
        ("[anna]: Hello.\nBOB:Hi!", [("Anna", "Hello."), ("Bob", "Hi!")]),
        ("  dr.  smith :  Sit down. ", [("Dr. Smith", "Sit down.")]),
        ("[Speaker_1]: Hello.", [("Speaker 1", "Hello.")]),
        ("张三\uff1a你好\uff0c世界。", [("张三", "你好\uff0c世界。")]),
        ("\ufeff\r\nAnna: One.\r\n\r\nTwo.\r\n".lstrip("\ufeff"), [("Anna", "One.\n\nTwo.")]),
        ("Anna: At\n12:30 we go.", [("Anna", "At\n12:30 we go.")]),
        ("Anna: See\nhttps://example.com/a: it", [("Anna", "See\nhttps://example.com/a: it")]),
        ("Anna: It\nAt 12:30 sharp", [("Anna", "It\nAt 12:30 sharp")]),
        ("Anna: Well.\nHe told me the thing: go.", [("Anna", "Well.\nHe told me the thing: go.")]),
        ("Anna: Well.\nYes, Bob: no.", [("Anna", "Well.\nYes, Bob: no.")]),
        ("Anna: One.\n[pause:1.5] Two.", [("Anna", "One.\n[pause:1.5] Two.")]),
        ("Anna: One.\n[long pause]\nTwo.", [("Anna", "One.\n[long pause]\nTwo.")]),
        ("Anna: Note: buy milk.", [("Anna", "Note: buy milk.")]),
        ("Anna: <|emotion:elation|>Yes!", [("Anna", "<|emotion:elation|>Yes!")]),
        ("Anna: A.\nAnna: B.", [("Anna", "A."), ("Anna", "B.")]),
    ],
)
def test_scripts(script, turns):
    assert read(script) == turns


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("Anna: Hi.\nNote: buy milk.", r"line 2: no voice is called 'Note'; there are Anna, Bob,"),
        ("[Carl] Hi.", "line 1: no voice is called 'Carl'"),
        ("Anna: Hi.\n[laughs] Oh.", "line 2: no voice is called 'laughs'"),
        ("Anna: Hi.\n李四\uff1a你好", "line 2: no voice is called '李四'"),
        ("\nOnce upon a time.\nAnna: Hi.", "line 2 belongs to no one; begin it with a name"),
        ("Anna: Hi.\n[Bob]\n\nAnna: Hello?", "line 2: Bob says nothing"),
        ("Anna: Hi.\nBob: ...", "line 2: Bob says nothing"),
        ("", "the script is empty"),
        (" \n\n", "the script is empty"),
    ],
)
def test_mistakes_name_their_line(script, message):
    with pytest.raises(ValueError, match=message) as caught:
        read(script)
    assert str(caught.value).startswith("dialogue: ")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["Anna", "ANNA"], "two voices are called 'ANNA'"),
        (["Speaker 1", "speaker_1"], "two voices are called"),
        ([""], "has no name"),
        ([], "no speaker; connect a voice"),
    ],
)
def test_names_that_cannot_be_told_apart(names, message):
    with pytest.raises(ValueError, match=message):
        parse_turns("Anna: Hi.", names)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="Anab:[]\n .,1\u3000\uff1a张三_/\t\r", max_size=60))
def test_a_script_is_read_or_refused_in_one_sentence(script):
    try:
        turns = parse_turns(script, NAMES)
    except ValueError as error:
        assert re.match(r"dialogue: ", str(error))  # noqa: PT017
    else:
        assert all(turn.text.strip() and turn.speaker in NAMES for turn in turns)


@pytest.fixture(scope="module")
def voices() -> dict[str, Voice]:
    return {name: load_voice(file) for name, file in starter_voices().items()}


@pytest.fixture(scope="module")
def spoken(starter_engine: Engine, voices) -> list[Codes]:
    return list(speak_turns(starter_engine, parse_turns(SCRIPT, voices), voices, SAMPLING))


def frames(codes: list[Codes]) -> list[torch.Tensor]:
    return [each.frames for each in codes]


def test_each_turn_is_its_voice_and_its_seed_alone(starter_engine, voices, spoken):
    turns = parse_turns(SCRIPT, voices)
    for turn, codes in zip(turns, spoken, strict=True):
        alone = starter_engine.codes(turn.text, codes.sampling, voice=voices[turn.speaker])
        assert torch.equal(alone.frames, codes.frames)
        assert codes.stop_reason in ("eoc", "cap", "silence", "repeat")
    assert len({codes.sampling.seed for codes in spoken}) == 4  # said twice, drawn twice


def test_a_change_reaches_no_other_turn(starter_engine, voices, spoken, monkeypatch):
    n_spoken = []
    honest = starter_engine.prompts.build
    monkeypatch.setattr(
        starter_engine.prompts, "build", lambda *a: (n_spoken.append(a[0]), honest(*a))[1]
    )

    def speak(script: str, **options) -> list[torch.Tensor]:
        return frames(
            list(
                speak_turns(
                    starter_engine, parse_turns(script, voices), voices, SAMPLING, **options
                )
            )
        )

    assert all(map(torch.equal, speak(SCRIPT), frames(spoken)))
    assert not n_spoken  # remembered
    inserted = speak("slt: Well.\n" + SCRIPT)
    assert all(map(torch.equal, inserted[1:], frames(spoken)))
    again = speak(SCRIPT, takes={3: 1})
    assert n_spoken == ["Well.", "Yes, it is."]
    for number, (new, old) in enumerate(zip(again, frames(spoken), strict=True), start=1):
        assert torch.equal(new, old) == (number != 3)


def test_what_is_forgotten_is_spoken_the_same(voices, spoken):
    engine = Engine("starter", "cpu")
    turns = parse_turns(SCRIPT, voices)[:2]
    assert all(map(torch.equal, frames(list(speak_turns(engine, turns, voices, SAMPLING))),
                   frames(spoken)))  # fmt: skip


def test_seeds_are_spread_and_stable():
    turns = parse_turns("Anna: Hi.\nBob: Hi.\nAnna: Hi.", NAMES)
    seeds = {turn_seed(seed, turn, take) for seed in (0, 1) for turn in turns for take in (0, 1)}
    assert len(seeds) == 12
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert turn_seed(0, turns[0]) == turn_seed(0, parse_turns("Bob: A.\nANNA: Hi.", NAMES)[1])


def test_times_are_those_of_the_sound(starter_engine, voices, spoken):
    dialogue = assemble(starter_engine, parse_turns(SCRIPT, voices), spoken, SAMPLING, gap_s=0.41)
    hop, gap, fade = 960, 11, 120  # 0.41 s begin 11 frames, 5 ms of each end are faded
    assert len(dialogue.waveform) == hop * dialogue.turns[-1].end_frame
    end = -gap
    for turn, codes in zip(dialogue.turns, spoken, strict=True):
        assert turn.start_frame == end + gap
        part = dialogue.waveform[hop * turn.start_frame : hop * turn.end_frame]
        alone = starter_engine.decode(codes)
        assert torch.equal(part[fade:-fade], alone[fade:-fade])
        assert not dialogue.waveform[hop * max(0, end) : hop * turn.start_frame].any()
        end = turn.end_frame
    head, *rows = dialogue.table().splitlines()
    columns = ["turn", "speaker", "start_s", "end_s", "start_frame", "end_frame"]
    assert head.split("\t")[:6] == columns
    assert rows[1].split("\t")[1] == "slt"
    assert float(rows[1].split("\t")[2]) == dialogue.turns[1].start_frame / 25
    assert rows[3].split("\t")[-1] == "Is it?"


def test_the_codes_are_the_dialogue(starter_engine, voices, spoken):
    dialogue = assemble(starter_engine, parse_turns(SCRIPT, voices), spoken, SAMPLING)
    assert dialogue.codes.sampling == SAMPLING
    assert torch.equal(dialogue.codes.frames, torch.cat(frames(spoken)))
    assert torch.equal(starter_engine.decode(dialogue.codes), dialogue.waveform)


def test_pauses_and_pieces_inside_a_turn_are_counted(starter_engine, voices):
    turns = parse_turns("rms: One. [pause:0.5] Two. [pause:1]\nslt: Three.\n\nFour.", voices)
    spoken = list(speak_turns(starter_engine, turns, voices, SAMPLING))
    assert [len(codes.utterances) for codes in spoken] == [2, 2]
    dialogue = assemble(starter_engine, turns, spoken, SAMPLING, gap_s=0.2)
    one, two = dialogue.turns
    said = [len(each.frames) for each in spoken[0].utterances]
    assert one.end_frame == sum(said) + 13  # half a second is 12.5 frames
    silence = two.start_frame * 960 - (sum(said) * 960 + 12000)
    assert 0 <= silence - 1.2 * 24000 < 960
    assert not dialogue.waveform[two.start_frame * 960 - silence : two.start_frame * 960].any()
    assert dialogue.waveform[two.start_frame * 960 :].abs().max() > 0.05
    assert len(dialogue.waveform) <= two.end_frame * 960 < len(dialogue.waveform) + 960


def test_subtitles(starter_engine, voices, spoken):
    dialogue = assemble(starter_engine, parse_turns(SCRIPT, voices), spoken, SAMPLING)
    blocks = dialogue.srt().strip().split("\n\n")
    assert len(blocks) == 4
    number, times, text = blocks[1].split("\n")
    assert (number, text) == ("2", "slt: Is it?")
    first, last = re.fullmatch(r"00:00:(\d\d,\d{3}) --> 00:00:(\d\d,\d{3})", times).groups()
    start, end = dialogue.turns[1].start_frame / 25, dialogue.turns[1].end_frame / 25
    assert (float(first.replace(",", ".")), float(last.replace(",", "."))) == (start, end)


def test_a_gap_is_0_to_600_s(starter_engine, voices, spoken):
    turns = parse_turns(SCRIPT, voices)
    closed = assemble(starter_engine, turns, spoken, SAMPLING, gap_s=0)
    assert len(closed.waveform) == 960 * sum(len(codes.frames) for codes in spoken)
    for gap_s in (-0.1, 1e9, float("nan")):
        with pytest.raises(ValueError, match="gap must be 0 … 600 s"):
            assemble(starter_engine, turns, spoken, SAMPLING, gap_s=gap_s)
    with pytest.raises(ValueError, match="no turn was spoken"):
        assemble(starter_engine, turns, [], SAMPLING)


def test_cancelled_turns_are_not_remembered(starter_engine, voices):
    class StopError(BaseException):
        pass

    def stop(done: int, _cap: int) -> None:
        if done == 5:
            raise StopError

    turns = parse_turns("slt: Something else entirely.", voices)
    with pytest.raises(StopError):
        list(speak_turns(starter_engine, turns, voices, SAMPLING, on_frame=stop))
    (codes,) = speak_turns(starter_engine, turns, voices, SAMPLING)
    assert codes.stop_reason != "cancelled"
