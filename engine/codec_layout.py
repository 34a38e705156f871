"""The codec decoder's weights in the layouts that the CUDA kernels read.

Knows the checkpoint's names and the kernels' names and layouts; nothing of the extension itself.
"""

from __future__ import annotations

from torch import Tensor

from .checkpoint import CODEC, Checkpoint
from .codec import _fold


def codec_values(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Every value that ``csrc/codec.h`` asks for, by its name there; float32."""
    config = checkpoint.codec_config

    def read(name: str) -> Tensor:
        return checkpoint.tensor(CODEC + name).float()

    values: dict[str, Tensor] = {}

    def convolution(name: str, tensor: str) -> None:
        weight = read(f"{tensor}.weight")  # [out, in, k] -> [in, k, out]
        values[f"{name}.weight"] = weight.permute(1, 2, 0).contiguous()
        values[f"{name}.bias"] = read(f"{tensor}.bias")

    values["tables"], values["tables.bias"] = _fold(checkpoint)
    convolution("first", "acoustic_decoder.conv1")
    for b, stride in enumerate(config.upsampling_ratios):
        block, source = f"block.{b}.", f"acoustic_decoder.block.{b}."
        values[f"{block}snake"] = read(f"{source}snake1.alpha")
        values[f"{block}up.weight"] = upsampling_rows(read(f"{source}conv_t1.weight"), stride)
        values[f"{block}up.bias"] = read(f"{source}conv_t1.bias")
        for u in range(3):
            unit, unit_source = f"{block}unit{u}.", f"{source}res_unit{u + 1}."
            values[f"{unit}snake1"] = read(f"{unit_source}snake1.alpha")
            values[f"{unit}snake2"] = read(f"{unit_source}snake2.alpha")
            convolution(f"{unit}conv1", f"{unit_source}conv1")
            convolution(f"{unit}conv2", f"{unit_source}conv2")
    values["snake"] = read("acoustic_decoder.snake1.alpha")
    convolution("last", "acoustic_decoder.conv2")
    return values


def upsampling_rows(weight: Tensor, stride: int) -> Tensor:
    """A transposed convolution ``[in, out, 2 · stride]`` as one with two taps.

    Output sample ``stride · i + r`` sees inputs i - 1 (through tap r + stride) and i (through r).

    Returns:
        ``[in, 2, stride · out]``, the phase r before the channel.
    """
    n_in, n_out, _ = weight.shape
    taps = weight.view(n_in, n_out, 2, stride).flip(2)
    return taps.permute(0, 2, 3, 1).reshape(n_in, 2, stride * n_out).contiguous()
