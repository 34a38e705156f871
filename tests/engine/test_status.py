import io
import json
from types import SimpleNamespace

import pytest
import torch
from livevoice.engine import Status, status
from livevoice.engine.cli import main
from livevoice.engine.status import Held, size

GB = 1_000_000_000
LOADED = Held(
    "higgs", "native (fp8)", True, {"weights": 4 * GB, "codec": 137_000_000}, 4_137_000_000
)
UNLOADED = Held("higgs", "native (fp8)", True, {}, 4_500_000_000)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 80 GB, of which torch holds 3 and 60 are free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60 * GB, 80 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 3 * GB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 2 * GB)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    return torch.device("cuda", 0)


def engine(device, **arenas):
    path = SimpleNamespace(name="starter")
    return SimpleNamespace(
        checkpoint=SimpleNamespace(path=path), device=device, arena_bytes=arenas,
        backend_reason="native (fp8): as asked for", size_bytes=5 * GB,
    )  # fmt: skip


def test_what_others_hold_is_what_is_left(gpu):
    found = status([engine(gpu, weights=4 * GB, codec=GB)], gpu)
    assert (found.engine_bytes, found.torch_bytes, found.other_bytes) == (5 * GB, 3 * GB, 12 * GB)
    assert "starter, native (fp8): 5.00 GB held: weights 4.00 GB, codec 1.00 GB" in found.text()
    assert found.rest() == "torch 3.00 GB, others 12.00 GB, 60.00 GB of 80.00 GB free"


def test_an_engine_in_system_memory_takes_nothing_from_the_gpu(gpu):
    found = status([engine(torch.device("cpu"), weights=GB)], gpu)
    assert (found.engine_bytes, found.other_bytes) == (GB, 17 * GB)


def test_an_unloaded_engine_holds_0_bytes(gpu):
    found = status([engine(gpu)], gpu)
    assert str(found.engines[0]) == "0 bytes held, 5.00 GB when loaded"
    assert found.text().startswith("a GPU: 0 bytes held by LiveVoice")


def test_a_real_engine_before_and_after(starter_engine):
    cpu = torch.device("cpu")
    starter_engine.load()
    (held,) = status([starter_engine], cpu).engines
    assert held.n_bytes == starter_engine.resident_bytes > 0
    assert set(held.arenas) == {"weights and KV cache", "codec"}
    starter_engine.unload()
    found = status([starter_engine], cpu)
    assert found.engine_bytes == 0
    assert "0 bytes held" in found.text()
    assert "no GPU is used" in found.text()
    starter_engine.load()


def test_it_travels_as_json():
    for found in (Status("CPU", False, ()), Status("a GPU", True, (LOADED, UNLOADED), 1, 2, 3, 4)):
        assert Status.from_json(json.loads(json.dumps(found.as_json()))) == found
    for wrong in ({}, {"engines": 3}, Status("CPU", False, ()).as_json() | {"engines": [{}]}):
        with pytest.raises((KeyError, TypeError)):
            Status.from_json(wrong)


def test_sizes():
    sizes = (0, 499_999, 12_400_000, 999_000_000, 4_504_000_000)
    assert [*map(size, sizes)] == ["0 bytes", "499,999 bytes", "12 MB", "999 MB", "4.50 GB"]


def answering(monkeypatch, body):
    asked = []

    def urlopen(url, timeout):
        asked.append((url, timeout))
        if body is None:
            raise OSError("nobody there")
        return io.BytesIO(body)

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return asked


def test_the_command_asks_a_running_server(monkeypatch, capsys):
    body = json.dumps(Status("a GPU", True, (LOADED,), 0, 0, GB, 8 * GB).as_json()).encode()
    asked = answering(monkeypatch, body)
    assert main(["status", "--server", "http://127.0.0.1:9/"]) == 0
    assert asked == [("http://127.0.0.1:9/livevoice/status", 3)]
    told = capsys.readouterr().out
    assert "a GPU: 4.14 GB held by LiveVoice" in told
    assert "weights 4.00 GB, codec 137 MB" in told


@pytest.mark.parametrize("body", [None, b"<html>", b"[]", b"{}"])
def test_the_command_without_a_server_tells_of_this_machine(monkeypatch, capsys, body):
    answering(monkeypatch, body)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["status"]) == 0
    told = capsys.readouterr().out
    assert "no ComfyUI with LiveVoice answers at http://127.0.0.1:8188" in told
    assert "CPU: 0 bytes held by LiveVoice" in told
    assert "backend: reference fp32" in told


def test_an_address_of_another_kind_is_refused(capsys):
    assert main(["status", "--server", "file:///etc/passwd"]) == 2
    assert "must begin with http" in capsys.readouterr().err
