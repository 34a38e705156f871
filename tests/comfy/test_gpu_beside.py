"""Speech, a picture, speech, in turns, on a card that has not room for both models at once.

The picture comes from ComfyUI's own nodes and classes: a diffusion model of the size of Stable
Diffusion 1.5 with random weights. That the card is small is another process's doing, which holds
the rest of it: what ComfyUI and the driver see as free is real. One server for each set of flags;
all are started at once and take turns.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from . import gpu, image_model
from .ballast import Ballast
from .comfyui import BACK_ENDS, NEWEST, SITE
from .gpu_report import keep, say

pytestmark = [pytest.mark.cuda, pytest.mark.comfy]
FLAGS = {
    "default": [],
    "no dynamic vram": ["--disable-dynamic-vram"],
    "lowvram": ["--lowvram", "--disable-dynamic-vram"],
    "highvram": ["--highvram"],
    "no smart memory": ["--disable-smart-memory"],
    "no cuda malloc": ["--disable-cuda-malloc"],
    "neither cuda malloc nor dynamic vram": ["--disable-cuda-malloc", "--disable-dynamic-vram"],
    "cache none": ["--cache-none"],
}
# What it was told to keep on the card it keeps: there has to be room for both.
ROOMY = {"highvram"}
CHOSEN = [each for each in os.environ.get("LIVEVOICE_FLAGS", "").split(",") if each] or list(FLAGS)
PICTURE = "trial_image.safetensors"
GB = 1 << 30


# Instead of another process that holds memory: ComfyUI's own imitation of a smaller card.
RESERVE = os.environ.get("LIVEVOICE_RESERVE_GB", "")


def picture_path():
    """Where the picture's model is, or will be."""
    size = "tiny" if gpu.ON_CPU else "whole"
    return Path(os.environ.get("TMPDIR", "/tmp")) / f"livevoice_{size}_image.safetensors"


@pytest.fixture(scope="module")
def picture_file():
    env = dict(os.environ)
    if SITE.is_dir():
        env["PYTHONPATH"] = str(SITE)
    size = "tiny" if gpu.ON_CPU else "whole"
    return image_model.made(picture_path(), BACK_ENDS / NEWEST, size, env)


@pytest.fixture(scope="module")
def servers(picture_file):
    """All of them, running, each warm: it has spoken and painted and given all back."""

    def ready(name):
        server = stack.enter_context(gpu.start(*FLAGS[name], *reserved(name)))
        gpu.give(server, picture_file, PICTURE, "diffusion_models")
        return name, server

    at_once = 1 if gpu.ON_CPU else len(CHOSEN)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(at_once) as threads:
        yield dict(threads.map(ready, CHOSEN))


@pytest.fixture(scope="module")
def ballast():
    if gpu.ON_CPU or RESERVE:
        yield None
        return
    with Ballast() as ballast:
        ballast.leave(0)
        yield ballast


def reserved(name):
    """Flags that make the card seem small, where that is wanted."""
    return ["--reserve-vram", RESERVE] if RESERVE and name not in ROOMY else []


def paint():
    return gpu.picture(PICTURE, size=64 if gpu.ON_CPU else 512)


def is_dynamic(server):
    return "DynamicVRAM support detected and enabled" in server.log


def turns(server, ballast, name, checkpoint, wanted):
    """Rounds of speech, picture, speech on a card with just too little memory for both."""
    rounds = gpu.Rounds(f"speech, picture, speech: {name}")
    for _ in range(2):  # libraries take what they keep
        engine = gpu.run(server, gpu.speech(checkpoint, max_seconds=0.6))
        needed = gpu.Memory.of(server).engine
        rounds.same(engine)
        gpu.run(server, paint())
        gpu.free(server)
    left = 0
    if ballast and name not in ROOMY:
        # What ComfyUI wants free for this picture's model, or for the voice, whichever is more.
        left = ballast.leave(max(round(3.4 * GB), round(1.2 * needed + 1.4 * GB)))
    unloads = server.log.count("LiveVoice: unloaded")
    rounds.after.append(gpu.free(server))
    pictures = set()  # torch may choose another algorithm where memory is short
    for _ in rounds.numbers(wanted):
        try:
            rounds.same(gpu.run(server, gpu.speech(checkpoint, max_seconds=0.6)))
            pictures.add(gpu.run(server, paint())["latent"])
            rounds.same(gpu.run(server, gpu.speech(checkpoint, max_seconds=0.6)))
        except gpu.PromptFailedError as error:
            rounds.failures.append(str(error))
    unloads = server.log.count("LiveVoice: unloaded") - unloads
    held_mb = gpu.Memory.of(server).taken_mb
    rounds.after.append(gpu.free(server))
    keep(
        rounds.name, **rounds.summary(), different_pictures=len(pictures),
        voice_mb=needed / 1e6, free_mb=left / 1e6, voice_unloaded=unloads,
        dynamic=is_dynamic(server), taken_before_free_mb=held_mb,
    )  # fmt: skip
    for each in rounds.failures[:5]:
        say(each)
    if ballast:
        ballast.leave(0)
    return rounds


@pytest.mark.parametrize("name", CHOSEN)
def test_speech_picture_speech(servers, ballast, name):
    server = servers[name]
    rounds = turns(server, ballast, name, gpu.STARTER, gpu.rounds(0.05))
    assert not rounds.failures
    assert server.is_running
    assert not rounds.grown()
    server.stop()  # its context goes before the next one's rounds


@pytest.mark.parametrize("name", CHOSEN)
def test_speech_picture_speech_with_the_real_sizes(picture_file, ballast, name):
    with gpu.start(*FLAGS[name], *reserved(name)) as server:
        gpu.give(server, picture_file, PICTURE, "diffusion_models")
        real = gpu.give(server, gpu.real_checkpoint(), "real")
        rounds = turns(server, ballast, f"{name}, real sizes", real, gpu.rounds(0.05))
        assert not rounds.failures
        assert server.is_running
        assert not rounds.grown()
