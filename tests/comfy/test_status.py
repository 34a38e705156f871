"""The memory read-out in a real server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .comfyui import ROOT
from .speaking import speak

pytestmark = pytest.mark.comfy


def test_a_running_server_tells_what_is_held_and_that_nothing_is(server):
    server.free(unload_models=True, free_memory=True)
    server.run(speak())
    told = server.get("/livevoice/status")
    (engine,) = [each for each in told["engines"] if each["arenas"]]
    assert engine["checkpoint"] == "tiny ü"
    assert set(engine["arenas"]) == {"weights and KV cache", "codec"}
    assert told["engine_bytes"] == sum(engine["arenas"].values()) > 0
    server.free(unload_models=True)
    server.poll(
        lambda: server.get("/livevoice/status")["engine_bytes"] == 0, "still held", timeout_s=30
    )
    done = subprocess.run(
        [sys.executable, "-m", "livevoice", "status", "--server", server.url],
        cwd=ROOT.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "CPU: 0 bytes held by LiveVoice" in done.stdout
    assert "when loaded" in done.stdout
