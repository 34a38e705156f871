"""What ComfyUI costs: the same text by the bare engine and through a prompt, in turns."""

from __future__ import annotations

import statistics
import time

import pytest
from livevoice.engine import Engine, SamplingParams

from . import gpu
from .gpu_report import keep

pytestmark = [pytest.mark.cuda, pytest.mark.comfy]
# Long: random weights end an utterance whenever they like, and a prompt costs a little by itself.
TEXT = "The old clock in the hall struck seven, and nobody came. " * 40
SAMPLING = {"temperature": 0.65, "top_k": 30, "top_p": 1.0}
MAX_OVERHEAD = 0.03


@pytest.fixture(scope="module")
def server():
    with gpu.start() as server:
        yield server


def prompt(checkpoint, seed, max_seconds):
    whole = gpu.speech(checkpoint, text=TEXT, seed=seed, max_seconds=max_seconds)
    whole["5"]["inputs"].pop("audio")
    del whole["4"]
    return whole


@pytest.mark.parametrize(("which", "max_seconds"), [("starter", 0.0), ("real sizes", 80.0)])
def test_overhead(server, which, max_seconds):
    """Codes only: the decode loop is where a node could lose time, frame by frame."""
    folder = gpu.STARTER if which == "starter" else gpu.real_checkpoint()
    name = gpu.STARTER if which == "starter" else gpu.give(server, folder, "real")
    engine = Engine(folder, "cpu" if gpu.ON_CPU else "cuda")
    engine.load()
    bare, inside = [], []
    gpu.run(server, prompt(name, 1, max_seconds))
    for seed in (1, 1, 2) if gpu.ON_CPU else (1, 1, 2, 3):
        began = time.perf_counter()
        codes = engine.codes(
            TEXT, SamplingParams(**SAMPLING, seed=seed), max_seconds=max_seconds or None
        )
        bare_s = time.perf_counter() - began
        entry = gpu.wait(server, server.queue(prompt(name, seed, max_seconds)))
        n_frames = gpu.shown(entry)["frames"]
        assert n_frames == len(codes.frames)
        bare.append(1000 * bare_s / n_frames)
        inside.append(1000 * gpu.seconds(entry) / n_frames)
    engine.unload()
    warm_s = gpu.seconds(entry)
    gpu.free(server, caches=False)
    entry = gpu.wait(server, server.queue(prompt(name, seed, max_seconds)))
    overheads = [b / a - 1 for a, b in zip(bare[1:], inside[1:], strict=True)]
    keep(
        f"speed inside ComfyUI: {which}",
        precision=engine.precision,
        frames=n_frames,
        bare_ms_per_frame=statistics.median(bare[1:]),
        inside_ms_per_frame=statistics.median(inside[1:]),
        overhead_percent=100 * statistics.median(overheads),
        reload_s=gpu.seconds(entry) - warm_s,
    )
    gpu.free(server)
    # The starter's frames are so quick that a prompt's own milliseconds show.
    if which != "starter" and not gpu.ON_CPU:
        assert statistics.median(overheads) <= MAX_OVERHEAD
