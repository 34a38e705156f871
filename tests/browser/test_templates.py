"""ComfyUI's template browser: it lists ours with pictures, opens them, and offers the download."""

from __future__ import annotations

import json

import pytest

from ..comfy.comfyui import ROOT
from ..nodes.test_templates import MODEL
from .page import wait
from .workflows import at_its_own_speed

pytestmark = [pytest.mark.browser, pytest.mark.comfy]

FOLDER = ROOT / "workflows"
TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.json"))


@pytest.fixture(params=["server", "newest_front_end"])
def serving(request):
    """A server with the front end that its ComfyUI asks for, and one with the newest."""
    return request.getfixturevalue(request.param)


def browse(tab):
    """Open the template browser at this pack's templates."""
    tab.page.evaluate("() => app.extensionManager.command.execute('Comfy.BrowseTemplates')")
    tab.page.get_by_text("LiveVoice", exact=True).first.click()
    tab.page.get_by_text("text_to_speech", exact=True).first.wait_for()


def choose(tab, name):
    """Open a template as a person does."""
    browse(tab)
    card = tab.page.get_by_text(name, exact=True).first
    card.scroll_into_view_if_needed()
    card.click()
    n_nodes = len(json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["nodes"])
    tab.wait_until(f"() => app.graph.nodes.length === {n_nodes}")


def picture_width(card):
    """Of the picture in the card with that title; 0 while it is not there."""
    return card.evaluate(
        """(it) => {
            while (it && !it.querySelector("img")) it = it.parentElement;
            const images = [...(it?.querySelectorAll("img") ?? [])];
            return images.length === 1 ? images[0].naturalWidth : 0;
        }"""
    )


def test_ours_are_listed_with_pictures(serving, tabs):
    tab = tabs(serving)
    browse(tab)
    for name in TEMPLATES:
        card = tab.page.get_by_text(name, exact=True).first
        card.scroll_into_view_if_needed()
        wait(lambda card=card: picture_width(card) == 640, 20, lambda name=name: name)


def test_one_is_opened_and_speaks(serving, tabs):
    serving.run(at_its_own_speed("Good morning.", seed=1))
    tab = tabs(serving)
    choose(tab, "text_to_speech")
    before = set(serving.get("/history"))
    tab.run()
    (run,) = wait(lambda: set(serving.get("/history")) - before, 120)
    entry = wait(lambda: serving.get("/history").get(run), 60)
    assert entry["status"]["status_str"] == "success", entry["status"]["messages"][-1]
    assert any("audio" in output for output in entry["outputs"].values())
    assert not tab.trouble


def test_a_model_that_is_not_there_is_offered_for_download(serving, tabs):
    tab = tabs(serving)
    choose(tab, "real_voice")
    tab.page.get_by_text(f"{MODEL['name']} is missing").first.wait_for()
    tab.page.get_by_role("button", name="View details").click()
    # The button is there only for a model whose url and folder the page has understood.
    tab.page.evaluate(
        "() => { HTMLAnchorElement.prototype.click = function () { window.asked = this.href; }; }"
    )
    tab.page.get_by_role("button", name="Download").first.click()
    tab.wait_until("() => !!window.asked")
    assert tab.page.evaluate("() => window.asked") == MODEL["url"]


def test_nothing_is_offered_for_the_starter(serving, tabs):
    tab = tabs(serving)
    choose(tab, "dialogue")
    tab.page.wait_for_timeout(2000)
    assert "is missing" not in tab.page.locator("body").inner_text()
