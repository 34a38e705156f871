"""The laws of the house, checked on the source: who may import what, and how long things may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGINE = sorted(path for path in (ROOT / "engine").glob("*.py"))
NODES = sorted((ROOT / "nodes").rglob("*.py"))
PACK = [ROOT / "__init__.py", ROOT / "__main__.py", *ENGINE, *NODES]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
CUDA = sorted(
    path for path in (ROOT / "csrc").rglob("*") if path.suffix in {".cu", ".cuh", ".h", ".cpp"}
)
COMFY = {"comfy", "comfy_api", "comfy_extras", "comfy_execution", "folder_paths", "server", "nodes"}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[int, str, int, list[str]]]:
    """(line, module, level of dots, names) of each import."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, 0, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            yield node.lineno, node.module or "", node.level, names


def test_only_nodes_know_comfyui():
    for path in {*PACK} - {*NODES}:
        for line, module, level, _ in imports(path):
            known = module.split(".")[0] in COMFY and level == 0
            assert not known, f"{name(path)}:{line} imports {module}"


def test_nodes_take_from_the_engine_what_it_exports():
    import livevoice.engine

    for path in NODES:
        for line, module, level, names in imports(path):
            if level > 0 and module.split(".")[0] == "engine":
                assert module == "engine", f"{name(path)}:{line} reaches into {module}"
                missing = set(names) - set(livevoice.engine.__all__)
                assert not missing, f"{name(path)}:{line} imports {missing}"


def test_engine_does_not_know_nodes():
    for path in ENGINE:
        for line, module, level, names in imports(path):
            known = level > 1 or "nodes" in [module.split(".")[0], *names]
            assert not known, f"{name(path)}:{line}"


def test_imports_inside_the_pack_are_relative_and_the_path_is_left_alone():
    for path in PACK:
        text = path.read_text("utf-8")
        assert "sys.path" not in text, name(path)
        for line, module, _, _ in imports(path):
            assert module.split(".")[0] != "livevoice", f"{name(path)}:{line}"


def test_only_native_imports_the_extension():
    for path in PACK:
        for line, module, level, names in imports(path):
            if level and ("_C" in names or module.split(".")[-1] == "_C"):
                assert path.name == "native.py", f"{name(path)}:{line}"


def test_engine_import_is_light():
    code = (
        "import sys, livevoice, livevoice.engine\n"
        "heavy = {'transformers', 'torchaudio', 'scipy', 'livevoice.engine._C'}\n"
        "print(sorted((heavy | {'livevoice.nodes'}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_csrc_keeps_its_borders():
    for path in CUDA:
        text = path.read_text("utf-8")
        assert not re.search(r"#include\s*[<\"](torch|ATen|c10)/", text), name(path)
        if path.name != "bindings.cpp":
            assert "pybind11" not in text, name(path)


@pytest.mark.parametrize("path", [*PACK, *CUDA], ids=name)
def test_sizes_of_the_model_come_from_its_config(path: Path):
    """No literal of the real model: hidden 2560, ffn 9728, vocab 151936, codebook 1024 to 1026."""
    if path.name == "config.py":
        return
    literals = re.findall(r"(?<![\w.])(?:2560|9728|151936|1026|1025)(?![\w.])", code_of(path))
    assert not literals, f"{name(path)} has {literals}"


def code_of(path: Path) -> str:
    """The text without comments and docstrings."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    return ast.unparse(_without_docstrings(ast.parse(text)))


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [each for each in body if not (isinstance(each, ast.Expr) and is_text(each))]
            node.body = kept or [ast.Pass()]
    return tree


def is_text(node: ast.Expr) -> bool:
    return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@pytest.mark.parametrize("path", [*PACK, *TESTS, *CUDA], ids=name)
def test_files_and_functions_are_short(path: Path):
    text = path.read_text("utf-8")
    assert text.count("\n") <= 400, f"{name(path)} has {text.count(chr(10))} lines"
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = node.end_lineno - node.lineno + 1
                assert length <= 60, f"{name(path)}: {node.name} has {length} lines"
