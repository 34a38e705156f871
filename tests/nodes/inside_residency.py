"""What ComfyUI's model manager does with an engine, against the real manager."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import comfy.model_management as management
import comfy.model_patcher
import pytest
import torch
from livevoice.nodes import residency
from livevoice.nodes.residency import EnginePatcher, patcher_of, recognised_out_of_memory

GB = 1 << 30
CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)


class FakeEngine:
    """An engine that holds no weights and does what a test wants."""

    def __init__(self, device=CPU, size_bytes=2 * GB):
        self.device, self.size_bytes, self.precision = device, size_bytes, "bf16"
        self.checkpoint = SimpleNamespace(path=Path("fake"))
        self.resident_bytes = 0
        self.loads = self.unloads = 0
        self.failure = None

    @property
    def is_loaded(self):
        return self.resident_bytes > 0

    def load(self):
        if self.failure:
            raise self.failure
        self.loads += not self.is_loaded
        self.resident_bytes = self.size_bytes

    def unload(self):
        self.unloads += self.is_loaded
        self.resident_bytes = 0
        if self.failure:
            raise self.failure


@pytest.fixture(autouse=True)
def clean_manager():
    management.unload_all_models()
    management.current_loaded_models.clear()
    yield
    management.unload_all_models()
    assert management.current_loaded_models == []


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 8 GB in the manager's eyes; the list holds the engines that take from it."""
    engines = []

    def free(dev=None, torch_free_too=False):
        here = [each for each in engines if dev in (None, each.device)]
        left = 8 * GB - sum(each.resident_bytes for each in here)
        return (left, 0) if torch_free_too else left

    monkeypatch.setattr(management, "get_torch_device", lambda: CUDA)
    monkeypatch.setattr(management, "get_free_memory", free)
    monkeypatch.setattr(management, "vram_state", management.VRAMState.NORMAL_VRAM)
    yield engines
    management.free_memory(1e30, CUDA)


def test_a_second_run_keeps_the_weights():
    engine = FakeEngine()
    patcher = EnginePatcher.over(engine)
    for _ in range(3):
        patcher.make_resident()
    assert (engine.loads, engine.unloads) == (1, 0)
    assert len(management.current_loaded_models) == 1
    assert patcher.loaded_size() == patcher.model_size() == engine.size_bytes
    assert patcher.current_loaded_device() == patcher.load_device == CPU


def test_unload_all_frees_everything_and_the_next_run_loads():
    engine = FakeEngine()
    patcher = EnginePatcher.over(engine)
    for _ in range(2):
        patcher.make_resident()
        management.unload_all_models()
        assert engine.resident_bytes == 0
        assert management.current_loaded_models == []
    assert engine.loads == engine.unloads == 2


def test_partially_load_says_what_it_added():
    patcher = EnginePatcher.over(FakeEngine())
    assert patcher.partially_load(patcher.load_device, 0.1) == 2 * GB
    assert patcher.partially_load(patcher.load_device, -1.0, force_patch_weights=True) == 0
    assert patcher.partially_unload(patcher.offload_device, 1) == 0
    assert patcher.partially_unload_ram(1e32, subsets=["weights"]) == 0


def test_a_failed_load_leaves_no_entry_and_no_bytes():
    engine = FakeEngine()
    patcher = EnginePatcher.over(engine)
    engine.failure = RuntimeError("CUDA error: out of memory")
    with pytest.raises(torch.cuda.OutOfMemoryError, match="out of memory"):
        patcher.make_resident()
    assert management.current_loaded_models == []
    assert patcher.loaded_size() == 0
    engine.failure = None
    patcher.make_resident()
    assert len(management.current_loaded_models) == 1


def test_detach_never_raises_and_the_manager_goes_on():
    engine, other = FakeEngine(), FakeEngine()
    patcher, neighbour = EnginePatcher.over(engine), EnginePatcher.over(other)
    patcher.make_resident()
    neighbour.make_resident()
    engine.failure = RuntimeError("driver trouble")
    management.unload_all_models()
    engine.failure = None
    assert management.current_loaded_models == []
    neighbour.make_resident()
    assert other.is_loaded


def test_a_clone_is_the_same_engine():
    engine = FakeEngine()
    patcher = EnginePatcher.over(engine)
    clone = patcher.clone()
    assert isinstance(clone, EnginePatcher)
    assert clone.engine is engine
    assert clone.is_clone(patcher)
    assert patcher.is_clone(clone)
    assert patcher.is_clone(patcher)
    patcher.make_resident()
    clone.make_resident()
    assert (engine.loads, len(management.current_loaded_models)) == (1, 1)
    del patcher
    gc.collect()
    clone.make_resident()
    assert (engine.loads, engine.unloads) == (1, 0)


def test_other_objects_are_no_clones():
    patcher = EnginePatcher.over(FakeEngine())
    stranger = comfy.model_patcher.ModelPatcher(torch.nn.Linear(2, 2), CPU, CPU)
    for other in (stranger, EnginePatcher.over(FakeEngine()), object(), None):
        assert not patcher.is_clone(other)
    assert not stranger.is_clone(patcher)


def test_a_foreign_model_beside_it_loads_and_leaves():
    engine = FakeEngine()
    patcher = EnginePatcher.over(engine)
    stranger = comfy.model_patcher.ModelPatcher(torch.nn.Linear(2, 2), CPU, CPU)
    management.load_models_gpu([stranger, patcher])
    assert len(management.current_loaded_models) == 2
    management.unload_all_models()
    assert not engine.is_loaded


def test_the_last_reference_frees_the_engine():
    engine = FakeEngine()
    patcher = EnginePatcher.over(engine)
    patcher.make_resident()
    del patcher
    assert engine.resident_bytes == 0
    assert management.current_loaded_models == []


def test_a_half_built_patcher_dies_in_silence(monkeypatch):
    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    patcher = EnginePatcher.__new__(EnginePatcher)
    del patcher
    assert complaints == []


def test_comfyui_asks_for_nothing_unknown(monkeypatch):
    unknown = set()

    class Recording(EnginePatcher):
        def __getattr__(self, name):
            unknown.add(name)
            raise AttributeError(name)

    def missing_in_module(_, name):
        unknown.add(f"model.{name}")
        raise AttributeError(name)

    patcher = Recording.over(FakeEngine())
    monkeypatch.setattr(residency.LiveVoice, "__getattr__", missing_in_module, raising=False)
    patcher.make_resident()
    patcher.make_resident()
    for freed_bytes in (0, 1, 1e30):
        management.free_memory(freed_bytes, patcher.load_device)
        patcher.make_resident()
    management.use_more_memory(GB, management.current_loaded_models, patcher.load_device)
    management.loaded_models(only_currently_used=True)
    management.cleanup_models_gc()
    management.cleanup_models()
    if hasattr(management, "unload_model_and_clones"):
        management.unload_model_and_clones(patcher)
    if hasattr(comfy.model_patcher, "PromptModelTracker"):
        tracker = comfy.model_patcher.PromptModelTracker()
        tracker.start()
        tracker.add([[patcher]])
        tracker.end()
    management.unload_all_models()
    patcher.clone()
    assert unknown == set()
    assert not hasattr(patcher, "anything_new")
    assert not hasattr(patcher.model, "anything_new")
    assert unknown == {"anything_new", "model.anything_new"}


def test_a_gpu_engine_counts_where_comfyui_computes(gpu):
    engine = FakeEngine(torch.device("cuda:0"))
    gpu.append(engine)
    patcher = EnginePatcher.over(engine)
    assert patcher.load_device is CUDA
    patcher.make_resident()
    assert patcher.get_ram_usage() == 0
    assert management.current_loaded_models[0].model_offloaded_memory() == 0
    management.free_memory(7 * GB, CUDA)
    assert engine.resident_bytes == 0


def test_room_is_made_before_loading(gpu):
    first, second = (FakeEngine(CUDA, size_bytes=5 * GB) for _ in range(2))
    gpu.extend([first, second])
    patchers = [EnginePatcher.over(each) for each in (first, second)]
    patchers[0].make_resident()
    patchers[1].make_resident()
    assert (first.is_loaded, second.is_loaded) == (False, True)
    patchers[0].make_resident()
    assert (first.is_loaded, second.is_loaded) == (True, False)


def test_what_fits_stays(gpu):
    first, second = (FakeEngine(CUDA, size_bytes=2 * GB) for _ in range(2))
    gpu.extend([first, second])
    patchers = [EnginePatcher.over(each) for each in (first, second)]
    for _ in range(2):
        for patcher in patchers:
            patcher.make_resident()
    assert (first.loads, second.loads) == (1, 1)


def test_an_engine_on_the_cpu_takes_no_part_in_gpu_accounting(gpu):
    engine = FakeEngine(CPU, size_bytes=20 * GB)
    gpu.append(engine)
    patcher = EnginePatcher.over(engine)
    patcher.make_resident()
    management.free_memory(1e30, CUDA)
    assert engine.is_loaded
    assert patcher.get_ram_usage() == 20 * GB
    patcher.make_resident()
    assert engine.loads == 1


def test_out_of_memory_becomes_the_type_that_comfyui_knows():
    for error in (
        MemoryError(),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ):
        with pytest.raises(torch.cuda.OutOfMemoryError), recognised_out_of_memory():
            raise error
    with pytest.raises(RuntimeError, match="other") as caught, recognised_out_of_memory():
        raise RuntimeError("other")
    assert not isinstance(caught.value, torch.cuda.OutOfMemoryError)


def test_one_checkpoint_is_one_patcher():
    patcher = patcher_of("starter", "auto", "auto")
    assert patcher_of("starter", "cpu", "auto") is patcher
    assert patcher_of("starter", "cpu", "fp32") is patcher
    assert patcher_of("starter", "cpu", "bf16") is not patcher
    assert not patcher.engine.is_loaded


def test_a_replaced_checkpoint_is_another(tmp_path):
    starter = Path(residency.__file__).parents[1] / "engine" / "starter"
    for file in starter.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    patcher = patcher_of(tmp_path, "cpu", "auto")
    assert patcher_of(str(tmp_path), "cpu", "auto") is patcher
    (tmp_path / "generation_config.json").write_text("{}")
    assert patcher_of(tmp_path, "cpu", "auto") is not patcher


def test_the_registry_keeps_nothing_alive():
    patcher = patcher_of("starter", "cpu", "auto")
    patcher.make_resident()
    assert patcher.loaded_size() == patcher.engine.resident_bytes > 0
    engine, alive = patcher.engine, weakref.ref(patcher)
    del patcher
    assert alive() is None
    assert not engine.is_loaded
    assert len(residency._live) == 0


def test_a_missing_gpu_is_one_sentence():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(RuntimeError, match="no NVIDIA GPU"):
        patcher_of("starter", "cuda", "auto")
