"""Real texts of many scripts and what is spoken of them: a table, in ``text_cases.json``.

A case: kind, text, reading (options), utterances (each a text, or a text and the silence after it;
null when there is nothing to speak) and warnings.
"""

import json
import unicodedata
from pathlib import Path

import pytest
from livevoice.engine.script import Reading
from livevoice.engine.text import plan

CASES = json.loads((Path(__file__).parent / "text_cases.json").read_text("utf-8"))


def test_the_table_is_wide():
    assert len(CASES) >= 100
    letters = {char for case in CASES for char in case["text"] if char.isalpha()}
    assert len({unicodedata.name(letter).split()[0] for letter in letters}) >= 15


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']}: {case['text'][:40]!r}")
def test_case(case: dict):
    reading = Reading(**case.get("reading", {}))
    if case["utterances"] is None:
        with pytest.raises(ValueError, match="nothing to speak"):
            plan(case["text"], reading)
        return
    script = plan(case["text"], reading)
    spoken = [[each.text, each.gap_s] if each.gap_s else each.text for each in script.utterances]
    assert spoken == case["utterances"]
    assert list(script.warnings) == case.get("warnings", [])
