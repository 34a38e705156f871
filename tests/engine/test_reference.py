"""The reference backend against transformers' Qwen3, with the same random weights."""

from pathlib import Path

import pytest
import torch
from checkpoints import tiny_config
from livevoice.engine import SamplingParams
from livevoice.engine.checkpoint import AUDIO_TABLE, BACKBONE, TEXT_EMBEDDING, Checkpoint
from livevoice.engine.delay import delay, undelay
from livevoice.engine.prompt import AUDIO_SLOT, Prompt
from livevoice.engine.reference import ReferenceBackend, rmsnorm, rope, rope_table
from torch.nn import functional

CPU = torch.device("cpu")


class Oracle:
    """transformers' Qwen3Model over a checkpoint; logits of every position at once, no cache."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        from transformers import Qwen3Config, Qwen3Model

        raw = tiny_config()["text_config"]
        config = Qwen3Config(**raw | {"attn_implementation": "eager", "dtype": dtype})
        self.model = Qwen3Model(config).to(dtype).eval()
        state = {
            name.removeprefix(BACKBONE): checkpoint.tensor(name).to(dtype)
            for name in checkpoint.names
            if name.startswith(BACKBONE)
        }
        state["embed_tokens.weight"] = checkpoint.tensor(TEXT_EMBEDDING).to(dtype)
        self.model.load_state_dict(state, strict=True)
        self.table = checkpoint.tensor(AUDIO_TABLE).to(dtype)
        self.config = checkpoint.config

    @torch.no_grad()
    def logits(self, prompt: Prompt, rows: torch.Tensor) -> torch.Tensor:
        """Logits [S + L, N, V] after each position of the prompt and of the rows fed after it."""
        N, V = self.config.n_codebooks, self.config.codebook_vocab
        ids = torch.cat([prompt.ids, torch.full((len(rows),), AUDIO_SLOT)])
        x = self.model.embed_tokens(ids.clamp(min=0))
        codes = torch.cat([prompt.rows, rows])
        picked = self.table[codes + torch.arange(N) * V]
        x[ids == AUDIO_SLOT] = picked.float().sum(1).to(x.dtype)
        hidden = self.model(inputs_embeds=x[None]).last_hidden_state[0]
        return functional.linear(hidden, self.table).float().view(-1, N, V)


@pytest.fixture(scope="module")
def checkpoint(tiny: Path) -> Checkpoint:
    return Checkpoint.open(tiny)


def random_prompt(n_rows: int, seed: int = 0) -> Prompt:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 256, (21,), generator=generator)
    ids[5 : 5 + n_rows] = AUDIO_SLOT
    return Prompt(ids, torch.randint(0, 1026, (n_rows, 8), generator=generator))


@pytest.mark.parametrize("n_rows", [0, 9])
def test_logits_equal_transformers_in_float32(checkpoint: Checkpoint, n_rows: int):
    prompt = random_prompt(n_rows)
    rows = torch.randint(0, 1026, (12, 8), generator=torch.Generator().manual_seed(1))
    expected = Oracle(checkpoint, torch.float32).logits(prompt, rows)[len(prompt) - 1 :]
    backend = ReferenceBackend(checkpoint, CPU, "fp32", 256)
    backend.prefill(prompt)
    for j, want in enumerate(expected):  # prefill first, then decoding with the cache
        got = backend.logits()
        assert (got - want).abs().max() <= 1e-4 * want.abs().max(), f"row {j}"
        if j < len(rows):
            backend.force(rows[j])


def test_logits_agree_with_transformers_in_bfloat16(checkpoint: Checkpoint):
    prompt = random_prompt(9)
    rows = torch.randint(0, 1026, (12, 8), generator=torch.Generator().manual_seed(1))
    expected = Oracle(checkpoint, torch.bfloat16).logits(prompt, rows)[len(prompt) - 1 :]
    backend = ReferenceBackend(checkpoint, CPU, "bf16", 256)
    backend.prefill(prompt)
    for j, want in enumerate(expected):
        got = backend.logits()
        assert functional.cosine_similarity(got.flatten(), want.flatten(), dim=0) > 0.9999
        if j < len(rows):
            backend.force(rows[j])


def test_rmsnorm_and_rope_equal_their_definitions(checkpoint: Checkpoint):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 48, generator=generator, dtype=torch.float64)
    weight = torch.randn(48, generator=generator, dtype=torch.float64)
    by_hand = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    torch.testing.assert_close(rmsnorm(x.float(), weight.float(), 1e-6).double(), by_hand,
                               rtol=1e-5, atol=1e-5)  # fmt: skip
    D = checkpoint.config.head_dim
    q = torch.randn(1, 5, D, generator=generator)
    turned = rope(q, *rope_table(torch.arange(5), checkpoint.config, torch.float32))
    for p in range(5):
        for d in range(D // 2):
            turn = torch.polar(torch.tensor(1.0), torch.tensor(p * 1e6 ** (-2 * d / D)))
            pair = torch.complex(q[0, p, d], q[0, p, d + D // 2]) * turn
            assert abs(pair.real - turned[0, p, d]) < 1e-5
            assert abs(pair.imag - turned[0, p, d + D // 2]) < 1e-5


def test_prefill_equals_row_by_row(checkpoint: Checkpoint):
    codes = torch.randint(0, 1024, (6, 8), generator=torch.Generator().manual_seed(3))
    rows = delay(codes, checkpoint.config)
    ids = torch.cat([torch.arange(7), torch.full((len(rows),), AUDIO_SLOT)])
    at_once = ReferenceBackend(checkpoint, CPU, "fp32", 64)
    at_once.prefill(Prompt(ids, rows))
    stepped = ReferenceBackend(checkpoint, CPU, "fp32", 64)
    stepped.prefill(Prompt(ids[:7], rows[:0]))
    for row in rows:
        stepped.force(row)
    torch.testing.assert_close(at_once.logits(), stepped.logits(), rtol=1e-4, atol=1e-4)


def test_decode_ramps_in_and_stops_at_its_limits(checkpoint: Checkpoint):
    backend = ReferenceBackend(checkpoint, CPU, "fp32", 40)
    sampling = SamplingParams(1.0, 0, 1.0, 5)
    backend.prefill(random_prompt(0))
    rows = list(backend.decode(sampling, stream=0, max_rows=10))
    assert len(rows) == 10
    for j, row in enumerate(rows[:8]):
        assert (row[j + 1 :] == checkpoint.config.boc).all()
    backend.prefill(random_prompt(0))  # 21 positions of 40 are taken
    assert len(list(backend.decode(sampling, stream=0, max_rows=1000))) == 40 - 21 + 1
    with pytest.raises(ValueError, match="50 positions do not fit the context of 40"):
        backend.prefill(Prompt(torch.zeros(50, dtype=torch.int64), torch.empty((0, 8))))


def test_decode_ends_with_the_last_codebook_of_the_last_frame(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    backend = ReferenceBackend(checkpoint, CPU, "fp32", 256)
    backend.prefill(random_prompt(0))
    honest = backend.logits

    def always_eoc() -> torch.Tensor:
        logits = honest().clone()  # of inference mode: not to be changed in place
        logits[0, checkpoint.config.eoc] = 1e9
        return logits

    monkeypatch.setattr(backend, "logits", always_eoc)
    rows = list(backend.decode(SamplingParams(0.0), stream=0, max_rows=200))
    # Ignored in the 8 rows of the ramp-in, said in row 8, then 6 more: the shortest speech.
    assert len(rows) == 8 + 1 + 6
    assert len(undelay(torch.stack(rows))) == 8


def test_unload_frees_and_is_idempotent(checkpoint: Checkpoint):
    backend = ReferenceBackend(checkpoint, CPU, "bf16", 64)
    assert backend.resident_bytes > 0
    backend.unload()
    backend.unload()
    assert backend.resident_bytes == 0
    with pytest.raises(RuntimeError, match="unloaded"):
        backend.logits()
