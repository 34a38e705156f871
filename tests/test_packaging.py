"""What is shipped: nothing else than needed, small, and it changes no package of a ComfyUI."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STARTER = ROOT / "engine" / "starter"
MEDIA = {".jpg", ".png", ".flac"}
LIMIT_BYTES = 8 << 20
ENVIRONMENTS = json.loads((ROOT / "tests" / "environments.json").read_text("utf-8"))
"""ComfyUI's requirements as a resolver installs them, with old, middle and new torch and
transformers."""


def tracked(*options: str) -> set[str]:
    done = subprocess.run(
        ["git", "ls-files", "-z", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    return {name for name in done.stdout.split("\0") if name}


def listed() -> dict[str, str]:
    lines = (STARTER / "SHA256SUMS").read_text("utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", sorted(listed()))
def test_the_starter_is_what_its_list_of_hashes_says(name):
    assert sha256(STARTER / name) == listed()[name]


def test_nothing_opaque_is_in_git_but_the_starter_s_weights():
    opaque = {name for name in tracked() if b"\0" in (ROOT / name).read_bytes()}
    pictures_and_sounds = {name for name in opaque if Path(name).suffix in MEDIA}
    weights = {f"engine/starter/{name}" for name in listed()}
    assert opaque - pictures_and_sounds <= weights


def test_the_registry_gets_what_is_needed_and_nothing_else():
    packed = tracked() - tracked("-ci", "--exclude-from=.comfyignore")
    needed = {"__init__.py", "pyproject.toml", "requirements.txt", "LICENSE", "README.md"}
    assert needed | {"setup.py", "csrc/bindings.cpp", "nodes/__init__.py"} <= packed
    assert {f"engine/starter/{name}" for name in [*listed(), "NOTICE"]} <= packed
    tops = {name.split("/")[0] for name in packed}
    folders = {"csrc", "engine", "locales", "nodes", "workflows"}
    assert tops == needed | folders | {"__main__.py", "setup.py"}
    assert not [name for name in packed if re.search(r"(^|/)(tests|recipe|\.)", name)]


def test_both_lists_of_requirements_are_one():
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    block = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.M | re.S)[1]
    in_project = re.findall(r'"([^"]+)"', block)
    assert in_project == (ROOT / "requirements.txt").read_text("utf-8").split()
    assert not any(re.match(r"torch|transformers|comfy", each) for each in in_project)
    assert not any(re.search(r"<|==|~=", each) for each in in_project), "no pin, no upper bound"


def build(source: Path, dist: Path) -> Path:
    """The pure wheel of the tracked files, as the release tool builds it."""
    for name in tracked():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
        target.chmod(0o644)
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(dist)],
        cwd=source, capture_output=True, text=True, check=False,
        env={**os.environ, "LIVEVOICE_PURE": "1", "SOURCE_DATE_EPOCH": "1700000000"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build(folder / "source", folder / "dist")


def test_the_wheel_has_what_is_needed_and_nothing_else(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < LIMIT_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    about = {name for name in names if ".dist-info/" in name}
    needed = re.compile(
        r"__(init|main)__\.py|(engine|nodes)/\w+\.py|engine/\w+\.json|(locales|nodes/web)/.+|"
        r"workflows/.+"
    )
    assert names - about == {f"livevoice/{name}" for name in tracked() if needed.fullmatch(name)}
    assert {Path(name).name for name in about} == {
        "LICENSE", "METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt",
    }  # fmt: skip


def test_the_same_source_gives_the_same_wheel_in_any_folder(wheel, tmp_path):
    again = build(tmp_path / "else where ä" / "source", tmp_path / "dist")
    assert sha256(again) == sha256(wheel)


def stub(folder: Path, packages: dict[str, str]) -> Path:
    """An environment that has these packages as far as pip can see; returns its Python."""
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"), folder / "Lib" / "site-packages")
    for name, version in packages.items():
        about = site / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (about / "METADATA").write_text(text)
        (about / "INSTALLER").write_text("pip\n")
        (about / "RECORD").touch()
    return next(path for path in folder.glob("[bS]*/python*") if path.exists())


def would_install(python: Path, wheel: Path, report: Path) -> dict[str, str]:
    """Name → version of what pip would put there for the wheel."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--dry-run", "--quiet",
         "--retries", "1", "--report", str(report), str(wheel)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and re.search(r"Retrying|onnection|resolve host", done.stderr):
        pytest.skip("the package index can't be reached")
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())["install"]
    return {each["metadata"]["name"].lower(): each["metadata"]["version"] for each in found}


@pytest.mark.parametrize(
    "environment",
    ENVIRONMENTS,
    ids=lambda each: (
        f"ComfyUI {each['comfyui']}, torch {each['packages']['torch']}, "
        f"transformers {each['packages']['transformers']}"
    ),
)
def test_the_wheel_changes_no_package_of_a_comfyui(environment, wheel, tmp_path):
    packages = environment["packages"]
    new = would_install(stub(tmp_path / "env", packages), wheel, tmp_path / "report.json")
    assert not new.keys() & packages.keys()
    assert new.keys() == {"livevoice", "num2words", "docopt", "budoux"}


def test_a_package_that_would_be_changed_is_seen(wheel, tmp_path):
    python = stub(tmp_path / "env", {**ENVIRONMENTS[0]["packages"], "safetensors": "0.4.0"})
    assert "safetensors" in would_install(python, wheel, tmp_path / "report.json")


def test_the_environments_span_what_is_supported():
    seen = {
        name: sorted({each["packages"][name] for each in ENVIRONMENTS}, key=numbers)
        for name in ("torch", "transformers")
    }
    assert seen["torch"][0].startswith("2.6.")
    assert seen["transformers"][0].startswith("4.46.")
    assert seen["transformers"][-1].startswith("5.")
    there = {each["comfyui"] for each in ENVIRONMENTS}
    server = (ROOT / "tests" / "comfy" / "comfyui.py").read_text("utf-8")
    assert there == set(re.findall(r'^(?:NEWEST|OLDEST) = "(.+)"', server, re.M))


def numbers(version: str) -> list[int]:
    return [int(each) for each in version.split(".")]


def test_without_the_starter_the_sentence_says_where_it_is(monkeypatch, tmp_path):
    from livevoice.engine import checkpoint, starter_voices, voice_file

    monkeypatch.setattr(checkpoint, "STARTER_FOLDER", tmp_path / "gone")
    monkeypatch.setattr(voice_file, "STARTER_FOLDER", tmp_path / "gone")
    assert starter_voices() == {}
    with pytest.raises(checkpoint.CheckpointError, match="pip install livevoice-starter"):
        checkpoint.find("starter")


def test_the_door_imports_nothing():
    heavy = {"torch", "numpy", "transformers", "torchaudio", "livevoice.engine", "livevoice.nodes"}
    code = f"import sys, livevoice; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
