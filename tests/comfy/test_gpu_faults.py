"""What goes wrong while speaking, in a server on a GPU: it is told once, and nothing stays behind.

`/free`, cancel and errors in each stage; memory that another process holds; prompts in a queue;
loaders and checkpoints side by side; neighbours that use CUDA in their own way.
"""

from __future__ import annotations

import random
import time

import pytest
from checkpoints import write_tiny

from . import gpu
from .ballast import Ballast
from .comfyui import errors
from .gpu_report import keep, say

pytestmark = [pytest.mark.cuda, pytest.mark.comfy]
STAGES = ["loading", "prefill", "decode", "codec"]
DEEDS = ["interrupt", "free", "unload now", "error", "out of memory"]
needs_gpu = pytest.mark.skipif(gpu.ON_CPU, reason="is about a GPU's memory")


@pytest.fixture(scope="module")
def server():
    with gpu.start() as server:
        yield server


@pytest.fixture(scope="module")
def spoken(server):
    """What the short text sounds like, undisturbed; the tests compare with it."""
    found = gpu.run(server, gpu.speech())
    gpu.free(server)
    return found


@pytest.fixture(scope="module")
def second(server, tmp_path_factory):
    """Another checkpoint: of the real sizes on a GPU, tiny on a CPU."""
    folder = tmp_path_factory.mktemp("second") / "tiny"
    return gpu.give(server, write_tiny(folder) if gpu.ON_CPU else gpu.real_checkpoint(), "second")


def disturb(server, deed, prompt_id):
    if deed == "interrupt":
        server.interrupt(prompt_id)
    elif deed == "free":
        server.free(unload_models=True, free_memory=True)
    else:
        server.post("/trial/unload_now", {})


def told_once(entry):
    """The one line that a failed prompt shows; it can be read."""
    (line,) = errors(entry)
    assert len(line) < 800, line
    assert "Traceback" not in line
    return line


def test_trouble_at_each_stage(server, spoken):
    rounds = gpu.Rounds("trouble in each stage")
    rounds.same(spoken)
    cases = [(stage, deed) for stage in STAGES for deed in DEEDS] * max(
        1, round(gpu.ROUNDS * 0.002)
    )
    for index in rounds.numbers(len(cases)):
        stage, deed = cases[index]
        prompt = gpu.speech(stage=stage, kind=deed if deed in DEEDS[3:] else "pause")
        if deed in DEEDS[3:]:
            entry = gpu.wait(server, server.queue(prompt))
            assert deed == told_once(entry) or "(trial)" in told_once(entry)
        else:
            entry = gpu.mishap(
                server, prompt, stage, lambda it, deed=deed: disturb(server, deed, it)
            )
            if entry["status"]["status_str"] != "success":
                line = told_once(entry)
                assert "interrupted" in line or "unloaded" in line
        rounds.after.append(gpu.free(server))
        rounds.same(gpu.run(server, gpu.speech()))
        rounds.after.append(gpu.free(server))
    keep(rounds.name, cases=len(STAGES) * len(DEEDS), **rounds.summary())
    assert not rounds.failures
    assert not rounds.grown()


@needs_gpu
def test_out_of_memory_at_any_step_of_loading(server, spoken):
    rounds = gpu.Rounds("out of memory at a step of loading")
    rounds.same(spoken)
    n_failed = 0
    for index in rounds.numbers(12):
        step = 1 + 3 * index
        prompt = gpu.speech(stage="loading", kind="real out of memory", nonce=step)
        entry = gpu.wait(server, server.queue(prompt))
        if entry["status"]["status_str"] != "success":
            n_failed += 1
            assert "(injected)" in told_once(entry)
        rounds.after.append(gpu.free(server))
        rounds.same(gpu.run(server, gpu.speech()))
        rounds.after.append(gpu.free(server))
    keep(rounds.name, failed_as_meant=n_failed, **rounds.summary())
    assert not rounds.failures
    assert n_failed >= 3
    assert not rounds.grown()


def test_cancel_at_random_times(server, spoken):
    rounds, chance = gpu.Rounds("cancel at random times"), random.Random(0)
    rounds.same(spoken)
    n_cancelled = 0
    for _ in rounds.numbers(gpu.rounds(0.02)):
        prompt_id = server.queue(gpu.speech(text=gpu.LONG))
        time.sleep(chance.uniform(0.0, 0.8))
        server.interrupt(prompt_id)
        entry = gpu.wait(server, prompt_id)
        n_cancelled += entry["status"]["status_str"] != "success"
        rounds.after.append(gpu.free(server))
    rounds.same(gpu.run(server, gpu.speech()))
    rounds.after.append(gpu.free(server))
    keep(rounds.name, cancelled=n_cancelled, **rounds.summary())
    assert not rounds.failures
    assert not rounds.grown()


def test_prompts_in_a_queue(server, spoken):
    alone = [gpu.run(server, gpu.speech(seed=seed)) for seed in (5, 6, 7)]
    assert alone[0] == spoken
    ids = [server.queue(gpu.speech(seed=seed)) for seed in (5, 6, 7)]
    assert [gpu.shown(gpu.wait(server, each)) for each in ids] == alone
    # The first is cancelled and everything is to be freed while the second waits.
    first = server.queue(gpu.speech(text=gpu.LONG))
    second = server.queue(gpu.speech(seed=6))
    time.sleep(0.3)
    server.free(unload_models=True, free_memory=True)
    server.interrupt(first)
    assert gpu.wait(server, first)["status"]["status_str"] == "error"
    assert gpu.shown(gpu.wait(server, second)) == alone[1]
    assert gpu.free(server).engine == 0


def test_two_loaders_and_two_checkpoints(server, spoken, second):
    both = gpu.speech()
    other = gpu.speech(second, max_seconds=0.6, seed=8)
    both |= {str(30 + int(key)): _moved(node) for key, node in other.items()}
    # Another loader of the same checkpoint: the same engine.
    both["51"] = {**both["1"], "inputs": {**both["1"]["inputs"], "device": "auto"}}
    both["54"] = {"class_type": "LiveVoiceCodesToWaveform",
                  "inputs": {"model": ["51", 0], "codes": ["3", 0]}}  # fmt: skip
    both["55"] = {"class_type": "TrialHash", "inputs": {"audio": ["54", 0]}}
    gpu.free(server)
    rounds = gpu.Rounds("two loaders, two checkpoints")
    for _ in rounds.numbers(gpu.rounds(0.01)):
        entry = gpu.wait(server, server.queue(both))
        assert entry["status"]["status_str"] == "success", errors(entry)
        outputs = entry["outputs"]
        rounds.same({"own": outputs["5"]["codes"], "other": outputs["35"]["codes"]})
        assert outputs["5"]["codes"] == [spoken["codes"]]
        assert outputs["55"]["audio"] == [spoken["audio"]]
        assert gpu.Memory.of(server).patchers == 2
        rounds.after.append(gpu.free(server))
    keep(rounds.name, **rounds.summary())
    assert not rounds.failures


def _moved(node):
    inputs = {
        key: [str(30 + int(value[0])), value[1]] if isinstance(value, list) else value
        for key, value in node["inputs"].items()
    }
    return {**node, "inputs": inputs}


@needs_gpu
def test_another_process_holds_the_memory(server, second):
    """Loading fails half-way; one sentence, nothing held, and it works when there is room again."""
    rounds = gpu.Rounds("another process holds the memory")
    needed = {}
    for name in (gpu.STARTER, second):
        gpu.run(server, gpu.speech(name, max_seconds=0.6))
        needed[name] = gpu.Memory.of(server).engine
        rounds.after.append(gpu.free(server))
    with Ballast() as ballast:
        ballast.leave(0)  # its context is there from now on
        rounds.after = [gpu.free(server)]
        for name, part in ((gpu.STARTER, 0.3), (second, 0.5), (second, 0.9), (second, 0.99)):
            left = ballast.leave(round(needed[name] * part))
            entry = gpu.wait(server, server.queue(gpu.speech(name, max_seconds=0.6)))
            line = told_once(entry)
            say(f"{left >> 20} MB free of the {needed[name] >> 20} MB that {name} needs: {line}")
            assert "out of" in line.lower()
            held = gpu.free(server)
            assert held.engine == 0
            ballast.leave(0)
            rounds.after.append(gpu.free(server))
            rounds.took_s.append(0.0)
            rounds.same(gpu.run(server, gpu.speech()))
            rounds.after.append(gpu.free(server))
    keep(rounds.name, **rounds.summary())
    assert not rounds.failures
    assert not rounds.grown()


def test_beside_torch_graphs_and_an_emptied_cache(server, spoken):
    rounds = gpu.Rounds("beside torch's CUDA graphs and an emptied cache")
    rounds.same(spoken)
    n_rounds = gpu.rounds(0.03)
    gpu.run(server, gpu.one_node("TrialEmptyCache", seconds=min(60.0, 2.0 * n_rounds), seed=1))
    for index in rounds.numbers(n_rounds):
        gpu.run(server, gpu.one_node("TrialGraphs", nonce=index))
        rounds.same(gpu.run(server, gpu.speech()))
        if index % 2:
            gpu.free(server)
        gpu.run(server, gpu.one_node("TrialGraphs", nonce=1000 + index))
        rounds.after.append(gpu.Memory.of(server))
    rounds.after.append(gpu.free(server))
    keep(rounds.name, **rounds.summary())
    assert not rounds.failures
    assert server.is_running
