"""Voice nodes inside ComfyUI, without its server: what AUDIO may be, names, and folders."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import comfy.model_management as management
import folder_paths
import pytest
import torch
from comfy.utils import ProgressBar
from livevoice.engine import Engine, load_voice, starter_voices
from livevoice.nodes import checkpoints, dialogue, voice, voices
from livevoice.nodes.load_voice import LoadVoice
from livevoice.nodes.residency import EnginePatcher
from livevoice.nodes.save_voice import SaveVoice

checkpoints.register_folder()


@pytest.fixture(scope="module")
def model():
    return EnginePatcher.over(Engine("starter", "cpu"))


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Folder of voices of a models folder that nobody else sees."""
    monkeypatch.setattr(folder_paths, "models_dir", str(tmp_path))
    entry = ([str(tmp_path / "tts"), str(tmp_path / "more")], set())
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "tts", entry)
    return voices.own_folder()


def sound(channels=1, clips=1, seconds=1.5, rate=24000):
    t = torch.arange(round(seconds * rate)) / rate
    wave = 0.3 * torch.sin(6.28 * 140 * t) * (1 + torch.sin(6.28 * 3 * t)) / 2
    return {"waveform": wave.expand(clips, channels, -1).clone(), "sample_rate": rate}


def make(model, audio, **changed):
    inputs = {"transcript": "Good morning to you.", "name": "Anna", **changed}
    return voice.Voice.execute(model, audio, **inputs).args


def test_voice_channels_are_averaged_and_clips_joined(model):
    one, _ = make(model, sound())
    for channels in (2, 6):
        assert torch.equal(make(model, sound(channels))[0].codes, one.codes)
    three, report = make(model, sound(clips=3))
    joined = sound()["waveform"].repeat(1, 1, 3)
    assert torch.equal(three.codes, make(model, {**sound(), "waveform": joined})[0].codes)
    assert "3 clips were joined" in report
    # A batch of two is no stereo: it is twice as long, not averaged.
    assert abs(len(make(model, sound(clips=2))[0].codes) - 2 * len(one.codes)) <= 2


def test_voice_of_any_float(model):
    audio = sound()
    for dtype in (torch.float16, torch.float64):
        made, _ = make(model, {**audio, "waveform": audio["waveform"].to(dtype)})
        assert made.codes.shape[1] == 8


def test_voice_without_sound_is_refused(model):
    for waveform, message in (
        (None, "there is no audio"),
        (torch.zeros(2, 9), r"must be \[clips, channels"),
        (torch.zeros(1, 2, 0), "recording is empty"),
        (torch.zeros(0, 1, 9), "recording is empty"),
    ):
        audio = None if waveform is None else {"waveform": waveform, "sample_rate": 24000}
        with pytest.raises(ValueError, match=message):
            make(model, audio)


def test_voice_is_made_without_loading_the_model(model):
    model.engine.unload()
    made, report = make(model, sound(seconds=2.2))
    assert not model.engine.is_loaded
    assert made.content_hash[:16] in report
    assert "its own three voices" in report


def test_voice_asks_for_room_on_a_gpu_only(model, monkeypatch):
    asked = []
    monkeypatch.setattr(management, "free_memory", lambda *args: asked.append(args))
    make(model, sound(seconds=2.3))
    assert not asked
    engine = model.engine

    class OnGpu:
        device = torch.device("cuda")
        voice = engine.voice

    gpu = type("Patcher", (), {"engine": OnGpu(), "load_device": torch.device("cuda", 0)})()
    voice.make_voice(gpu, sound(seconds=2.4), "", "A")
    ((n_bytes, device),) = asked
    assert n_bytes > engine.cloning.need_bytes(0)
    assert device == torch.device("cuda", 0)


def test_voice_is_cancelled_while_it_is_encoded(model, monkeypatch):
    shown = []

    def press_cancel(_, done, total):
        shown.append((done, total))
        management.interrupt_current_processing(done == total // 2)

    monkeypatch.setattr(ProgressBar, "update_absolute", press_cancel)
    n_cached = len(model.engine.cloning._codes)
    with pytest.raises(management.InterruptProcessingException):
        make(model, sound(seconds=2.6))
    assert shown[-1][0] == shown[-1][1] // 2
    assert len(model.engine.cloning._codes) == n_cached
    assert model.engine.resident_bytes == 0
    shown.clear()
    monkeypatch.setattr(ProgressBar, "update_absolute", lambda _, *step: shown.append(step))
    made, _ = make(model, sound(seconds=2.6))
    assert len(made.codes) == 65
    assert shown[0][0] == 0
    assert shown[-1][0] == shown[-1][1]


def test_voice_names_are_judged_before_the_run():
    for node in (voice.Voice, SaveVoice):
        for name in ("../x", "a:b", "[a]", "x" * 61, "a\nb"):
            assert "name" in node.validate_inputs(name)
        assert node.validate_inputs("Anna") is True
        assert node.validate_inputs(None) is True


def test_voice_files_of_every_place(library):
    rms = load_voice(starter_voices()["rms"])
    SaveVoice.execute(rms, "Männe", "mine", "")
    more = library.parents[1] / "more" / "voices"
    (more / "deep").mkdir(parents=True)
    os.link(library / "Männe.safetensors", more / "deep" / "copy.safetensors")
    (more / ".hidden.safetensors").write_bytes(b"")
    names = voices.names()
    assert names == ["starter/hibari", "starter/rms", "starter/slt",
                     "deep/copy.safetensors", "Männe.safetensors"]  # fmt: skip
    for name in names:
        loaded, report = LoadVoice.execute(name, "").args
        assert loaded.name in report
    assert LoadVoice.execute("deep/copy.safetensors", " Otto ").args[0].name == "Otto"


def test_voices_that_are_not_there(library):
    (library.parents[1] / "x.safetensors").write_bytes(b"")
    outside = ("../../x.safetensors", "starter/../rms", str(library.parents[1] / "x.safetensors"))
    for name in ("", ".", "..", "starter/nobody", "a\0b", *outside):
        with pytest.raises(ValueError, match="voice: no '"):
            voices.find(name)
        assert "voice: no '" in LoadVoice.validate_inputs(name, "")


def test_load_voice_notices_a_replaced_file(library):
    path = library / "v.safetensors"
    SaveVoice.execute(load_voice(starter_voices()["rms"]), "v", "", "")
    before = LoadVoice.fingerprint_inputs(path.name)
    os.utime(path, ns=(1, 1))
    assert LoadVoice.fingerprint_inputs(path.name) != before
    assert LoadVoice.fingerprint_inputs(None) is None


def test_a_transcript_that_is_no_text(library, model):
    for content, message in ((b"\xff\xfe\x00", "not UTF-8"), (b"x" * 70000, "too long")):
        (library / "a.wav").write_bytes(b"")
        (library / "a.txt").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            voices.find("a.wav").read_transcript()
    with pytest.raises(ValueError, match=r"can't read a\.wav"):
        LoadVoice.execute("a.wav", "", model)


def test_save_voice_keeps_what_is_not_given(library):
    rms = load_voice(starter_voices()["rms"])
    kept, file = SaveVoice.execute(rms, "", " ", "").args
    assert (kept.licence, kept.preview_text, file) == (
        rms.licence,
        rms.preview_text,
        "rms.safetensors",
    )
    given, _ = SaveVoice.execute(rms, "Rms", "CC0", "Hi.").args
    assert (given.licence, given.preview_text) == ("CC0", "Hi.")
    with pytest.raises(ValueError, match="can't be saved under that name"):
        SaveVoice.execute(replace(rms, name=""), "", "", "")
    assert not [file for file in Path(library).iterdir() if file.name.startswith(".")]


def test_dialogue_retakes_are_numbers():
    for retakes in ("0", "x", "1.5", "-1", "9" * 20, "1,,x"):
        assert "is no turn" in dialogue.Dialogue.validate_inputs(retakes)


def test_dialogue_retakes_count():
    assert dialogue._takes(" 2, 5;2 ", 5) == {2: 2, 5: 1}
    assert dialogue._takes("") == {}
    assert dialogue.Dialogue.validate_inputs(None) is True


def test_dialogue_speakers_without_a_name():
    rms = load_voice(starter_voices()["rms"])
    named = dialogue._by_name([rms, None, replace(rms, name="")])
    assert list(named) == ["rms", "Speaker 3"]
