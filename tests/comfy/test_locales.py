"""Translations, templates and help as a real server hands them out."""

from __future__ import annotations

import pytest

from .comfyui import ROOT
from .locales import LANGUAGES, english, read
from .speaking import ODD_NAME

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def node_defs(server):
    return english(server.object_info())


def test_english_is_what_the_nodes_say(node_defs):
    assert read("en") == node_defs, "run python -m tests.comfy.locales"


def test_the_server_hands_out_every_language(server, node_defs):
    served = server.get("/i18n")
    for language in LANGUAGES:
        assert served[language]["nodeDefs"] == read(language)
        assert set(served[language]) == {"nodeDefs"}
        assert shape(read(language)) == shape(node_defs)


def test_the_server_lists_every_template(server):
    files = sorted(path.stem for path in (ROOT / "workflows").glob("*.json"))
    assert sorted(server.get("/workflow_templates")[ODD_NAME]) == files


def shape(tree):
    """The keys, without the texts."""
    return {key: shape(value) for key, value in tree.items()} if isinstance(tree, dict) else None
