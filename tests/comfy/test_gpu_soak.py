"""Speak, free, speak, free: nothing is left, nothing grows, and the speech stays the same."""

from __future__ import annotations

import re

import pytest

from . import gpu
from .gpu_report import keep

pytestmark = [pytest.mark.cuda, pytest.mark.comfy]
# Background threads of ComfyUI and of the driver take and return a little of their own.
SLOPE_BYTES = 1024


@pytest.fixture(scope="module")
def server():
    with gpu.start() as server:
        yield server


def cycles(server, name, prompt, wanted, budget_s=gpu.BUDGET_S):
    rounds = gpu.Rounds(name)
    for _ in rounds.numbers(wanted, budget_s):
        try:
            rounds.same(gpu.run(server, prompt()))
        except gpu.PromptFailedError as error:
            rounds.failures.append(str(error))
        rounds.after.append(gpu.free(server))
    keep(name, **rounds.summary())
    return rounds


def nothing_grows(rounds):
    row = rounds.summary()
    assert not rounds.failures, rounds.failures[:5]
    assert row["bytes_held"] == 0
    assert not rounds.grown()
    if not gpu.ON_CPU and row["alone_on_the_card"] >= 100:
        assert row["slope_bytes_per_round"] < SLOPE_BYTES
    if not gpu.ON_CPU and row["rounds"] >= 100:
        assert row["nvml_slope_bytes_per_round"] < SLOPE_BYTES


def test_smoke(server):
    """Two rounds, told as they go: the server starts with the device that is meant."""
    stats = server.get("/system_stats")
    entry = gpu.wait(server, server.queue(gpu.speech()))
    loaded = gpu.Memory.of(server)
    assert entry["status"]["status_str"] == "success", server.trouble()
    again = gpu.wait(server, server.queue(gpu.speech(seed=6)))
    keep(
        "smoke",
        device=stats["devices"][0]["name"],
        backend=re.search(r"LiveVoice: (.* backend, .*)", server.log)[1],
        frames=gpu.shown(entry)["frames"],
        first_s=gpu.seconds(entry),
        warm_s=gpu.seconds(again),
        engine_mb=loaded.engine / 1e6,
        process_mb=loaded.process / 1e6,
        freed_engine_bytes=gpu.free(server).engine,
    )
    if not gpu.ON_CPU:
        assert "LiveVoice: native backend" in server.log


def test_rounds_with_the_starter(server):
    nothing_grows(cycles(server, "starter: speak, free", gpu.speech, gpu.ROUNDS))


def test_rounds_with_the_real_sizes(server):
    name = gpu.give(server, gpu.real_checkpoint(), "real")
    rounds = cycles(
        server,
        "real sizes: speak, free",
        lambda: gpu.speech(name, max_seconds=1.0),
        gpu.rounds(0.1),
        gpu.BUDGET_S / 4,
    )
    nothing_grows(rounds)
