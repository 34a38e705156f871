"""Translations, templates and help as a real server hands them out."""

from __future__ import annotations

from urllib.error import HTTPError
from urllib.parse import quote

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


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("/api/workflow_templates/{}/dialogue.json", "workflows/dialogue.json"),
        ("/api/workflow_templates/{}/dialogue.jpg", "workflows/dialogue.jpg"),
        ("/extensions/{}/docs/LiveVoiceReport.md", "nodes/web/docs/LiveVoiceReport.md"),
        ("/extensions/{}/docs/LiveVoiceReport/ja.md", "nodes/web/docs/LiveVoiceReport/ja.md"),
    ],
)
def test_files_are_found_in_a_folder_of_any_name(server, url, file):
    assert server.request(url.format(quote(ODD_NAME))) == (ROOT / file).read_bytes()


def test_nothing_else_is_handed_out(server):
    for path in ("..%2F__init__.py", "%2e%2e/__init__.py", "nothing.md", "LiveVoiceReport"):
        with pytest.raises(HTTPError, match="404"):
            server.request(f"/extensions/{quote(ODD_NAME)}/docs/{path}")


def shape(tree):
    """The keys, without the texts."""
    return {key: shape(value) for key, value in tree.items()} if isinstance(tree, dict) else None
