"""The native backend against the reference backend, on random models of several sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kernels.oracle import needs_extension, quantise
from kernels.small_model import SMALL, WIDE_HEADS, config
from livevoice.engine import reference
from livevoice.engine.bench_model import write_random
from livevoice.engine.checkpoint import Checkpoint
from livevoice.engine.codec import CodecDecoder
from livevoice.engine.prompt import AUDIO_SLOT, Prompt
from livevoice.engine.reference import ReferenceBackend
from livevoice.engine.sampling import SamplingParams

pytestmark = [pytest.mark.cuda, needs_extension]
CUDA = torch.device("cuda", 0)
SAMPLING = SamplingParams(temperature=0.8, top_k=50, seed=11)


@pytest.fixture(scope="module", params=["small", "wide_heads"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    sizes = {"small": SMALL, "wide_heads": WIDE_HEADS}[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return Checkpoint.open(write_random(folder, config(sizes), CUDA))


@pytest.fixture(params=["bf16", "fp8"])
def native(request: pytest.FixtureRequest, checkpoint: Checkpoint):
    from livevoice.engine.native import NativeBackend

    backend = NativeBackend(checkpoint, CUDA, request.param, 512)
    yield backend
    backend.unload()


@pytest.fixture
def bf16_rope(monkeypatch: pytest.MonkeyPatch):
    """The reference rounds its rotation to the compute dtype; the model wants bf16 always."""
    table = reference.rope_table

    def rounded(positions, config, dtype):
        return tuple(part.to(dtype) for part in table(positions, config, torch.bfloat16))

    monkeypatch.setattr(reference, "rope_table", rounded)


def prompt(n_text: int, n_audio: int = 0, seed: int = 0) -> Prompt:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 256, (n_text + n_audio,), generator=generator)
    ids[n_text // 2 : n_text // 2 + n_audio] = AUDIO_SLOT
    return Prompt(ids, torch.randint(0, 1026, (n_audio, 8), generator=generator))


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0))


def forced_logits(backends: list, request: Prompt, n: int = 20):
    """Logits of each backend for the rows of the same random speech."""
    generator = torch.Generator().manual_seed(5)
    for backend in backends:
        backend.prefill(request)
    for _ in range(n):
        yield [backend.logits() for backend in backends]
        row = torch.randint(0, 1026, (8,), generator=generator)
        for backend in backends:
            backend.force(row)


def as_stored_in_fp8(weights: reference.Weights) -> reference.Weights:
    def rounded(w: torch.Tensor) -> torch.Tensor:
        values, scale = quantise(w)
        return values * scale[:, None]

    matrices = ("qkv", "o", "gate_up", "down")
    layers = [
        replace(layer, **{name: rounded(getattr(layer, name)) for name in matrices})
        for layer in weights.layers
    ]
    return replace(weights, layers=tuple(layers))


def speak(backend, request: Prompt, sampling: SamplingParams = SAMPLING, n: int = 40):
    backend.prefill(request)
    return torch.stack(list(backend.decode(sampling, stream=3, max_rows=n)))


@pytest.mark.usefixtures("bf16_rope")
@pytest.mark.parametrize(
    "request_", [prompt(1), prompt(13), prompt(40, 90)], ids=["1", "13", "130"]
)
def test_teacher_forced_logits(checkpoint: Checkpoint, native, request_: Prompt):
    oracle = ReferenceBackend(checkpoint, CUDA, "fp32", 512)
    if native.precision == "fp8":  # the computation is on trial here, not the weight format
        oracle._weights = as_stored_in_fp8(oracle._weights)
    for expected, got in forced_logits([oracle, native], request_):
        assert got.isfinite().all()
        assert cosine(got, expected) > 0.9999
        top = expected.topk(2, dim=-1).values
        is_clear = top[:, 0] - top[:, 1] > 0.05 * expected.std()
        assert torch.equal(got.argmax(-1)[is_clear], expected.argmax(-1)[is_clear])


@pytest.mark.usefixtures("bf16_rope")
def test_rows_follow_the_ramp_and_the_sampler(native):
    """Feeding the sampled rows back by force gives logits from which the same rows are drawn."""
    from livevoice.engine.delay import force_boc
    from livevoice.engine.sampling import GumbelNoise, sample

    rows = speak(native, prompt(13), n=24)
    noise = GumbelNoise(SAMPLING.seed, 3, 8, 1026)
    native.prefill(prompt(13))
    for j, row in enumerate(rows):
        drawn = force_boc(sample(native.logits(), SAMPLING, noise.row(j)), j, 1024)
        assert torch.equal(drawn, row)
        native.force(row)


def test_same_codes_whatever_ran_before(checkpoint: Checkpoint, native):
    from livevoice.engine.native import NativeBackend

    expected = speak(native, prompt(20))
    speak(native, prompt(33, 5, seed=2), SamplingParams(seed=5))
    assert torch.equal(speak(native, prompt(20)), expected)
    native.poison()
    assert torch.equal(speak(native, prompt(20)), expected)
    rows = native.decode(SAMPLING, stream=1, max_rows=30)
    next(rows), rows.close()  # abandoned half-way, frames still on their way
    assert torch.equal(speak(native, prompt(20)), expected)
    again = NativeBackend(checkpoint, CUDA, native.precision, 512)
    assert torch.equal(speak(again, prompt(20)), expected)  # two engines at once
    again.unload()


@pytest.mark.parametrize("n_rest", [1, 5, 30])
def test_a_reused_prefix_gives_the_same_bits(native, n_rest: int):
    voice = prompt(60, 40)
    texts = [
        Prompt(torch.cat([voice.ids, torch.full((n,), code)]), voice.rows, len(voice))
        for n, code in [(n_rest, 7), (9, 8)]
    ]
    native.prefill(texts[0])
    cold = native.logits()
    native.prefill(texts[1])
    speak(native, texts[1])
    native.prefill(texts[0])
    assert torch.equal(native.logits(), cold)
    native.prefill(prompt(80))
    native.poison()
    native.prefill(texts[0])
    assert torch.equal(native.logits(), cold)


def test_the_context_ends_the_speech(native):
    rows = speak(native, prompt(500), SamplingParams(temperature=0.0), n=100)
    assert len(rows) <= 13
    with pytest.raises(ValueError, match="512 positions do not fit the context of 512"):
        native.prefill(prompt(512))


def test_end_of_speech_is_seen_by_host_and_device_alike(native):
    for seed in range(6):
        rows = speak(native, prompt(9, seed=seed), SamplingParams(1.0, 0, 1.0, seed), n=400)
        ends = [j for j in range(8, len(rows)) if rows[j, 0] == 1025]
        assert (not ends and len(rows) == 400) or len(rows) == ends[0] + 7


@pytest.mark.parametrize("folder", ["starter", "random"])
def test_codec_equals_the_reference(folder: str, checkpoint: Checkpoint, native):
    from livevoice.engine.native import NativeCodec

    source = Checkpoint.open("starter") if folder == "starter" else checkpoint
    codec, oracle = NativeCodec(source, native), CodecDecoder(source, "cpu")
    generator = torch.Generator().manual_seed(1)
    for T, lead, tail in [(1, 0, 0), (7, 0, 0), (26, 10, 10), (140, 0, 0)]:
        codes = torch.randint(0, 1024, (T, 8), generator=generator)
        expected, got = (each.decode_window(codes, lead, tail) for each in (oracle, codec))
        assert got.shape == expected.shape
        # float32 sums of thousands of products in another order
        assert float((got - expected).norm() / expected.norm()) < 1e-4
    codec.unload()
    assert codec.resident_bytes == 0
    with pytest.raises(RuntimeError, match="unloaded"):
        codec.decode_window(codes)


def test_unload_is_idempotent_and_final(native):
    assert native.resident_bytes > 0
    native.unload()
    native.unload()
    assert native.resident_bytes == 0
    with pytest.raises(RuntimeError, match="unloaded"):
        native.prefill(prompt(5))


def test_a_missing_folder_is_not_written(tmp_path: Path):
    assert write_random(tmp_path / "new", config(SMALL), CUDA).is_dir()
