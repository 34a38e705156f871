"""UI workflow to prompt, against a prompt that was written down by hand."""

import copy

import pytest

from .workflow import to_prompt

OBJECT_INFO = {
    "Load": {"input": {"required": {"name": ["COMBO", {"options": ["a", "b"]}]}}},
    "Speak": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "text": ["STRING", {"multiline": True}],
                "seed": ["INT", {"control_after_generate": True}],
                "mode": [["fast", "slow"]],
            },
            "optional": {"voice": ["VOICE", {}], "speed": ["FLOAT", {"default": 1.0}]},
        }
    },
    "Listen": {"input": {"required": {"audio": ["AUDIO"]}, "hidden": {"prompt": ["PROMPT"]}}},
}
WORKFLOW = {
    "version": 0.4,
    "nodes": [
        {"id": 1, "type": "Load", "mode": 0, "widgets_values": ["b"]},
        {
            "id": 2,
            "type": "Speak",
            "mode": 0,
            "inputs": [
                {"name": "model", "type": "MODEL", "link": 10},
                {"name": "voice", "type": "VOICE", "link": None},
                {"name": "speed", "type": "FLOAT", "widget": {"name": "speed"}, "link": None},
            ],
            "widgets_values": ["hello", 7, "randomize", "slow", 1.25],
        },
        {
            "id": 3,
            "type": "Listen",
            "mode": 0,
            "inputs": [{"name": "audio", "type": "AUDIO", "link": 11}],
            "widgets_values": [None, ""],
        },
        {"id": 4, "type": "Note", "mode": 0, "widgets_values": ["read me"]},
    ],
    "links": [[10, 1, 0, 2, 0, "MODEL"], [11, 2, 1, 3, 0, "AUDIO"]],
}
PROMPT = {
    "1": {"class_type": "Load", "inputs": {"name": "b"}},
    "2": {
        "class_type": "Speak",
        "inputs": {"text": "hello", "seed": 7, "mode": "slow", "speed": 1.25, "model": ["1", 0]},
    },
    "3": {"class_type": "Listen", "inputs": {"audio": ["2", 1]}},
}


@pytest.fixture
def workflow():
    return copy.deepcopy(WORKFLOW)


def test_values_links_and_the_seed_control_land_where_they_belong(workflow):
    assert to_prompt(workflow, OBJECT_INFO) == PROMPT


def test_a_link_wins_over_the_saved_value(workflow):
    workflow["nodes"][1]["inputs"][2]["link"] = 12
    workflow["links"].append([12, 1, 3, 2, 5, "FLOAT"])
    assert to_prompt(workflow, OBJECT_INFO)["2"]["inputs"]["speed"] == ["1", 3]


def test_what_is_not_converted_is_refused(workflow):
    def refused(match: str, node: int = 1, **changes):
        changed = copy.deepcopy(workflow)
        changed["nodes"][node].update(changes)
        with pytest.raises(ValueError, match=match):
            to_prompt(changed, OBJECT_INFO)

    refused(r"node 2 \(Speak\) is muted", mode=2)
    refused(r"node 2 \(Speak\) is bypassed", mode=4)
    refused("does not have", type="Reroute")
    refused("no saved value for speed", widgets_values=["hello", 7, "fixed", "slow"])
    refused("seed is followed by 'slow'", widgets_values=["hello", 7, "slow", 1.0])
    refused("too many", widgets_values=["hello", 7, "fixed", "slow", 1.0, 2.0])
    refused("link is lost", inputs=[{"name": "model", "link": 99}])
    with pytest.raises(ValueError, match="subgraphs"):
        to_prompt({**workflow, "definitions": {"subgraphs": [{}]}}, OBJECT_INFO)
