"""The translations as files; tests/comfy/test_locales.py holds them against a server's nodes."""

from __future__ import annotations

import json
import re

import pytest

from ..comfy.locales import FOLDER, LANGUAGES, PHRASES, read, texts, translated

OTHERS = [language for language in LANGUAGES if language != "en"]
# The page's message compiler reads these as its own; older pages compile tooltips, too.
COMPILED = set("{}|@$")
# What must survive a translation: numbers, what is typed into texts, paths, names of files.
LITERAL = re.compile(
    r"\d+(?:\.\d+)?|\[pause:\w+(?:\.\d)?\]|<emotion:anger>|%\w+%|models/tts(?:/voices)?"
    r"|\w+\.(?:wav|txt|json|safetensors|srt)\b|bosonai/[\w-]+|\b(?:fp8|bf16|fp32|auto|starter)\b"
)
PHRASES_READ = json.loads(PHRASES.read_text("utf-8"))


def test_each_language_is_there():
    assert sorted(path.name for path in FOLDER.iterdir() if path.is_dir()) == sorted(LANGUAGES)


def test_every_phrase_is_used_and_every_text_is_a_phrase():
    assert texts(read("en")) == set(PHRASES_READ)


@pytest.mark.parametrize("language", OTHERS)
def test_a_language_holds_what_its_phrases_say(language):
    assert read(language) == translated(read("en"), language, PHRASES_READ)


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_empty_or_read_as_a_formula(language):
    for text in texts(read(language)):
        assert text.strip() == text != ""
        assert not COMPILED & set(text), f"{language}: {text}"


@pytest.mark.parametrize("language", OTHERS)
def test_sentences_are_translated_and_keep_what_is_literal(language):
    for english, others in PHRASES_READ.items():
        translation = others[language]
        if " " in english:  # a sentence, not the name of an input
            assert translation != english
        for literal in LITERAL.findall(english):
            assert literal in translation, f"{language}: {literal} of: {english}"


@pytest.mark.parametrize("language", OTHERS)
def test_names_in_one_node_differ(language):
    names = [node["display_name"] for node in read(language).values()]
    assert len(set(names)) == len(names)
    for node_id, node in read(language).items():
        for slots in (node["inputs"], node["outputs"]):
            shown = [slot["name"] for slot in slots.values()]
            assert len(set(shown)) == len(shown), f"{language} {node_id}: {shown}"
