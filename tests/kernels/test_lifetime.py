"""Loading, unloading, cancelling, failing: nothing is left behind, and the codes stay the same."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time

import pytest
import torch
from kernels.oracle import needs_extension
from livevoice.engine.checkpoint import Checkpoint
from livevoice.engine.prompt import Prompt
from livevoice.engine.sampling import SamplingParams

pytestmark = [pytest.mark.cuda, needs_extension]
CUDA = torch.device("cuda", 0)
CYCLES = int(os.environ.get("LIVEVOICE_TEST_CYCLES", "30"))
SLACK_BYTES = 4 << 20
SAMPLING = SamplingParams(seed=4)


@pytest.fixture
def extension():
    from livevoice.engine import _C

    yield _C
    _C.inject_fault(0)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open("starter")


def build(checkpoint: Checkpoint, precision: str = "fp8"):
    from livevoice.engine.native import NativeBackend, NativeCodec

    backend = NativeBackend(checkpoint, CUDA, precision, 512)
    try:
        return backend, NativeCodec(checkpoint, backend)
    except BaseException:
        backend.unload()
        raise


def prompt(seed: int = 0, n: int = 20) -> Prompt:
    ids = torch.randint(97, 123, (n,), generator=torch.Generator().manual_seed(seed))
    return Prompt(ids, torch.empty((0, 8), dtype=torch.int64))


def speak(backend, n: int = 30) -> torch.Tensor:
    backend.prefill(prompt())
    return torch.stack(list(backend.decode(SAMPLING, stream=0, max_rows=n)))


def free_bytes(collect: bool = True) -> int:
    if collect:
        gc.collect()  # takes longer than a cycle of the starter
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def test_cycles_leave_nothing_and_change_nothing(checkpoint: Checkpoint):
    expected, baseline, free = None, None, []
    for cycle in range(CYCLES + 1):
        backend, codec = build(checkpoint, ("fp8", "bf16")[cycle % 2 if cycle > CYCLES // 2 else 0])
        rows = speak(backend)
        codec.decode_window(rows[:8].clamp(max=1023))
        backend.unload()
        codec.unload()
        if cycle == 0:
            expected, baseline = rows, free_bytes()
        elif backend.precision == "fp8":
            assert torch.equal(rows, expected)
        free.append(free_bytes(collect=cycle in {1, CYCLES}))
    assert min(free[1:]) >= baseline - SLACK_BYTES
    assert free[-1] >= free[1] - (1 << 16), "the free memory falls from cycle to cycle"


def test_a_failure_at_any_step_of_loading_leaves_nothing(checkpoint: Checkpoint, extension):
    extension.inject_fault(0)
    backend, codec = build(checkpoint)
    n_steps = extension.fault_steps()
    expected = speak(backend)
    backend.unload()
    codec.unload()
    baseline = free_bytes()
    assert n_steps > 10
    for step in range(1, n_steps + 1):
        extension.inject_fault(step)
        with pytest.raises(MemoryError, match="injected"):
            build(checkpoint)
        assert free_bytes() >= baseline - SLACK_BYTES, f"step {step}"
    extension.inject_fault(0)
    backend, codec = build(checkpoint)
    assert torch.equal(speak(backend), expected)
    backend.unload()
    codec.unload()


def test_out_of_memory_is_one_sentence_and_leaves_nothing(checkpoint: Checkpoint):
    from livevoice.engine.native import NativeBackend

    backend, codec = build(checkpoint)
    backend.unload()
    codec.unload()
    baseline = free_bytes()
    torch.cuda.empty_cache()
    hog = torch.empty(int(torch.cuda.mem_get_info()[0] - (8 << 20)), dtype=torch.uint8, device=CUDA)
    with pytest.raises(MemoryError, match=r"out of GPU memory, .* needs \d+ MB and \d+ of \d+ MB"):
        NativeBackend(checkpoint, CUDA, "bf16", 2048)
    del hog
    torch.cuda.empty_cache()
    assert free_bytes() >= baseline - SLACK_BYTES


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.02])
def test_unload_from_another_thread_ends_a_generation(checkpoint: Checkpoint, delay_s: float):
    backend, codec = build(checkpoint)
    took = []

    def unload() -> None:
        time.sleep(delay_s)
        start = time.perf_counter()
        backend.unload()
        took.append(time.perf_counter() - start)

    backend.prefill(prompt())
    thread = threading.Thread(target=unload)
    thread.start()
    with contextlib.suppress(RuntimeError):  # unloaded before the first row was asked for
        for _ in backend.decode(SamplingParams(1.0, 0, 1.0, 1), stream=0, max_rows=400):
            pass
    thread.join(10)
    codec.unload()
    assert took[0] < 0.1
    assert backend.resident_bytes == 0


def test_two_engines_in_two_threads(checkpoint: Checkpoint):
    backends = [build(checkpoint) for _ in range(2)]
    expected = speak(backends[0][0])
    results: list[list[torch.Tensor]] = [[], []]

    def run(i: int) -> None:
        for _ in range(5):
            results[i].append(speak(backends[i][0]))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for backend, codec in backends:
        backend.unload()
        codec.unload()
    assert [len(rows) for rows in results] == [5, 5]
    assert all(torch.equal(rows, expected) for each in results for rows in each)


def test_beside_a_captured_graph_of_torch(checkpoint: Checkpoint):
    x = torch.randn(256, 256, device=CUDA)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x @ x
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    backend, codec = build(checkpoint)
    expected = speak(backend)
    with torch.cuda.graph(graph, stream=stream):
        y = x @ x
    graph.replay()
    torch.cuda.empty_cache()
    assert torch.equal(speak(backend), expected)
    backend.unload()
    codec.unload()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.allclose(y, x @ x, rtol=1e-3, atol=1e-3)
