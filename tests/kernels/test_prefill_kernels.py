import math

import pytest
import torch
from kernels.oracle import (
    ACTIVATION,
    EPS,
    SWIGLU_SCALE,
    Matrix,
    attention,
    error,
    kernels,
    natural_order,
    needs_extension,
    norm_rope,
    operand_order,
    poisoned,
    rmsnorm,
    rope_table,
    swiglu,
)

pytestmark = [pytest.mark.cuda, needs_extension]
ROUNDING = {"fp8": 5e-4, "bf16": 4e-3}  # one rounding to float16, to bfloat16


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
@pytest.mark.parametrize(("S", "hidden", "splits"), [(1, 32, 0), (7, 96, 4), (300, 2560, 4)])
def test_rmsnorm(S: int, hidden: int, splits: int, precision: str):
    residual, partials = 3 * torch.randn(S, hidden), torch.randn(splits, S, hidden)
    weight = 1 + 0.1 * torch.randn(hidden)
    on_gpu, y = residual.cuda(), poisoned(S, hidden, dtype=ACTIVATION[precision])
    kernels().rmsnorm(on_gpu, partials.cuda(), weight.cuda(), EPS, y, precision)
    total = residual.double() + partials.double().sum(0)
    assert error(on_gpu, total) < 1e-6
    assert error(natural_order(y), rmsnorm(total, weight)) < ROUNDING[precision]


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
@pytest.mark.parametrize("S", [1, 13, 16, 17, 33, 65, 130, 300])
@pytest.mark.parametrize(
    ("rows", "columns", "splits"), [(40, 32, 1), (264, 704, 4), (512, 2560, 1)]
)
def test_gemm(rows: int, columns: int, splits: int, S: int, precision: str):
    matrix = Matrix(rows, columns, precision)
    x = torch.randn(S, columns).to(ACTIVATION[precision])
    y = poisoned(splits, S, rows)
    kernels().gemm(matrix.packed, matrix.scales, operand_order(x).cuda(), y, precision, False)
    assert error(y.double().sum(0), x.double() @ matrix.value.T) < 1e-5


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
def test_gemm_does_not_depend_on_the_length_of_the_chunk(precision: str):
    matrix = Matrix(528, 704, precision)
    x = operand_order(torch.randn(300, 704).to(ACTIVATION[precision])).cuda()
    whole = poisoned(4, 300, 528)
    kernels().gemm(matrix.packed, matrix.scales, x, whole, precision, False)
    for first in (0, 100, 200, 250, 270, 287):
        part = poisoned(4, 300 - first, 528)
        kernels().gemm(matrix.packed, matrix.scales, x[first:], part, precision, False)
        assert torch.equal(part, whole[:, first:])


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
@pytest.mark.parametrize("S", [5, 40, 70, 300])
def test_gemm_with_swiglu(S: int, precision: str):
    matrix = Matrix(2 * 96, 96, precision, is_gate_up=True)
    x = torch.randn(S, 96).to(ACTIVATION[precision])
    y = poisoned(S, 96, dtype=ACTIVATION[precision])
    kernels().gemm(matrix.packed, matrix.scales, operand_order(x).cuda(), y, precision, True)
    gate, up = (x.double() @ matrix.value.T).chunk(2, dim=1)
    assert (
        error(natural_order(y).double() / SWIGLU_SCALE[precision], swiglu(gate, up))
        < ROUNDING[precision]
    )


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 64), (6, 1, 128), (32, 8, 128)])
@pytest.mark.parametrize(("S", "first"), [(1, 0), (9, 5)])
def test_qk_norm_rope(heads: int, kv_heads: int, head_dim: int, S: int, first: int):
    qkv = 2 * torch.randn(S, heads + 2 * kv_heads, head_dim)
    q_norm, k_norm = (1 + 0.1 * torch.randn(head_dim) for _ in range(2))
    rope = rope_table(20, head_dim)
    q = poisoned(S, heads, head_dim, dtype=torch.bfloat16)
    kv = torch.zeros(kv_heads, 20, 2, head_dim, dtype=torch.bfloat16, device="cuda")
    kernels().qk_norm_rope(qkv.cuda(), q_norm.cuda(), k_norm.cuda(), rope.cuda(), EPS, first, q, kv)
    queries, keys, values = qkv.split([heads, kv_heads, kv_heads], dim=1)
    here = rope[first : first + S]
    assert error(q, norm_rope(queries, q_norm, here)) < 4e-3
    assert error(kv[:, first : first + S, 0], norm_rope(keys, k_norm, here).transpose(0, 1)) < 4e-3
    assert torch.equal(kv[:, first : first + S, 1].cpu(), values.transpose(0, 1).bfloat16())
    assert not kv[:, :first].any()
    assert not kv[:, first + S :].any()


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 64), (8, 2, 128)])
@pytest.mark.parametrize(("S", "first"), [(1, 0), (13, 0), (64, 0), (130, 0), (65, 70), (3, 200)])
def test_attention_prefill(
    heads: int, kv_heads: int, head_dim: int, S: int, first: int, precision: str
):
    q = torch.randn(S, heads, head_dim).bfloat16()
    kv = torch.full((kv_heads, 300, 2, head_dim), math.nan, dtype=torch.bfloat16)
    n_keys = first + S
    kv[:, :n_keys] = torch.randn(kv_heads, n_keys, 2, head_dim).bfloat16()
    out = poisoned(S, heads * head_dim, dtype=ACTIVATION[precision])
    kernels().attention_prefill(q.cuda(), kv.cuda(), first, out, precision)
    expected = attention(q, kv[:, :n_keys, 0], kv[:, :n_keys, 1], first).flatten(1)
    assert error(natural_order(out), expected) < 6e-3  # weights are rounded to bfloat16
