import numpy as np
import pytest
import torch
from livevoice.engine.sampling import (
    GumbelNoise,
    SamplingParams,
    filter_logits,
    philox,
    sample,
    stream_id,
)
from scipy import stats

N, V = 8, 1026


def random_logits(seed: int = 0, vocab: int = V) -> torch.Tensor:
    return torch.randn(N, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # known answers of the authors' Random123 distribution
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, expected):
    words = philox(tuple(np.asarray(word) for word in counter), key)
    assert tuple(int(word) for word in words) == expected


def test_noise_is_finite_and_gumbel_distributed():
    noise = GumbelNoise(3, 0, N, V)
    values = torch.stack([noise.row(j) for j in range(50)]).flatten().numpy()
    assert np.isfinite(values).all()
    assert stats.kstest(values, "gumbel_r").pvalue > 1e-3


def test_noise_depends_on_each_coordinate_and_on_nothing_else():
    torch.manual_seed(0)
    first = GumbelNoise(1, 2, N, V).row(37)
    torch.rand(100)
    backwards = GumbelNoise(1, 2, N, V)
    backwards.row(90)
    assert torch.equal(first, backwards.row(37))
    others = [GumbelNoise(1, 3, N, V).row(37), GumbelNoise(1 + 2**32, 2, N, V).row(37)]
    others += [GumbelNoise(1, 2, N, V).row(38), first.roll(1, 0), first.roll(1, 1)]
    assert not any(torch.equal(first, other) for other in others)
    assert stream_id(5, 0) != stream_id(5, 1) != stream_id(6, 1)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(1.0, 0, 1.0, 11),
        SamplingParams(0.7, 20, 1.0, 12),
        SamplingParams(1.3, 0, 0.8, 13),
        SamplingParams(0.9, 50, 0.9, 14),
    ],
)
def test_draws_follow_the_softmax(sampling: SamplingParams):
    vocab, n_draws = 60, 4000
    logits = random_logits(5, vocab)
    noise = GumbelNoise(sampling.seed, 0, N, vocab)
    draws = torch.stack([sample(logits, sampling, noise.row(j)) for j in range(n_draws)])
    expected = filter_logits(logits, sampling).double().softmax(-1) * n_draws
    for n in range(N):
        seen = torch.bincount(draws[:, n], minlength=vocab).double()
        assert seen[expected[n] == 0].sum() == 0
        often = expected[n] >= 5
        bins = np.append(seen[often].numpy(), seen[~often].sum())
        hoped = np.append(expected[n][often].numpy(), expected[n][~often].sum())
        if hoped[-1] < 5:  # the rest is too rare for the test
            bins, hoped = bins[:-1], hoped[:-1]
        assert len(bins) > 1
        assert stats.chisquare(bins, hoped * bins.sum() / hoped.sum()).pvalue > 1e-4


def test_filter_equals_the_definition():
    logits = random_logits(2)
    logits[0, 10] = logits[0, 500] = logits[0].topk(20).values[-1]  # a tie at the k-th place
    sampling = SamplingParams(0.6, 20, 0.75, 0)
    kept = torch.isfinite(filter_logits(logits, sampling))
    for n in range(N):
        scaled = logits[n].double() / 0.6
        allowed = scaled >= scaled.sort(descending=True).values[19]
        probability = torch.where(allowed, scaled, -torch.inf).softmax(0)
        order = probability.argsort(descending=True, stable=True)
        total, expected = 0.0, set()
        for code in order.tolist():
            if total > 0.75 and expected:
                break
            if allowed[code]:
                expected.add(code)
            total += float(probability[code])
        assert set(kept[n].nonzero().flatten().tolist()) == expected


def test_top_p_near_zero_keeps_the_best_code():
    logits = random_logits(4)
    drawn = sample(logits, SamplingParams(1.0, 0, 1e-9, 0), GumbelNoise(0, 0, N, V).row(0))
    assert torch.equal(drawn, logits.argmax(-1))


def test_greedy_takes_the_lowest_of_equal_codes():
    logits = torch.zeros(N, V)
    logits[:, [7, 9]] = 1.0
    assert sample(logits, SamplingParams(0.0), None).tolist() == [7] * N


@pytest.mark.parametrize(
    "bad", [{"temperature": -1}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"seed": -1},
            {"seed": 2**64}, {"temperature": float("nan")}],
)  # fmt: skip
def test_parameters_out_of_range_are_refused(bad: dict):
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
        SamplingParams(**bad)
