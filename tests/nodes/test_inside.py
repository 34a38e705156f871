"""Each test of the ``inside_*.py`` files, in each unpacked ComfyUI."""

from __future__ import annotations

import ast

import pytest

from .inside import FILES, back_ends, outcomes

TESTS = [
    node.name
    for file in FILES
    for node in ast.parse(file.read_text("utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
]


@pytest.fixture(scope="module", params=back_ends() or [None])
def inside(request, tmp_path_factory):
    if request.param is None:
        pytest.skip("no ComfyUI is unpacked; make test puts two there")
    return outcomes(request.param, tmp_path_factory.mktemp(f"comfyui {request.param}"))


def test_every_test_ran(inside):
    assert sorted(inside) == sorted(TESTS)


@pytest.mark.parametrize("name", TESTS)
def test_inside(inside, name):
    assert inside.get(name) == "", f"\n{inside.get(name, 'it did not run')}"
