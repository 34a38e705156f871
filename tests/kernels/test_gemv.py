import pytest
import torch
from kernels.oracle import (
    ACTIVATION,
    EPS,
    PARTS,
    SWIGLU_SCALE,
    Matrix,
    error,
    kernels,
    needs_extension,
    poisoned,
    rmsnorm,
    swiglu,
)

pytestmark = [pytest.mark.cuda, needs_extension]
SIZES = [(16, 64), (48, 256), (520, 192), (1000, 704), (6144, 2560), (2560, 4096)]
TOLERANCE = {"fp8": 2e-3, "bf16": 2e-5}  # float16 activations; two bfloat16 parts


def run_norm_gemv(matrix: Matrix, y: torch.Tensor, *, is_swiglu: bool):
    hidden = matrix.columns
    before, delta = 3 * torch.randn(hidden), torch.randn(hidden)
    weight = 1 + 0.1 * torch.randn(hidden)
    after, cleared = poisoned(hidden), poisoned(hidden)
    kernels().norm_gemv(
        matrix.packed, matrix.scales, before.cuda(), delta.cuda(), after, cleared, weight.cuda(),
        EPS, y, matrix.precision, is_swiglu,
    )  # fmt: skip
    assert torch.equal(after.cpu(), before + delta)
    assert not cleared.any()
    return matrix.value @ rmsnorm(before + delta, weight)


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_norm_gemv(rows: int, columns: int, precision: str):
    matrix = Matrix(rows, columns, precision)
    if columns > 4096:
        pytest.skip("norm_gemv takes hidden sizes up to 4096")
    y = poisoned(rows)
    expected = run_norm_gemv(matrix, y, is_swiglu=False)
    assert error(y, expected) < TOLERANCE[precision]


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
@pytest.mark.parametrize(("ffn", "hidden"), [(8, 64), (704, 256), (9728, 2560)])
def test_gate_up_with_swiglu(ffn: int, hidden: int, precision: str):
    matrix = Matrix(2 * ffn, hidden, precision, is_gate_up=True)
    y = poisoned(PARTS[precision], ffn, dtype=ACTIVATION[precision])
    gate, up = run_norm_gemv(matrix, y, is_swiglu=True).chunk(2)
    got = y.double().sum(0) / SWIGLU_SCALE[precision]
    assert error(got, swiglu(gate, up)) < 2 * TOLERANCE[precision]


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), [(32, 64), (256, 704), (2560, 9728), (2560, 4096)])
def test_residual_gemv(rows: int, columns: int, precision: str):
    matrix = Matrix(rows, columns, precision)
    x = torch.randn(columns)
    parts = [x.to(ACTIVATION[precision])]
    if PARTS[precision] == 2:
        parts.append((x - parts[0].float()).to(torch.bfloat16))
    x = torch.stack(parts)
    delta = torch.zeros(rows, device="cuda")
    kernels().residual_gemv(matrix.packed, matrix.scales, x.cuda(), None, delta, precision, 0)
    assert error(delta, matrix.value @ x.double().sum(0)) < 2e-5
    again = torch.zeros(rows, device="cuda")
    kernels().residual_gemv(matrix.packed, matrix.scales, x.cuda(), None, again, precision, 0)
    assert torch.equal(delta, again)


@pytest.mark.parametrize("precision", ["fp8", "bf16"])
@pytest.mark.parametrize(("heads", "head_dim"), [(4, 64), (32, 128)])
def test_residual_gemv_merges_attention_parts(heads: int, head_dim: int, precision: str):
    matrix = Matrix(320, heads * head_dim, precision)
    out, lse = torch.randn(heads, 4, head_dim).half(), 3 * torch.randn(heads, 4)
    lse[0, 1:] = -1e30  # splits without positions
    share = torch.exp2(lse.double() - lse.double().amax(1, keepdim=True))
    merged = (out.double() * (share / share.sum(1, keepdim=True))[..., None]).sum(1)
    delta = torch.zeros(320, device="cuda")
    kernels().residual_gemv(
        matrix.packed, matrix.scales, out.cuda(), lse.cuda(), delta, precision, head_dim
    )
    assert error(delta, matrix.value @ merged.flatten()) < TOLERANCE[precision]


def test_a_wrong_shape_is_one_sentence():
    matrix = Matrix(48, 256, "bf16")
    x = torch.zeros(256, device="cuda")
    with pytest.raises(ValueError, match=r"weight: expected shape \[256\], got \[255\]"):
        kernels().norm_gemv(matrix.packed, None, x, x, x, x, x[:255], EPS, x[:48], "bf16", False)
