"""A workflow as the browser saves it (UI format 0.4), turned into the prompt that the server runs.

Knows only what this pack's workflows use. What it does not know it refuses, so that a test never
runs something else than the file says: muted and bypassed nodes, subgraphs, reroutes, dynamic
inputs.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_WIDGET_TYPES = frozenset({"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"})
_COMMENTS = frozenset({"Note", "MarkdownNote"})
_MODES = {2: "muted", 4: "bypassed"}
# Inputs of these names get a "control after generate" widget even when their node does not ask.
_SEEDS = frozenset({"seed", "noise_seed"})


def to_prompt(workflow: Json, object_info: Json) -> Json:
    """Turn a UI workflow into an API prompt.

    Args:
        workflow: the parsed file.
        object_info: node id → description, as ``GET /object_info`` answers.

    Returns:
        node number (a string) → ``{"class_type": ..., "inputs": {...}}``.

    Raises:
        ValueError: the workflow holds something that this does not convert, or does not fit the
            nodes' descriptions.
    """
    if workflow.get("definitions", {}).get("subgraphs"):
        raise ValueError("workflow: subgraphs are not converted")
    nodes = [node for node in workflow["nodes"] if node["type"] not in _COMMENTS]
    sources = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    return {str(node["id"]): _to_call(node, sources, object_info) for node in nodes}


def _to_call(node: Json, sources: dict[int, list], object_info: Json) -> Json:
    place = f"workflow: node {node['id']} ({node['type']})"
    if node.get("mode", 0) in _MODES:
        raise ValueError(f"{place} is {_MODES[node['mode']]}")
    if node["type"] not in object_info:
        raise ValueError(f"{place} is of a type that the server does not have")
    described = _inputs(object_info[node["type"]])
    inputs = _widget_values(node, described, place)
    for slot in node.get("inputs", []):
        if slot.get("link") is None:
            continue
        if slot["name"] not in described or slot["link"] not in sources:
            raise ValueError(f"{place}: input {slot['name']} is not described or its link is lost")
        inputs[slot["name"]] = sources[slot["link"]]
    return {"class_type": node["type"], "inputs": inputs}


def _inputs(description: Json) -> dict[str, tuple[Any, Json]]:
    """Name → (type, options) in the order in which widgets are made."""
    found = {}
    for group in ("required", "optional"):
        for name, (kind, *options) in description["input"].get(group, {}).items():
            found[name] = (kind, options[0] if options else {})
    return found


def _widget_values(node: Json, described: dict[str, tuple[Any, Json]], place: str) -> Json:
    saved = node.get("widgets_values") or []
    if isinstance(saved, dict):
        raise ValueError(f"{place}: widget values by name are not converted")
    values = {}
    rest = list(saved)
    for name, (kind, options) in described.items():
        if isinstance(kind, str) and kind.startswith("COMFY_"):
            raise ValueError(f"{place}: input {name} of type {kind} is not converted")
        if not _is_widget(kind, options):
            continue
        if not rest:
            raise ValueError(f"{place}: no saved value for {name}")
        values[name] = rest.pop(0)
        if options.get("control_after_generate", name in _SEEDS and kind == "INT"):
            control = rest.pop(0) if rest else None
            if control not in ("fixed", "increment", "decrement", "randomize"):
                raise ValueError(f"{place}: {name} is followed by {control!r}, not by its control")
    # Upload buttons and players have a place in the list and no value worth sending.
    if any(value not in (None, "", "image") for value in rest):
        raise ValueError(f"{place}: {len(saved)} saved values, too many for {list(values)}")
    return values


def _is_widget(kind: Any, options: Json) -> bool:
    return (isinstance(kind, list) or kind in _WIDGET_TYPES) and not options.get("forceInput")
