import pytest
import torch
from kernels.oracle import kernels, needs_extension, poisoned
from livevoice.engine.sampling import GumbelNoise, SamplingParams, sample

pytestmark = [pytest.mark.cuda, needs_extension]
SETTINGS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, top_k=50, seed=1),
    SamplingParams(temperature=1.0, top_k=0, seed=2**63 + 5),
    SamplingParams(temperature=0.7, top_k=1, seed=3),
    SamplingParams(temperature=1.3, top_k=0, top_p=0.9, seed=4),
    SamplingParams(temperature=0.9, top_k=40, top_p=0.5, seed=5),
]


def run(logits: torch.Tensor, sampling: SamplingParams, stream: int, row: int) -> torch.Tensor:
    rows = poisoned(row + 1, logits.shape[0], dtype=torch.int32)
    kernels().sample(
        logits.cuda(), sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed, stream,
        row, rows,
    )  # fmt: skip
    return rows[row].cpu().long()


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize(("codebooks", "vocab"), [(8, 1026), (3, 37), (16, 2048)])
def test_draws_as_the_reference_does(sampling: SamplingParams, codebooks: int, vocab: int):
    differing = 0
    for row in range(codebooks, codebooks + 12):
        logits = 4 * torch.randn(codebooks, vocab)
        noise = GumbelNoise(sampling.seed, 77, codebooks, vocab).row(row)
        expected = sample(logits, sampling, None if sampling.is_greedy else noise)
        differing += int((run(logits, sampling, 77, row) != expected).sum())
    # logarithms differ in their last bit: a near tie may fall the other way, once in a long while
    assert differing <= (0 if sampling.is_greedy else 1)


def test_ramp_in_says_boc():
    logits = torch.randn(8, 1026)
    for row in range(8):
        codes = run(logits, SamplingParams(temperature=0.0), 0, row)
        assert codes[: row + 1].tolist() == logits.argmax(1)[: row + 1].tolist()
        assert (codes[row + 1 :] == 1024).all()


def test_ties_go_to_the_lowest_code():
    logits = torch.zeros(8, 1026)
    logits[:, [3, 700, 1025]] = 5.0
    assert run(logits, SamplingParams(temperature=0.0), 0, 9).tolist() == [3] * 8


def test_top_k_keeps_what_equals_the_kth():
    logits = torch.zeros(8, 64)
    logits[:, 10:20] = 1.0  # ten equal ones: top-3 keeps them all
    drawn = {
        int(code)
        for seed in range(30)
        for code in run(logits, SamplingParams(1.0, 3, 1.0, seed), 0, 20)
    }
    assert drawn <= set(range(10, 20))
    assert len(drawn) > 5
