import pytest
import torch
from kernels.oracle import Matrix, error, kernels, needs_extension, poisoned

pytestmark = [pytest.mark.cuda, needs_extension]


@pytest.mark.parametrize(("codebooks", "vocab", "hidden"), [(2, 11, 32), (8, 1026, 256)])
def test_embed(codebooks: int, vocab: int, hidden: int):
    table = Matrix(codebooks * vocab, hidden, "bf16")
    S = 9
    text = torch.randn(S, hidden).bfloat16()
    codes = torch.randint(0, vocab, (S, codebooks), dtype=torch.int32)
    codes[::2] = -1
    residual = poisoned(S, hidden)
    kernels().embed(table.packed, text.cuda(), codes.cuda(), vocab, residual)
    offsets = torch.arange(codebooks) * vocab
    summed = table.value[(codes.clamp(min=0) + offsets).long()].sum(1)
    expected = torch.where(codes[:, :1] < 0, text.double(), summed)
    assert error(residual, expected) < 1e-6
