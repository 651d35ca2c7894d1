"""Entries: closed lists of kinds and fields, one canonical form."""

from __future__ import annotations

import orjson
import pytest

from vedette.domain.base.canonical import canonicalize
from vedette.domain.entry import Draft, encode_entry


def test_a_sealed_entry_is_canonical_and_says_where_it_stands() -> None:
    draft = Draft("action.decided", {"event": "evt_1", "agent": "a", "outcome": "permit"}, cause=3)
    raw = encode_entry(draft, seq=7, at_us=5, run="run_1", n=2, body="ab")
    assert orjson.loads(raw) == {
        "v": 1, "seq": 7, "at": 5, "kind": "action.decided", "run": "run_1", "n": 2, "cause": 3,
        "event": "evt_1", "agent": "a", "outcome": "permit", "body": "ab",
    }  # fmt: skip
    assert raw == canonicalize(orjson.loads(raw))


def test_a_cause_in_the_same_step_is_counted_back() -> None:
    draft = Draft("effect.intended", {}, cause=1, cause_offset=2)
    assert orjson.loads(encode_entry(draft, seq=9, at_us=0, run="r", n=1, body=None))["cause"] == 7


def test_what_is_none_is_left_out() -> None:
    raw = encode_entry(
        Draft("store.opened", {"epoch": 1, "tool": None}), seq=1, at_us=2, run=None, n=0, body=None
    )
    assert set(orjson.loads(raw)) == {"v", "seq", "at", "kind", "epoch"}


@pytest.mark.parametrize(
    ("kind", "fields"), [("action.permitted", {}), ("", {}), ("run.closed", {"text": "content"})]
)
def test_no_other_kinds_and_fields(kind: str, fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="no "):
        Draft(kind, fields)
