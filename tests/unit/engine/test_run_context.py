"""A run in hand: the exact action of a row, as it is today."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from vedette.domain.action import Proposal, bind_proposal
from vedette.domain.origin import Ref, Roots
from vedette.domain.run import ActionRow, Superseded
from vedette.domain.tool import Tool
from vedette.engine.run_context import RunContext
from vedette.engine.turn import action_row

TOOL = Tool("mail.tell", "tell", "mail", {"to": "string", "what": "object"}, ("/to",), "none", "f")
CHARTER = {"desk": "desk@harbour.example"}
REGISTRY = {"people": ["ada@harbour.example"]}
WHAT = {"/what": "derived", "/what/a": "derived", "/what/a/0": "derived"}


def case_of(tool: Tool = TOOL) -> tuple[RunContext, ActionRow]:
    """Return a case whose only action was bound and decided in this process."""
    none: frozenset[str] = frozenset()
    roots = Roots({}, none, CHARTER, REGISTRY, {}, none, {}, none, {})
    proposal = Proposal("mail.tell", {"to": "ada@harbour.example", "what": {"a": ["b"]}})
    action = bind_proposal(
        proposal, {TOOL.name: TOOL}, roots, run="run_" + "0" * 32, turn=1, ordinal=0, confidence=1.0
    )
    assert action.origins["/to"] == "registered"
    line = SimpleNamespace(registry=REGISTRY, known_values={})
    agent = SimpleNamespace(name="clerk", release="", tools={tool.name: tool}, charter=CHARTER)
    case = RunContext(cast(Any, line), cast(Any, None), 1, cast(Any, agent), cast(Any, None), [])
    row = action_row(action, "clerk")
    case.fresh_actions[row.id] = (action, REGISTRY, row.record)
    return case, row


def test_an_action_decided_here_is_what_is_on_record() -> None:
    case, row = case_of()
    first = case.rebuild_action(row)
    assert (first.id, first.digest) == (row.id, row.digest)
    assert first.origins == {**WHAT, "/to": "registered"}
    # A tool that changes what it was given changes nothing of the next try.
    first.args["what"]["a"].append("c")
    assert case.rebuild_action(row).args == {"to": "ada@harbour.example", "what": {"a": ["b"]}}


def test_its_origins_are_found_anew_under_another_registry() -> None:
    case, row = case_of()
    case.services.registry = {"people": []}
    assert case.rebuild_action(row).origins == {**WHAT, "/to": "derived"}


def test_what_was_not_decided_here_is_held_against_its_digest() -> None:
    changed = Tool("mail.tell", "tell", "mail", TOOL.args, ("/to",), "none", "f", high_impact=True)
    case, row = case_of(changed)
    case.fresh_actions.clear()
    with pytest.raises(Superseded, match="not declared as it was"):
        case.rebuild_action(row)


def test_a_tool_declared_anew_is_held_against_the_digest_of_what_was_decided_here() -> None:
    case, row = case_of()
    changed = Tool("mail.tell", "tell", "mail", TOOL.args, ("/to",), "none", "f", high_impact=True)
    case.agent.tools[TOOL.name] = changed  # type: ignore[index]
    with pytest.raises(Superseded, match="not declared as it was"):
        case.rebuild_action(row)


@pytest.mark.parametrize("record", [b"", b"x", b"[]", b"{}", b'{"args":5}', None])
def test_a_record_that_is_none_is_never_taken_for_what_was_decided_here(record: Any) -> None:
    case, row = case_of()
    case.services.metrics = SimpleNamespace(count=lambda *a, **b: None)
    row.record = record
    with pytest.raises(Superseded):
        case.rebuild_action(row)


def test_an_edited_record_is_not_what_was_decided_here() -> None:
    case, row = case_of()
    case.services.metrics = SimpleNamespace(count=lambda *a, **b: None)
    row.record = row.record.replace(b"ada@harbour.example", b"eve@harbour.example")
    with pytest.raises(Superseded, match="not declared as it was"):
        case.rebuild_action(row)


def test_what_was_decided_here_keeps_its_readers_and_links() -> None:
    case, row = case_of()
    action, registry, record = case.fresh_actions[row.id]
    kept = replace(action, readers={"/to": frozenset({"@harbour.example"})}, links=action.links)
    case.fresh_actions[row.id] = (kept, registry, record)
    again = case.rebuild_action(row)
    assert (again.readers, again.links) == (kept.readers, kept.links)


def test_the_origins_of_one_action_are_not_those_of_another_with_the_same_arguments() -> None:
    """One digest, two places in the run: by reference trusted, given bare derived."""
    case, row = case_of()
    none: frozenset[str] = frozenset()
    roots = Roots({}, none, {"w": {"a": ["b"]}}, REGISTRY, {}, none, {}, none, {})
    args = {"to": "ada@harbour.example", "what": Ref("/charter/w")}
    other = bind_proposal(
        Proposal("mail.tell", args),
        {TOOL.name: TOOL},
        roots,
        run=row.run,
        turn=1,
        ordinal=1,
        confidence=1.0,
    )
    twin = action_row(other, "clerk")
    case.fresh_actions[twin.id] = (other, REGISTRY, twin.record)
    assert twin.digest == row.digest
    assert case.rebuild_action(row).origins["/what"] == "derived"
    assert case.rebuild_action(twin).origins["/what"] == "trusted"


def test_a_copy_of_a_row_says_the_same_and_is_its_own() -> None:
    _, row = case_of()
    row.tries, row.waits = 3, "target"
    copy = row.copy()
    assert copy == row
    assert copy is not row
    copy.tries += 1
    assert row.tries == 3
