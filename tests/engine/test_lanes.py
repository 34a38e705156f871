"""Utterances side by side: the same speech as one by one, in order, and nothing is lost."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_model import N, RowsBackend
from livevoice.engine import (
    Codes,
    Engine,
    Reading,
    SamplingParams,
    join,
    load_voice,
    starter_voices,
)
from livevoice.engine.generation import Generation
from livevoice.engine.reference import ReferenceBackend

SAMPLING = SamplingParams(0.65, 30, 1.0, 7)
TEXT = (
    "The kitchen door is open and the lamp is on.\n\nYes, please.\n\n[pause:1] Good morning.\n\n"
    "The train leaves at seven, and we have to hurry.\n\nOh."
)


def same(one: Codes, other: Codes) -> bool:
    return len(one.utterances) == len(other.utterances) and all(
        torch.equal(a.frames, b.frames)
        and (a.text, a.stop_reason, a.attempt, a.gap_s)
        == (b.text, b.stop_reason, b.attempt, b.gap_s)
        for a, b in zip(one.utterances, other.utterances, strict=True)
    )


@pytest.fixture(scope="module")
def spoken(starter_engine: Engine) -> Codes:
    return starter_engine.codes(TEXT, SAMPLING)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lanes the reference opened, each time; eight at most."""
    counts, honest = [], ReferenceBackend.lanes
    monkeypatch.setattr(ReferenceBackend, "most_lanes", 8)

    def lanes(backend, n_lanes, prefix, lane_rows):
        counts.append(n_lanes)
        return honest(backend, n_lanes, prefix, lane_rows)

    monkeypatch.setattr(ReferenceBackend, "lanes", lanes)
    return counts


@pytest.mark.parametrize("most", [2, 3, 8])
def test_a_lane_speaks_as_the_sequence_alone(starter_engine, spoken, opened, monkeypatch, most):
    monkeypatch.setattr(ReferenceBackend, "most_lanes", most)
    assert same(starter_engine.codes(TEXT, SAMPLING), spoken)
    assert opened == [min(most, 4)]  # the first one is spoken alone, and is the others' voice


def test_streamed_it_is_the_same_sound(starter_engine, spoken, opened):
    seen = []
    generation = starter_engine.stream(TEXT, SAMPLING, on_frame=lambda *now: seen.append(now))
    chunks = list(generation)
    assert opened == [4]
    assert same(generation.codes, spoken)
    assert torch.equal(join(chunks), starter_engine.decode(spoken))
    assert [chunk.utterance for chunk in chunks] == sorted(chunk.utterance for chunk in chunks)
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert all(done <= total for done, total in seen)
    assert len(seen) == len(spoken.frames)


def test_speech_that_fills_its_lane_goes_on_in_a_longer_one(
    starter_engine, spoken, opened, monkeypatch
):
    monkeypatch.setattr("livevoice.engine.generation._USUAL_PACE", 0.1)
    monkeypatch.setattr(starter_engine, "context_rows", 400)
    backend = starter_engine._backend
    monkeypatch.setattr(backend, "context_rows", 400)
    frames = [frame.codes for frame in starter_engine.stream(TEXT, SAMPLING).frames()]
    assert len(opened) > 1
    assert torch.equal(torch.stack(frames), spoken.frames)  # none twice, none lost


def test_what_does_not_fit_beside_others_is_spoken_alone(
    starter_engine, spoken, opened, monkeypatch
):
    monkeypatch.setattr(
        ReferenceBackend, "max_lanes", lambda _backend, _prefix, rows: 2 if rows < 90 else 1
    )
    assert same(starter_engine.codes(TEXT, SAMPLING), spoken)
    assert opened == [2]


def test_one_utterance_left_is_spoken_alone(starter_engine, opened):
    starter_engine.codes("The kitchen door is open.\n\nYes, please.", SAMPLING)
    generation = starter_engine.reroll(starter_engine.codes(TEXT, SAMPLING), 1)
    list(generation.frames())
    assert opened == [4]


def test_dialogue_turns_are_spoken_side_by_side(starter_engine, opened):
    from livevoice.engine import parse_turns, speak_turns

    voices = {name: load_voice(file) for name, file in starter_voices().items()}
    turns = parse_turns("rms: One. [pause:0.5] Two.\nslt: Is it?\nrms: Yes, it is.", voices)
    engine = Engine("starter", "cpu")
    spoken = list(speak_turns(engine, turns, voices, SAMPLING))
    assert opened == [4]
    for turn, codes in zip(turns, spoken, strict=True):
        alone = starter_engine.codes(turn.text, codes.sampling, voice=voices[turn.speaker])
        assert same(alone, codes)
    list(speak_turns(engine, turns, voices, SAMPLING, takes={2: 1}))
    assert opened[-1] == 1  # a turn alone is in a lane too, or it would not be the same speech


# --- the scheduler over rows that cost nothing ---


@pytest.fixture(scope="module")
def scripted(tiny):
    """An engine over :class:`RowsBackend`, whose speech is decided by the text."""
    engine = Engine(tiny, "cpu")
    engine._backend = RowsBackend(engine.checkpoint.config)
    hop = engine.checkpoint.codec_config.hop_samples
    engine._codec = SimpleNamespace(
        decode_window=lambda codes, lead=0, tail=0: torch.ones((len(codes) - lead - tail) * hop),
        unload=lambda: None, resident_bytes=0,
    )  # fmt: skip
    build, texts = engine.prompts.build, engine._backend.texts

    def noted(text, voice=None):
        prompt = build(text, voice)
        texts[tuple(prompt.ids.tolist())] = text
        return prompt

    engine.prompts.build = noted
    return engine


def run(engine: Engine, lengths: list[int], most: int, **options) -> Generation:
    engine._backend.most_lanes = most
    text = "\n\n".join(f"{'Word ' * (n // 9 + 1)}{i} {n}." for i, n in enumerate(lengths))
    reading = Reading(same_voice=False, normalise=False)
    return engine.stream(text, SamplingParams(seed=3), reading=reading, **options)


LENGTHS = st.lists(st.integers(1, 130), min_size=1, max_size=14)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(2, 8), st.integers(0, 2))
def test_any_text_is_the_same_in_any_lanes_and_in_order(scripted, lengths, most, retries):
    alone = run(scripted, lengths, 1, retries=retries)
    list(alone.frames())
    beside = run(scripted, lengths, most, retries=retries)
    steps = list(beside._start())
    assert same(alone.codes, beside.codes)
    order = [(step.utterance, step.attempt) for step in steps]
    assert order == sorted(order)
    ends = [step.utterance for step in steps if step.codes is None]
    assert ends == list(range(len(lengths)))
    last = dict(order)
    heard = [step for step in steps if step.codes is not None]
    heard = [step.codes for step in heard if step.attempt == last[step.utterance]]
    assert torch.equal(torch.stack(heard), beside.codes.frames)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(2, 8), st.integers(1, 400), st.booleans())
def test_a_cancel_or_an_unload_keeps_all_that_is_whole(scripted, lengths, most, at, is_unload):
    whole = run(scripted, lengths, most)
    list(whole.frames())
    backend, codec = scripted._backend, scripted._codec
    finished = Counter()
    generation = run(scripted, lengths, most)
    steps = generation._start()
    try:
        for number, step in enumerate(steps):
            finished[step.utterance] += step.codes is None
            if number == at and is_unload:
                scripted.unload()
            elif number == at:
                generation.close()
                break
    finally:
        scripted._backend, scripted._codec = backend, codec
    made, wanted = generation.codes.utterances, whole.codes.utterances
    assert len(made) >= sum(finished.values())
    for mine, theirs in zip(made, wanted, strict=False):
        assert mine.text == theirs.text
        assert torch.equal(mine.frames, theirs.frames[: len(mine.frames)])
        assert mine.stop_reason == "cancelled" or same_end(mine, theirs)
    if len(made) > 1 and len(made) > sum(finished.values()) + 1:
        assert made[-1].stop_reason != "cancelled"  # behind the one being heard: up to a whole one


def same_end(mine, theirs) -> bool:
    return len(mine.frames) == len(theirs.frames) and mine.stop_reason == theirs.stop_reason


def test_what_on_frame_raises_ends_it(scripted):
    class StopError(BaseException):
        pass

    def stop(done: int, _total: int) -> None:
        if done == 170:
            raise StopError

    generation = run(scripted, [31, 92, 19, 19, 19, 19], 4, on_frame=stop)
    with pytest.raises(StopError):
        list(generation.frames())
    first, second, *others = generation.codes.utterances
    assert (first.stop_reason, second.stop_reason) == ("eoc", "cancelled")
    assert [len(each.frames) for each in others] == [19, 19, 19, 19]
    assert same_turn_is_free(scripted)


def same_turn_is_free(engine: Engine) -> bool:
    waiting = threading.Thread(target=lambda: list(run(engine, [5], 1).frames()))
    waiting.start()
    waiting.join(30)
    return not waiting.is_alive()


def test_lanes_are_kept_full(scripted):
    backend = scripted._backend
    backend.busy.clear()
    list(run(scripted, [20] * 33, 8).frames())
    assert backend.busy == {8: 4 * (20 + N - 1)}  # the first one is spoken by the ordinary calls
