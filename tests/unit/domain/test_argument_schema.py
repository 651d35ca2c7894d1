"""A tool that declares its arguments by a schema: what is bound, and what is said of the rest."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest
import rfc8785
from msgspec.structs import replace

from vedette.domain.action import Action, Proposal, bind_proposal
from vedette.domain.argument_schema import ArgumentSchema
from vedette.domain.base.errors import BadProposal
from vedette.domain.origin import Ref, Roots
from vedette.domain.origin_check import recompute_origins
from vedette.domain.run import Superseded
from vedette.domain.schema_check import find_schema_problems
from vedette.domain.tool import Tool

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "amount": {"type": "number", "minimum": 0, "maximum": 500, "multipleOf": 0.01},
        "copies": {"type": "integer"},
        "level": {"enum": ["low", "high"]},
        "code": {"type": "string", "pattern": "^[A-Z]+$", "maxLength": 3},
        "to": {
            "type": "array", "maxItems": 2, "uniqueItems": True,
            "items": {
                "type": "object", "required": ["address"],
                "properties": {
                    "address": {"type": "string", "format": "email"},
                    "name": {"$ref": "#/$defs/name"},
                },
            },
        },
        "labels": {"type": "object", "additionalProperties": {"type": "number"}},
        "rate": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "text_or_number": {"type": ["string", "number"]},
    },
    "required": ["amount"],
    "$defs": {"name": {"type": ["string", "null"]}},
}  # fmt: skip


def tool(schema: dict[str, Any], *sinks: str) -> Tool:
    return Tool(
        name="pay.send", verb="send", resource="bank", args={}, sinks=sinks, settles="none",
        function="send", schema=schema,
    )  # fmt: skip


TOOL = tool(SCHEMA, "/to/*/address", "/labels/*")
NONE: dict[str, Any] = {}
ROOTS = Roots(
    event={"data": {"sum": "12.5", "half": 0.5, "word": "1.50", "who": "x@evil.example",
                    "all": [{"address": "x@evil.example"}], "deep": {"a": "0.25", "b": 3.0},
                    "sums": ["1.5"] * 200}},
    vouched=frozenset(), charter={"desk": "desk@example.org", "most": 99.5}, registry=NONE,
    memory=NONE, trusted_memories=frozenset(), outcome=NONE, trusted_outcomes=frozenset(), row=NONE,
)  # fmt: skip


def bound(*, declared: Tool = TOOL, **args: Any) -> Action:
    return bind_proposal(
        Proposal("pay.send", args), {"pay.send": declared}, ROOTS,
        run="run_1", turn=1, ordinal=0, confidence=1.0,
    )  # fmt: skip


def test_the_schema_of_these_tests_is_taken() -> None:
    assert find_schema_problems(SCHEMA) == []


def test_what_properties_do_not_name_is_no_argument_even_of_an_open_schema() -> None:
    for more in ({}, {"additionalProperties": True}, {"additionalProperties": {"type": "string"}}):
        declared = tool({"type": "object", "properties": {"a": {}}, **more})
        assert bound(declared=declared, a="x").args == {"a": "x"}
        with pytest.raises(BadProposal, match="has no argument 'b'"):
            bound(declared=declared, a="x", b="x")


def test_a_schema_sums_up_as_words() -> None:
    assert TOOL.args == {
        "amount": "number", "copies": "integer?", "level": "string?", "code": "string?",
        "to": "list?", "labels": "object?", "rate": "number?", "text_or_number": "any?",
    }  # fmt: skip


def test_numbers_stay_numbers_and_have_one_form() -> None:
    assert bound(amount=12.5).args == {"amount": 12.5}
    one = [bound(amount=1), bound(amount=1.0)]
    assert [type(each.args["amount"]) for each in one] == [int, int]
    assert one[0].digest == one[1].digest != bound(amount=1.01).digest
    assert bound(amount=-0.0).digest == bound(amount=0).digest
    assert bound(amount=3, copies=3.0).args["copies"] == 3


@pytest.mark.parametrize(
    "amount", [float("nan"), float("inf"), 2**53, -(2**53), 1e300, 10**400, True, "1.5", None, "1"]
)
def test_what_is_no_exact_number_is_refused(amount: object) -> None:
    declared = tool({"type": "object", "properties": {"amount": {"type": "number"}}})
    with pytest.raises(BadProposal):
        bound(declared=declared, amount=amount)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "tool pay.send needs the argument 'amount'"),
        ({"amount": 1, "more": 1}, "tool pay.send has no argument 'more'"),
        ({"amount": "secret"}, "tool pay.send: /amount must be a number"),
        ({"amount": -1}, "tool pay.send: /amount must be at least 0"),
        ({"amount": 500.01}, "tool pay.send: /amount must be at most 500"),
        ({"amount": 0.005}, "tool pay.send: /amount must be a multiple of 0.01"),
        ({"amount": 1, "copies": 1.5}, "tool pay.send: /copies must be an integer"),
        ({"amount": 1, "level": "secret"}, 'tool pay.send: /level must be one of "low", "high"'),
        ({"amount": 1, "code": "se"}, "tool pay.send: /code must match the pattern ^[A-Z]+$"),
        ({"amount": 1, "code": "LONG"}, "tool pay.send: /code must have at most 3 characters"),
        ({"amount": 1, "to": [{"name": "secret"}]},
         "tool pay.send: /to/0 needs the member 'address'"),
        ({"amount": 1, "to": [{"address": "secret"}]},
         "tool pay.send: /to/0/address must be of the format email"),
        ({"amount": 1, "to": [{"address": "a@b.example", "name": 1}]},
         "tool pay.send: /to/0/name must be a string or null"),
        ({"amount": 1, "to": [{"address": "a@b.example"}] * 2},
         "tool pay.send: /to must have no item twice"),
        ({"amount": 1, "labels": {"secret": "x"}}, "tool pay.send: /labels/* must be a number"),
        ({"amount": 1, "rate": "x"},
         "tool pay.send: /rate fits none of the forms that it may have"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_one_sentence_without_what_was_given(
    args: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadProposal) as caught:
        bound(**args)
    assert caught.value.what == said
    assert "secret" not in str(caught.value)


def test_cents_are_a_multiple_of_cents() -> None:
    """As jsonschema divides floats they are not: 0.07 / 0.01 is 7.000000000000001."""
    assert all(bound(amount=cents / 100).args["amount"] == cents / 100 for cents in range(300))


def test_a_reference_stands_for_a_value_of_any_type() -> None:
    action = bound(
        amount=Ref("/event/data/sum"), rate=Ref("/charter/most"), labels=Ref("/event/data/deep"),
        to=Ref("/event/data/all"),
    )  # fmt: skip
    assert action.args == {
        "amount": 12.5, "rate": 99.5, "labels": {"a": 0.25, "b": 3},
        "to": [{"address": "x@evil.example"}],
    }  # fmt: skip
    assert action.origins["/amount"] == action.origins["/labels/a"] == "untrusted"
    assert action.origins["/rate"] == "trusted"
    assert bound(amount=Ref("/event/data/half")).args == {"amount": 0.5}


NUMBER = {"properties": {"x": {"type": "number"}}}


@pytest.mark.parametrize(
    ("argument", "given", "read"),
    [
        ({"allOf": [NUMBER, {"properties": {"y": {"type": "string"}}}]},
         {"x": Ref("/event/data/sum"), "y": Ref("/event/data/sum")}, {"x": 12.5, "y": "12.5"}),
        ({"$ref": "#/$defs/n", "properties": {"y": {}}},
         {"x": Ref("/event/data/sum")}, {"x": 12.5}),
        ({"if": {"required": ["x"]}, "then": NUMBER}, {"x": Ref("/event/data/sum")}, {"x": 12.5}),
        ({"anyOf": [NUMBER, {"properties": {"y": {}}, "required": ["y"]}]},
         {"x": Ref("/event/data/sum")}, {"x": 12.5}),
        # A list's item and an object's member are not of one name.
        ({"items": {"type": "number"}}, [Ref("/event/data/sum")], [12.5]),
        ({"items": {"type": "number"}}, {"0": Ref("/event/data/sum")}, {"0": "12.5"}),
        ({"properties": {"0": {"type": "number"}}}, [Ref("/event/data/sum")], ["12.5"]),
    ],
)  # fmt: skip
def test_a_number_is_drawn_wherever_its_place_is_declared(
    argument: dict[str, Any], given: Any, read: Any
) -> None:
    schema = {"type": "object", "properties": {"a": argument}, "$defs": {"n": NUMBER}}
    assert find_schema_problems(schema) == []
    assert bound(declared=tool(schema), a=given).args["a"] == read


def test_a_drawn_text_that_may_be_text_stays_one() -> None:
    assert bound(amount=1, text_or_number=Ref("/event/data/sum")).args["text_or_number"] == "12.5"
    with pytest.raises(BadProposal, match="must be a number"):
        bound(amount=Ref("/event/data/word"))  # nothing of ours writes a number so
    with pytest.raises(BadProposal, match="must be a number"):
        bound(amount="12.5", rate=Ref("/charter/most"))  # given bare it is a text


def test_every_element_has_its_origin_and_a_sink_the_worst_of_its_places() -> None:
    desk = {"address": Ref("/charter/desk")}
    action = bound(amount=1, to=[desk, {"address": Ref("/event/data/who"), "name": None}])
    assert action.origins["/to/0/address"] == "trusted"
    assert action.origins["/to/1/address"] == action.origins["/to"] == "untrusted"
    assert "/to/*/address" not in action.origins
    assert action.judged_origins["/to/*/address"] == "untrusted"
    assert bound(amount=1, to=[desk]).judged_origins["/to/*/address"] == "trusted"
    # Its neighbour does not count, and what is absent has no origin.
    named = bound(amount=1, to=[{**desk, "name": "derived"}])
    assert named.judged_origins["/to/*/address"] == "trusted"
    absent = bound(amount=1, to=[], labels={}).judged_origins
    assert not {"/to/*/address", "/labels/*"} & absent.keys()


def test_a_member_named_as_the_sink_is_spelled_labels_no_sink() -> None:
    forged = bound(amount=1, labels={"*": Ref("/charter/most"), "x": Ref("/event/data/half")})
    assert forged.origins["/labels/*"] == "trusted"
    assert forged.judged_origins["/labels/*"] == "untrusted"


def test_an_argument_that_is_labelled_as_a_whole_gives_its_sinks_that_label() -> None:
    schema = {"type": "object", "properties": {"to": {"type": "array"}}}
    many = bound(declared=tool(schema, "/to/*"), to=[Ref("/charter/desk")] * 300)
    assert many.judged_origins["/to/*"] == many.origins["/to"] == "derived"


def test_a_sink_within_a_word_s_object_is_judged_with_the_whole_where_it_is_absent() -> None:
    old = Tool(
        name="pay.send", verb="send", resource="bank", args={"order": "object?"},
        sinks=("/order/to",), settles="none", function="send",
    )  # fmt: skip
    there = bound(declared=old, order={"to": Ref("/charter/desk"), "x": "y"})
    assert there.judged_origins["/order/to"] == "trusted"
    assert bound(declared=old, order={"To": "y"}).judged_origins["/order/to"] == "derived"
    assert "/order/to" not in bound(declared=old).judged_origins


@pytest.mark.parametrize(
    ("pointer", "known"),
    [
        ("/amount", True), ("/to", True), ("/to/0", True), ("/to/*", True), ("/to/*/address", True),
        ("/to/0/name", True), ("/to/address", False), ("/to/*/adress", False), ("/amount/x", False),
        ("/labels/x", True), ("/labels/*", True), ("/rate/*", False), ("/no", False),
    ],
)  # fmt: skip
def test_a_sink_names_a_place_that_the_schema_declares(pointer: str, known: bool) -> None:
    assert ArgumentSchema(SCHEMA).has_place(pointer) is known


@pytest.mark.parametrize(
    ("schema", "pointer", "known"),
    [
        ({"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "null"}]}, "/x/a", True),
        ({"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "null"}]}, "/x/b", False),
        ({"allOf": [{"properties": {"a": {}}}, {"type": "object"}]}, "/x/a", True),
        ({"allOf": [{"properties": {"a": {}}}, {"type": "array"}]}, "/x/a", False),
        ({"type": "array", "prefixItems": [{"type": "object", "properties": {"a": {}}}],
          "items": False}, "/x/0/a", True),
        ({"type": "array", "prefixItems": [{}], "items": False}, "/x/1", False),
        ({"type": "array", "prefixItems": [{}], "items": False}, "/x/*", True),
        ({"type": "object", "additionalProperties": False}, "/x/a", False),
        ({"type": "object"}, "/x/a", True),
        ({"$ref": "#/$defs/o"}, "/x/a", True), ({"$ref": "#/$defs/o"}, "/x/b", False),
        # Its members may be named here and there; forbidden by one of them is forbidden.
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "/x/a", True),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "/x/b", True),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "/x/c", False),
        ({"allOf": [{"properties": {"a": {}}}, {"additionalProperties": False}]}, "/x/a", False),
        ({"allOf": [{"properties": {"a": False}}, {"properties": {"a": {}}}]}, "/x/a", False),
        ({"$ref": "#/$defs/o", "properties": {"b": {}}}, "/x/a", True),
        ({"$ref": "#/$defs/o", "properties": {"b": {}}}, "/x/b", True),
        ({"$ref": "#/$defs/o", "properties": {"b": {}}}, "/x/c", False),
        ({"properties": {"b": {}}, "if": {}, "then": {"properties": {"a": {}}}}, "/x/a", True),
        ({"properties": {"b": {}}, "if": {}, "else": {"properties": {"a": {}}}}, "/x/a", True),
        ({"properties": {"b": {}}, "if": {}, "else": {"properties": {"a": {}}}}, "/x/c", False),
        ({"properties": {"b": {}}, "dependentSchemas": {"b": {"properties": {"a": {}}}}}, "/x/a",
         True),
        ({"type": "object", "properties": {}}, "/x/*", False), ({"properties": {}}, "/x/*", True),
        ({"additionalProperties": {}}, "/x/*", True),
        ({"type": "array", "items": False}, "/x/*", False),
    ],
)  # fmt: skip
def test_places_are_found_through_combinations(
    schema: dict[str, Any], pointer: str, known: bool
) -> None:
    whole = {
        "type": "object", "properties": {"x": schema},
        "$defs": {"o": {"type": "object", "properties": {"a": {}}}},
    }  # fmt: skip
    assert find_schema_problems(whole) == []
    assert ArgumentSchema(whole).has_place(pointer) is known


def test_a_fraction_of_the_charter_is_the_same_as_long_as_the_charter_says_it() -> None:
    action = bound(amount=1, rate=Ref("/charter/most"))
    record = {"args": action.args, "origins": action.origins, "sources": action.sources}
    assert recompute_origins(record, {"most": 99.5}, NONE)["/rate"] == "trusted"
    with pytest.raises(Superseded):
        recompute_origins(record, {"most": 99.25}, NONE)


@pytest.mark.parametrize(
    ("was", "now", "is_same"),
    [
        ("3.0", "3.0", True), (3.0, 3.0, True), (3, 3, True), ("1.5", "1.5", True),
        (1.5, 1.5, True), (3.0, 3, True), (3.0, 4.0, False), ("3.0", "3.5", False),
        (3.0, "three", False), (1, True, False), (3, None, False), (3, [3], False),
    ],
)  # fmt: skip
def test_a_number_that_a_charter_s_text_made_stands_as_long_as_that_text(
    was: Any, now: Any, is_same: bool
) -> None:
    declared = tool({"type": "object", "properties": {
        "one": {"type": "number"}, "all": {"type": "array", "items": {"type": "number"}},
        "by": {"type": "object", "additionalProperties": {"type": "number"}},
    }})  # fmt: skip

    def charter(value: Any) -> dict[str, Any]:
        return {"one": value, "all": [value, 7], "by": {"x": value}}

    for name in ("one", "all", "by"):
        roots = replace(ROOTS, charter=charter(was))
        action = bind_proposal(
            Proposal("pay.send", {name: Ref(f"/charter/{name}")}), {"pay.send": declared}, roots,
            run="run_1", turn=1, ordinal=0, confidence=1.0,
        )  # fmt: skip
        record = {"args": action.args, "origins": action.origins, "sources": action.sources}
        if is_same:
            assert recompute_origins(record, charter(now), NONE) == action.origins
        else:
            with pytest.raises(Superseded):
                recompute_origins(record, charter(now), NONE)


def test_a_list_too_long_for_labels_has_its_numbers_all_the_same() -> None:
    schema = {"type": "object", "properties": {"a": {}, "l": {"items": {"type": "number"}}}}
    drawn = bound(declared=tool(schema), l=[Ref("/event/data/sum")] * 300)
    assert drawn.args["l"] == [12.5] * 300
    assert (drawn.origins, drawn.sources) == ({"/l": "untrusted"}, {})
    deep: Any = {"items": {"type": "number"}}
    given: Any = [Ref("/event/data/sum")]
    for _ in range(10):
        deep, given = {"items": deep}, [given]
    action = bound(declared=tool({"type": "object", "properties": {"l": deep}}), l=given)
    assert "12.5]" in str(action.args["l"])


@pytest.mark.parametrize("amount", [0.5, 3.5e-6, 1e-7, 0.1 + 0.2, 2**53 - 1])
def test_an_action_s_digest_is_of_rfc_8785(amount: float) -> None:
    declared = tool({"type": "object", "properties": {"amount": {"type": "number"}}})
    action = bound(declared=declared, amount=amount)
    whole: dict[str, Any] = {
        "args": {"amount": amount},
        "declared": declared.digest,
        "tool": "pay.send",
    }
    assert action.digest == hashlib.sha256(rfc8785.dumps(whole)).hexdigest()


def test_the_declaration_s_digest_covers_the_schema() -> None:
    wider = {**SCHEMA, "properties": {**SCHEMA["properties"], "amount": {"type": "number"}}}
    assert tool(wider).args == tool(SCHEMA).args
    assert tool(wider).digest != tool(SCHEMA).digest
    assert bound(declared=tool(wider), amount=1).digest != bound(amount=1).digest


@pytest.mark.parametrize("keyword", ["enum", "const", "default", "examples", "minimum"])
def test_a_number_and_its_text_make_two_declarations(keyword: str) -> None:
    """An approval of what the one takes is none of what the other takes."""

    def of(value: Any) -> Tool:
        listed = value if keyword in ("const", "default", "minimum") else [value]
        items = {"type": "array", "items": {keyword: listed}}
        return tool({"type": "object", "properties": {"l": items}})

    assert of(0.5).digest != of("0.5").digest
    assert of(1.0).digest == of(1).digest != of("1").digest


CODES = [f"code {n}" for n in range(1_000)]
CHOICES = [{"const": n} for n in range(100)]
WIDE = [{"type": "integer", "minimum": n} for n in range(400)]


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ({"type": "array"}, [0] * 10_000),
        ({"type": "array", "items": {"enum": CODES}}, [CODES[-1]] * 9_990),
        ({"type": "array", "items": {"anyOf": CHOICES}}, [99] * 1_000),
        ({"type": "array", "items": {"oneOf": CHOICES}}, [99] * 1_000),
        ({"type": "array", "contains": {"enum": CODES}}, ["no"] * 9_000),
        ({"anyOf": WIDE}, [["x"] * 10_000]),
        ({"anyOf": WIDE}, "x" * 4_000_000),
        ({"items": {"anyOf": WIDE}}, Ref("/event/data/sums")),
    ],
)
def test_a_check_that_would_take_long_is_given_up(argument: Any, given: Any) -> None:
    """Few schemas of many values, and many of few: the whole fleet waits for one check."""
    schema = {"type": "object", "properties": {"to": argument}}
    assert find_schema_problems(schema) == []
    declared = tool(schema)
    began = time.process_time()
    with pytest.raises(BadProposal, match="too much to check"):
        bound(declared=declared, to=given)
    assert time.process_time() - began < 1


def test_as_much_as_people_and_servers_ask_is_checked() -> None:
    one = {"type": "object", "required": ["name"], "additionalProperties": False, "properties": {
        "name": {"type": "string", "maxLength": 20}, "code": {"enum": CODES},
    }}  # fmt: skip
    schema = {"type": "object", "properties": {"to": {"type": "array", "items": one}}}
    many = [{"name": str(n), "code": CODES[n]} for n in range(250)]
    assert bound(declared=tool(schema), to=many).args["to"] == many


@pytest.mark.parametrize(
    "argument",
    [{"type": "string", "pattern": "^a"}, {"type": "array", "uniqueItems": True}, {},
     {"format": "uri"}, {"enum": ["a"]}, {"const": "a"}],
)  # fmt: skip
@pytest.mark.parametrize("given", ["\ud800", ["\ud800"], {"a": "\ud800"}, [{"\u00e9": 1}]])
def test_what_has_no_canonical_form_is_no_proposal(argument: Any, given: Any) -> None:
    """A cut emoji is enough: it ends the call and not the run."""
    with pytest.raises(BadProposal):
        bound(declared=tool({"type": "object", "properties": {"to": argument}}), to=given)


def test_whatever_a_check_fails_with_is_said_of_the_proposal() -> None:
    """A schema that nobody looked at: nothing of it reaches whoever binds proposals."""
    odd = [{"$ref": "#/$defs/no"}, {"$ref": "#/properties/to"}, {"pattern": "("}, {"type": "nmb"},
           {"minLength": "a"}]  # fmt: skip
    for argument in odd:
        unknown = ArgumentSchema({"type": "object", "properties": {"to": argument}})
        with pytest.raises(BadProposal, match="cannot be checked"):
            unknown.check("pay.send", {"to": "x"})


@pytest.mark.parametrize(
    ("listed", "given", "fits"),
    [
        ([1], True, False), ([1], 1.0, True), ([True], 1, False), ([0.5], 0.5, True),
        (["0.5"], 0.5, False), ([[1, {"a": None}]], [1, {"a": None}], True), ([{"a": 1, "b": 2}],
        {"b": 2, "a": 1}, True), ([None], None, True), ([0], False, False), ([1e-6], 1e-6, True),
    ],
)  # fmt: skip
def test_an_enum_and_a_const_are_equal_by_rfc_8785(
    listed: list[Any], given: Any, fits: bool
) -> None:
    for argument in ({"enum": listed}, {"const": listed[0]}, {"items": {"enum": listed}}):
        declared = tool({"type": "object", "properties": {"to": argument}})
        value = [given] if "items" in argument else given
        if fits:
            bound(declared=declared, to=value)
        else:
            with pytest.raises(BadProposal, match="must be"):
                bound(declared=declared, to=value)
