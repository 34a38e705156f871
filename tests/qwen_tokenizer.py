"""The real model's tokenizer, rebuilt from what is public: an oracle for prompt ids.

Base vocabulary: Qwen's published token list (151,643 byte strings in merge order), read as a data
file from a pinned package. Added tokens: Qwen's 22 and the 62 of Higgs Audio v3 after them, in the
order of the starter's tokenizer.
"""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path

from checkpoints import STARTER
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

_SHIFT = 151387  # id of an added token minus its id in the starter
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _token_list() -> Path:
    package = importlib.util.find_spec("dashscope")
    if package is None or package.origin is None:
        raise RuntimeError(
            "install tests/pinned.txt: the tokenizer oracle reads a file of dashscope"
        )
    return Path(package.origin).parent / "resources" / "qwen.tiktoken"


def _byte_characters() -> dict[int, str]:
    """The printable stand-ins for bytes that byte-level BPE files use (GPT-2's table)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in kept}
    others = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(256 + n) for n, byte in enumerate(others)}


def write_qwen_tokenizer(path: Path) -> None:
    """Write a tokenizer.json that encodes as the real checkpoint's does."""
    lines = _token_list().read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    characters = _byte_characters()

    def written(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    # Any pair that joins to a token merges at that token's rank.
    merges = [
        (written(token[:cut]), written(token[cut:]))
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    vocab = {written(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = json.loads((STARTER / "tokenizer.json").read_text())["added_tokens"]
    for token in sorted(added, key=lambda token: token["id"]):
        is_special = token["content"].startswith("<|")
        tokenizer.add_tokens([AddedToken(token["content"], special=is_special, normalized=False)])
        assert tokenizer.token_to_id(token["content"]) == token["id"] + _SHIFT
    tokenizer.save(str(path))
