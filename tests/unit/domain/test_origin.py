"""Where a value comes from is decided by where it is, never by who says so."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from vedette.domain.agent import Schedule
from vedette.domain.base.errors import BadProposal
from vedette.domain.event import ENVELOPE
from vedette.domain.origin import Ref, Roots, bare_origin, known_values, resolve, split_pointer
from vedette.domain.schedule import Tick

ROOTS = Roots(
    event={
        "source": "maildir:desk",
        "id": "1",
        "type": "mail.received",
        "subject": "1.M1",
        "time": None,
        "data": {"from": "x@evil.example", "to": ["a@b", "c@d"], "a/b": {"m~n": 7}},
    },
    vouched=frozenset({"source", "id", "subject"}),
    charter={"folders": {"invoice": "Invoices"}, "list": ["one", "two"]},
    registry={"contacts": {"accountant": "acc@example.org"}},
    memory={"m1": {"text": "reviewed", "label": "invoice"}, "m2": {"text": "learned"}},
    trusted_memories=frozenset({"m1"}),
    outcome={"0": {"id": "o-0"}, "1": {"id": "o-1"}},
    trusted_outcomes=frozenset({"1"}),
    row={"incident": "inc-1"},
)


@pytest.mark.parametrize(
    ("pointer", "value", "origin"),
    [
        ("/event/subject", "1.M1", "trusted"),
        ("/event/type", "mail.received", "untrusted"),
        ("/event/data/from", "x@evil.example", "untrusted"),
        ("/event/data", ROOTS.event["data"], "untrusted"),
        ("/event/data/to/1", "c@d", "untrusted"),
        ("/event/data/a~1b/m~0n", 7, "untrusted"),
        ("/charter/folders/invoice", "Invoices", "trusted"),
        ("/charter/list/1", "two", "trusted"),
        ("/registry/contacts/accountant", "acc@example.org", "trusted"),
        ("/memory/m1/label", "invoice", "trusted"),
        ("/memory/m1/text", "reviewed", "untrusted"),
        ("/memory/m2/text", "learned", "untrusted"),
        ("/outcome/0/id", "o-0", "untrusted"),
        ("/outcome/1/id", "o-1", "trusted"),
        ("/row/incident", "inc-1", "derived"),
    ],
)
def test_a_reference_has_the_origin_of_its_root(pointer: str, value: object, origin: str) -> None:
    assert resolve(Ref(pointer), ROOTS) == (value, origin)


def test_nothing_is_vouched_for_by_an_anonymous_sender() -> None:
    anonymous = replace(ROOTS, vouched=frozenset())
    for name in ("source", "id", "type", "subject"):
        assert resolve(Ref(f"/event/{name}"), anonymous)[1] == "untrusted"


def test_the_data_of_a_tick_is_trusted_and_that_of_no_other_event() -> None:
    schedule = Schedule("digest", every_us=1, data={"folder": "Reports"})
    tick = Tick("desk", schedule, 0, None).to_event("harbour")
    mine = replace(ROOTS, event={"data": tick.data}, vouched=tick.vouched)
    assert resolve(Ref("/event/data/folder"), mine) == ("Reports", "trusted")
    theirs = replace(mine, vouched=ENVELOPE)
    assert resolve(Ref("/event/data/folder"), theirs) == ("Reports", "untrusted")


@pytest.mark.parametrize(
    "pointer",
    [
        "", "event/subject", "/event", "/charter", "/secrets/key", "/vouched/0",
        "/trusted_memories/0", "/event/nowhere", "/event/data/from/0", "/event/data/to/2",
        "/event/data/to/-1", "/event/data/to/x", "/charter/../event/data/from", "/charter//folders",
        "/memory/m3/text", "/outcome/2/id", "/event/subject/0", "/row/nothing",
    ],
)  # fmt: skip
def test_a_reference_that_leads_nowhere_is_no_empty_value(pointer: str) -> None:
    with pytest.raises(BadProposal):
        resolve(Ref(pointer), ROOTS)


def test_tokens_are_those_of_rfc_6901() -> None:
    assert split_pointer("/a~1b/~01/") == ("a/b", "~1", "")


def test_a_bare_value_is_registered_only_if_all_of_it_is_known() -> None:
    known = known_values(ROOTS)
    assert known == {"Invoices", "one", "two", "acc@example.org"}
    assert bare_origin("acc@example.org", known) == "registered"
    assert bare_origin(["acc@example.org"], known) == "registered"
    assert bare_origin({"one": ["acc@example.org"]}, known) == "registered"
    for other in ("ACC@example.org", "acc@example.org ", "acc", "", 7, None, True, [], {}, [7],
                  ["acc@example.org", "x"], {"x": "one"}):  # fmt: skip
        assert bare_origin(other, known) == "derived"


def test_a_key_with_a_slash_is_no_place_below_another() -> None:
    """In an undo single places are vouched for; a key that spells one is another place."""
    data = {"args": {"o": {"x/0": "theirs", "x": ["ours"]}}}
    undo = replace(ROOTS, event={"data": data}, vouched=frozenset({"data/args/o/x/0"}))
    assert resolve(Ref("/event/data/args/o/x/0"), undo) == ("ours", "trusted")
    assert resolve(Ref("/event/data/args/o/x~10"), undo) == ("theirs", "untrusted")
