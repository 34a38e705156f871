"""Voice files: what is written comes back, and a stranger's file is believed in nothing."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from livevoice.engine import (
    Engine,
    SamplingParams,
    Voice,
    load_voice,
    save_voice,
    starter_voices,
)
from safetensors.torch import save

SAMPLING = SamplingParams(0.65, 30, 1.0, 11)


def example() -> Voice:
    codes = torch.randint(0, 1024, (40, 8), generator=torch.Generator().manual_seed(0))
    return Voice(codes, "Grüß Gott, 你好.", "Ännchen 1", "CC0; own voice", "Hi!", "0123abcd")


def header(**changes: object) -> dict:
    voice = example()
    texts = {key: getattr(voice, key) for key in ("transcript", "licence", "preview_text")}
    return {
        "format": "livevoice_voice", "version": 1, "name": voice.name, "codec_id": voice.codec_id,
        "hash": voice.content_hash, **texts, **changes,
    }  # fmt: skip


def write(path: Path, metadata: str | dict, **tensors: torch.Tensor) -> Path:
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    tensors = tensors or {"codes": example().codes.to(torch.int16)}
    path.write_bytes(save(tensors, {"livevoice_voice": text}))
    return path


def raw(layout: dict | bytes, data: bytes = b"") -> bytes:
    text = layout if isinstance(layout, bytes) else json.dumps(layout).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_everything_comes_back(tmp_path: Path):
    voice = example()
    path = tmp_path / "voice.safetensors"
    save_voice(voice, path)
    again = load_voice(path)
    assert torch.equal(again.codes, voice.codes)
    assert again.codes.dtype == torch.int64
    for key in ("transcript", "name", "licence", "preview_text", "codec_id", "content_hash"):
        assert getattr(again, key) == getattr(voice, key)
    assert path.stat().st_size < 2000
    assert list(tmp_path.iterdir()) == [path]


def test_the_hash_is_of_all_that_is_spoken_from():
    voice = example()
    codes = voice.codes.clone()
    codes[39, 7] = (codes[39, 7] + 1) % 1024
    changed = [
        replace(voice, codes=codes),
        replace(voice, codes=voice.codes.view(80, 4)),
        replace(voice, transcript="Grüß Gott, 你好!"),
        replace(voice, codec_id="0123abce"),
    ]
    assert len({each.content_hash for each in [voice, *changed]}) == 5
    assert replace(voice, name="B", licence="", preview_text="").content_hash == voice.content_hash


int16 = example().codes.to(torch.int16)
HOSTILE = {
    "no metadata": (lambda path: path.write_bytes(save({"codes": int16})), "no 'livevoice_voice'"),
    "not JSON": (lambda path: write(path, "{"), "Expecting property name"),
    "nested": (lambda path: write(path, "[" * 100_000), "maximum recursion|larger|not a"),
    "a list": (lambda path: write(path, "[]"), "not a JSON object"),
    "newer": (lambda path: write(path, header(version=2)), "version 2, this LiveVoice reads 1"),
    "float": (lambda path: write(path, header(), codes=int16.float()), "int16, got F32"),
    "int64": (lambda path: write(path, header(), codes=int16.long()), "int16, got I64"),
    "flat": (lambda path: write(path, header(), codes=int16.flatten()), "got .320."),
    "no frame": (lambda path: write(path, header(), codes=int16[:0]), "got .0, 8."),
    "long": (lambda path: write(path, header(), codes=int16.repeat(103, 1)), "got .4120, 8."),
    "wide": (lambda path: write(path, header(), codes=int16.repeat(1, 9)), "got .40, 72."),
    "more": (lambda path: write(path, header(), codes=int16, x=-int16), "the one tensor 'codes'"),
    "other": (lambda path: write(path, header(), x=int16), "the one tensor 'codes'"),
    "negative": (lambda path: write(path, header(), codes=-int16), "not be negative"),
    "changed": (lambda path: write(path, header(), codes=int16.flip(0)), "match its hash"),
    "reworded": (lambda path: write(path, header(transcript="Send money.")), "match its hash"),
    "no hash": (lambda path: write(path, header(hash=None)), "match its hash"),
    "path": (lambda path: write(path, header(name="../../evil")), "can't hold '/'"),
    "windows path": (lambda path: write(path, header(name="c:evil")), "can't hold ':'"),
    "dots": (lambda path: write(path, header(name="..")), "neither dot nor space"),
    "control": (lambda path: write(path, header(name="a\x1b[31m")), "can't hold '.x1b'"),
    "no text": (lambda path: write(path, header(transcript=["x"])), "transcript is not a text"),
    "long text": (lambda path: write(path, header(licence="x" * 20_001)), "licence is not a text"),
    "NUL": (lambda path: write(path, header(transcript="a\0b")), "transcript is not a text"),
    "empty": (lambda path: path.write_bytes(b""), "not a LiveVoice voice"),
    "pickle": (lambda path: torch.save({"codes": int16}, path), "not a LiveVoice voice"),
    "huge header": (lambda path: path.write_bytes(struct.pack("<Q", 1 << 62)), "not a LiveVoice"),
    "huge shape": (
        lambda path: path.write_bytes(
            raw({"codes": {"dtype": "I16", "shape": [1 << 40, 8], "data_offsets": [0, 4]}}, b"abcd")
        ),
        "not a LiveVoice voice",
    ),
    "outside": (
        lambda path: path.write_bytes(
            raw({"codes": {"dtype": "I16", "shape": [1, 8], "data_offsets": [0, 16]}})
        ),
        "not a LiveVoice voice",
    ),
    "large": (lambda path: path.write_bytes(bytes(1 << 21)), "larger than 1 MiB"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_malformed_or_hostile_file_is_refused_in_one_sentence(tmp_path: Path, kind: str):
    path = tmp_path / "v.safetensors"
    make, message = HOSTILE[kind]
    make(path)
    with pytest.raises(ValueError, match=message) as caught:
        load_voice(path)
    assert str(caught.value).startswith("voice: v.safetensors is not a LiveVoice voice: ")
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "pipe"):
        with pytest.raises(ValueError, match="no file"):
            load_voice(path)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_the_same_voice(tmp_path: Path, data: st.DataObject):
    path = tmp_path / "v.safetensors"
    save_voice(example(), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        voice = load_voice(path)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert voice.content_hash == example().content_hash


@settings(max_examples=100, deadline=None)
@given(name=st.text(max_size=70))
def test_a_name_is_refused_or_stays_in_its_folder(name: str):
    try:
        Voice(example().codes, name=name)
    except ValueError as error:
        assert "name" in str(error)  # noqa: PT017
    else:
        assert (Path("folder") / f"{name}x").name == f"{name}x"
        assert len(name) <= 60


@pytest.mark.parametrize("name", ["", "NUL", "con", "Com1.old"])
def test_names_that_a_file_cannot_have(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match="can't be saved under that name"):
        save_voice(replace(example(), name=name), tmp_path / "v.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "v.safetensors"
    save_voice(example(), path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        save_voice(replace(example(), transcript="other"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_voices_of_the_starter(starter_engine: Engine):
    files = starter_voices()
    assert list(files) == ["hibari", "rms", "slt"]
    voices = [load_voice(file) for file in files.values()]
    assert [voice.name for voice in voices] == list(files)
    for voice in voices:
        assert 4.0 <= voice.seconds(25) <= 6.0
        assert voice.transcript
        assert "NOTICE" in voice.licence
        assert voice.codec_id == starter_engine.checkpoint.codec_id


def pitch_hz(waveform: torch.Tensor, rate: int) -> float:
    """Median pitch: the best lag of the autocorrelation of each loud stretch of 40 ms."""
    pieces = waveform[: len(waveform) // 960 * 960].view(-1, 960)
    loud = pieces[pieces.square().mean(1) > 0.3 * pieces.square().mean()]
    spectrum = torch.fft.rfft(loud - loud.mean(1, keepdim=True), n=1920)
    correlation = torch.fft.irfft(spectrum.abs().square())[:, : rate // 60]
    correlation[:, : rate // 300] = 0
    return rate / correlation.argmax(1).float().median().item()


def test_voices_are_heard(starter_engine: Engine):
    """Their teachers speak at 195, 102 and 173 Hz."""
    pitch = {}
    for name, file in starter_voices().items():
        speech = starter_engine.generate(
            "We all went to the harbor in the morning.", SAMPLING, voice=load_voice(file)
        )
        pitch[name] = pitch_hz(speech.waveform, speech.sample_rate)
    assert 80 < pitch["rms"] < 130 < 145 < pitch["slt"] < 215
    assert 165 < pitch["hibari"] < 230


def test_a_none_b_a_gives_the_first_result_again(starter_engine: Engine):
    hibari, rms = (load_voice(starter_voices()[name]) for name in ("hibari", "rms"))

    def speak(voice: Voice | None) -> torch.Tensor:
        return starter_engine.codes("And so it goes.", SAMPLING, voice=voice).frames

    first, without, other = speak(hibari), speak(None), speak(rms)
    assert torch.equal(speak(hibari), first)
    assert torch.equal(speak(None), without)
    assert not torch.equal(other[:10], first[:10])
    starter_engine.unload()
    assert torch.equal(speak(hibari), first)
    assert torch.equal(speak(rms), other)


def test_a_voice_of_another_model_is_refused_before_anything_is_loaded(tiny: Path):
    engine = Engine(tiny, "cpu")
    voice = load_voice(starter_voices()["slt"])
    with pytest.raises(ValueError, match="'slt' was made with the codec of another checkpoint"):
        engine.stream("Hi.", voice=voice)
    codes = voice.codes.clone()
    codes[0, 0] = 1024
    with pytest.raises(ValueError, match=r"'slt' has codes \d+ … 1024, the codec has 0 … 1023"):
        engine.stream("Hi.", voice=replace(voice, codes=codes, codec_id=""))
    assert not engine.is_loaded
