"""What the kernels should give, in float64, and the packed layout written down a second time."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from torch import Tensor

EPS = 1e-6
HAS_EXTENSION = importlib.util.find_spec("livevoice.engine._C") is not None
needs_extension = pytest.mark.skipif(
    not HAS_EXTENSION, reason="the CUDA extension is not built; run setup.py build_ext --inplace"
)
PARTS = {"fp8": 1, "bf16": 2}
ACTIVATION = {"fp8": torch.float16, "bf16": torch.bfloat16}
SWIGLU_SCALE = {"fp8": 1 / 16, "bf16": 1.0}


def kernels():
    from livevoice.engine import _C

    return _C.kernels


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor on the GPU that nobody wrote."""
    if dtype.is_floating_point:
        return torch.full(shape, math.nan, dtype=dtype, device="cuda")
    return torch.full(shape, 255 if dtype == torch.uint8 else -1, dtype=dtype, device="cuda")


def error(got: Tensor, expected: Tensor) -> float:
    """Relative error of the whole; NaN where anything was not written."""
    got, expected = got.double().cpu(), expected.double().cpu()
    assert got.shape == expected.shape
    return float((got - expected).norm() / expected.norm())


def pack_indices(rows: int, columns: int) -> Tensor:
    """Place of element (row, column) in a packed bf16 matrix, counted in elements."""
    r, k = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    block = (r // 16) * (columns // 32) + k // 32
    lane = r % 8 * 4 + k % 32 // 8
    return block * 512 + r % 16 // 8 * 256 + lane * 8 + k % 8


def quantise(w: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 values as float32, and the scale of each row."""
    scale = w.float().abs().amax(dim=1) / 448
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (w.float() / scale[:, None]).to(torch.float8_e4m3fn).float(), scale


class Matrix:
    """A random weight matrix, packed by the kernel under test, and what it stands for."""

    def __init__(
        self, rows: int, columns: int, precision: str, *, is_gate_up: bool = False
    ) -> None:
        w = (torch.randn(rows, columns) / math.sqrt(columns)).to(torch.bfloat16)
        self.precision, self.columns = precision, columns
        self.value = w.double()
        if precision == "fp8":
            values, scale = quantise(w)
            self.value = values.double() * scale.double()[:, None]
        tiles, block = -(-rows // 16), 512 if precision == "fp8" else 1024
        self.packed = torch.zeros(tiles, columns // 32 * block, dtype=torch.uint8, device="cuda")
        self.scales = torch.zeros(tiles * 16, device="cuda") if precision == "fp8" else None
        parts = zip(w.chunk(2), ("gate", "up"), strict=True) if is_gate_up else [(w, "rows")]
        for part, layout in parts:
            source = part.contiguous().cuda()
            kernels().pack(source, self.packed, self.scales, precision, layout)


def rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return gate / (1 + torch.exp(-gate)) * up


def rope_table(positions: int, head_dim: int) -> Tensor:
    """float32 ``[positions, D / 2, 2]``, rounded to bf16."""
    frequency = 1e6 ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    angle = torch.arange(positions).double()[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()], dim=-1).bfloat16().float()


def norm_rope(x: Tensor, weight: Tensor, rope: Tensor) -> Tensor:
    """``[..., S, heads, D]`` with ``rope [S, D / 2, 2]``."""
    low, high = rmsnorm(x, weight).chunk(2, dim=-1)
    cos, sin = rope.double()[:, None, :, 0], rope.double()[:, None, :, 1]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def attention(q: Tensor, k: Tensor, v: Tensor, first_position: int) -> Tensor:
    """Causal; q ``[S, heads, D]``, k and v ``[kv heads, positions, D]`` -> ``[S, heads, D]``."""
    group = q.shape[1] // k.shape[0]
    k, v = k.double().repeat_interleave(group, 0), v.double().repeat_interleave(group, 0)
    scores = torch.einsum("shd,hpd->hsp", q.double(), k) / math.sqrt(q.shape[2])
    S, positions = scores.shape[1:]
    seen = torch.arange(positions)[None] <= first_position + torch.arange(S)[:, None]
    scores = scores.masked_fill(~seen, -math.inf)
    return torch.einsum("hsp,hpd->shd", scores.softmax(-1), v)


def operand_order(x: torch.Tensor) -> torch.Tensor:
    """``[..., columns]`` as matrix kernels read it: `operand_column` of csrc/device/formats.cuh.

    A lane's eight columns, 8t to 8t + 7 of each 32, are the pairs 2t and 2t + 8 of two k16 steps.
    """
    blocks = x.unflatten(-1, (-1, 4, 2, 2, 2))  # [..., block, lane t, step, half, pair]
    return blocks.movedim(-4, -2).flatten(-5).contiguous()


def natural_order(x: torch.Tensor) -> torch.Tensor:
    """The inverse of `operand_order`."""
    blocks = x.unflatten(-1, (-1, 2, 2, 4, 2))  # [..., block, step, half, lane t, pair]
    return blocks.movedim(-2, -4).flatten(-5).contiguous()
