import pytest
import torch
from kernels.oracle import kernels, needs_extension, pack_indices, quantise


@needs_extension
def test_packed_layout_is_the_documented_one():
    rows, columns = 40, 96
    places = pack_indices(rows, columns)
    piece = kernels().packed_bf16_piece
    for row in range(rows):
        for p in range(columns // 8):
            assert 8 * piece(row, p, columns // 32) == int(places[row, 8 * p])
    assert len(places.unique()) == rows * columns


@needs_extension
@pytest.mark.cuda
@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (24, 64), (333, 256), (64, 9728)])
def test_pack_bf16(rows: int, columns: int):
    w = torch.randn(rows, columns).bfloat16()
    packed = torch.zeros(-(-rows // 16), columns * 32, dtype=torch.uint8, device="cuda")
    kernels().pack(w.cuda(), packed, None, "bf16", "rows")
    flat = packed.view(torch.bfloat16).flatten().cpu()
    assert torch.equal(flat[pack_indices(rows, columns)], w)


@needs_extension
@pytest.mark.cuda
@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (24, 64), (333, 256), (64, 9728)])
def test_pack_fp8(rows: int, columns: int):
    w = torch.randn(rows, columns).bfloat16()
    w[1] = 0
    packed = torch.zeros(-(-rows // 16), columns * 16, dtype=torch.uint8, device="cuda")
    scales = torch.zeros(-(-rows // 16) * 16, device="cuda")
    kernels().pack(w.cuda(), packed, scales, "fp8", "rows")
    values, expected_scales = quantise(w)
    r, k = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    block = (r // 16) * (columns // 32) + k // 32
    place = block * 512 + (r % 8 * 4 + k % 32 // 8) * 16 + r % 16 // 8 * 8 + k % 8
    got = packed.view(torch.float8_e4m3fn).flatten().float().cpu()[place]
    assert torch.equal(scales.cpu()[:rows], expected_scales)
    assert torch.equal(got, values)


@needs_extension
@pytest.mark.cuda
def test_gate_and_up_rows_share_tiles():
    gate, up = torch.randn(24, 64).bfloat16(), torch.randn(24, 64).bfloat16()
    packed = torch.zeros(3, 64 * 32, dtype=torch.uint8, device="cuda")
    kernels().pack(gate.cuda(), packed, None, "bf16", "gate")
    kernels().pack(up.cuda(), packed, None, "bf16", "up")
    rows = packed.view(torch.bfloat16).flatten().cpu()[pack_indices(48, 64)]
    tiles = rows.view(3, 2, 8, 64)
    assert torch.equal(tiles[:, 0].reshape(24, 64), gate)
    assert torch.equal(tiles[:, 1].reshape(24, 64), up)
