"""The nodes always appear, and what is wrong is said in one sentence by the first that runs."""

from __future__ import annotations

import ast
import compileall
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .inside import BACK_ENDS, back_ends
from .loading import CASES, DRIVER, GPU_CASES

ROOT = Path(__file__).resolve().parents[2]
ODD_NAME = "Live Voice ä 声"
SHIPPED = ("__init__.py", "pyproject.toml", "requirements.txt", "setup.py")
FOLDERS = ("engine", "nodes", "locales", "workflows")
NODES = sorted(
    keyword.value.value
    for file in (ROOT / "nodes").glob("*.py")
    for call in ast.walk(ast.parse(file.read_text("utf-8")))
    if isinstance(call, ast.Call) and ast.unparse(call.func) == "io.Schema"
    for keyword in call.keywords
    if keyword.arg == "node_id"
)


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module", params=back_ends() or [None])
def outcomes(request, tmp_path_factory):
    """Case → what it gave, in that ComfyUI, of a copy of the pack without the extension."""
    if request.param is None:
        pytest.skip("no ComfyUI is unpacked; make test puts two there")
    if not hasattr(os, "fork"):
        pytest.skip("a process can't be forked here")
    base = tmp_path_factory.mktemp(f"comfyui {request.param}")
    pack, answers = base / "custom_nodes" / ODD_NAME, base / "answers"
    pack.mkdir(parents=True)
    answers.mkdir()
    unwanted = shutil.ignore_patterns("__pycache__", "_C.*", "recipe")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, pack / name, ignore=unwanted)
    for name in SHIPPED:
        shutil.copy(ROOT / name, pack)
    (pack.parent / "empty.py").write_text("NODE_CLASS_MAPPINGS = {}")
    compileall.compile_dir(pack, quiet=1)  # as any start but the first finds it
    before = contents(pack)
    env = {**os.environ, "PYTHONPATH": str(BACK_ENDS / request.param), "HF_HUB_OFFLINE": "1"}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    script = Path(__file__).with_name("loading.py")
    done = subprocess.run(
        [sys.executable, str(script), "--cpu", "--base-directory", str(base)], cwd=base,
        env=env | {"PACK": str(pack), "ANSWERS": str(answers)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for folder in [pack, *(path for path in pack.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)  # so that it can be removed
    found = {path.stem: json.loads(path.read_text()) for path in answers.glob("*.json")}
    if found.keys() != CASES.keys() | GPU_CASES.keys():
        pytest.fail(f"cases have no outcome:\n{done.stdout}{done.stderr}")
    assert contents(pack) == before, "the pack's folder was written to"
    print(f"ComfyUI {request.param} loads it in {found['plain']['load_s']:.2f} s")  # noqa: T201
    return found


@pytest.mark.parametrize("case", [*CASES, *GPU_CASES])
def test_nodes_always_appear(outcomes, case):
    assert outcomes[case]["nodes"] == NODES
    assert len(NODES) > 10


@pytest.mark.parametrize(
    "case", ["plain", "torchaudio absent", "transformers absent", "transformers old", "read only"]
)
def test_it_speaks_without_what_speaking_does_not_need(outcomes, case):
    assert outcomes[case]["refused"]["speak"] == ""
    (reason,) = {*outcomes[case]["reasons"]}
    assert reason.endswith("the native backend needs an NVIDIA GPU, the device is cpu")
    assert not [line for line in outcomes[case]["said"] if "starter knows its own" not in line]


@pytest.mark.parametrize("case", ["plain", "torchaudio absent", "read only"])
def test_it_clones_without_torchaudio_and_where_nothing_can_be_written(outcomes, case):
    assert outcomes[case]["refused"]["clone"] == ""


@pytest.mark.parametrize("case", ["transformers absent", "transformers old"])
def test_cloning_asks_for_transformers(outcomes, case):
    said = outcomes[case]["refused"]["clone"]
    assert said.startswith("codec: encoding a voice needs transformers")
    assert "pip install" in said


def test_requirements_that_were_not_installed_are_named(outcomes):
    said = outcomes["requirements absent"]["refused"]["speak"]
    assert "num2words" in said
    assert sys.executable in said
    assert f'{ODD_NAME}{os.sep}requirements.txt"' in said


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("gpu without extension", "the CUDA extension is not built for CPython "),
        ("broken extension", "the CUDA extension does not load: libm.so.6: version `GLIBC_2.99'"),
        ("wrong driver", DRIVER),
        ("unsupported gpu", "the CUDA extension needs a GPU of compute capability 8.9 or newer"),
    ],
)
def test_what_keeps_the_engine_off_a_gpu_is_said_once(outcomes, case, reason):
    (told,) = outcomes[case]["reasons"]
    assert told in outcomes[case]["said"]
    assert told.startswith("LiveVoice: reference backend, cuda")
    assert reason in told
    assert "\n" not in told
    assert outcomes[case]["refused"]["auto"] == ""
    refused = outcomes[case]["refused"]["fp8"]
    assert refused.startswith(f"precision fp8 needs the native backend, which is off: {reason}")


def test_a_pack_that_was_cloned_says_where_to_build(outcomes):
    (told,) = outcomes["gpu without extension"]["reasons"]
    assert f"run python setup.py build_ext --inplace in {os.sep}" in told
    assert told.endswith(ODD_NAME)


def test_loading_imports_nothing_that_comfyui_has_not(outcomes):
    """What makes it fast: the packages that text and voices need are imported when they speak."""
    assert outcomes["plain"]["imported"] == []
