import pytest
import torch
from kernels.oracle import error, kernels, needs_extension, poisoned
from livevoice.engine.codec_layout import upsampling_rows
from torch.nn import functional

pytestmark = [pytest.mark.cuda, needs_extension]


def snake(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    return x + (alpha[:, None] * x).sin().square() / (alpha[:, None] + 1e-9)


@pytest.mark.parametrize(
    ("n_in", "n_out", "samples", "taps", "dilation"),
    [
        (3, 5, 1, 7, 1),
        (16, 16, 63, 7, 3),
        (33, 40, 130, 7, 9),
        (64, 32, 500, 1, 1),
        (32, 1, 960, 7, 1),
        (20, 70, 10_000, 7, 9),  # enough blocks for the wide tile
        (64, 32, 20_000, 1, 1),
        (32, 1, 40_000, 7, 1),
    ],
)
def test_convolution(n_in: int, n_out: int, samples: int, taps: int, dilation: int):
    x, weight = torch.randn(n_in, samples), torch.randn(n_out, n_in, taps)
    bias, alpha = torch.randn(n_out), 1 + 0.3 * torch.randn(n_out).abs()
    skip = torch.randn(n_out, samples)
    raw, activated = poisoned(n_out, samples), poisoned(n_out, samples)
    kernels().codec_conv(
        x.cuda(), weight.permute(1, 2, 0).contiguous().cuda(), bias.cuda(), alpha.cuda(),
        skip.cuda(), raw, activated, dilation, 1,
    )  # fmt: skip
    padding = (taps - 1) // 2 * dilation
    expected = functional.conv1d(
        x[None].double(), weight.double(), bias.double(), padding=padding, dilation=dilation
    )[0]
    expected += skip
    assert error(raw, expected) < 1e-6
    assert error(activated, snake(expected, alpha.double())) < 2e-6


@pytest.mark.parametrize(
    ("n_in", "n_out", "samples"), [(4, 2, 1), (64, 32, 45), (128, 64, 70), (24, 32, 5_000)]
)
@pytest.mark.parametrize("stride", [2, 3, 4, 5, 8])
def test_transposed_convolution(n_in: int, n_out: int, samples: int, stride: int):
    x, weight = torch.randn(n_in, samples), torch.randn(n_in, n_out, 2 * stride)
    bias = torch.randn(n_out)
    raw = poisoned(n_out, samples * stride)
    kernels().codec_conv(
        x.cuda(), upsampling_rows(weight, stride).cuda(), bias.cuda(), None, None, raw, None, 1,
        stride,
    )  # fmt: skip
    expected = functional.conv_transpose1d(
        x[None].double(), weight.double(), bias.double(), stride=stride,
        padding=-(-stride // 2), output_padding=stride % 2,
    )[0]  # fmt: skip
    assert error(raw, expected) < 1e-6
