"""What users see of the memory, with a server that only listens."""

from __future__ import annotations

from types import SimpleNamespace

import comfy.model_management as management
import pytest
from livevoice.engine import Engine
from livevoice.nodes import status
from livevoice.nodes.residency import EnginePatcher

LOADER = {"7": {"class_type": "LiveVoiceLoadModel", "inputs": {}}}
OTHER = {"7": {"class_type": "KSampler", "inputs": {}}}


class Listener:
    """The parts of ComfyUI's server that are used."""

    client_id = "a browser"
    last_prompt_id = "p"

    def __init__(self):
        self.running, self.last, self.told = [], LOADER, []
        self.prompt_queue = SimpleNamespace(
            get_current_queue_volatile=lambda: ([(0, "q", each) for each in self.running], []),
            get_history=lambda name: {name: {"prompt": (0, name, self.last)}},
        )

    def send_progress_text(self, text, node, client):
        self.told.append((text, node, client))


@pytest.fixture
def server(monkeypatch):
    listener = Listener()
    monkeypatch.setattr(status.PromptServer, "instance", listener, raising=False)
    return listener


@pytest.fixture
def patcher():
    yield EnginePatcher.over(Engine("starter", "cpu"))
    management.unload_all_models()


def test_the_loader_shows_what_is_held(server, patcher):
    patcher.model.readout.watch("7")
    patcher.make_resident()
    management.unload_all_models()
    texts = [text for text, *where in server.told if where == ["7", "a browser"]]
    assert len(texts) == len(server.told) == 3
    assert "0 bytes held, 67 MB when loaded" in texts[0]
    assert "67 MB held: weights and KV cache" in texts[1]
    assert "no GPU is used" in texts[1]
    assert texts[2] == texts[0]


def test_the_loader_shows_why_a_gpu_is_not_used(server, patcher, monkeypatch):
    monkeypatch.setattr(Engine, "is_fallback", property(lambda _: True))
    patcher.model.readout.watch("7")
    assert server.told[0][0].startswith("reference (fp32): the native backend needs an NVIDIA GPU")
    assert "67 MB when loaded" in server.told[0][0]


def test_a_patcher_that_dies_shows_it_too(server):
    mine = EnginePatcher.over(Engine("starter", "cpu"))
    mine.model.readout.watch("7")
    mine.engine.load()
    del mine
    assert "0 bytes held" in server.told[-1][0]
    assert len(server.told) == 2


def test_a_node_of_another_workflow_is_left_alone(server, patcher):
    patcher.model.readout.watch("7")
    server.last = OTHER
    patcher.make_resident()
    assert len(server.told) == 1
    server.running = [OTHER, LOADER]
    patcher.model.readout.show()
    assert len(server.told) == 2


@pytest.mark.usefixtures("server")
def test_showing_never_fails(patcher, monkeypatch):
    patcher.model.readout.watch("7")
    monkeypatch.setattr(status, "status", lambda *_: 1 / 0)
    patcher.make_resident()
    patcher.detach(True)
    assert patcher.loaded_size() == 0


def test_without_a_server_nothing_is_shown(patcher, monkeypatch):
    monkeypatch.setattr(status.PromptServer, "instance", None, raising=False)
    patcher.model.readout.watch("7")
    patcher.make_resident()
