"""What a proposal comes to, byte for byte as it is said plainly (`tests/plain_decisions.py`)."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict
from tests import plain_decisions

from vedette.domain.action import Action, Proposal, bind_proposal
from vedette.domain.agent import Agent, Subscription
from vedette.domain.base.canonical import canonical_json
from vedette.domain.base.errors import BadProposal
from vedette.domain.budget import ACTIONS, Budget
from vedette.domain.decision import Approval, DecisionContext
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.identity import Identity
from vedette.domain.origin import Ref, Roots
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.readers import Labels
from vedette.domain.tool import Tool
from vedette.engine.turn import action_row, turn_body
from vedette.policy.gateway import Gateway

WORDS = st.sampled_from(
    ["", "a", "b/c", "d~e", "r50", "0.250", "https://evil.example/x", "kim@desk.example", "ё",
     "desk.example", "1.2.3.4", "\ud800", "\0", "%s %(args)b", '"\\', "a\nb", "4711001"]
) | st.text(max_size=4)  # fmt: skip
NUMBERS = st.sampled_from(
    [0, -1, 7, 4_711_001, 2**53 - 1, 2**53, -(2**53), 2**70, 0.5, 1e300, float("nan"), True]
) | st.integers()  # fmt: skip
SCALARS = WORDS | NUMBERS | st.none() | st.sampled_from([b"x", {"a"}])
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(WORDS | st.sampled_from([1, None]), inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
    ),
    max_leaves=5,
)
POINTERS = st.sampled_from(
    ["/event/id", "/event/subject", "/event/data", "/event/data/a", "/event/data/b~1c",
     "/event/data/0", "/charter/a", "/charter/list", "/charter/list/0", "/registry/a",
     "/memory/m/text", "/memory/m/label", "/memory/n/label", "/outcome/0/a", "/outcome/1", "/row/a",
     "/row", "/elsewhere/a", "event/id", "", "/event/nothing", "/event/data/a/b", "/charter/deep"]
).map(Ref)  # fmt: skip
# Of texts; the second is there where the event's data is an object, and vouched for in some.
TEXTS = st.sampled_from(["/event/id", "/event/data/b~1c", "/charter/mail", "/memory/m/text"]).map(
    Ref
)
OFTEN = st.sampled_from([True] * 15 + [False])
GIVEN = st.recursive(
    TREES | POINTERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
KINDS = st.sampled_from(
    [f"{kind}{end}" for kind in ("string", "integer", "boolean", "strings", "list", "object")
     for end in ("", "?")]
)  # fmt: skip
NAMES = st.sampled_from(["a", "b/c", "d~e", "event", "why"])
ANSWER = {
    "schema": "vedette.decision/1", "outcome": "permit", "rule": "x", "reasons": ["b", "a"],
    "wait": None, "until": 0, "would": None, "obligations": [{"type": "notify"}],
}  # fmt: skip
READERS = st.none() | st.frozensets(st.sampled_from(["@a.example", "b@c.example"]))


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@st.composite
def tools(draw: st.DrawFn) -> Tool:
    names = st.sampled_from(["mail.send", "t%s", "ящик"])
    return Tool(
        draw(names), "do", draw(names),
        draw(st.dictionaries(NAMES, KINDS, max_size=4)), ("/a",), "idempotent", "f",
        inverse=draw(st.sampled_from([None, "undo"])), target=draw(st.sampled_from([None, "t"])),
        high_impact=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def proposals(draw: st.DrawFn, tool: Tool) -> Proposal:
    likely = {
        "string": WORDS | TEXTS, "integer": st.integers() | NUMBERS, "boolean": st.booleans(),
        "strings": st.lists(WORDS | POINTERS, max_size=3) | POINTERS,
        "list": st.lists(GIVEN, max_size=3) | POINTERS,
        "object": st.dictionaries(WORDS, GIVEN, max_size=3) | POINTERS,
    }  # fmt: skip
    args = {
        name: draw(likely[kind.removesuffix("?")] if draw(OFTEN) else GIVEN)
        for name, kind in tool.args.items()
        if not kind.endswith("?") or draw(st.booleans())
    }
    if not draw(OFTEN):
        args |= draw(st.dictionaries(NAMES, GIVEN, max_size=2))
    return Proposal(tool.name, args, draw(WORDS), draw(st.sampled_from([None, 0.4, 1.0, 1.5])))


@st.composite
def roots(draw: st.DrawFn, event: Event) -> Roots:
    charter = {
        "a": draw(TREES), "list": draw(st.lists(WORDS, max_size=2)), "mail": "kim@desk.example",
        "account": 4_711_001, "deep": nested(draw(st.sampled_from([3, 63, 251, 252, 253, 254]))),
    }  # fmt: skip
    labels = None
    if draw(st.booleans()):
        places = {"event": draw(READERS), "memory/m": draw(READERS), "outcome/0": draw(READERS)}
        labels = Labels(draw(READERS), places)
    return Roots(
        event=event.root(), vouched=event.vouched, charter=charter,
        registry={"a": draw(TREES), "host": "desk.example"},
        memory={"m": {"text": draw(WORDS), "label": draw(WORDS)}, "n": {"label": "x"}},
        trusted_memories=frozenset({"m"}), outcome={"0": {"a": draw(TREES)}, "1": draw(TREES)},
        trusted_outcomes=frozenset({"1"}), row={"a": draw(TREES)}, labels=labels,
    )  # fmt: skip


@st.composite
def events(draw: st.DrawFn) -> Event:
    vouched = draw(st.sampled_from([ENVELOPE, frozenset(), frozenset({"id", "data/b~1c"})]))
    data = draw(st.fixed_dictionaries({"a": TREES, "b/c": WORDS}) if draw(OFTEN) else TREES)
    lineage = draw(st.sampled_from([(), ("desk",), ("desk", "ё")]))
    hops: Any = draw(st.sampled_from([0, 1, 2, 2**53, True, 1.5, "1"]))
    return Event(
        draw(WORDS), draw(WORDS), draw(WORDS), draw(WORDS), None, data, hops, lineage, vouched
    )


@st.composite
def situations(draw: st.DrawFn, event: Event, digest: str) -> DecisionContext:
    agent = Agent(
        "desk", Identity("harbour", "desk"), "t", draw(WORDS), draw(WORDS), "", "", {},
        (Subscription(("a*", "r5?"), name=draw(WORDS)), Subscription(("*",), ("ё",))), (), {}, (),
        Budget(draw(st.sampled_from([None, 9])), None, draw(st.sampled_from([4, 2**60]))), "act",
        collection=draw(st.sampled_from([None, "rows"])),
    )  # fmt: skip
    approval = draw(st.none() | st.builds(Approval, st.just(digest), WORDS, st.integers(0)))
    return DecisionContext(
        agent, event, 1, draw(st.sampled_from([5, 1_780_000_000_000_000, 2**53])),
        memories=draw(st.lists(st.tuples(WORDS, st.sampled_from(["reviewed", "learned"])))),
        actions_in_run=draw(st.integers(0, 3)), stopped=draw(st.booleans()), approval=approval,
        trigger=draw(st.none() | WORDS),
    )  # fmt: skip


class Engine:
    name, digest = "engine", "b" * 64

    def decide_json(self, request: bytes) -> bytes:
        return orjson.dumps(ANSWER)

    def decide(self, request: bytes) -> object:
        return ANSWER


def outcome(make: Any) -> Any:
    """Return what a call returns or raises, in a form that compares: NaN equals itself, too."""
    try:
        found = make()
    except BadProposal as error:
        return str(error)
    except (ValueError, TypeError):
        return "no canonical form"
    if isinstance(found, Action):
        return repr(asdict(found) | {"origins": sorted(found.origins.items())})
    return found


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_proposal_comes_to_what_it_plainly_does(data: st.DataObject) -> None:
    tool, event = data.draw(tools()), data.draw(events())
    proposal, below = data.draw(proposals(tool)), data.draw(roots(event))

    def bound() -> Action:
        return bind_proposal(
            proposal, {tool.name: tool}, below, run="run_1", turn=1, ordinal=0, confidence=0.95
        )

    def plain() -> Action:
        return plain_decisions.bind(
            proposal, tool, below, run="run_1", turn=1, ordinal=0, confidence=0.95
        )

    assert outcome(bound) == outcome(plain)
    try:
        action = bound()
    except (BadProposal, ValueError, TypeError):
        return
    assert outcome(lambda: action_row(action, "desk").record) == outcome(
        lambda: plain_decisions.row_record(action)
    )
    context = data.draw(situations(event, action.digest))
    gateway = Gateway(Engine(), 3)
    gateway.counts.add("desk", ACTIONS, context.now_us, 2)
    request = plain_decisions.question(
        action, context, gateway.counts.totals("desk", ACTIONS, context.now_us)
    )
    body = plain_decisions.decision_body(request, ANSWER)
    for _ in range(2):  # whatever was kept of the first
        assert gateway.decide(action, context).to_body() == body


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_turn_is_recorded_as_it_plainly_is(data: st.DataObject) -> None:
    made = [data.draw(proposals(data.draw(tools()))) for _ in range(data.draw(st.integers(0, 3)))]
    judgement = ReasonerJudgement(
        data.draw(WORDS), data.draw(st.sampled_from([0.0, 0.95, 1])), tuple(made),
        data.draw(st.none() | NUMBERS), data.draw(st.none() | NUMBERS),
        data.draw(st.dictionaries(WORDS, TREES, max_size=2)),
    )  # fmt: skip
    cited = data.draw(st.lists(st.tuples(WORDS, WORDS), max_size=2))
    assert outcome(lambda: canonical_json(turn_body(judgement, 1, cited))) == outcome(
        lambda: plain_decisions.turn_body(judgement, 1, cited)
    )
