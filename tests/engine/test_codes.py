import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from livevoice.engine import Codes, SamplingParams, SpokenUtterance
from safetensors import safe_open
from safetensors.torch import save_file


def utterance(text: str, n_frames: int, reason: str = "eoc", attempt: int = 0) -> SpokenUtterance:
    generator = torch.Generator().manual_seed(n_frames)
    frames = torch.randint(0, 1024, (n_frames, 8), generator=generator)
    return SpokenUtterance(text, frames, reason, attempt)


@pytest.fixture
def codes() -> Codes:
    utterances = (utterance("Grüß Gott.", 30), utterance("你好", 20, "cap", 2))
    utterances = (replace(utterances[0], gap_s=1.5), replace(utterances[1], gap_s=-0.05))
    sampling = SamplingParams(0.7, 30, 0.9, 2**64 - 1)
    return Codes(utterances, sampling, "abc", checkpoint="starter", notes=("A note.",))


def test_properties(codes: Codes):
    assert codes.seconds == 2.0
    assert codes.stop_reason == "cap"
    assert codes.frames.shape == (50, 8)
    assert codes.text == "Grüß Gott.\n你好"
    assert Codes((), SamplingParams(), "x").stop_reason == "cancelled"


def test_file_keeps_everything(codes: Codes, tmp_path: Path):
    codes.save(tmp_path / "a.safetensors")
    loaded = Codes.load(tmp_path / "a.safetensors")
    assert loaded.sampling == codes.sampling
    assert (loaded.codec_id, loaded.checkpoint) == ("abc", "starter")
    assert loaded.notes == ("A note.",)
    for a, b in zip(loaded.utterances, codes.utterances, strict=True):
        assert (a.text, a.stop_reason, a.attempt) == (b.text, b.stop_reason, b.attempt)
        assert a.gap_s == b.gap_s
        assert torch.equal(a.frames, b.frames)


def test_empty_last_utterance_survives(tmp_path: Path):
    empty = SpokenUtterance("b", torch.empty((0, 8), dtype=torch.int64), "cancelled")
    Codes((utterance("a", 3), empty), SamplingParams(), "x").save(tmp_path / "a.safetensors")
    assert len(Codes.load(tmp_path / "a.safetensors").utterances[1].frames) == 0


def test_files_from_before_gaps_and_notes_are_read(codes: Codes, tmp_path: Path):
    codes.save(tmp_path / "new")
    with safe_open(tmp_path / "new", framework="pt") as file:
        header = json.loads(file.metadata()["livevoice_codes"])
        frames = file.get_tensor("frames")
    del header["notes"]
    for entry in header["utterances"]:
        del entry["gap_s"]
    save_file({"frames": frames}, tmp_path / "old", {"livevoice_codes": json.dumps(header)})
    loaded = Codes.load(tmp_path / "old")
    assert [each.gap_s for each in loaded.utterances] == [0.0, 0.0]
    assert torch.equal(loaded.frames, codes.frames)


def test_nothing_is_not_saved(tmp_path: Path):
    with pytest.raises(ValueError, match="nothing to save"):
        Codes((), SamplingParams(), "x").save(tmp_path / "a.safetensors")


def test_other_files_are_refused(codes: Codes, tmp_path: Path):
    with pytest.raises(ValueError, match="no file"):
        Codes.load(tmp_path / "nothing")
    (tmp_path / "text").write_text("hello")
    save_file({"frames": torch.zeros(3, 8)}, tmp_path / "plain")
    good = tmp_path / "good"
    codes.save(good)
    raw = good.read_bytes()
    (tmp_path / "cut").write_bytes(raw[:-10])
    (tmp_path / "version").write_bytes(raw.replace(rb"\"version\": 1", rb"\"version\": 9"))
    (tmp_path / "frames").write_bytes(raw.replace(rb"\"n_frames\": 30", rb"\"n_frames\": 31"))
    (tmp_path / "gap").write_bytes(raw.replace(rb"\"gap_s\": 1.5", rb"\"gap_s\": 1e9"))
    for name in ("text", "plain", "cut", "version", "frames", "gap"):
        with pytest.raises(ValueError, match=f"{name} is not a LiveVoice codes file"):
            Codes.load(tmp_path / name)
