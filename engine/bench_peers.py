"""What a user would run instead, timed in the same process: transformers, and a graph of it.

The backbone of the same sizes with random bf16 weights, one sequence, one decode step at a fixed
position, with the audio head and the draw of the codes: once as transformers runs it (eager, sdpa),
once captured by hand into a torch CUDA graph with a static cache.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from .config import ModelConfig

logger = logging.getLogger(__name__)


def measure(
    config: ModelConfig, device: torch.device, *, position: int, runs: int
) -> dict[str, float]:
    """Milliseconds a step of each peer by key; a peer that does not run is left out, and logged."""
    figures = {}
    for name, build in (("transformers_eager", _eager_step), ("torch_cuda_graph", _graph_step)):
        try:
            with torch.inference_mode():
                step = build(config, device, position)
                key = f"peer_ms.{name}.bf16.pos{position}"
                figures[key] = _median_step_ms(step, device, runs)
                del step
        except (ImportError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            logger.warning("LiveVoice: peer %s was not measured: %s", name, error)
        torch.cuda.empty_cache()
    return figures


def _median_step_ms(step: Callable[[], object], device: torch.device, runs: int) -> float:
    for _ in range(3):
        step()
    took = []
    for _ in range(4 * runs):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        step()
        torch.cuda.synchronize(device)
        took.append(1e3 * (time.perf_counter() - start))
    return statistics.median(took)


def _backbone(config: ModelConfig, device: torch.device):
    from transformers import Qwen3Config, Qwen3Model

    sizes = Qwen3Config(
        vocab_size=8,  # the text embedding takes no part in a step
        hidden_size=config.hidden,
        intermediate_size=config.ffn,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=4096,
        attn_implementation="sdpa",
        dtype=torch.bfloat16,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return sizes, Qwen3Model(sizes).eval()
    finally:
        torch.set_default_dtype(before)


def _head(config: ModelConfig, device: torch.device) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The audio table, and hidden ``[1, 1, H]`` → the next input ``[1, 1, H]``."""
    N, V = config.n_codebooks, config.codebook_vocab
    table = torch.randn(N * V, config.hidden, device=device).mul_(0.02).bfloat16()
    offsets = torch.arange(N, device=device) * V

    def next_input(hidden: Tensor) -> Tensor:
        logits = (hidden[0, -1] @ table.T).float().view(N, V) / 0.8
        kth = logits.topk(50).values[:, -1:]
        kept = logits.masked_fill(logits < kth, -torch.inf).softmax(-1)
        # Exponential noise, not multinomial: that one waits for the host.
        codes = (kept / torch.empty_like(kept).exponential_()).argmax(-1)
        return table[codes + offsets].sum(0)[None, None]

    return table, next_input


def _eager_step(config: ModelConfig, device: torch.device, position: int) -> Callable[[], object]:
    from transformers import DynamicCache

    sizes, model = _backbone(config, device)
    _, next_input = _head(config, device)
    cache = DynamicCache(config=sizes)
    prompt = torch.randn(1, position, config.hidden, device=device, dtype=torch.bfloat16)
    x = next_input(model(inputs_embeds=prompt, past_key_values=cache).last_hidden_state)

    def step() -> Tensor:
        nonlocal x
        x = next_input(model(inputs_embeds=x, past_key_values=cache).last_hidden_state)
        return x

    return step


def _graph_step(config: ModelConfig, device: torch.device, position: int) -> Callable[[], object]:
    from transformers import StaticCache

    sizes, model = _backbone(config, device)
    _, next_input = _head(config, device)
    cache = StaticCache(config=sizes, max_cache_len=2 * position)
    prompt = torch.randn(1, position, config.hidden, device=device, dtype=torch.bfloat16)
    x = next_input(model(inputs_embeds=prompt, past_key_values=cache).last_hidden_state).clone()
    at = torch.tensor([position], device=device)

    def forward() -> None:
        hidden = model(
            inputs_embeds=x, past_key_values=cache, cache_position=at, position_ids=at[None]
        )
        x.copy_(next_input(hidden.last_hidden_state))

    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        for _ in range(3):
            forward()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        forward()
    return graph.replay
