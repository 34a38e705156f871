"""From recordings to voices: what is refused and why, and the codes of what is taken."""

from __future__ import annotations

import threading
import traceback
from pathlib import Path

import pytest
import tiny_codec
import torch
from cloning import speechlike, write_with_encoder
from livevoice.engine import CheckpointError, Engine, SamplingParams
from livevoice.engine import clone as cloning
from livevoice.engine.audio import resample, trim_silence
from livevoice.engine.recording import prepare, transcript_notices

FLOAT_SILENCE = torch.zeros(24000)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(write_with_encoder(tmp_path_factory.mktemp("checkpoints") / "encoder"), "cpu")


@pytest.fixture
def n_encoders(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each time that an encoder was loaded."""
    seen: list[object] = []
    real = cloning.CodecEncoder
    monkeypatch.setattr(
        cloning, "CodecEncoder", lambda *args: (seen.append(real(*args)), seen[-1])[1]
    )
    return seen


def with_samples(values: dict[int, float]) -> torch.Tensor:
    wave = speechlike(2)
    for at, value in values.items():
        wave[at] = value
    return wave


def clipped(gain: float) -> torch.Tensor:
    return (speechlike(2) * 2 * gain).clamp(-1, 1)


@pytest.mark.parametrize(
    ("waveform", "message"),
    [
        (torch.zeros(0), "empty"),
        (torch.zeros(2, 0), "empty"),
        (with_samples({77: torch.nan}), "NaN or infinity"),
        (with_samples({77: torch.inf}), "NaN or infinity"),
        (FLOAT_SILENCE, "silent"),
        (torch.stack([speechlike(2), -speechlike(2)]), "silent"),  # out of phase
        (speechlike(2) * 0.002, r"far too quiet, its peak is at -60 dB; make it 54 dB louder"),
        (clipped(8.0), r"clipped, \d+\.\d% of it is at full scale; record it again"),
        (torch.cat([FLOAT_SILENCE, speechlike(0.4), FLOAT_SILENCE]), r"0\.5 s .*at least 1 s"),
        (speechlike(2) * 20000, "10000 times full scale"),
        (torch.zeros(3, 2, 9), "waveform must be"),
        (torch.ones(24000, dtype=torch.int16), "floating point"),
    ],
)
def test_each_bad_recording_has_its_own_sentence(engine, n_encoders, waveform, message):
    with pytest.raises(ValueError, match=message) as caught:
        engine.voice(waveform, 24000, "Hello there.")
    assert str(caught.value).count("\n") == 0
    assert not n_encoders


def test_a_little_clipping_is_only_told():
    assert not prepare(speechlike(2) * 1.9, 24000).notices
    (notice,) = prepare(clipped(1.35), 24000).notices
    assert "clipped" in notice
    (notice,) = prepare(torch.stack([speechlike(2), clipped(1.35)]), 24000).notices
    assert "clipped" in notice
    assert not prepare(speechlike(2) * 5, 24000).notices  # beyond 1, but whole


def test_silent_ends_are_cut_and_the_first_100_s_taken():
    recording = prepare(torch.cat([FLOAT_SILENCE, speechlike(3), FLOAT_SILENCE]), 24000)
    assert 3.0 <= recording.seconds <= 3.2
    long = prepare(speechlike(103, 8000), 8000)
    assert long.seconds == 100.0
    assert "103 s long, only its first 100 s" in long.notices[0]
    assert "transcript" in long.notices[0]


@pytest.mark.parametrize("rate", [0, -1, 44100.5])
def test_sample_rates_that_cannot_be(rate):
    with pytest.raises(ValueError, match="positive integer"):
        prepare(speechlike(2), rate)


@pytest.mark.parametrize(
    ("transcript", "seconds", "told"),
    [
        ("Let us meet at the museum at a quarter past eight.", 3.0, None),
        ("Let us meet at the museum at a quarter past eight.", 7.0, None),  # slow
        ("", 90.0, None),
        ("Let us meet at the museum. " * 20, 4.0, "much more text than 4.0 s"),
        ("Let us meet.", 30.0, "far too little text for 30.0 s"),
        ("你好,我们明天早上见。", 2.5, None),
    ],
)
def test_a_transcript_of_another_length_is_told(transcript, seconds, told):
    notices = transcript_notices(transcript, seconds)
    assert (told is None) == (not notices)
    if told:
        assert told in notices[0]


@pytest.mark.parametrize(
    ("rate", "n_channels"),
    [
        (8000, 1),
        (22050, 2),
        (24000, 1),
        (24000, 6),
        (44100, 2),
        (44101, 1),
        (48000, 2),
        (192000, 1),
    ],
)
def test_codes_equal_transformers(engine, rate, n_channels):
    wave = torch.cat([torch.zeros(rate // 2), speechlike(1.7, rate), torch.zeros(rate // 3)])
    channels = torch.stack([(1 + 0.1 * c) * wave for c in range(n_channels)])
    voice = engine.voice(channels, rate, "Hello there, my friend.")
    at_24k = resample(trim_silence(channels.mean(0), rate), rate, 24000)
    with torch.no_grad():
        wanted = tiny_codec.random_codec()[1].encode(at_24k[None, None]).audio_codes[0].t()
    assert torch.equal(voice.codes, wanted)
    assert voice.codec_id == engine.checkpoint.codec_id
    assert voice.transcript == "Hello there, my friend."


def test_the_middle_decides_too(engine):
    a = speechlike(6)
    b = a.clone()
    b[70000:74000] = speechlike(4000 / 24000, seed=9)
    one, other = engine.voice(a, 24000, "x"), engine.voice(b, 24000, "x")
    assert not torch.equal(one.codes, other.codes)
    assert one.content_hash != other.content_hash


def test_a_recording_is_encoded_once(engine, n_encoders):
    wave = speechlike(2, seed=5)
    first = engine.voice(wave, 24000, "one")
    second = engine.voice(wave.clone(), 24000, "two", name="Anna")
    assert len(n_encoders) == 1
    assert torch.equal(first.codes, second.codes)
    assert first.content_hash != second.content_hash
    second.codes[0] = 0  # a caller's change must not reach the next one
    assert torch.equal(engine.voice(wave, 24000).codes, first.codes)
    engine.voice(wave, 24001)
    one_sample = wave.clone()
    one_sample[24000] += 1e-4
    engine.voice(one_sample, 24000)
    assert len(n_encoders) == 3


def test_the_cache_is_bounded(engine, n_encoders, monkeypatch):
    engine = Engine(engine.checkpoint.path, "cpu")
    monkeypatch.setattr(cloning, "_CACHED", 2)
    waves = [speechlike(1.2, seed=20 + k) for k in range(3)]
    for wave in (*waves, waves[2], waves[0]):
        engine.voice(wave, 24000)
    assert len(n_encoders) == 4
    assert len(engine.cloning._codes) == 2


def test_the_encoder_goes_when_it_is_done(engine, n_encoders, monkeypatch):
    engine.voice(speechlike(1.5, seed=31), 24000)
    (encoder,) = n_encoders
    assert encoder.resident_bytes == 0
    assert not engine.is_loaded
    assert engine.resident_bytes == 0

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(type(encoder), "encode", fail)
    with pytest.raises(MemoryError):
        engine.voice(speechlike(1.5, seed=32), 24000)
    assert n_encoders[1].resident_bytes == 0


class Cancelled(BaseException):
    """As ComfyUI's, which is no Exception."""


def test_encoding_tells_its_steps_and_keeps_its_codes(engine):
    wave, steps = speechlike(1.6, seed=70), []
    told = Engine(engine.checkpoint.path, "cpu").voice(
        wave, 24000, on_step=lambda *step: steps.append(step)
    )
    total = steps[0][1]
    assert steps == [(done, total) for done in range(total + 1)]
    assert torch.equal(told.codes, engine.voice(wave, 24000).codes)


def cancel_half_way(done: int, total: int) -> None:
    if 2 * done >= total:
        raise Cancelled


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_cancelled_encoding_leaves_nothing(engine, n_encoders, at):
    engine = Engine(engine.checkpoint.path, "cpu")
    wave = speechlike(1.6, seed=71)

    def cancel(done: int, total: int) -> None:
        if done == round(at * total):
            raise Cancelled

    with pytest.raises(Cancelled) as caught:
        engine.voice(wave, 24000, on_step=cancel)
    (encoder,) = n_encoders
    assert encoder.resident_bytes == 0
    assert not engine.cloning._codes
    assert engine.resident_bytes == 0
    in_engine = [
        value
        for frame, _ in traceback.walk_tb(caught.value.__traceback__)
        if frame.f_code.co_filename.endswith(("codec.py", "codec_model.py", "module.py"))
        for value in frame.f_locals.values()
    ]
    assert not any(torch.is_tensor(value) for value in in_engine)
    voice = engine.voice(wave, 24000)
    assert len(n_encoders) == 2
    assert torch.equal(voice.codes, Engine(engine.checkpoint.path, "cpu").voice(wave, 24000).codes)


def test_need_bytes_covers_the_weights(engine):
    encoder = cloning.CodecEncoder(engine.checkpoint)
    assert engine.cloning.need_bytes(0.0) >= encoder.resident_bytes > 0
    assert engine.cloning.need_bytes(9.0) > engine.cloning.need_bytes(1.0)
    assert engine.cloning.need_bytes(1e6) == engine.cloning.need_bytes(100.0)


def test_threads_share_one_encoder(engine, n_encoders):
    wave, voices = speechlike(1.5, seed=40), []
    threads = [
        threading.Thread(target=lambda: voices.append(engine.voice(wave, 24000))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(n_encoders) == 1
    assert all(torch.equal(each.codes, voices[0].codes) for each in voices)


def test_inside_inference_mode(engine):
    with torch.inference_mode():  # as ComfyUI runs nodes
        voice = engine.voice(speechlike(1.5, seed=50), 24000)
    assert torch.equal(voice.codes, engine.voice(speechlike(1.5, seed=50), 24000).codes)
    assert not voice.codes.is_inference()


def test_a_checkpoint_without_an_encoder_says_so_first(tiny: Path, monkeypatch):
    engine = Engine(tiny, "cpu")
    monkeypatch.setattr(cloning, "prepare", lambda *_: pytest.fail("looked at the recording"))
    with pytest.raises(CheckpointError, match=r"'tiny' has no encoder.*real checkpoint; put boson"):
        engine.voice(torch.zeros(0), 24000)


def test_the_starter_tells_whom_it_can_speak_like(starter_engine: Engine):
    voice = starter_engine.voice(speechlike(2), 24000, "Hello there, you all.")
    assert any("its own three voices" in notice for notice in voice.notices)
    codes = starter_engine.codes("Hi.", SamplingParams(0.65, 30, 1.0, 1), voice=voice)
    assert codes.seconds < 10  # never a runaway


@pytest.mark.cuda
def test_cuda_gives_the_codes_of_the_cpu_and_keeps_nothing():
    starter = Engine("starter", "cuda")
    wave = speechlike(8)
    wanted = Engine("starter", "cpu").voice(wave, 24000)
    assert torch.equal(starter.voice(wave, 24000).codes, wanted.codes)  # warm from here on
    torch.cuda.synchronize()
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    for seed in range(3):
        asked = []
        starter.voice(speechlike(8, seed=60 + seed), 24000, make_room=asked.append)
        assert asked[0] > starter.cloning.need_bytes(0.0)
    with pytest.raises(Cancelled) as caught:
        starter.voice(speechlike(8, seed=70), 24000, on_step=cancel_half_way)
    assert torch.cuda.memory_reserved() <= reserved, caught  # while the traceback is alive
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() <= reserved
    assert free - torch.cuda.mem_get_info()[0] <= 4 << 20
    assert not starter.is_loaded
