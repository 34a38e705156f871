"""Voices in a real server: recordings of every kind, files, dialogues, and the two workflows."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
import torch
from cloning import speechlike, write_with_encoder
from livevoice.engine import Codes, Engine, load_voice, save_voice, starter_voices

from .comfyui import PromptFailedError, PromptRefusedError
from .speaking import STARTER, TINY, codes_of, decode, load, play, settings, sound_of

pytestmark = pytest.mark.comfy
ENCODER = "with encoder"
TRANSCRIPT = "Good morning to you all, my friends."
KINDS = {  # file ending → (encoder, sample rate in Hz, sample format)
    "wav": ("pcm_s16le", 8000, "s16"),
    "flac": ("flac", 192000, "s32"),
    "mp3": ("libmp3lame", 44100, "fltp"),
    "ogg": ("vorbis", 22050, "fltp"),
    "opus": ("libopus", 48000, "flt"),
    "m4a": ("aac", 32000, "fltp"),
}


def recording(path: Path, channels: int = 2, seconds: float = 2.0, seed: int = 0) -> Path:
    """Write a sound in the format that its ending says."""
    codec, rate, form = KINDS[path.suffix[1:]]
    wave = speechlike(seconds, rate, seed).numpy()
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[channels]
    if codec == "vorbis":  # PyAV's build can't write it
        soundfile.write(path, wave, rate, format="OGG", subtype="VORBIS")
        return path
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=rate, layout=layout)
        planes = np.stack([wave * (1 - 0.1 * c) for c in range(channels)]).astype(np.float32)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(planes), "fltp", layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        resampler = av.AudioResampler(form, layout, rate, frame_size=stream.frame_size or None)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))
    return path


@pytest.fixture(scope="module")
def with_encoder(server) -> Engine:
    """The server has this checkpoint, too; here it is the oracle."""
    folder = server.base / "models" / "tts" / ENCODER
    return Engine(write_with_encoder(folder), "cpu")


@pytest.fixture(scope="module")
def library(server) -> Path:
    folder = server.base / "models" / "tts" / "voices"
    folder.mkdir(exist_ok=True)
    return folder


def make(audio: str, checkpoint: str = ENCODER, **changed: Any) -> dict[str, Any]:
    """1 load · 2 recording · 3 voice · 4 save · 5 its report."""
    inputs = {"model": ["1", 0], "audio": ["2", 0], "transcript": TRANSCRIPT, "name": "Ännchen"}
    return {
        "1": load(checkpoint),
        "2": {"class_type": "LoadAudio", "inputs": {"audio": audio}},
        "3": {"class_type": "LiveVoiceVoice", "inputs": {**inputs, **changed}},
        "4": save(["3", 0]),
        "5": show(["3", 1]),
    }


def save(voice: list, name: str = "", **changed: str) -> dict[str, Any]:
    inputs = {"voice": voice, "name": name, "licence": "", "preview_text": "", **changed}
    return {"class_type": "LiveVoiceSaveVoice", "inputs": inputs}


def show(text: list) -> dict[str, Any]:
    return {"class_type": "PreviewAny", "inputs": {"source": text}}


def take(voice: str, **changed: Any) -> dict[str, Any]:
    return {"class_type": "LiveVoiceLoadVoice", "inputs": {"voice": voice, "name": "", **changed}}


def say(voice: list | None, **changed: Any) -> dict[str, Any]:
    wires = {"model": ["1", 0], **({"voice": voice} if voice else {})}
    return {
        "class_type": "LiveVoiceTextToCodes",
        "inputs": {**wires, **settings(retries=0, **changed)},
    }


def saved_voice(server, entry: dict[str, Any], node: str = "4"):
    (text,) = entry["outputs"][node]["text"]
    return load_voice(server.base / "models" / "tts" / "voices" / text.removeprefix("saved as "))


def failure(server, prompt: dict[str, Any]) -> str:
    with pytest.raises(PromptFailedError) as caught:
        server.run(prompt)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "channels"),
    [("wav", 1), ("wav", 6), ("flac", 2), ("mp3", 2), ("ogg", 1), ("opus", 2), ("m4a", 2)],
)
def test_any_recording_becomes_the_codes_that_the_engine_gives(
    server, with_encoder, tmp_path, kind, channels
):
    path = recording(tmp_path / f"ä {channels}.{kind}", channels)
    entry = server.run(make(server.upload(path)))
    voice = saved_voice(server, entry)
    with av.open(str(path)) as file:  # decoded anew, not by ComfyUI
        rate = file.streams.audio[0].rate
        planar = av.AudioResampler("fltp", None, None)
        parts = [
            each.to_ndarray() for frame in file.decode(audio=0) for each in planar.resample(frame)
        ]
    wave = torch.from_numpy(np.concatenate(parts, axis=1))
    assert rate == KINDS[kind][1]
    assert len(wave) == channels
    assert torch.equal(voice.codes, with_encoder.voice(wave, rate).codes)
    assert (voice.name, voice.transcript) == ("Ännchen", TRANSCRIPT)
    assert voice.content_hash[:16] in entry["outputs"]["5"]["text"][0]


@pytest.mark.usefixtures("with_encoder")
def test_the_middle_decides_too(server, tmp_path):
    one = speechlike(6).numpy()
    other = one.copy()
    other[70000:74000] *= 0.3
    hashes = set()
    for name, wave in (("one", one), ("other", other)):
        soundfile.write(tmp_path / f"{name}.wav", wave, 24000)
        hashes.add(
            saved_voice(
                server, server.run(make(server.upload(tmp_path / f"{name}.wav")))
            ).content_hash
        )
    assert len(hashes) == 2


@pytest.mark.usefixtures("with_encoder")
def test_bad_recordings_say_what_is_wrong(server, tmp_path):
    sounds = {
        "silent": np.zeros(48000), "far too quiet": speechlike(2).numpy() * 0.004,
        "needs at least 1 s": speechlike(0.5).numpy(),
        "clipped": np.clip(speechlike(2).numpy() * 20, -1, 1),
    }  # fmt: skip
    for message, wave in sounds.items():
        path = tmp_path / f"{message}.wav"
        soundfile.write(path, wave, 24000)
        assert "(LiveVoiceVoice): voice: the recording is" in failure(
            server, make(server.upload(path))
        )
        assert message in failure(server, make(server.upload(path)))


def test_no_encoder_is_said_before_anything_is_loaded(server, tmp_path):
    server.free(unload_models=True, free_memory=True)
    name = server.upload(recording(tmp_path / "x.wav"))
    before = server.log.count("LiveVoice: loaded")
    text = failure(server, make(name, TINY))
    assert f"'{TINY}' has no encoder, cloning a voice needs the real checkpoint" in text
    assert server.log.count("LiveVoice: loaded") == before
    # The starter has one, and tells whom it can speak like.
    entry = server.run(make(name, STARTER, name="stranger"))
    assert "its own three voices" in entry["outputs"]["5"]["text"][0]
    assert server.log.count("LiveVoice: loaded") == before


def test_a_file_is_saved_once_and_never_over_another(server, library):
    def run(name: str, voice: str, **changed: str):
        prompt = {"1": take(voice), "4": save(["1", 0], name, **changed)}
        return server.run(prompt)["outputs"]["4"]["text"][0]

    assert run("Twin", "starter/rms") == "saved as Twin.safetensors"
    assert run("Twin", "starter/slt") == "saved as Twin_2.safetensors"
    assert run("Twin", "starter/slt", licence="CC0") == "saved as Twin_2.safetensors"
    assert run("Twin", "starter/rms", licence="CC0") == "saved as Twin.safetensors"
    again = load_voice(library / "Twin_2.safetensors")
    assert (again.name, again.licence) == ("Twin", "CC0")
    assert torch.equal(again.codes, load_voice(starter_voices()["slt"]).codes)
    with pytest.raises(PromptRefusedError, match="a name can't hold '/'"):
        run("../Twin", "starter/rms")


def test_what_load_voice_offers(server, library, with_encoder, tmp_path):
    (library / "more").mkdir(exist_ok=True)
    save_voice(load_voice(starter_voices()["rms"]), library / "more" / "deep.safetensors")
    for name in ("alone", "pair", "[odd] name"):
        recording(library / f"{name}.wav", 1)
    (library / "pair.txt").write_text(f"\ufeff{TRANSCRIPT}\n", "utf-8")
    (library / "[odd] name.reference.txt").write_text(TRANSCRIPT, "utf-8")
    (library / "broken.safetensors").write_bytes(b"not a voice")
    options = server.object_info("LiveVoiceLoadVoice")["input"]["required"]["voice"]
    offered = options[1]["options"] if options[0] == "COMBO" else options[0]
    assert offered[:3] == ["starter/hibari", "starter/rms", "starter/slt"]
    wanted = {"[odd] name.wav", "broken.safetensors", "more/deep.safetensors", "pair.wav"}
    assert wanted <= set(offered)
    assert "alone.wav" not in offered

    def loaded(name: str, **changed: Any):
        return {"1": load(ENCODER), "3": take(name, **changed), "4": save(["3", 0])}

    pair = saved_voice(server, server.run(loaded("pair.wav", model=["1", 0])))
    wave = speechlike(2.0, 8000)
    pcm = (wave * 32767).round().to(torch.int16).float() / 32768
    assert pair.codes.shape == with_encoder.voice(pcm, 8000).codes.shape
    assert (pair.name, pair.transcript) == ("pair", TRANSCRIPT)
    odd = saved_voice(server, server.run(loaded("[odd] name.wav", model=["1", 0])))
    assert odd.name == "_odd_ name"
    assert "connect the model" in failure(server, loaded("pair.wav"))
    assert "broken.safetensors is not a LiveVoice voice" in failure(
        server, loaded("broken.safetensors")
    )
    for name in ("../../../x.safetensors", str(tmp_path / "x.safetensors"), "nobody.safetensors"):
        with pytest.raises(PromptRefusedError, match=r"no '.*' in .*put voice files there"):
            server.queue(loaded(name))


def test_a_none_b_a_gives_the_first_result_again(server):
    def run(voice: str | None) -> torch.Tensor:
        prompt = {"1": load(STARTER), "3": say(["2", 0] if voice else None)}
        if voice:
            prompt["2"] = take(voice)
        prompt["4"] = {"class_type": "LiveVoiceSaveCodes",
                       "inputs": {"codes": ["3", 0], "filename_prefix": "codes/anba"}}  # fmt: skip
        server.free(free_memory=True)  # so that nothing comes from ComfyUI's cache
        return codes_of(server, server.run(prompt)).frames

    a, none, b = (run(voice) for voice in ("starter/hibari", None, "starter/slt"))
    assert torch.equal(run("starter/hibari"), a)
    assert torch.equal(run(None), none)
    assert not torch.equal(a, b)


def test_streaming_preview_takes_a_voice(server):
    inputs = {"model": ["1", 0], "voice": ["2", 0], **settings(max_seconds=0.0)}
    streamed = {
        "1": load(STARTER), "2": take("starter/rms"),
        "3": {"class_type": "LiveVoiceStreamingPreview", "inputs": inputs},
        "4": play(["3", 0]),
        "5": say(["2", 0], max_seconds=0.0), "6": decode(["1", 0], ["5", 0]), "7": play(["6", 0]),
    }  # fmt: skip
    entry = server.run(streamed)
    assert np.array_equal(sound_of(server, entry, "4")[0], sound_of(server, entry, "7")[0])


def test_preview_of_a_voice(server):
    def run(what: str):
        inputs = {"model": ["1", 0], "voice": ["2", 0], "play": what}
        inputs |= {"seed": 1, "temperature": 0.65, "top_k": 30, "top_p": 1.0}
        prompt = {
            "1": load(STARTER),
            "2": take("starter/slt"),
            "3": {"class_type": "LiveVoicePreviewVoice", "inputs": inputs},
            "4": play(["3", 0]),
        }
        return sound_of(server, server.run(prompt), "4")[0]

    assert len(run("its reference")) == 960 * len(load_voice(starter_voices()["slt"]).codes)
    assert 1.5 < len(run("its preview text")) / 24000 < 8


def dialogue(script: str, **changed: Any) -> dict[str, Any]:
    inputs = {"model": ["1", 0], "script": script, "voice_1": ["2", 0], "voice_2": ["3", 0]}
    inputs |= {"gap_seconds": 0.2, "retakes": "", **settings(retries=0, max_seconds=0.0)}
    del inputs["text"], inputs["keep_partial"]
    return {
        "1": load(STARTER), "2": take("starter/hibari", name="Anna"), "3": take("starter/rms"),
        "4": {"class_type": "LiveVoiceDialogue", "inputs": {**inputs, **changed}},
        "5": play(["4", 0]), "6": show(["4", 2]), "7": show(["4", 3]),
        "8": {"class_type": "LiveVoiceSaveCodes",
              "inputs": {"codes": ["4", 1], "filename_prefix": "codes/dialogue"}},
    }  # fmt: skip


def test_a_dialogue_and_one_turn_again(server):
    script = "Anna: Is it late?\n[rms] It is.\nanna: Then we go."
    entry = server.run(dialogue(script))
    samples, _ = sound_of(server, entry, "5")
    head, *rows = (line.split("\t") for line in entry["outputs"]["6"]["text"][0].splitlines())
    turns = [dict(zip(head, row, strict=True)) for row in rows]
    assert [turn["speaker"] for turn in turns] == ["Anna", "rms", "Anna"]
    assert int(turns[0]["start_frame"]) == 0
    assert int(turns[1]["start_frame"]) - int(turns[0]["end_frame"]) == 5
    assert len(samples) == 960 * int(turns[2]["end_frame"])
    assert entry["outputs"]["7"]["text"][0].startswith("1\n00:00:00,000 --> 00:00:0")
    codes: Codes = codes_of(server, entry)
    assert [each.text for each in codes.utterances] == ["Is it late?", "It is.", "Then we go."]
    again = codes_of(server, server.run(dialogue(script, retakes="2")))
    same = [
        torch.equal(a.frames, b.frames)
        for a, b in zip(codes.utterances, again.utterances, strict=True)
    ]
    assert same == [True, False, True]


def test_mistakes_in_dialogues(server):
    assert "no voice is called 'Carl'; there are Anna, rms" in failure(
        server, dialogue("Carl: Hi.")
    )
    assert "2 voices are called 'rms'" in failure(
        server, dialogue("rms: Hi.") | {"2": take("starter/slt", name="rms")}
    )
    assert "'7' is no turn, they are 1 … 1" in failure(server, dialogue("rms: Hi.", retakes="7"))
    with pytest.raises(PromptRefusedError, match="'two' is no turn"):
        server.queue(dialogue("rms: Hi.", retakes="two"))
