import pytest
import torch
from livevoice.engine import backend
from livevoice.engine.checkpoint import Checkpoint

CPU_ONLY = pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a machine without a GPU")


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return Checkpoint.open("starter")


def test_cpu_runs_the_reference_and_says_why(checkpoint: Checkpoint):
    choice = backend.choose(checkpoint, "cpu", "auto")
    assert (choice.backend, choice.precision) == ("reference", "fp32")
    assert choice.reason == "the native backend needs an NVIDIA GPU, the device is cpu"


def test_large_models_stay_bf16_on_a_cpu(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "_FP32_LIMIT_BYTES", 1000)
    assert backend.choose(checkpoint, "cpu", "auto").precision == "bf16"


@pytest.mark.parametrize(
    ("device", "precision", "message"),
    [
        ("cpu", "int4", "precision must be one of auto, fp32, bf16, fp8, got 'int4'"),
        ("cpu", "fp8", "fp8 needs the native backend, which is off"),
        ("toaster", "auto", "device must be auto, cpu or cuda, got 'toaster'"),
    ],
)
def test_wrong_wishes_are_refused(checkpoint: Checkpoint, device, precision, message):
    with pytest.raises(ValueError, match=message):
        backend.choose(checkpoint, device, precision)


@CPU_ONLY
def test_missing_gpu_is_said(checkpoint: Checkpoint):
    with pytest.raises(RuntimeError, match="torch sees no NVIDIA GPU; choose auto or cpu"):
        backend.choose(checkpoint, "cuda", "auto")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_announced_size_is_the_size_held(checkpoint: Checkpoint, precision: str):
    choice = backend.choose(checkpoint, "cpu", precision)
    announced = backend.size_bytes(choice, checkpoint, 1024)
    runs = backend.create(choice, checkpoint, 1024)
    codec = backend.create_codec(choice, checkpoint, runs)
    assert runs.resident_bytes + codec.resident_bytes == announced
