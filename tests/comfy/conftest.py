"""Servers with this pack that the tests share: each is started once a version."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import soundfile
from cloning import speechlike

from .comfyui import NEWEST, OLDEST, ROOT, Server
from .speaking import ODD_NAME, TINY

PACKS = {ODD_NAME: ROOT, "faults": Path(__file__).parent / "faults"}


def run_server(version, tiny, flags=()):
    # Models as small as these are slower with two threads, and other tests run beside them.
    env = {"OMP_NUM_THREADS": "1"}
    with Server(PACKS, version=version, flags=("--cpu", *flags), env=env) as server:
        shutil.copytree(tiny, server.base / "models" / "tts" / TINY)
        # What the workflow that clones a voice asks for.
        soundfile.write(server.base / "input" / "my_voice.wav", speechlike(4.0).numpy(), 24000)
        yield server


@pytest.fixture(scope="session", params=[OLDEST, NEWEST])
def server(request, tiny, tmp_path_factory):
    """A server as users run it, with one more model folder."""
    more = tmp_path_factory.mktemp("more models")
    (more / "voices").mkdir()
    (more / "voices" / "elsewhere").symlink_to(tiny, target_is_directory=True)
    paths = more / "paths.yaml"
    paths.write_text(f"more:\n  base_path: {more}\n  tts: voices\n")
    yield from run_server(request.param, tiny, ["--extra-model-paths-config", str(paths)])


@pytest.fixture(scope="session", params=[OLDEST, NEWEST])
def forgetful_server(request, tiny):
    """A server that keeps no node's output from one prompt to the next."""
    yield from run_server(request.param, tiny, ["--cache-none"])
