"""The help pages that ComfyUI shows of a node: one a node, in each language, complete."""

from __future__ import annotations

import json
import re

import pytest

from ..comfy.locales import DOCS, HEADINGS, HELP, LANGUAGES, help_page, read

PAGES = [(language, node) for language in LANGUAGES for node in read("en")]


def page(language, node):
    """Where the page looks first for a language, and where it falls back to for English."""
    return DOCS / (f"{node}.md" if language == "en" else f"{node}/{language}.md")


def rows(text):
    """First cells of all tables."""
    cells = re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)
    return [cell for cell in cells if not cell.startswith("---")]


@pytest.mark.parametrize(("language", "node"), PAGES)
def test_a_page_names_every_input_and_output_as_it_is_shown(language, node):
    described = read(language)[node]
    text = page(language, node).read_text("utf-8")
    assert text.startswith(f"# {described['display_name']}\n")
    groups = [slots for slots in (described["inputs"], described["outputs"]) if slots]
    names = [slot["name"] for slots in groups for slot in slots.values()]
    shown = rows(text)
    assert sorted(cell for cell in shown if cell in names) == sorted(names)
    assert len(shown) == len(names) + len(groups), f"{node} has rows for something else: {shown}"


@pytest.mark.parametrize("language", HEADINGS)
def test_translated_pages_are_what_their_sources_say(language):
    explained = json.loads(HELP.read_text("utf-8"))
    assert set(explained) == set(read(language))
    for node, described in read(language).items():
        text = help_page(described, language, explained[node][language])
        assert page(language, node).read_text("utf-8") == text


def test_there_is_no_page_of_something_else():
    found = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert found == {page(*each).relative_to(DOCS).as_posix() for each in PAGES}


@pytest.mark.parametrize("language", LANGUAGES)
def test_pages_name_only_nodes_that_there_are(language):
    names = {node["display_name"] for node in read(language).values()}
    for node in read(language):
        text = " ".join(page(language, node).read_text("utf-8").split())
        for name in re.findall(r"\*\*(LiveVoice [^*]+)\*\*", text):
            assert name in names, f"{language} {node}: {name}"
