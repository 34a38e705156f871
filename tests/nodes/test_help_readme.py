"""README and CONTRIBUTING against the code: messages that are quoted, files, nodes, templates."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from ..comfy.locales import read

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.exists()]
GAP = "…"


def troubles():
    """Rows of the table: what is seen, why, what to do."""
    table = README.split("## Troubleshooting")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("|")]
    return rows[2:]


def quoted():
    """What the first two columns quote, without names of files, tags and buttons."""
    cells = [cell for row in troubles() for cell in row[:2]]
    found = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return [text for text in found if " " in text.replace(f"{GAP} ", "") and text[:1] != "<"]


@cache
def said():
    """Everything the pack's code can say, with a gap for each value that is filled in."""
    texts = []
    for path in [ROOT / "__init__.py", *(ROOT / "engine").glob("*.py"), *ROOT.glob("nodes/*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    each.value if isinstance(each, ast.Constant) else GAP for each in node.values
                )
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(re.sub(r"%[.\d]*[sdf]", GAP, node.value))
    for path in ROOT.glob("nodes/web/*.mjs"):
        source = path.read_text("utf-8")
        texts += [
            re.sub(r"\$\{[^}]*\}", GAP, text) for text in re.findall(r"[\"`](.*?)[\"`]", source)
        ]
    for path in ROOT.glob("csrc/*.cpp"):
        # "a ", value, " b": one sentence in pieces
        source = re.sub(r'",\s*[\w.]+(?:,\s*[\w.]+)*,\s*"', GAP, path.read_text("utf-8"))
        texts += re.findall(r'"([^"\n]*)"', source)
    return texts


@pytest.mark.parametrize("message", quoted())
def test_the_code_says_what_the_table_quotes(message):
    fragments = [part.strip() for part in message.split(GAP) if part.strip(" ';:.,()")]
    assert max(map(len, fragments)) > 5
    if "put bosonai/" in message:  # a constant of its own, behind the others' sentences
        assert any(message.split("; ")[1] == text for text in said())
        fragments = fragments[:2]
    pattern = ".*".join(map(re.escape, fragments))
    assert any(re.search(pattern, text, re.DOTALL) for text in said())


def test_the_table_is_whole():
    rows = troubles()
    assert len(rows) > 20
    assert all(len(row) == 3 and all(cell.strip() for cell in row) for row in rows), rows
    assert len(quoted()) > 25


def test_the_readme_has_a_row_for_each_node():
    rows = re.findall(r"^\| (LiveVoice [^|]+) \|", README, re.MULTILINE)
    assert sorted(rows) == sorted(node["display_name"] for node in read("en").values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text("utf-8")
    headings = {re.sub(r"\W+", "-", line.lower()) for line in re.findall(r"^#+ (.+)$", text, re.M)}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        there = target[1:] in headings if target[0] == "#" else (ROOT / target).exists()
        assert there, f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page):
    for name in re.findall(
        r"`((?:engine|nodes|csrc|tests|workflows|locales)/[\w./]*)`", page.read_text()
    ):
        assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_templates_that_are_named_are_there():
    there = {path.stem for path in (ROOT / "workflows").glob("*.json")}
    inputs = {slot for node in read("en").values() for slot in node["inputs"]}
    named = set(re.findall(r"\*([a-z]+_[a-z_]+)\*", README)) - inputs
    assert named >= {"text_to_speech", "real_voice"}
    assert named <= there, named - there
