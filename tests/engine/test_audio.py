"""Resampling against torchaudio, mono, silence, and what each refuses."""

import math

import pytest
import torch
from livevoice.engine.audio import check_waveform, resample, to_mono, trim_silence

NAN, INF = float("nan"), float("inf")


def noise(n: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def sine(hz: float, sample_rate: int, seconds: float) -> torch.Tensor:
    t = torch.arange(round(seconds * sample_rate), dtype=torch.float64) / sample_rate
    return torch.sin(2 * math.pi * hz * t).float()


@pytest.mark.parametrize(
    ("from_hz", "to_hz"),
    [
        (24000, 16000),
        (44100, 24000),
        (48000, 24000),
        (16000, 24000),
        (8000, 24000),
        (192000, 24000),
        (22050, 24000),
        (11025, 24000),
        (24000, 44100),
    ],
)
@pytest.mark.parametrize("n", [1, 7, 1000, 20011])
def test_resample_equals_torchaudio(from_hz, to_hz, n):
    torchaudio = pytest.importorskip("torchaudio", reason="the oracle, torchaudio, is not there")
    waveform = noise(n)
    # torchaudio computes its filter in the waveform's dtype; in float64 it is the formula itself.
    want = torchaudio.functional.resample(waveform.double(), from_hz, to_hz)
    got = resample(waveform, from_hz, to_hz)
    assert got.dtype == torch.float32
    assert got.shape == want.shape
    assert (got - want).abs().max() < 1e-6


def test_resample_equals_torchaudio_in_float32_at_the_codec_s_own_rates():
    torchaudio = pytest.importorskip("torchaudio", reason="the oracle, torchaudio, is not there")
    waveform = noise(24000)
    want = torchaudio.functional.resample(waveform, 24000, 16000)
    assert (resample(waveform, 24000, 16000) - want).abs().max() < 1e-6


@pytest.mark.parametrize(("from_hz", "to_hz"), [(44101, 24000), (24000, 48001), (47999, 24000)])
def test_rates_without_a_common_divisor(from_hz, to_hz):
    got = resample(sine(440, from_hz, 0.5), from_hz, to_hz)
    want = sine(440, to_hz, 0.5)
    assert abs(len(got) - len(want)) <= 1
    inner = slice(400, len(want) - 400)
    assert (got[inner] - want[inner]).abs().max() < 5e-3


def test_resample_removes_what_the_lower_rate_cannot_hold():
    assert resample(sine(11000, 24000, 0.5), 24000, 16000)[400:-400].abs().max() < 0.02
    kept = resample(sine(1000, 24000, 0.5), 24000, 16000)
    assert (kept[400:-400] - sine(1000, 16000, 0.5)[400:-400]).abs().max() < 5e-3


def test_long_waveforms_are_made_in_blocks(monkeypatch):
    waveform = noise(5000)
    whole = resample(waveform, 44100, 24000)
    monkeypatch.setattr("livevoice.engine.audio._BLOCK_TAPS", 1000)
    assert torch.equal(resample(waveform, 44100, 24000), whole)


def test_same_rate_is_the_same_waveform():
    waveform = noise(100)
    assert torch.equal(resample(waveform, 24000, 24000), waveform)


@pytest.mark.parametrize("rates", [(0, 24000), (24000, -1), (44100.5, 24000)])
def test_resample_refuses_odd_rates(rates):
    with pytest.raises(ValueError, match="positive integers"):
        resample(noise(10), *rates)


@pytest.mark.parametrize(
    ("waveform", "message"),
    [
        (torch.zeros(0), "empty"),
        (torch.zeros(1, 0), "got shape"),
        (torch.zeros(2, 3, 4), "got shape"),
        (torch.zeros(()), "got shape"),
        (torch.zeros(5, dtype=torch.int16), "floating point"),
        (torch.tensor([0.0, NAN]), "not finite at sample 1"),
        (torch.tensor([0.0, 0.0, -INF]), "not finite at sample 2"),
    ],
)
@pytest.mark.parametrize(
    "function",
    [check_waveform, lambda w: resample(w, 48000, 24000), lambda w: trim_silence(w, 24000)],
)
def test_refusals(function, waveform, message):
    with pytest.raises(ValueError, match=message):
        function(waveform)


def test_mono_averages_the_channels():
    left, right = noise(50, 1), noise(50, 2)
    assert torch.allclose(to_mono(torch.stack([left, right])), (left + right) / 2)
    assert torch.equal(to_mono(left), left)
    assert torch.equal(to_mono(left[None]), left)
    assert to_mono(left.double()).dtype == torch.float32
    for wrong in (torch.zeros(1, 2, 3), torch.zeros(2, 0), torch.full((2, 3), NAN)):
        with pytest.raises(ValueError, match="audio: "):
            to_mono(wrong)


@pytest.mark.parametrize("level", [1.0, 1e-3])
def test_trim_keeps_50_ms_of_silence_at_any_level(level):
    silence = 1e-3 * noise(24000)
    speech = sine(300, 24000, 0.5)
    waveform = level * torch.cat([silence, speech, silence])
    kept = trim_silence(waveform, 24000)
    assert abs(len(kept) - (12000 + 2 * 1200)) <= 240
    assert torch.equal(kept[1200:13200], waveform[24000:36000])


def test_trim_leaves_sound_without_silence_alone():
    speech = sine(300, 22050, 0.333)
    assert torch.equal(trim_silence(speech, 22050), speech)
    assert torch.equal(trim_silence(speech[:3], 22050), speech[:3])


def test_trim_refuses_digital_silence():
    with pytest.raises(ValueError, match="silent from beginning to end"):
        trim_silence(torch.zeros(24000), 24000)
