"""Redaction of secrets from what is recorded: they are replaced where a tool's answer has them.

A secret is known as it is, and as Python's `repr`, JSON (RFC 8259) and URLs (RFC 3986) write it.
It is not known in pieces, nor in another encoding (base64, a digest).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, quote_plus

from msgspec.structs import replace

from vedette.domain.effect import Outcome

# A shorter value is a word or a number that stands in many texts for itself.
MIN_SECRET_CHARS = 6
# A worker cuts the text of an error here, and so maybe a secret in two.
MAX_ERROR_CHARS = 4096


class SecretRedactor:
    """The redactor of secrets of at least `min_chars` characters, by `placeholder`."""

    def __init__(
        self,
        secrets: Iterable[str],
        placeholder: str = "[secret]",
        min_chars: int = MIN_SECRET_CHARS,
    ) -> None:
        found = {form for one in secrets if len(one) >= min_chars for form in _encodings(one)}
        # The longest first: one secret may be the beginning of another.
        self._forms = sorted(found, key=len, reverse=True)
        self._placeholder = placeholder
        self._text = re.compile("|".join(map(re.escape, self._forms)))
        raw = [one.encode("utf-8", "surrogateescape") for one in self._forms]
        self._bytes = re.compile(b"|".join(map(re.escape, raw)))

    def redact(self, value: Any) -> Any:
        """Return a value with the secrets replaced in its texts, however deep they lie."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self._text.sub(lambda _: self._placeholder, value)
        if isinstance(value, bytes):
            return self._bytes.sub(lambda _: self._placeholder.encode(), value)
        if isinstance(value, Mapping):
            return {self.redact(name): self.redact(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.redact(item) for item in value]
        if isinstance(value, tuple):
            return tuple(self.redact(item) for item in value)
        return value

    def redact_error(self, text: str) -> str:
        """Return the text of an error without the secrets, nor the first part of one at its end."""
        hidden: str = self.redact(text)
        if len(text) < MAX_ERROR_CHARS:
            return hidden
        for form in self._forms:
            for length in range(len(form) - 1, MIN_SECRET_CHARS - 1, -1):
                if hidden.endswith(form[:length]):
                    return hidden[:-length] + self._placeholder
        return hidden

    def redact_outcome(self, outcome: Outcome) -> Outcome:
        """Return an outcome with the secrets replaced in its data and its error."""
        if not self._forms:
            return outcome
        data = self.redact(dict(outcome.data))
        return replace(outcome, data=data, error=self.redact_error(outcome.error))

    async def redact_call(self, answer: Awaitable[Outcome | None]) -> Outcome | None:
        """Return what a call answers, or raise its error, without the secrets."""
        try:
            outcome = await answer
        except BaseException as error:
            instead = self._redacted_error(error)
            if instead is None:
                raise
        else:
            return None if outcome is None else self.redact_outcome(outcome)
        # Raised out here it has no context: the first error would bring its text along.
        raise instead

    def _redacted_error(self, error: BaseException) -> BaseException | None:
        """Return what to raise instead of an error that tells a secret; None if it does not."""
        said = str(error)
        hidden = self.redact_error(said)
        if hidden == said:
            return None
        if isinstance(error, Exception):
            return RuntimeError(f"{type(error).__name__}: {hidden}")
        # What is no Exception must not become one: it says that nobody knows what happened.
        kind = asyncio.CancelledError if isinstance(error, asyncio.CancelledError) else SystemExit
        return kind(hidden)


def _encodings(secret: str) -> Iterator[str]:
    """Yield a secret as it may stand in a text."""
    raw = secret.encode("utf-8", "surrogateescape")
    written = [secret, repr(secret)[1:-1], repr(raw)[2:-1]]
    with suppress(UnicodeEncodeError):
        # Headers are sent, and shown in errors, in this.
        written.append(repr(secret.encode("latin-1"))[2:-1])
    yield from written
    # Between double quotes `repr` leaves a single one as it is, else not.
    yield from (one.replace("'", "\\'") for one in written)
    yield from (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    yield from (quote(raw), quote(raw, safe=""), quote_plus(raw))
