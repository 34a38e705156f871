"""Text that remembers where each of its characters came from, while rules rewrite it.

Owns the account of what became of the original characters; knows no rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

import regex

Replace = Callable[[regex.Match], "str | None"]
"""Gives the new text of a match; None leaves it as it is."""


@dataclass(frozen=True)
class Loss:
    """A range of the original that a rule replaced or took away, and the rule's reason.

    ``is_gone`` says that every character of it was taken away, though words around it may later
    stand for a range that holds it.
    """

    start: int
    end: int
    reason: str
    is_gone: bool = False


@dataclass(frozen=True)
class Traced:
    """A text under revision.

    Attributes:
        text: as it reads now.
        spans: for each character the range (start, end) of the original that it stands for.
        losses: what was replaced or taken away so far, in order of the rules.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    losses: tuple[Loss, ...] = field(default=())

    @classmethod
    def of(cls, text: str) -> Traced:
        """The original, each character standing for itself."""
        return cls(text, tuple((i, i + 1) for i in range(len(text))))

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, piece: slice) -> Traced:
        return Traced(self.text[piece], self.spans[piece])

    @property
    def start(self) -> int:
        """Where in the original the text starts."""
        return min((start for start, _ in self.spans), default=0)

    @property
    def end(self) -> int:
        """Where in the original the text ends."""
        return max((end for _, end in self.spans), default=0)

    def strip(self) -> Traced:
        """Without white space at either end."""
        left = len(self.text) - len(self.text.lstrip())
        return self[left : max(left, len(self.text.rstrip()))]

    @property
    def replaced(self) -> list[tuple[int, int]]:
        """Ranges (start, end) of the text that stand as a whole for a part of the original."""
        found, start = [], 0
        for _, characters in groupby(self.spans):
            end = start + len(list(characters))
            if end - start > 1:
                found.append((start, end))
            start = end
        return found

    def rewrite(self, pattern: regex.Pattern, replace: Replace | str, reason: str) -> Traced:
        """Replace each match of ``pattern``.

        A replacement that is a part of its match keeps that part's characters where they are;
        any other stands as a whole for the whole match.
        """
        texts: list[str] = []
        spans: list[tuple[int, int]] = []
        losses: list[Loss] = []
        done = 0
        for match in pattern.finditer(self.text):
            start, end = match.span()
            new = replace if isinstance(replace, str) else replace(match)
            if start == end or new is None or new == match.group():
                continue
            texts += [self.text[done:start], new]
            spans += self.spans[done:start]
            whole = self[start:end]
            spans += whole._spans_of(new)
            is_gone = not new and whole.end - whole.start == end - start
            losses.append(Loss(whole.start, whole.end, reason, is_gone))
            done = end
        if not losses:
            return self
        texts.append(self.text[done:])
        spans += self.spans[done:]
        return Traced("".join(texts), tuple(spans), (*self.losses, *losses))

    def _spans_of(self, new: str) -> tuple[tuple[int, int], ...]:
        """Where the characters of ``new``, which replaces this text, come from."""
        place = self.text.find(new)
        if place >= 0:
            return self.spans[place : place + len(new)]
        return ((self.start, self.end),) * len(new)
