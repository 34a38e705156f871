"""The weights in a real server: when they are read, kept, given back, and that speech survives it.

The pack logs each load and each unload by the manager, so the log is counted.
"""

from __future__ import annotations

import time

import pytest

from .comfyui import PromptFailedError
from .speaking import STARTER, codes_of, decode, load, play, speak, speak_aloud

LOADED = "LiveVoice: loaded"
UNLOADED = "LiveVoice: unloaded"
pytestmark = pytest.mark.comfy

# Each paragraph is an utterance of its own, of about a second: minutes in all.
LONG = {"checkpoint": STARTER, "text": "Hello there.\n\n" * 300, "max_seconds": 0.0}


@pytest.fixture
def events(server):
    with server.listen() as events:
        yield events


def count(server, line):
    return server.log.count(line)


def free(server, **what):
    """Ask for memory and wait until the worker has given it."""
    before = count(server, UNLOADED)
    server.free(**what)
    server.poll(lambda: count(server, UNLOADED) > before, "nothing was unloaded", timeout_s=30)


def wait_for_frames(server, events, prompt_id, n_frames):
    def is_there():
        return any(
            kind == "progress"
            and (data["prompt_id"], data["node"]) == (prompt_id, "3")
            and data["value"] >= n_frames
            for kind, data in list(events.seen)
        )

    server.poll(is_there, f"no {n_frames} frames", timeout_s=120)


@pytest.fixture
def spoken(server):
    """Codes of the prompt that the tests repeat; leaves its weights loaded."""
    return codes_of(server, server.run(speak()))


def speaks_the_same(server, spoken):
    codes = codes_of(server, server.run(speak()))
    return codes.frames.equal(spoken.frames) and codes.stop_reason == spoken.stop_reason


def test_a_rerun_does_not_reload(server, spoken):
    before = count(server, LOADED), count(server, UNLOADED)
    server.run(speak(seed=6))
    assert speaks_the_same(server, spoken)
    assert (count(server, LOADED), count(server, UNLOADED)) == before


def test_unloading_models_and_running_again_gives_identical_codes(server, spoken):
    loads = count(server, LOADED)
    for _ in range(2):
        free(server, unload_models=True)
        assert speaks_the_same(server, spoken)
    assert count(server, LOADED) == loads + 2


def test_dropping_all_caches_and_running_again_gives_identical_codes(server, spoken):
    loads = count(server, LOADED)
    free(server, unload_models=True, free_memory=True)
    assert speaks_the_same(server, spoken)
    assert count(server, LOADED) == loads + 1


def test_two_loaders_share_one_engine(server, spoken):
    free(server, unload_models=True, free_memory=True)
    loads = count(server, LOADED)
    prompt = speak()
    prompt["7"] = load(device="cpu")
    prompt["8"] = load(precision="fp32")
    for loader, decoder, player in (("7", "9", "10"), ("8", "11", "12")):
        prompt[decoder] = decode([loader, 0], ["3", 0])
        prompt[player] = play([decoder, 0])
    entry = server.run(prompt)
    assert codes_of(server, entry).frames.equal(spoken.frames)
    assert count(server, LOADED) == loads + 1


def test_cancel_is_heard_at_once_and_the_weights_stay(server, events):
    prompt_id = server.queue(speak(**LONG))
    wait_for_frames(server, events, prompt_id, 5)
    before = count(server, LOADED), count(server, UNLOADED)
    start_s = time.monotonic()
    server.interrupt(prompt_id)
    interrupted = events.wait_for("execution_interrupted", prompt_id=prompt_id, timeout_s=10)
    assert time.monotonic() - start_s < 2.0  # a frame is 0.1 s on two busy cores
    assert interrupted["node_id"] == "3"
    assert codes_of(server, server.run(speak(STARTER))).seconds == 0.6
    assert (count(server, LOADED), count(server, UNLOADED)) == before


def test_cancel_keeps_partial_speech_when_asked(server, events):
    prompt_id = server.queue(speak_aloud(**LONG, keep_partial=True))
    wait_for_frames(server, events, prompt_id, 40)
    server.interrupt(prompt_id)
    entry = server.wait(prompt_id)
    assert entry["status"]["status_str"] == "success"
    partial = codes_of(server, entry)
    assert partial.stop_reason == "cancelled"
    assert 40 <= len(partial.frames) < 400
    whole = codes_of(server, server.run(speak(**{**LONG, "text": "Hello there."})))
    assert partial.utterances[0].frames.equal(whole.frames)
    assert "audio" in entry["outputs"]["6"]


def test_out_of_memory_while_loading_leaves_nothing_and_the_next_run_works(server, spoken):
    free(server, unload_models=True)
    loads = count(server, LOADED)
    with pytest.raises(PromptFailedError, match=r"node 3 .*out of memory"):
        server.run(speak(fault="load"))
    assert count(server, LOADED) == loads
    server.wait_for_log("Got an OOM, unloading all loaded models")
    assert speaks_the_same(server, spoken)
    assert count(server, LOADED) == loads + 1


def test_out_of_memory_while_speaking_unloads_and_the_next_run_works(server, spoken):
    unloads, warnings = count(server, UNLOADED), count(server, "Got an OOM")
    with pytest.raises(PromptFailedError, match=r"node 3 .*out of memory"):
        server.run(speak(fault="speak"))
    assert count(server, "Got an OOM") == warnings + 1
    assert count(server, UNLOADED) > unloads
    assert speaks_the_same(server, spoken)


def test_another_error_keeps_the_weights(server, spoken):
    before = count(server, LOADED), count(server, UNLOADED)
    with pytest.raises(PromptFailedError, match=r"node 3 .*a bug"):
        server.run(speak(fault="bug"))
    assert speaks_the_same(server, spoken)
    assert (count(server, LOADED), count(server, UNLOADED)) == before


def test_without_caches_each_prompt_gives_its_memory_back(forgetful_server):
    first = codes_of(forgetful_server, forgetful_server.run(speak()))
    assert speaks_the_same(forgetful_server, first)
    assert count(forgetful_server, LOADED) == 2
