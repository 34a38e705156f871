"""The keys and values of a voice's prefix: kept for the next text, and never taken for another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from livevoice.engine import SamplingParams, Voice
from livevoice.engine.checkpoint import Checkpoint
from livevoice.engine.prompt import AUDIO_SLOT, Prompt, PromptBuilder
from livevoice.engine.reference import ReferenceBackend

CPU = torch.device("cpu")
SAMPLING = SamplingParams(0.9, 0, 1.0, 3)


def voice(seed: int, n_frames: int = 30, transcript: str = "hello there") -> Voice:
    generator = torch.Generator().manual_seed(seed)
    return Voice(torch.randint(0, 1024, (n_frames, 8), generator=generator), transcript)


@pytest.fixture(scope="module")
def checkpoint(tiny: Path) -> Checkpoint:
    return Checkpoint.open(tiny)


@pytest.fixture(scope="module")
def prompts(tiny: Path, checkpoint: Checkpoint) -> PromptBuilder:
    return PromptBuilder(tiny, checkpoint.config)


@pytest.fixture
def backend(checkpoint: Checkpoint) -> ReferenceBackend:
    return ReferenceBackend(checkpoint, CPU, "fp32", 512)


@pytest.fixture
def n_computed(backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Positions that went through the layers, one entry a piece."""
    seen: list[int] = []
    advance = backend._advance
    monkeypatch.setattr(backend, "_advance", lambda x: (seen.append(len(x)), advance(x))[1])
    return seen


def logits(backend: ReferenceBackend, prompt: Prompt) -> torch.Tensor:
    backend.prefill(prompt)
    return backend.logits()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_warm_prefill_is_cold_prefill_bit_for_bit(checkpoint, prompts, precision):
    def new() -> ReferenceBackend:
        return ReferenceBackend(checkpoint, CPU, precision, 512)

    a = voice(0)
    texts = ["One.", "And another, longer one.", "Three"]
    warm = new()
    for text in texts:
        prompt = prompts.build(text, a)
        cold = new()
        assert torch.equal(logits(warm, prompt), logits(cold, prompt))
        spoken = [list(each.decode(SAMPLING, stream=1, max_rows=20)) for each in (warm, cold)]
        assert torch.equal(*map(torch.stack, spoken))


def test_the_prefix_is_computed_once(backend, prompts, n_computed):
    first, second = (prompts.build(text, voice(0)) for text in ("One.", "Two, too."))
    assert first.n_prefix == second.n_prefix == 1 + 1 + len("hello there") + 1 + 30 + 7
    backend.prefill(first)
    backend.prefill(second)
    backend.prefill(second)
    rest = len(second) - second.n_prefix
    assert n_computed == [first.n_prefix, len(first) - first.n_prefix, rest, rest]


@pytest.mark.parametrize(
    "other",
    [
        voice(1),
        voice(0, transcript="hello therf"),
        voice(0, n_frames=29),
        voice(0, transcript=""),
        None,
    ],
)
def test_another_voice_never_meets_the_first_ones_prefix(checkpoint, prompts, backend, other):
    fresh = ReferenceBackend(checkpoint, CPU, "fp32", 512)
    a, b = prompts.build("Hi.", voice(0)), prompts.build("Hi.", other)
    for prompt in (a, b, a, b):
        expected = logits(ReferenceBackend(checkpoint, CPU, "fp32", 512), prompt)
        assert torch.equal(logits(backend, prompt), expected)
    assert torch.equal(logits(fresh, b), logits(backend, b))


def test_one_code_makes_another_prefix(prompts, backend, n_computed):
    a = voice(0)
    codes = a.codes.clone()
    codes[15, 3] = (codes[15, 3] + 1) % 1024
    for each in (a, replace(a, codes=codes)):
        backend.prefill(prompts.build("Hi.", each))
    assert len(n_computed) == 4


def test_a_prefill_that_failed_leaves_no_prefix(prompts, backend, monkeypatch):
    good, bad = prompts.build("Hi.", voice(0)), prompts.build("Hi.", voice(1))
    expected = logits(backend, good)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "_advance", lambda _x: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            backend.prefill(bad)
    assert torch.equal(logits(backend, good), expected)


def test_a_prompt_is_cut_at_its_prefix(prompts):
    prompt = prompts.build("Hi.", voice(0))
    prefix, rest = prompt.split()
    assert torch.equal(torch.cat([prefix.ids, rest.ids]), prompt.ids)
    assert torch.equal(prefix.rows, prompt.rows)
    assert not len(rest.rows)
    assert AUDIO_SLOT not in rest.ids.tolist()
    without = prompts.build("Hi.")
    assert without.n_prefix == 0
    assert without.split()[1].equals(without)
