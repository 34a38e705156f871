"""Writes the translations that ComfyUI serves: ``python -m tests.comfy.locales``.

``locales/phrases.json`` holds every English text of the nodes once, with its translations; the
nodes' schemas are the only other source. So a text that changes has no translation until somebody
looks at it again, and ``locales/<language>/nodeDefs.json`` can't be stale. Help pages in other
languages are those texts as tables, and what ``locales/help.json`` explains besides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from .comfyui import ROOT, Server

Json = dict[str, Any]
FOLDER = ROOT / "locales"
PHRASES = FOLDER / "phrases.json"
HELP = FOLDER / "help.json"
DOCS = ROOT / "nodes" / "web" / "docs"
LANGUAGES = ("en", "zh", "ja")
HEADINGS = {"zh": ("输入", "输出", "说明"), "ja": ("入力", "出力", "説明")}


def english(object_info: Json) -> Json:
    """What the nodes say of themselves, as ``nodeDefs.json`` is laid out."""
    ours = {key: info for key, info in object_info.items() if key.startswith("LiveVoice")}
    return {key: _node(info) for key, info in sorted(ours.items())}


def _node(info: Json) -> Json:
    inputs = {}
    for group in ("required", "optional"):
        for name, (_, *options) in info["input"].get(group, {}).items():
            described = options[0] if options else {}
            inputs[name] = {"name": name, "tooltip": described["tooltip"]}
    outputs = zip(info["output_name"], info["output_tooltips"], strict=True)
    return {
        "display_name": info["display_name"],
        "description": info["description"],
        "inputs": inputs,
        "outputs": {
            str(at): {"name": name, "tooltip": tooltip}
            for at, (name, tooltip) in enumerate(outputs)
        },
    }


def translated(node_defs: Json, language: str, phrases: Json) -> Json:
    """The same in another language; raises `KeyError` for a text that has no translation."""
    return walk(node_defs, lambda text: text if language == "en" else phrases[text][language])


def help_page(node: Json, language: str, paragraphs: list[str]) -> str:
    """A node's help page: what it is, its inputs and outputs as they are shown, the explanation."""
    inputs, outputs, meaning = HEADINGS[language]
    parts = [f"# {node['display_name']}", node["description"]]
    for heading, slots in ((inputs, node["inputs"]), (outputs, node["outputs"])):
        rows = [(slot["name"], slot["tooltip"]) for slot in slots.values()]
        lines = [f"| {name} | {_as_code(text)} |" for name, text in rows]
        parts.append("\n".join([f"| {heading} | {meaning} |", "|---|---|", *lines]))
    return "\n\n".join([*parts, *paragraphs]) + "\n"


def _as_code(text: str) -> str:
    # In Markdown a tag of ours would be taken for one of HTML.
    return re.sub(r"(<\w+:\w+>)", r"`\1`", text)


def walk(tree: Json, change: Callable[[str], str]) -> Json:
    """The tree with every text changed."""
    return {
        key: walk(value, change) if isinstance(value, dict) else change(value)
        for key, value in tree.items()
    }


def texts(tree: Json) -> set[str]:
    """Every text in it."""
    found: set[str] = set()
    walk(tree, lambda text: found.add(text) or text)
    return found


def read(language: str) -> Json:
    """What is shipped in that language."""
    return json.loads((FOLDER / language / "nodeDefs.json").read_text("utf-8"))


def write(language: str, node_defs: Json, explained: Json) -> None:
    """Write what is shipped in that language."""
    file = FOLDER / language / "nodeDefs.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(node_defs, ensure_ascii=False, indent=2) + "\n", "utf-8")
    for node_id, node in node_defs.items() if language in HEADINGS else ():
        page = DOCS / node_id / f"{language}.md"
        page.parent.mkdir(exist_ok=True)
        page.write_text(help_page(node, language, explained[node_id][language]), "utf-8")


def main() -> None:
    """Write them all."""
    phrases = json.loads(PHRASES.read_text("utf-8"))
    with Server() as server:
        node_defs = english(server.object_info())
    missing, unused = texts(node_defs) - set(phrases), set(phrases) - texts(node_defs)
    if missing or unused:
        raise SystemExit(
            "\n".join(
                [f"no translation in {PHRASES.name}: {text}" for text in sorted(missing)]
                + [f"not said by any node: {text}" for text in sorted(unused)]
            )
        )
    explained = json.loads(HELP.read_text("utf-8"))
    for language in LANGUAGES:
        write(language, translated(node_defs, language, phrases), explained)


if __name__ == "__main__":
    main()
