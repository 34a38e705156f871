"""The streaming preview inside ComfyUI, with a server that only writes down what it is to send."""

from __future__ import annotations

import base64
import time
from types import SimpleNamespace

import comfy.model_management as management
import folder_paths
import numpy as np
import pytest
import torch
from livevoice.nodes import preview as previews
from livevoice.nodes.preview import Preview, Recordings, Speed
from livevoice.nodes.residency import patcher_of
from livevoice.nodes.streaming_preview import StreamingPreview
from livevoice.nodes.text_to_codes import TextToCodes

TEXT = "Good morning to you all."
SETTINGS = {"seed": 3, "temperature": 0.65, "top_k": 30, "top_p": 1.0, "max_seconds": 1.0}


class FakeServer:
    """What a preview uses of ComfyUI's server."""

    def __init__(self, client_id="me"):
        self.client_id = client_id
        self.last_prompt_id = "p1"
        self.sent = []
        self.waiting = 0
        self.messages = SimpleNamespace(qsize=lambda: self.waiting)

    def send_sync(self, kind, event, client_id):
        assert (kind, client_id) == (previews.EVENT, "me")
        self.sent.append(event)

    def kinds(self):
        return [event["kind"] for event in self.sent]


@pytest.fixture
def server(monkeypatch):
    server = FakeServer()
    monkeypatch.setattr(previews.PromptServer, "instance", server, raising=False)
    monkeypatch.setattr(previews, "recordings", Recordings())
    return server


@pytest.fixture
def node(monkeypatch, tmp_path):
    monkeypatch.setattr(folder_paths, "temp_directory", str(tmp_path))
    hidden = SimpleNamespace(unique_id="5:4", extra_pnginfo={"workflow": {"id": "w"}})
    monkeypatch.setattr(StreamingPreview, "hidden", hidden, raising=False)
    return patcher_of("starter", "cpu", "auto")


def run(model, **changed):
    return StreamingPreview.execute(model, TEXT, **{"keep_partial": False, **SETTINGS, **changed})


def preview(**changed):
    settings = {"workflow_id": "w", "sample_rate": 24000, "frame_rate_hz": 25, "expected_s": 2.0}
    return Preview("5:4", **{**settings, **changed})


def sound(events):
    chunks = [base64.b64decode(event["pcm"]) for event in events if event["kind"] == "chunk"]
    return np.frombuffer(b"".join(chunks), "<f4")


def test_preview_sends_the_bits_of_the_audio(server, node, tmp_path):
    output = run(node)
    waveform = output.args[0]["waveform"].numpy().reshape(-1)
    assert server.kinds()[0] == "start"
    assert server.kinds()[-1] == "end"
    assert [event["seq"] for event in server.sent] == list(range(len(server.sent)))
    assert np.array_equal(sound(server.sent), waveform)
    assert server.sent[-1]["reason"] == "done"
    file = tmp_path / output.ui["audio"][0]["filename"]
    assert np.array_equal(np.frombuffer(file.read_bytes()[44:], "<f4"), waveform)
    assert output.ui["livevoice_preview"] == [
        {"prompt_id": "p1", "node_id": "5:4", "workflow_id": "w"}
    ]


def test_preview_equals_the_two_nodes_without_it(server, node):
    codes = TextToCodes.execute(node, TEXT, retries=0, keep_partial=False, **SETTINGS).args[0]
    waveform = run(node).args[0]["waveform"]
    assert torch.equal(waveform.reshape(-1), node.engine.decode(codes))
    assert server.sent


@pytest.fixture
def cancelled_at_20(monkeypatch):
    """Cancel is pressed when the twentieth frame is there."""
    tick = Speed.tick

    def cancel_at_20(self, done_frames, now_s=None):
        if done_frames == 20:
            management.interrupt_current_processing(True)
        tick(self, done_frames, now_s)

    monkeypatch.setattr(Speed, "tick", cancel_at_20)
    yield
    management.interrupt_current_processing(False)


@pytest.mark.usefixtures("cancelled_at_20")
def test_preview_cancelled_stops_the_workflow(server, node):
    with pytest.raises(management.InterruptProcessingException):
        run(node)
    assert [event["reason"] for event in server.sent if event["kind"] == "end"] == ["cancelled"]


@pytest.mark.usefixtures("cancelled_at_20")
def test_preview_cancelled_keeps_what_was_made(server, node):
    waveform = run(node, keep_partial=True).args[0]["waveform"].numpy().reshape(-1)
    assert np.array_equal(sound(server.sent), waveform), "what was played, and what came after"
    assert 0.5 < len(waveform) / 24000 < 1.0
    assert [event["reason"] for event in server.sent if event["kind"] == "end"] == ["cancelled"]


def test_preview_hushes_while_the_engine_is_busy(server):
    try:
        with preview() as it:
            management.interrupt_current_processing(True)
            end_s = time.monotonic() + 2
            while "hush" not in server.kinds() and time.monotonic() < end_s:
                time.sleep(0.01)
            assert server.kinds() == ["start", "hush"]
            it.end("cancelled")
    finally:
        management.interrupt_current_processing(False)


def test_preview_of_an_error_ends(server):
    with pytest.raises(ZeroDivisionError), preview():
        _ = 1 / 0
    assert server.sent[-1]["reason"] == "failed"


def test_preview_without_a_client_is_silent(server):
    server.client_id = None
    with preview() as it:
        it.send(torch.zeros(10))
    assert server.sent == []
    assert previews.recordings.n_bytes == 0


def test_preview_spares_a_client_that_does_not_listen(server):
    server.waiting = 1000
    with preview() as it:
        for _ in range(3):
            it.send(torch.zeros(10))
    assert server.kinds() == ["start", "end"]
    kept = previews.recordings.events("me", "5:4", "p1", 1)
    assert [event["kind"] for event in kept] == ["chunk", "chunk", "chunk", "end"]


def test_recordings_stay_within_their_bound():
    kept = Recordings(budget_bytes=1000)

    def speak(node_id, n_chunks):
        kept.begin("me", {"node_id": node_id, "prompt_id": "p"})
        for seq in range(n_chunks):
            kept.add("me", {"node_id": node_id, "seq": seq, "pcm": "x" * 100})
            assert kept.n_bytes <= 1000
        return lambda: kept.events("me", node_id, "p", 0)

    first = speak("1", 6)
    kept.end("me", "1")
    second = speak("2", 6)
    assert first() == [], "the finished one goes first"
    assert len(second()) == 6
    third = speak("3", 15)
    assert len(third()) == 10
    assert third()[0]["seq"] == 5, "a running one loses its oldest sound"
    assert second() == []
    assert kept.events("me", "3", "another prompt", 0) == []
    assert kept.events("somebody else", "3", "p", 0) == []
    assert [run["node_id"] for run in kept.runs("me")][-1] == "3"


def test_recordings_answer_in_parts(monkeypatch):
    monkeypatch.setattr(previews, "_ANSWER_BYTES", 250)
    kept = Recordings()
    kept.begin("me", {"node_id": "1", "prompt_id": "p"})
    for seq in range(5):
        kept.add("me", {"node_id": "1", "seq": seq, "pcm": "x" * 100})
    assert [event["seq"] for event in kept.events("me", "1", "p", 1)] == [1, 2, 3]


def test_speed_is_that_of_the_last_seconds():
    speed = Speed(25)
    assert speed.value == 0
    for frame in range(250):  # ten seconds of speech, the later half twice as fast
        speed.tick(frame, frame * 0.04 if frame < 125 else 5 + (frame - 125) * 0.02)
    assert 1.4 < speed.value < 1.6, "half of each"
