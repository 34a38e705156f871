"""From an utterance (and a voice) to the prompt: token ids, and code rows for the voice's slots.

Owns the tokenizer, the prompt layouts of Higgs Audio v3 and which tags may reach the model as
control tokens. Knows nothing of embeddings. Layouts as the reference server builds them
(sglang-omni ``text_tokenizer.py``):

    <|tts|> [<|ref_text|> TRANSCRIPT] <|ref_audio|> row … row <|text|> TEXT <|audio|>
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .checkpoint import HOW_TO_GET, SPECIAL_TOKENS, CheckpointError
from .config import ModelConfig
from .delay import delay
from .tags import CONTROL_TOKENS
from .voice import Voice

AUDIO_SLOT = -100
"""Id that stands for one audio row in :attr:`Prompt.ids`."""


@dataclass(frozen=True)
class Prompt:
    """What the model reads before it speaks.

    Attributes:
        ids: int64 ``[S]``; ``AUDIO_SLOT`` marks an audio row, all others are token ids.
        rows: int64 ``[R, N]``, delayed code rows of the slots, in order; R may be 0.
        n_prefix: positions up to the end of the voice's block, which are the same for every text;
            0 without a voice. A backend computes them as a piece of their own, always, so that
            one that finds them in its KV cache and skips them gets the same bits.
    """

    ids: Tensor
    rows: Tensor
    n_prefix: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def split(self) -> tuple[Prompt, Prompt]:
        """The voice's block (of no positions without a voice), and what comes after it."""
        n = self.n_prefix
        n_rows = int((self.ids[:n] == AUDIO_SLOT).sum())
        return (
            Prompt(self.ids[:n], self.rows[:n_rows], n),
            Prompt(self.ids[n:], self.rows[n_rows:]),
        )

    def equals(self, other: Prompt | None) -> bool:
        """Whether the contents are the same: not by a hash, which could collide."""
        return (
            other is not None
            and torch.equal(self.ids, other.ids)
            and torch.equal(self.rows, other.rows)
        )


class PromptBuilder:
    """Builds prompts with one checkpoint's tokenizer."""

    def __init__(self, checkpoint_path: Path, config: ModelConfig) -> None:
        file = checkpoint_path / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:
            raise CheckpointError(
                f"checkpoint: can't read {file}: {error}; {HOW_TO_GET}"
            ) from error
        self._config = config
        self._special = {token: self._special_id(token) for token in SPECIAL_TOKENS}
        added = (token.content for token in self._tokenizer.get_added_tokens_decoder().values())
        self._added = [token for token in added if token not in CONTROL_TOKENS]

    def _special_id(self, token: str) -> int:
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise CheckpointError(f"checkpoint: the tokenizer has no {token}; {HOW_TO_GET}")
        if number >= self._config.text_vocab:
            raise CheckpointError(
                f"checkpoint: the tokenizer's {token} is id {number}, the text embedding has "
                f"{self._config.text_vocab} rows; the two are not of one model"
            )
        return number

    def tokens(self, text: str) -> list[int]:
        """Token ids of user text.

        Emotion, style, sfx and prosody tags become their control tokens. Any other added token
        that a user may type, such as ``<|audio|>``, is read as plain text.
        """
        for token in self._added:
            # Cut after its first character: then the tokenizer can't see the literal.
            text = text.replace(token, f"{token[0]}\0{token[1:]}")
        ids: list[int] = []
        for piece in text.split("\0"):
            ids += self._tokenizer.encode(piece, add_special_tokens=False).ids
        return ids

    def build(self, text: str, voice: Voice | None = None) -> Prompt:
        """Lay out the prompt of one utterance.

        Args:
            text: what to speak; may hold control tags.
            voice: reference to speak like, or None for the model's own choice.

        Raises:
            ValueError: no text, or a voice with another number of codebooks.
        """
        if not text.strip():
            raise ValueError("text: nothing to speak, the text is empty")
        special, N = self._special, self._config.n_codebooks
        ids = [special["<|tts|>"]]
        rows = torch.empty((0, N), dtype=torch.int64)
        if voice is not None:
            voice.check_fits(N, self._config.codebook_size)
            rows = delay(voice.codes, self._config)
            if voice.transcript.strip():
                ids += [special["<|ref_text|>"], *self.tokens(voice.transcript)]
            ids += [special["<|ref_audio|>"], *[AUDIO_SLOT] * len(rows)]
        n_prefix = len(ids) if voice is not None else 0
        ids += [special["<|text|>"], *self.tokens(text), special["<|audio|>"]]
        return Prompt(torch.tensor(ids, dtype=torch.int64), rows, n_prefix)
