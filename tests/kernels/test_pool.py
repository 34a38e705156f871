import os
import subprocess
import sys

import pytest
from kernels.oracle import needs_extension

pytestmark = needs_extension


@pytest.fixture
def extension():
    from livevoice.engine import _C

    yield _C
    _C.inject_fault(0)


def test_regions_are_named_aligned_and_apart(extension):
    arena = extension.Arena("test")
    sizes = {"a": 1, "b": 300, "c": 0, "d": 256}
    indices = [arena.reserve(name, size) for name, size in sizes.items()]
    assert arena.resident_bytes == 0
    arena.allocate(on_host=True)
    assert [(name, size) for name, _, size in arena.regions] == list(sizes.items())
    offsets = [offset for _, offset, _ in arena.regions]
    assert offsets == [0, 256, 768, 768]
    assert arena.layout_bytes == arena.resident_bytes == 1024
    base = arena.address(indices[0])
    assert [arena.address(i) - base for i in indices] == offsets
    arena.release()
    arena.release()
    assert arena.resident_bytes == 0


def test_a_region_after_the_allocation_is_refused(extension):
    arena = extension.Arena("test")
    arena.reserve("a", 10)
    arena.allocate(on_host=True)
    with pytest.raises(ValueError, match="arena test: region b comes after the allocation"):
        arena.reserve("b", 10)
    with pytest.raises(ValueError, match="allocated twice"):
        arena.allocate(on_host=True)


def test_an_injected_fault_strikes_once_at_its_step(extension):
    arenas = [extension.Arena(f"arena {i}") for i in range(3)]
    for arena in arenas:
        arena.reserve("a", 100)
    extension.inject_fault(2)
    arenas[0].allocate(on_host=True)
    with pytest.raises(MemoryError, match="out of GPU memory in arena 1"):
        arenas[1].allocate(on_host=True)
    assert arenas[1].resident_bytes == 0
    arenas[2].allocate(on_host=True)
    assert extension.fault_steps() == 3


def test_size_of_an_engine_is_known_without_a_gpu():
    from livevoice.engine import native
    from livevoice.engine.checkpoint import Checkpoint

    starter = Checkpoint.open("starter")
    small, large = (native.size_bytes(starter, p, 1024) for p in ("fp8", "bf16"))
    config = starter.config
    kv = config.n_layers * 4 * config.n_kv_heads * config.head_dim
    assert small < large
    assert native.size_bytes(starter, "fp8", 2048) - small == pytest.approx(
        1024 * (kv + 4 * config.head_dim), rel=0.01
    )


def test_import_without_a_driver_is_quick_and_the_first_use_says_why():
    code = (
        "import sys, time, torch, livevoice.engine\n"
        "start = time.perf_counter()\n"
        "from livevoice.engine import _C\n"
        "print(time.perf_counter() - start)\n"
        "try: _C.check_device(0)\n"
        "except (RuntimeError, ValueError) as error: print(error)\n"
    )
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    seconds, reason = done.stdout.strip().split("\n")
    assert float(seconds) < 0.5  # 2 ms on an idle machine
    assert reason.startswith("native backend: ")
    assert "\n" not in reason
