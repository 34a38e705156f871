"""The engine at the real sizes, random weights, against float32 on the same GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.oracle import needs_extension
from kernels.test_backend import bf16_rope, cosine, forced_logits, prompt  # noqa: F401 (a fixture)
from livevoice.engine.bench_model import real_sizes, write_random
from livevoice.engine.checkpoint import Checkpoint
from livevoice.engine.reference import ReferenceBackend

pytestmark = [pytest.mark.cuda, needs_extension]
CUDA = torch.device("cuda", 0)
NEEDED_GB = 40


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    if torch.cuda.mem_get_info()[0] < NEEDED_GB * 1e9:
        pytest.skip(f"needs {NEEDED_GB} GB of free GPU memory")
    folder = write_random(tmp_path_factory.mktemp("real"), real_sizes(), CUDA)
    torch.cuda.empty_cache()
    yield Checkpoint.open(folder)
    (Path(folder) / "model.safetensors").unlink()


@pytest.mark.usefixtures("bf16_rope")
def test_teacher_forced_logits(checkpoint: Checkpoint, capsys: pytest.CaptureFixture):
    from livevoice.engine.native import NativeBackend

    oracle = ReferenceBackend(checkpoint, CUDA, "fp32", 1024)
    bf16, fp8 = (NativeBackend(checkpoint, CUDA, p, 1024) for p in ("bf16", "fp8"))
    worst = {"bf16": 1.0, "fp8": 1.0}
    for request in (prompt(13), prompt(60, 240)):
        for expected, *got in forced_logits([oracle, bf16, fp8], request, n=30):
            for name, logits in zip(worst, got, strict=True):
                worst[name] = min(worst[name], cosine(logits, expected))
            top = expected.topk(2, dim=-1).values
            is_clear = top[:, 0] - top[:, 1] > 0.05 * expected.std()
            assert torch.equal(got[0].argmax(-1)[is_clear], expected.argmax(-1)[is_clear])
    with capsys.disabled():
        print(f"\nreal sizes, worst cosine of 60 teacher-forced rows: {worst}")  # noqa: T201
    bf16.unload()
    fp8.unload()
    assert worst["bf16"] >= 0.9999
    assert worst["fp8"] >= 0.999
