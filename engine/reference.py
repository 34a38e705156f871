"""The model in plain PyTorch, on any device: the specification and the CPU backend.

Functions carry the names of the CUDA kernels. Axes: S positions, H hidden, Q/K query and key/value
heads, D head width, N codebooks, V codes per codebook. Qwen3 as transformers computes it, with the
rounding to the compute dtype in the same places; the audio table is input embedding and head.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .checkpoint import AUDIO_TABLE, BACKBONE, TEXT_EMBEDDING, Checkpoint, backbone_shapes
from .config import ModelConfig
from .delay import EndOfSpeech, force_boc
from .lanes import SeparateLanes
from .prompt import AUDIO_SLOT, Prompt
from .sampling import GumbelNoise, SamplingParams, sample

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x²) + eps) · weight`` over the last axis, summed in float32.

    Rounds before and after the weight, as transformers' Qwen3RMSNorm does.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def rope_table(positions: Tensor, config: ModelConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of ``position · theta^(-2d / D)``, each ``[S, D / 2]``, rounded to dtype.

    The rounding matters: the model was trained with bf16 tables.
    """
    half = torch.arange(0, config.head_dim, 2, dtype=torch.int64, device=positions.device).float()
    frequency = 1.0 / (config.rope_theta ** (half / config.head_dim))
    angle = positions.float()[:, None] * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each head: dimension d is paired with d + D/2.

    Args:
        x: ``[heads, S, D]``.
        cos: ``[S, D / 2]``.
        sin: ``[S, D / 2]``.
    """
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) · up``; silu is rounded to the compute dtype before the product."""
    return functional.silu(gate) * up


def attention(q: Tensor, k: Tensor, v: Tensor, first_position: int) -> Tensor:
    """Causal grouped-query attention of S new positions over all positions so far.

    Args:
        q: ``[Q, S, D]``, positions ``first_position …``.
        k: ``[K, first_position + S, D]``.
        v: as ``k``.
        first_position: position of the first query.

    Returns:
        ``[S, Q · D]``.
    """
    S, total = q.shape[1], k.shape[1]
    mask = None
    if S > 1:
        mask = torch.ones(S, total, dtype=torch.bool, device=q.device).tril(first_position)
    out = functional.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=mask, enable_gqa=q.shape[0] != k.shape[0]
    )
    return out[0].transpose(0, 1).reshape(S, -1)


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; matrices are ``[out, in]``, q/k/v and gate/up stacked in this order."""

    input_norm: Tensor  # [H]
    qkv: Tensor  # [(Q + 2K) D, H]
    q_norm: Tensor  # [D]
    k_norm: Tensor  # [D]
    o: Tensor  # [H, Q D]
    post_norm: Tensor  # [H]
    gate_up: Tensor  # [2 F, H]
    down: Tensor  # [H, F]


@dataclass(frozen=True)
class Weights:
    """All weights of the backbone."""

    layers: tuple[Layer, ...]
    norm: Tensor  # [H]
    text_embedding: Tensor  # [text_vocab, H]
    audio_table: Tensor  # [N V, H], row n · V + code

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        tensors = [self.norm, self.text_embedding, self.audio_table]
        for layer in self.layers:
            tensors += vars(layer).values()
        return sum(tensor.nbytes for tensor in tensors)


def load_weights(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    on_progress: Callable[[int, int], None] | None = None,
) -> Weights:
    """Read the backbone tensor by tensor, converting each to dtype on its way to the device."""
    total = sum(checkpoint.entry(name).n_bytes for name in backbone_shapes(checkpoint.config))
    done = 0

    def read(*names: str) -> Tensor:
        nonlocal done
        parts = [checkpoint.tensor(name).to(device, dtype) for name in names]
        done += sum(checkpoint.entry(name).n_bytes for name in names)
        if on_progress is not None:
            on_progress(done, total)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def layer(i: int) -> Layer:
        prefix = f"{BACKBONE}layers.{i}."
        attn, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        return Layer(
            input_norm=read(f"{prefix}input_layernorm.weight"),
            qkv=read(*(f"{attn}{name}_proj.weight" for name in "qkv")),
            q_norm=read(f"{attn}q_norm.weight"),
            k_norm=read(f"{attn}k_norm.weight"),
            o=read(f"{attn}o_proj.weight"),
            post_norm=read(f"{prefix}post_attention_layernorm.weight"),
            gate_up=read(f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"),
            down=read(f"{mlp}down_proj.weight"),
        )

    return Weights(
        layers=tuple(layer(i) for i in range(checkpoint.config.n_layers)),
        norm=read(f"{BACKBONE}norm.weight"),
        text_embedding=read(TEXT_EMBEDDING),
        audio_table=read(AUDIO_TABLE),
    )


class KVCache:
    """Keys and values of all layers: ``[layers, 2, K, context, D]``, allocated once."""

    def __init__(
        self, config: ModelConfig, context_rows: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (config.n_layers, 2, config.n_kv_heads, context_rows, config.head_dim)
        self.buffer = torch.zeros(shape, device=device, dtype=dtype)

    def append(self, i: int, k: Tensor, v: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Store k and v ``[K, S, D]`` of layer i; return views of everything up to them."""
        end = position + k.shape[1]
        keys, values = self.buffer[i]
        keys[:, position:end], values[:, position:end] = k, v
        return keys[:, :end], values[:, :end]


def forward_layer(
    layer: Layer,
    x: Tensor,
    rotation: tuple[Tensor, Tensor],
    cache: tuple[KVCache, int, int],
    config: ModelConfig,
) -> Tensor:
    """One transformer layer over S new positions.

    Args:
        layer: its weights.
        x: residual stream ``[S, H]``.
        rotation: cosine and sine of the positions, each ``[S, D / 2]``.
        cache: the KV cache, the layer's index, the first position.
        config: sizes.

    Returns:
        Residual stream ``[S, H]``.
    """
    kv, i, position = cache
    Q, K, D = config.n_heads, config.n_kv_heads, config.head_dim
    qkv = functional.linear(rmsnorm(x, layer.input_norm, config.rms_eps), layer.qkv)
    q, k, v = qkv.view(len(x), Q + 2 * K, D).transpose(0, 1).split([Q, K, K])
    q = rope(rmsnorm(q, layer.q_norm, config.rms_eps), *rotation)
    k = rope(rmsnorm(k, layer.k_norm, config.rms_eps), *rotation)
    keys, values = kv.append(i, k, v, position)
    x = x + functional.linear(attention(q, keys, values, position), layer.o)
    hidden = functional.linear(rmsnorm(x, layer.post_norm, config.rms_eps), layer.gate_up)
    return x + functional.linear(swiglu(*hidden.chunk(2, dim=-1)), layer.down)


class ReferenceBackend:
    """The backend protocol over the functions above."""

    name = "reference"
    most_lanes = 1

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        precision: str,
        context_rows: int,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.config = checkpoint.config
        self.device = device
        self.precision = precision
        self.context_rows = min(context_rows, self.config.max_positions)
        dtype = _DTYPES[precision]
        with torch.inference_mode():
            self._weights: Weights | None = load_weights(checkpoint, device, dtype, on_progress)
            self._cache: KVCache | None = KVCache(self.config, self.context_rows, device, dtype)
        self._position = 0  # positions filled so far
        self._hidden: Tensor | None = None  # [H], final norm of the last position
        self._prefix: Prompt | None = None  # whose keys and values are in the cache

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights and KV cache."""
        if self._weights is None or self._cache is None:
            return 0
        return self._weights.n_bytes + self._cache.buffer.nbytes

    @property
    def arena_bytes(self) -> dict[str, int]:
        """See :class:`~.backend.Backend`."""
        return {"weights and KV cache": self.resident_bytes}

    @torch.inference_mode()
    def prefill(self, prompt: Prompt) -> None:
        """See :class:`~.backend.Backend`."""
        if len(prompt) >= self.context_rows:
            raise ValueError(
                f"prompt: {len(prompt)} positions do not fit the context of {self.context_rows}; "
                "shorten the text or the voice"
            )
        prefix, rest = prompt.split()
        if not prefix.equals(self._prefix):
            self._position, self._prefix = 0, None
            if len(prefix):
                self._advance(self.embed(prefix))
            self._prefix = prefix
        self._position = len(prefix)
        self._advance(self.embed(rest))

    @torch.inference_mode()
    def logits(self) -> Tensor:
        """See :class:`~.backend.Backend`."""
        weights, hidden = self._loaded(), self._hidden
        if hidden is None:
            raise RuntimeError("logits: nothing was prefilled")
        N, V = self.config.n_codebooks, self.config.codebook_vocab
        return functional.linear(hidden, weights.audio_table).float().view(N, V).cpu()

    def decode(self, sampling: SamplingParams, *, stream: int, max_rows: int) -> Iterator[Tensor]:
        """See :class:`~.backend.Backend`."""
        config = self.config
        noise = GumbelNoise(sampling.seed, stream, config.n_codebooks, config.codebook_vocab)
        end = EndOfSpeech(config)
        for j in range(max_rows):
            drawn = sample(self.logits(), sampling, None if sampling.is_greedy else noise.row(j))
            row = force_boc(drawn, j, config.boc)
            is_last = end.push(row)
            yield row
            if is_last or self._position >= self.context_rows:
                return
            self.force(row)

    def max_lanes(self, prefix_rows: int, lane_rows: int) -> int:
        """See :class:`~.backend.Backend`. One by default: nothing is gained on a CPU."""
        return min(self.most_lanes, (self.context_rows - prefix_rows) // lane_rows)

    def lanes(self, n_lanes: int, prefix: Prompt, lane_rows: int) -> SeparateLanes:
        """See :class:`~.backend.Backend`. A cache for each lane: the specification, not the speed.

        Every lane reads the whole of its prompts.
        """
        return SeparateLanes(self._twin(len(prefix) + lane_rows) for _ in range(n_lanes))

    def _twin(self, context_rows: int) -> ReferenceBackend:
        """A backend with these weights and a KV cache of its own."""
        twin = copy.copy(self)
        twin.context_rows, twin._position = context_rows, 0
        twin._hidden = twin._prefix = None
        dtype = self._loaded().norm.dtype
        with torch.inference_mode():
            twin._cache = KVCache(self.config, context_rows, self.device, dtype)
        return twin

    @torch.inference_mode()
    def force(self, row: Tensor) -> None:
        """See :class:`~.backend.Backend`."""
        self._advance(self._embed_rows(row[None]))

    def unload(self) -> None:
        """See :class:`~.backend.Backend`."""
        self._weights = self._cache = self._hidden = self._prefix = None

    def embed(self, prompt: Prompt) -> Tensor:
        """Input embeddings of a prompt, ``[S, H]``: text rows, summed code rows in the slots."""
        is_audio = (prompt.ids == AUDIO_SLOT).to(self.device)
        ids = prompt.ids.clamp(min=0).to(self.device)
        x = functional.embedding(ids, self._loaded().text_embedding)
        if len(prompt.rows):
            x[is_audio] = self._embed_rows(prompt.rows)
        return x

    def _embed_rows(self, rows: Tensor) -> Tensor:
        """Sum of the N table rows of each code row: ``[R, N]`` → ``[R, H]``, summed in float32."""
        offsets = torch.arange(self.config.n_codebooks) * self.config.codebook_vocab
        table = self._loaded().audio_table
        picked = functional.embedding((rows + offsets).to(self.device), table)
        return picked.float().sum(dim=1).to(table.dtype)

    def _advance(self, x: Tensor) -> None:
        """Run S new positions ``[S, H]`` through the layers; keep the last final-norm hidden."""
        weights, cache = self._loaded(), self._cache
        positions = torch.arange(self._position, self._position + len(x), device=self.device)
        rotation = rope_table(positions, self.config, x.dtype)
        for i, layer in enumerate(weights.layers):
            x = forward_layer(layer, x, rotation, (cache, i, self._position), self.config)
        self._position += len(x)
        self._hidden = rmsnorm(x[-1], weights.norm, self.config.rms_eps)

    def _loaded(self) -> Weights:
        if self._weights is None:
            raise RuntimeError("reference backend: unloaded")
        return self._weights
