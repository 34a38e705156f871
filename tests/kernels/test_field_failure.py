"""The failure that users meet with captured graphs, without our memory: what the engine cures.

Under ComfyUI's default allocator (cudaMallocAsync) a tensor that was made while torch captured a
graph belongs to that graph. Freed after the graph is gone, its memory is handed back twice.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from kernels.oracle import needs_extension

TORCH_TENSORS = """
import torch
x = torch.ones(1 << 20, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2  # allocated while capturing: a memory node of the graph
del graph      # never replayed; its memory goes with it
torch.cuda.synchronize()
del y          # the tensor frees what it does not own any more
torch.cuda.synchronize()
print("survived")
"""
OWN_MEMORY = """
import torch
from livevoice.engine.checkpoint import Checkpoint
from livevoice.engine.native import NativeBackend
for _ in range(3):
    backend = NativeBackend(Checkpoint.open("starter"), torch.device("cuda", 0), "bf16", 256)
    torch.cuda.empty_cache()
    backend.unload()
torch.cuda.synchronize()
print("survived")
"""


def run(code: str, allocator: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": f"backend:{allocator}"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120,
        check=False,
    )  # fmt: skip


@pytest.mark.cuda
def test_torch_tensors_in_a_captured_graph_crash_the_process():
    done = run(TORCH_TENSORS, "cudaMallocAsync")
    assert done.returncode != 0 or "survived" not in done.stdout or "Warning" in done.stderr, (
        "this version of torch does not fail any more: the reason for our own memory is gone"
    )


@pytest.mark.cuda
@needs_extension
@pytest.mark.parametrize("allocator", ["cudaMallocAsync", "native"])
def test_the_engine_s_own_memory_survives(allocator: str):
    done = run(OWN_MEMORY, allocator)
    assert done.returncode == 0, done.stderr
    assert "survived" in done.stdout
