"""What can be seen in the nodes' source, without ComfyUI."""

from __future__ import annotations

import ast
from pathlib import Path

NODES = sorted((Path(__file__).parents[2] / "nodes").glob("*.py"))
# Fields of io.Schema in ComfyUI 0.3.64: one more would be a TypeError there, for the whole pack.
SCHEMA_FIELDS = {
    "node_id", "display_name", "category", "inputs", "outputs", "hidden", "description",
    "is_input_list", "is_output_node", "is_deprecated", "is_experimental", "is_api_node",
    "not_idempotent", "enable_expand",
}  # fmt: skip


def test_schemas_use_fields_that_old_comfyui_has():
    schemas = [
        call
        for file in NODES
        for call in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "io.Schema"
    ]
    assert schemas
    for schema in schemas:
        assert {field.arg for field in schema.keywords} <= SCHEMA_FIELDS


def test_executes_are_short():
    for file in NODES:
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef) and function.name == "execute":
                # Lines of the body; its signature and docstring describe the node's inputs.
                n_lines = function.end_lineno - function.body[0].end_lineno
                assert n_lines <= 30, f"{file.name}: execute has {n_lines} lines"
