"""A text that is written again and again with other words: looked through once, then cut."""

from __future__ import annotations

import re
from collections.abc import Sequence


class Stencil:
    """A text of the pattern with the places at which its words stand, to be cut with others."""

    def __init__(self, text: str, words: Sequence[str]) -> None:
        every = sorted(words, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, every))})", text)
        self._parts = parts
        self._places = [(at, words.index(part)) for at, part in enumerate(parts) if at % 2]

    def cut(self, words: Sequence[str]) -> str:
        """Return the text with these words instead of the pattern's."""
        if not self._places:
            return self._parts[0]
        parts = self._parts.copy()
        for at, word in self._places:
            parts[at] = words[word]
        return "".join(parts)
