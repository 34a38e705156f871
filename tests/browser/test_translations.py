"""A page in another language: nodes, inputs and help as they are shown there."""

from __future__ import annotations

import pytest

from ..comfy.locales import HEADINGS, read
from .page import settings
from .workflows import example

pytestmark = [pytest.mark.browser, pytest.mark.comfy]

NODE = "LiveVoiceTextToCodes"


@pytest.fixture(params=["server", "newest_front_end"])
def serving(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["en", *HEADINGS])
def language(request, serving):
    settings(serving, Comfy_Locale=request.param)
    yield request.param
    settings(serving, Comfy_Locale="en")


def test_a_node_is_shown_in_the_page_s_language(serving, language, tabs):
    tab = tabs(serving)
    shown = tab.page.evaluate(
        """(kind) => {
            const node = LiteGraph.createNode(kind);
            const name = (it) => [it.name, it.label ?? it.localized_name ?? it.name];
            return {
                title: node.title,
                inputs: Object.fromEntries([...node.inputs, ...node.widgets].map(name)),
                outputs: node.outputs.map((it) => name(it)[1]),
            };
        }""",
        NODE,
    )
    wanted = read(language)[NODE]
    shown["inputs"].pop("control_after_generate")  # the page's own
    assert shown == {
        "title": wanted["display_name"],
        "inputs": {key: slot["name"] for key, slot in wanted["inputs"].items()},
        "outputs": [slot["name"] for slot in wanted["outputs"].values()],
    }


def test_help_opens_in_the_page_s_language(serving, language, tabs):
    tab = tabs(serving)
    tab.load(example())
    tab.page.wait_for_timeout(1000)
    tab.page.evaluate("() => app.canvas.selectNode(app.graph.getNodeById(2))")
    # As a click, but wherever the button lies: the page puts its bar over a node near the top.
    tab.page.get_by_test_id("info-button").first.dispatch_event("click")
    help_text = tab.page.locator(".node-help-content")
    wanted = read(language)["LiveVoiceStreamingPreview"]
    help_text.get_by_role("heading", name=wanted["display_name"]).wait_for()
    cells = help_text.locator("td").all_inner_texts()
    for slot in (*wanted["inputs"].values(), *wanted["outputs"].values()):
        assert slot["name"] in cells
    assert not tab.trouble
