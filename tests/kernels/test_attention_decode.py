import math

import pytest
import torch
from kernels.oracle import (
    EPS,
    attention,
    error,
    kernels,
    needs_extension,
    norm_rope,
    poisoned,
    rope_table,
)

pytestmark = [pytest.mark.cuda, needs_extension]
POSITIONS = [0, 1, 3, 4, 31, 33, 100, 127, 500, 1001]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 64), (3, 3, 128), (32, 8, 128)])
@pytest.mark.parametrize("position", POSITIONS)
def test_attention_decode(heads: int, kv_heads: int, head_dim: int, position: int):
    qkv = torch.randn(heads + 2 * kv_heads, head_dim)
    q_norm, k_norm = (1 + 0.1 * torch.randn(head_dim) for _ in range(2))
    rope = rope_table(1100, head_dim)
    kv = torch.full((kv_heads, 1100, 2, head_dim), math.nan, dtype=torch.bfloat16)
    kv[:, :position] = torch.randn(kv_heads, position, 2, head_dim).bfloat16()
    cache, at = kv.cuda(), torch.tensor([position], dtype=torch.int32).cuda()
    parts, lse = poisoned(heads, 4, head_dim, dtype=torch.float16), poisoned(heads, 4)
    kernels().attention_decode(
        qkv.cuda(), q_norm.cuda(), k_norm.cuda(), rope.cuda(), EPS, at, cache, parts, lse
    )
    q, k, v = qkv[None].split([heads, kv_heads, kv_heads], dim=1)
    here = rope[position : position + 1]
    new_k, new_v = norm_rope(k, k_norm, here)[0], v[0].bfloat16()
    assert error(cache[:, position, 0], new_k) < 4e-3
    assert torch.equal(cache[:, position, 1].cpu(), new_v)

    kv[:, position] = cache[:, position].cpu()
    keys, values = kv[:, : position + 1, 0], kv[:, : position + 1, 1]
    expected = attention(norm_rope(q, q_norm, here), keys, values, position)[0]
    top = lse.double().cpu()
    share = torch.exp2(top - top.amax(1, keepdim=True))
    got = (parts.double().cpu() * (share / share.sum(1, keepdim=True))[..., None]).sum(1)
    assert error(got, expected) < 1e-3
