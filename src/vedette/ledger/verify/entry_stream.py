"""Entries with what lies beside each, handed to the verifier in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vedette.domain.ports.ledger_reader import RawEntry
from vedette.ledger.verify.finding import Code, Finding

_MAX_FINDINGS = 100


class EntryStream:
    """Hands entries to the verifier one by one, and with each the body that lies beside it.

    It is the `entries` and the `bodies` of `verify_ledger`. Beside which entries a body lies that
    these do not name is in `strays`, the first hundred, and `stray_count`, once all were read.
    """

    def __init__(self, rows: Iterable[RawEntry]) -> None:
        self._rows = rows
        self._body: tuple[bytes, bytes] | None = None
        self._is_named = True
        self.stray_count = 0
        self.strays: list[Finding] = []

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for seq, raw, salt, data in self._rows:
            self._body = None if salt is None or data is None else (salt, data)
            self._is_named = self._body is None
            yield seq, raw
            if not self._is_named:
                # It would be shown beside an entry that vouches for nothing.
                self.stray_count += 1
                if self.stray_count <= _MAX_FINDINGS:
                    what = f"a body lies beside entry {seq}, which has none"
                    self.strays.append(Finding(Code.BODY_MISMATCH, seq, what))

    def get(self, digest: str, /) -> tuple[bytes, bytes] | None:
        """Return the body of the entry at hand, whatever its digest: the verifier compares."""
        self._is_named = True
        return self._body
