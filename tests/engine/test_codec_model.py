"""The networks against transformers': shapes, decoded sound, encoded codes."""

from __future__ import annotations

import pytest
import torch
from livevoice.engine import codec
from livevoice.engine.checkpoint import CODEC, codec_decoder_shapes
from livevoice.engine.codec import CONTEXT_FRAMES, CodecDecoder, CodecEncoder
from livevoice.engine.codec_model import DacDecoder, Encoder
from livevoice.engine.config import CodecConfig
from tiny_codec import (
    REAL,
    MemoryCheckpoint,
    noise,
    oracle,
    piano,
    random_codec,
    random_codes,
    starter_codec,
    tiny_config,
)


@pytest.fixture(scope="module")
def tiny():
    return random_codec()


@pytest.fixture(scope="module")
def starter():
    return starter_codec()


def test_shipped_config_is_the_real_codec():
    config = CodecConfig.from_json(REAL)
    assert (config.n_codebooks, config.hop_samples, config.frame_rate_hz) == (8, 960, 25)
    assert config.semantic_hidden + config.acoustic_hidden == 1024
    with torch.device("meta"):
        model = oracle(REAL)
    assert model.config.num_quantizers == 8
    assert model.config.semantic_downsample_factor == 2
    assert sum(p.numel() for p in model.acoustic_decoder.parameters()) == 20_238_113
    theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert codec_decoder_shapes(config).items() <= {CODEC + n: s for n, s in theirs.items()}.items()
    with torch.device("meta"):
        ours = Encoder(config, codec._hubert(REAL["semantic_model_config"])).state_dict()
        ours |= {f"acoustic_decoder.{n}": t for n, t in DacDecoder(config).state_dict().items()}
    assert {name: tuple(tensor.shape) for name, tensor in ours.items()}.items() <= theirs.items()


@pytest.mark.parametrize("which", ["tiny", "starter"])
@pytest.mark.parametrize("n_frames", [1, 2, 25])
def test_decode_window_equals_transformers(which, n_frames, request):
    checkpoint, model = request.getfixturevalue(which)
    codes = random_codes(n_frames, checkpoint.codec_config)
    with torch.no_grad():
        want = model.decode(codes.t()[None]).audio_values[0, 0]
    got = CodecDecoder(checkpoint).decode_window(codes)
    assert got.shape == want.shape == (960 * n_frames,)
    assert got.dtype == torch.float32
    assert want.std() > 1e-3
    assert (got - want).abs().max() < 1e-5


@pytest.mark.parametrize("which", ["tiny", "starter"])
@pytest.mark.parametrize("n_samples", [9000, 24000, 24480, 47000, 72001])
def test_encode_equals_transformers(which, n_samples, request):
    checkpoint, model = request.getfixturevalue(which)
    waveform = noise(n_samples)
    padded = torch.nn.functional.pad(waveform, (0, max(0, 24000 - n_samples)))
    with torch.no_grad():
        want = model.encode(padded[None, None]).audio_codes[0].t()
    assert torch.equal(CodecEncoder(checkpoint).encode(waveform, 24000), want)


def test_encode_of_real_speech_equals_transformers(starter):
    checkpoint, model = starter
    codes = piano()
    waveform = CodecDecoder(checkpoint).decode(codes)
    with torch.no_grad():
        want = model.encode(waveform[None, None]).audio_codes[0].t()
    got = CodecEncoder(checkpoint).encode(waveform, 24000)
    assert torch.equal(got, want)
    assert (got[:, 0] == codes[:, 0]).float().mean() > 0.5


def test_the_semantic_branch_of_the_random_codec_is_alive(tiny):
    checkpoint, model = tiny
    state = model.state_dict()
    deaf = dict(state) | {"encoder_semantic.conv.weight": torch.zeros(24, 24, 3)}
    waveform = noise(30000)
    codes = CodecEncoder(checkpoint).encode(waveform, 24000)
    other = CodecEncoder(MemoryCheckpoint(tiny_config(), deaf)).encode(waveform, 24000)
    assert (codes != other).float().mean() > 0.1
    assert len(codes.unique()) > 10


@pytest.mark.parametrize(
    ("n_samples", "n_frames"),
    [
        (1, 25),
        (24000, 25),
        (24480, 26),
        (24960, 26),
        (25000, 26),
        (47000, 49),
        (48000, 50),
        (72000, 75),
        (96000, 100),
        (96959, 101),
    ],
)
def test_frames_of_an_encoded_waveform(tiny, n_samples, n_frames):
    codes = CodecEncoder(tiny[0]).encode(noise(n_samples), 24000)
    assert codes.shape == (n_frames, 4)
    assert codes.dtype == torch.int64


def test_encode_takes_any_rate(tiny):
    encoder = CodecEncoder(tiny[0])
    for rate in (8000, 44100):
        assert len(encoder.encode(noise(2 * rate), rate)) == 50


@pytest.mark.parametrize("which", ["tiny", "starter"])
def test_receptive_field_fits_the_context(which, request):
    checkpoint, _ = request.getfixturevalue(which)
    network = CodecDecoder(checkpoint)._network.double()
    latent = noise(checkpoint.codec_config.acoustic_hidden * 41).double().view(1, -1, 41)
    other = latent.clone()
    other[..., 20] += 1
    with torch.no_grad():
        changed = (network(latent) != network(other)).nonzero().flatten()
    before, after = 20 * 960 - int(changed[0]), int(changed[-1]) + 1 - 21 * 960
    # 9.85 and 9.83 frames by the kernels; the outermost taps of the starter fade below float64.
    assert 9 * 960 < before <= 9458 <= CONTEXT_FRAMES * 960
    assert 9 * 960 < after <= 9433 <= CONTEXT_FRAMES * 960
