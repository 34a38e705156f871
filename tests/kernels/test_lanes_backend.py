"""The native lanes through the backend and the engine, on random models: who speaks beside whom."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.oracle import needs_extension
from kernels.small_model import SMALL, config
from livevoice.engine import Engine, Reading, SamplingParams, Voice
from livevoice.engine.bench_model import write_random
from livevoice.engine.prompt import AUDIO_SLOT, Prompt

pytestmark = [pytest.mark.cuda, needs_extension]
CUDA = torch.device("cuda", 0)
SAMPLING = SamplingParams(temperature=0.8, top_k=50, seed=11)
N_ROWS = 40
TEXT = "\n\n".join(
    f"This is sentence number {word}." for word in ["one", "two", "three", "four", "five"]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("lanes"), config(SMALL), CUDA)


@pytest.fixture(scope="module", params=["bf16", "fp8"])
def engine(request: pytest.FixtureRequest, folder: Path):
    engine = Engine(folder, "cuda", request.param, context_rows=1024)
    engine.load()
    if engine._backend.max_lanes(0, 100) < 2:
        pytest.skip("this extension has no lanes")
    yield engine
    engine.unload()


def prompt(number: int, n_voice: int = 9) -> Prompt:
    """One voice for all numbers, another text for each."""
    voice = torch.randint(0, 1024, (n_voice, 8), generator=torch.Generator().manual_seed(n_voice))
    text = torch.randint(0, 256, (5 + number,), generator=torch.Generator().manual_seed(number))
    ids = torch.cat([torch.tensor([1, *[AUDIO_SLOT] * n_voice]), text])
    return Prompt(ids, voice, 1 + n_voice)


def speak(engine: Engine, prefix: Prompt, prompts: dict[int, Prompt], n_lanes: int, rows: int):
    """Rows ``[N_ROWS, N]`` of each lane; number n speaks stream n."""
    backend = engine._backend
    lanes = backend.lanes(n_lanes, prefix, rows)
    for lane, each in prompts.items():
        lanes.start(lane, each, SAMPLING, stream=len(each), max_rows=N_ROWS)
    steps = [lanes.step() for _ in range(N_ROWS)]
    return {lane: [step[lane] for step in steps] for lane in prompts}


def test_a_lane_is_the_same_alone_and_beside_others_and_in_any_slot(engine: Engine):
    shared, mine = prompt(3).split()[0], prompt(3)
    nothing = Prompt(shared.ids[:0], shared.rows[:0])
    alone = speak(engine, shared, {0: mine}, 1, 100)[0]
    assert speak(engine, shared, {5: mine}, 8, 60)[5] == alone
    others = {lane: prompt(lane + 4) for lane in range(8)}
    for lane in (0, 3, 7):
        assert speak(engine, shared, others | {lane: mine}, 8, 70)[lane] == alone
    beside = speak(engine, nothing, {0: prompt(1, 30), 1: mine, 2: prompt(2, 4)}, 3, 200)[1]
    assert speak(engine, nothing, {0: mine}, 1, 100)[0] == beside


def test_a_lane_that_starts_and_one_that_stops_change_no_other(engine: Engine):
    shared = prompt(3).split()[0]
    alone = speak(engine, shared, {0: prompt(3)}, 1, 100)[0]
    lanes = engine._backend.lanes(4, shared, 100)
    lanes.start(1, prompt(3), SAMPLING, stream=len(prompt(3)), max_rows=N_ROWS)
    rows = []
    for step in range(N_ROWS):
        if step in (5, 20):
            lanes.start(2, prompt(step), SAMPLING, stream=1, max_rows=30)
        if step == 12:
            lanes.stop(2)
        rows.append(lanes.step()[1])
    assert rows == alone


def test_the_length_of_lanes_changes_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    voice = Voice(prompt(0).rows, "This is a voice.")
    options = {"voice": voice, "max_seconds": 3.0}
    whole = engine.codes(TEXT, SAMPLING, **options)
    monkeypatch.setattr("livevoice.engine.generation._USUAL_PACE", 0.1)
    short = engine.codes(TEXT, SAMPLING, **options)
    monkeypatch.undo()
    honest = type(engine._backend).max_lanes
    monkeypatch.setattr(
        type(engine._backend), "max_lanes", lambda *arguments: min(2, honest(*arguments))
    )
    two = engine.codes(TEXT, SAMPLING, **options)
    assert torch.equal(whole.frames, short.frames)
    assert torch.equal(whole.frames, two.frames)
    assert torch.equal(whole.frames, torch.cat([each.frames for each in two.utterances]))


def test_an_unload_while_lanes_speak_ends_them_and_the_next_run_is_the_same(engine: Engine):
    options = {"reading": Reading(same_voice=False), "max_seconds": 3.0}
    whole = engine.codes(TEXT, SAMPLING, **options)
    generation = engine.stream(TEXT, SAMPLING, **options)
    frames = generation.frames()
    while next(frames).utterance < 1:
        pass
    engine.unload()
    assert list(frames) == []
    assert engine.resident_bytes == 0
    assert generation.codes.stop_reason == "cancelled"
    assert torch.equal(engine.codes(TEXT, SAMPLING, **options).frames, whole.frames)
    lone = engine.codes("Hello.", SAMPLING, max_seconds=1.0)  # ordinary calls end the lanes
    assert len(lone.frames) > 0
