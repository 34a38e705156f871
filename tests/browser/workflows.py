"""Workflows of the browser tests: the example that is shipped, with test nodes around it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]
EXAMPLE = Path(__file__).resolve().parents[2] / "workflows" / "live_preview.json"
LOAD, SPEAK = 1, 2  # node numbers in the example
REPLAY, KEEP = 101, 102


def example() -> Json:
    """The example as it is shipped."""
    return json.loads(EXAMPLE.read_text("utf-8"))


def paced(speed: float, *, stall_at_s: float = 0.0, stall_s: float = 0.0) -> Json:
    """The example, spoken at a given speed, its AUDIO kept as ``kept.npy``."""
    workflow = example()
    replay = _node(REPLAY, "TestReplay", [40, 520], [speed, stall_at_s, stall_s])
    workflow["nodes"].append(replay)
    workflow["links"] = []
    _link(workflow, LOAD, REPLAY, "model", "LIVEVOICE_MODEL")
    _link(workflow, REPLAY, SPEAK, "model", "LIVEVOICE_MODEL")
    return kept(workflow)


def node(workflow: Json, number: int) -> Json:
    """A node of a workflow."""
    return next(each for each in workflow["nodes"] if each["id"] == number)


def say(workflow: Json, text: str | None = None, *, seed: int, number: int = SPEAK) -> Json:
    """Another text or seed for a speaking node; the seed stays as it is from run to run."""
    values = node(workflow, number)["widgets_values"]
    values[:3] = [values[0] if text is None else text, seed, "fixed"]
    return workflow


def twice(workflow: Json) -> Json:
    """A second speaking node beside the first, with the same model."""
    second = copy.deepcopy(node(workflow, SPEAK))
    second["id"], second["pos"] = 103, [940, 240]
    for slot in (*second["inputs"], *second["outputs"]):
        slot.pop("link", None)
        slot["links"] = []
    workflow["nodes"].append(second)
    _link(workflow, REPLAY, 103, "model", "LIVEVOICE_MODEL")
    return workflow


def kept(workflow: Json) -> Json:
    """Keep the AUDIO of the first speaking node as ``kept.npy``."""
    workflow["nodes"].append(_node(KEEP, "TestKeep", [940, 80], ["kept"]))
    _link(workflow, SPEAK, KEEP, "audio", "AUDIO")
    return workflow


def by_way_of_codes(text: str, seed: int) -> Json:
    """API prompt: the example's speech through the two nodes that do not stream."""
    values = node(example(), SPEAK)["widgets_values"]
    settings = dict(zip(("temperature", "top_k", "top_p", "max_seconds"), values[3:7], strict=True))
    checkpoint, device, precision = node(example(), LOAD)["widgets_values"]
    return {
        "1": {
            "class_type": "LiveVoiceLoadModel",
            "inputs": {"checkpoint": checkpoint, "device": device, "precision": precision},
        },
        "2": {
            "class_type": "LiveVoiceTextToCodes",
            "inputs": {
                "model": ["1", 0], "text": text, "seed": seed, "retries": 0,
                "keep_partial": False, **settings,
            },
        },
        "3": {
            "class_type": "LiveVoiceCodesToWaveform",
            "inputs": {"model": ["1", 0], "codes": ["2", 0]},
        },
        "4": {"class_type": "TestKeep", "inputs": {"audio": ["3", 0], "name": "from codes"}},
    }  # fmt: skip


def at_its_own_speed(text: str, seed: int) -> Json:
    """API prompt that ends the pace which an earlier run has given to a server's engine."""
    prompt = by_way_of_codes(text, seed)
    prompt["5"] = {
        "class_type": "TestReplay",
        "inputs": {"model": ["1", 0], "speed": 0.0, "stall_at_s": 0.0, "stall_s": 0.0},
    }
    prompt["2"]["inputs"]["model"] = ["5", 0]
    return prompt


def _node(number: int, kind: str, pos: list[int], values: list[Any]) -> Json:
    slots = {
        "TestReplay": ([("model", "LIVEVOICE_MODEL")], [("LIVEVOICE_MODEL", "LIVEVOICE_MODEL")]),
        "TestKeep": ([("audio", "AUDIO")], []),
    }[kind]
    return {
        "id": number,
        "type": kind,
        "pos": pos,
        "size": [300, 130],
        "flags": {},
        "order": number,
        "mode": 0,
        "inputs": [{"name": name, "type": kind, "link": None} for name, kind in slots[0]],
        "outputs": [{"name": name, "type": kind, "links": []} for name, kind in slots[1]],
        "properties": {"Node name for S&R": kind},
        "widgets_values": values,
    }


def _link(workflow: Json, source: int, target: int, name: str, kind: str) -> None:
    number = 1 + max((link[0] for link in workflow["links"]), default=0)
    inputs = node(workflow, target)["inputs"]
    at = next(i for i, slot in enumerate(inputs) if slot["name"] == name)
    inputs[at]["link"] = number
    output = node(workflow, source)["outputs"][0]
    output["links"] = [*(output.get("links") or []), number] if workflow["links"] else [number]
    workflow["links"].append([number, source, 0, target, at, kind])
    workflow["last_link_id"] = number
    workflow["last_node_id"] = max(each["id"] for each in workflow["nodes"])
