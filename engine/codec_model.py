"""Networks of the neural codec: DAC decoder, DAC encoder, semantic encoder, residual quantiser.

Owns the layers and nothing else: no checkpoint, no codes, no streaming. Parameter names are those
of the checkpoint, so a ``state_dict`` is a list of the tensors to read. The shape of the networks
is that of transformers' ``HiggsAudioV2TokenizerModel`` (5.24); tests compare the two.

Axis letters in shapes: C channels, T frames, S samples at the rate of the layer. The DAC halves
work on ``[1, C, 1, S]``, an image of height one: on a CPU the channels-last path of oneDNN exists
for images only, and on the narrow, fast layers it is up to 2.5 times as fast as plain ``conv1d``.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import CodecConfig

# Fixed by the DAC architecture (arXiv 2306.06546), not by a configuration.
KERNEL = 7
DILATIONS = (1, 3, 9)


def as_image(x: Tensor) -> Tensor:
    """``[1, C, S] -> [1, C, 1, S]`` in the layout that is fast on the device."""
    x = x.unsqueeze(2)
    return x.contiguous(memory_format=torch.channels_last) if x.device.type == "cpu" else x


class Conv(nn.Conv1d):
    """A 1-D convolution (weight ``[out, in, k]``) of an image of height one."""

    def forward(self, x: Tensor) -> Tensor:
        """``[1, C, 1, S] -> [1, C', 1, S / stride]``."""
        stride, padding, dilation = self.stride[0], self.padding[0], self.dilation[0]
        weight = self.weight.unsqueeze(2)
        return functional.conv2d(x, weight, self.bias, (1, stride), (0, padding), (1, dilation))


class Upsample(nn.ConvTranspose1d):
    """A transposed convolution (weight ``[in, out, 2 · stride]``) that gives stride · S samples."""

    def __init__(self, channels: int, out_channels: int, stride: int):
        # output_padding makes the length exact for odd strides too (stock DAC has none).
        super().__init__(
            channels,
            out_channels,
            2 * stride,
            stride,
            padding=-(-stride // 2),
            output_padding=stride % 2,
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[1, C, 1, S] -> [1, C', 1, stride · S]``."""
        stride, padding, extra = self.stride[0], self.padding[0], self.output_padding[0]
        weight = self.weight.unsqueeze(2)
        return functional.conv_transpose2d(
            x, weight, self.bias, (1, stride), (0, padding), (0, extra)
        )


def settle(network: nn.Module) -> nn.Module:
    """Make a loaded network ready to run: no dropout, no gradients, weights in image layout."""
    for layer in network.modules():
        if isinstance(layer, Conv | Upsample) and layer.weight.device.type == "cpu":
            layer.weight.data = layer.weight.data.transpose(1, 2).contiguous().transpose(1, 2)
    return network.eval().requires_grad_(False)


class Snake(nn.Module):
    """``x + sin²(a · x) / a`` with a learned ``a`` (alpha) for each channel (arXiv 2006.08195)."""

    def __init__(self, channels: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Activate ``[1, C, 1, S]``; the argument is left as it is."""
        alpha = self.alpha.unsqueeze(2)
        sine = (x * alpha).sin_().square_()
        # 1e-9 keeps alpha = 0 finite, as in transformers.
        return torch.addcmul(x, sine, (alpha + 1e-9).reciprocal())


class ResidualUnit(nn.Module):
    """Snake, dilated convolution, Snake, pointwise convolution, around a skip connection."""

    def __init__(self, channels: int, dilation: int):
        super().__init__()
        padding = (KERNEL - 1) * dilation // 2
        self.snake1 = Snake(channels)
        self.conv1 = Conv(channels, channels, KERNEL, padding=padding, dilation=dilation)
        self.snake2 = Snake(channels)
        self.conv2 = Conv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``[1, C, 1, S] -> [1, C, 1, S]``."""
        return self.conv2(self.snake2(self.conv1(self.snake1(x)))).add_(x)


class DecoderBlock(nn.Module):
    """Upsample by ``stride``, then three residual units."""

    def __init__(self, channels: int, out_channels: int, stride: int):
        super().__init__()
        self.snake1 = Snake(channels)
        self.conv_t1 = Upsample(channels, out_channels, stride)
        self.res_unit1, self.res_unit2, self.res_unit3 = (
            ResidualUnit(out_channels, dilation) for dilation in DILATIONS
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[1, C, 1, S] -> [1, C / 2, 1, stride · S]``."""
        x = self.conv_t1(self.snake1(x))
        return self.res_unit3(self.res_unit2(self.res_unit1(x)))


def decoder_halos(strides: tuple[int, ...]) -> list[int]:
    """How far each stage of the decoder looks to either side, in samples at its own input's rate.

    Counted backwards from the waveform: entry 0 is the latent (in frames: the receptive field),
    entry ``1 + b`` is what block ``b`` needs, the last is what the output convolution needs.
    """
    reach = (KERNEL - 1) // 2
    halos = [reach]
    for stride in reversed(strides):
        halo = halos[0] + reach * sum(DILATIONS)
        padding = -(-stride // 2)
        # Tap k of input i lands on output i · stride - padding + k, k = 0 … 2 · stride - 1.
        before = (halo - padding + 2 * stride - 1) // stride
        after = (halo + padding - 1) // stride + 1
        halos.insert(0, max(before, after))
    return [halos[0] + reach, *halos]


class DacDecoder(nn.Module):
    """Latent frames to waveform; zero padding everywhere, nothing causal, no final tanh."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        widths = [config.decoder_hidden >> b for b in range(len(config.upsampling_ratios) + 1)]
        self.strides = config.upsampling_ratios
        self.halos = decoder_halos(self.strides)
        self.conv1 = Conv(config.acoustic_hidden, widths[0], KERNEL, padding=KERNEL // 2)
        self.block = nn.ModuleList(
            DecoderBlock(width, out_width, stride)
            for (width, out_width), stride in zip(pairwise(widths), self.strides, strict=True)
        )
        self.snake1 = Snake(widths[-1])
        self.conv2 = Conv(widths[-1], 1, KERNEL, padding=KERNEL // 2)

    def forward(self, latent: Tensor, lead: int = 0, tail: int = 0) -> Tensor:
        """Decode the frames between ``lead`` and ``tail``.

        The outer frames are context. Every stage drops what the following stages can't see any
        more: most of the field belongs to the slow first block, so the costly fast blocks run on
        little more than the frames that are asked for.

        Args:
            latent: float32 ``[1, acoustic_hidden, lead + T + tail]``.
            lead: frames of context before.
            tail: frames of context after.

        Returns:
            float32 ``[T · hop]``, values may exceed ±1.
        """
        x = self.conv1(as_image(latent))
        for block, stride, halo in zip(self.block, self.strides, self.halos[1:], strict=False):
            x, lead, tail = _crop(x, lead, tail, halo)
            x, lead, tail = block(x), lead * stride, tail * stride
        x, lead, tail = _crop(x, lead, tail, self.halos[-1])
        x = self.conv2(self.snake1(x))
        return _crop(x, lead, tail, 0)[0].flatten()


def _crop(x: Tensor, lead: int, tail: int, halo: int) -> tuple[Tensor, int, int]:
    """Shorten ``[1, C, 1, lead + S + tail]`` to at most ``halo`` samples of context on a side."""
    start, end = max(lead - halo, 0), max(tail - halo, 0)
    return x[..., start : x.shape[-1] - end], lead - start, tail - end


class EncoderBlock(nn.Module):
    """Three residual units, then downsample by ``stride``."""

    def __init__(self, channels: int, stride: int):
        super().__init__()
        self.res_unit1, self.res_unit2, self.res_unit3 = (
            ResidualUnit(channels, dilation) for dilation in DILATIONS
        )
        self.snake1 = Snake(channels)
        self.conv1 = Conv(channels, 2 * channels, 2 * stride, stride, padding=-(-stride // 2))

    def forward(self, x: Tensor) -> Tensor:
        """``[1, C, 1, S] -> [1, 2 · C, 1, about S / stride]``."""
        x = self.res_unit3(self.res_unit2(self.res_unit1(x)))
        return self.conv1(self.snake1(x))


class DacEncoder(nn.Module):
    """Waveform to acoustic features, one column a frame."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        strides = config.downsampling_ratios
        width = config.encoder_hidden
        self.conv1 = Conv(1, width, KERNEL, padding=KERNEL // 2)
        self.block = nn.ModuleList(
            EncoderBlock(width << b, stride) for b, stride in enumerate(strides)
        )
        width <<= len(strides)
        self.snake1 = Snake(width)
        self.conv2 = Conv(width, config.acoustic_hidden, 3, padding=1)

    def n_frames(self, n_samples: int) -> int:
        """Columns that ``forward`` gives for a waveform of this length."""
        for block in self.block:
            conv = block.conv1
            n_samples = (n_samples + 2 * conv.padding[0] - conv.kernel_size[0]) // conv.stride[
                0
            ] + 1
        return n_samples

    def forward(self, waveform: Tensor) -> Tensor:
        """``[1, 1, S] -> [1, acoustic_hidden, T]``."""
        x = self.conv1(as_image(waveform))
        for block in self.block:
            x = block(x)
        return self.conv2(self.snake1(x)).squeeze(2)


class SemanticUnit(nn.Module):
    """ELU, convolution, ELU, pointwise convolution, around a skip connection."""

    def __init__(self, channels: int, kernel: int, dilation: int):
        super().__init__()
        padding = (kernel - 1) // 2 * dilation
        self.conv1 = nn.Conv1d(
            channels, channels, kernel, padding=padding, dilation=dilation, bias=False
        )
        self.conv2 = nn.Conv1d(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[1, C, T] -> [1, C, T]``."""
        return x + self.conv2(functional.elu(self.conv1(functional.elu(x))))


class SemanticBlock(nn.Module):
    """Residual units, then a convolution that may change width and rate."""

    def __init__(self, config: CodecConfig, channels: int, out_channels: int, stride: int):
        super().__init__()
        self.res_units = nn.ModuleList(
            SemanticUnit(channels, config.raw["unit_kernel_size"], dilation)
            for dilation in config.raw["block_dilations"]
        )
        kernel = 3 if stride == 1 else 2 * stride
        self.conv = nn.Conv1d(channels, out_channels, kernel, stride, padding=(kernel - 1) // 2)

    def forward(self, x: Tensor) -> Tensor:
        """``[1, C, T] -> [1, C', T / stride]``."""
        for unit in self.res_units:
            x = unit(x)
        return self.conv(x)


class SemanticEncoder(nn.Module):
    """Refines the semantic model's features before they join the acoustic ones."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        width, kernel = config.semantic_hidden, config.raw["kernel_size"]
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel // 2, bias=False)
        widths = [width, *(int(width * ratio) for ratio in config.raw["channel_ratios"])]
        self.conv_blocks = nn.ModuleList(
            SemanticBlock(config, channels, out_channels, stride)
            for (channels, out_channels), stride in zip(
                pairwise(widths), config.raw["strides"], strict=True
            )
        )

    def forward(self, features: Tensor) -> Tensor:
        """``[1, semantic_hidden, T] -> [1, semantic_hidden, T]``."""
        x = self.conv(features)
        for block in self.conv_blocks:
            x = block(x)
        return x


class Codebook(nn.Module):
    """The entries of one quantiser."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.embed = nn.Parameter(torch.empty(config.codebook_size, config.codebook_dim))

    def nearest(self, x: Tensor) -> Tensor:
        """Entries next to ``[T, codebook_dim]`` by squared Euclidean distance, int64 ``[T]``."""
        # The terms and their order are transformers': near ties must round to the same entry.
        embed = self.embed.t()
        distance = x.pow(2).sum(1, keepdim=True) - 2 * x @ embed + embed.pow(2).sum(0, keepdim=True)
        return distance.argmin(dim=-1)


class Quantizer(nn.Module):
    """One stage of the residual quantiser: project, look up, project back."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        width = config.acoustic_hidden + config.semantic_hidden
        self.codebook = Codebook(config)
        self.project_in = nn.Linear(width, config.codebook_dim)
        self.project_out = nn.Linear(config.codebook_dim, width)

    def forward(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Codes int64 ``[T]`` of ``[T, width]``, and what of it they leave over."""
        codes = self.codebook.nearest(self.project_in(residual))
        return codes, residual - self.project_out(functional.embedding(codes, self.codebook.embed))


class ResidualQuantizer(nn.Module):
    """Every stage codes what the stages before it left over."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.quantizers = nn.ModuleList(Quantizer(config) for _ in range(config.n_codebooks))

    def forward(self, residual: Tensor) -> Tensor:
        """``[T, width]`` to codes int64 ``[T, N]``."""
        codes = []
        for quantizer in self.quantizers:
            code, residual = quantizer(residual)
            codes.append(code)
        return torch.stack(codes, dim=1)


class Encoder(nn.Module):
    """All that encoding needs, named as in the checkpoint.

    Args:
        config: sizes.
        semantic_model: HuBERT, a network of another library.
    """

    def __init__(self, config: CodecConfig, semantic_model: nn.Module):
        super().__init__()
        width = config.acoustic_hidden + config.semantic_hidden
        self.acoustic_encoder = DacEncoder(config)
        self.semantic_model = semantic_model
        self.encoder_semantic = SemanticEncoder(config)
        self.fc = nn.Linear(width, width)
        self.quantizer = ResidualQuantizer(config)
        self.hop_samples = config.hop_samples
        # HuBERT centres its features on half a step; every n-th of them falls on a frame.
        self.semantic_padding = config.downsample_factor // 2
        frame_at_semantic_rate = config.hop_samples * config.semantic_sample_rate
        self.semantic_stride = frame_at_semantic_rate // (
            config.sample_rate * config.downsample_factor
        )

    def semantic(self, waveform: Tensor) -> Tensor:
        """``[S]`` at the semantic sample rate to ``[1, semantic_hidden, T]``."""
        padded = functional.pad(waveform, (self.semantic_padding, self.semantic_padding))
        output = self.semantic_model(padded.unsqueeze(0), output_hidden_states=True)
        features = torch.stack(output.hidden_states, dim=1).mean(dim=1)
        return self.encoder_semantic(features[:, :: self.semantic_stride].transpose(1, 2))

    def acoustic(self, waveform: Tensor, n_frames: int) -> Tensor:
        """``[S]`` at the codec's sample rate to ``[1, acoustic_hidden, n_frames]``."""
        if self.acoustic_encoder.n_frames(len(waveform)) != n_frames:
            waveform = functional.pad(waveform, (self.hop_samples // 2, self.hop_samples // 2))
        return self.acoustic_encoder(waveform[None, None])

    def forward(self, waveform: Tensor, semantic_waveform: Tensor) -> Tensor:
        """The same sound at both rates, float32 ``[S]`` each, to codes int64 ``[T, N]``."""
        semantic = self.semantic(semantic_waveform)
        acoustic = self.acoustic(waveform, semantic.shape[-1])
        return self.quantizer(self.fc(torch.cat([acoustic, semantic], dim=1)[0].t()))
