"""The layouts that the codec kernels read, proved by computing the decoder from them in PyTorch."""

from __future__ import annotations

import torch
from livevoice.engine.checkpoint import Checkpoint
from livevoice.engine.codec import CodecDecoder
from livevoice.engine.codec_layout import codec_values
from torch import Tensor
from torch.nn import functional


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    alpha = alpha.view(-1, 1)
    return x + (alpha * x).sin().square() / (alpha + 1e-9)


def conv(x: Tensor, values: dict[str, Tensor], name: str, dilation: int = 1) -> Tensor:
    weight = values[f"{name}.weight"].permute(2, 0, 1)  # [in, taps, out]
    padding = (weight.shape[2] - 1) // 2 * dilation
    bias = values[f"{name}.bias"]
    return functional.conv1d(x[None], weight, bias, padding=padding, dilation=dilation)[0]


def upsample(x: Tensor, values: dict[str, Tensor], name: str, stride: int) -> Tensor:
    """Two taps, ``stride · out`` rows, phase first; sample ``stride · i + phase`` is cropped."""
    weight, bias = values[f"{name}.weight"].permute(2, 0, 1), values[f"{name}.bias"]
    rows = functional.conv1d(functional.pad(x, (1, 1))[None], weight)[0]
    n_out, n_samples = len(bias), x.shape[1] * stride
    phases = rows.view(stride, n_out, -1).permute(1, 2, 0).flatten(1)
    crop = (stride + 1) // 2
    return phases[:, crop : crop + n_samples] + bias[:, None]


def decode(checkpoint: Checkpoint, codes: Tensor) -> Tensor:
    config, values = checkpoint.codec_config, codec_values(checkpoint)
    entries = torch.arange(config.n_codebooks) * config.codebook_size
    tables = values["tables"].view(-1, config.acoustic_hidden)
    x = (tables[codes + entries].sum(1) + values["tables.bias"]).T
    x = conv(x, values, "first")
    for b, stride in enumerate(config.upsampling_ratios):
        block = f"block.{b}."
        x = upsample(snake(x, values[f"{block}snake"]), values, f"{block}up", stride)
        for u, dilation in enumerate((1, 3, 9)):
            unit = f"{block}unit{u}."
            y = snake(x, values[f"{unit}snake1"])
            y = snake(conv(y, values, f"{unit}conv1", dilation), values[f"{unit}snake2"])
            x = x + conv(y, values, f"{unit}conv2")
    return conv(snake(x, values["snake"]), values, "last").flatten()


def test_the_decoder_computed_from_the_layouts_is_the_decoder():
    checkpoint = Checkpoint.open("starter")
    codes = torch.randint(0, 1024, (9, 8), generator=torch.Generator().manual_seed(0))
    expected = CodecDecoder(checkpoint, "cpu").decode_window(codes)
    got = decode(checkpoint, codes)
    assert float((got - expected).norm() / expected.norm()) < 1e-5
