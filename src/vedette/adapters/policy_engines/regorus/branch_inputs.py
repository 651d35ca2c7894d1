"""Requests made of Rego rules themselves, so that each branch of each rule is taken both ways.

Golden questions are made of what the policy grants; a rule about hours or folders would never see
its own hour among them. Here each body of each rule gives one question for which all its conditions
hold, as far as they can be read off, and for each condition questions for which it just fails:
another text, one more, one less, another type, nothing at all. What a condition compares with may
be a literal, or what the data say for that question. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import orjson

from vedette.adapters.policy_engines.regorus.syntax import (
    Module,
    Node,
    ReferenceStep,
    Rule,
    data_path,
    ref_of,
    rules_of,
    split_reference,
    text_of,
    var_of,
)
from vedette.policy.golden_requests import NamedRequest, Request

# Of each rule in turn, so that the last file is asked about as well as the first.
MAX_REQUESTS = 250
_DEPTH = 4
_OTHERS = 3
_LITERALS = ("String", "RawString", "Number", "Bool")

InputPath = tuple[str, ...]
EACH = "*"  # the step into any element of a list


class Missing:
    """The value of what is left out of a request on which Rego engines are compared."""


MISSING = Missing()


class Condition(NamedTuple):
    """A condition in a Rego rule: a place in the request, values there that pass it, and that fail.

    `is_direct` is false for what a rule that the body names asks: that is varied where it stands.
    """

    path: InputPath
    passing_values: tuple[Any, ...]
    failing_values: tuple[Any, ...]
    is_direct: bool = True

    def variations(self) -> list[tuple[InputPath, Any]]:
        """Return with what values of its place a question is to be asked as well."""
        values = self.failing_values[:1]
        if self.is_direct:
            values += self.passing_values[1:] + self.failing_values[1:]
        return [(self.path, value) for value in values]


def branch_requests(
    modules: Sequence[Module],
    data: Mapping[str, Any],
    bases: Sequence[NamedRequest],
    most: int = MAX_REQUESTS,
) -> list[NamedRequest]:
    """Return named requests that take the branches of Rego rules both ways, at most so many.

    `bases` are questions that are right as they stand: each is varied from the one it fits best.
    """
    if not bases:
        return []
    rules = _ConditionReader(modules, data)
    table = _BaseTable([request for _, request in bases])
    each = [
        _body_requests(rules, rule, body, table)
        for rule in rules_of(modules)
        for body, _ in rule.body_values()
        if body is not None
    ]
    found: dict[bytes, NamedRequest] = {}
    for turn in zip_longest(*each):
        for one in turn:
            if one is not None:
                found.setdefault(orjson.dumps(one[1], option=orjson.OPT_SORT_KEYS), one)
        if len(found) >= most:
            break
    return list(islice(found.values(), most))


def _body_requests(
    rules: _ConditionReader, rule: Rule, body: Node, bases: _BaseTable
) -> Iterator[NamedRequest]:
    base = bases.requests[0]
    conditions = rules.conditions(rule.module, body, base)
    fitting = bases.find_fitting({each.path: each.passing_values[0] for each in conditions})
    if fitting is not base:
        base = fitting
        conditions = rules.conditions(rule.module, body, base)
    if not conditions:
        return
    passing = base
    for each in conditions:
        passing = _with_value(passing, each.path, each.passing_values[0])
    name = f"{rule.name} in {rule.module.path}:{rule.line}"
    yield f"{name} holds", passing
    for turn in zip_longest(*(each.variations() for each in conditions)):
        for variation in filter(None, turn):
            path, value = variation
            shown = "nothing" if value is MISSING else repr(value)[:40]
            other = _with_value(passing, path, value)
            yield f"{name} with {shown} at /{'/'.join(path)}", other


class _BaseTable:
    """The questions that are varied, and what each has at a place: many bodies ask of the same."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self._columns: dict[InputPath, list[Any]] = {}

    def find_fitting(self, wanted: Mapping[InputPath, Any]) -> Request:
        """Return the first question of those that have most of what is wanted as they stand."""
        counts = [0] * len(self.requests)
        for path, value in wanted.items():
            for at, found in enumerate(self._column(path)):
                counts[at] += found == value
        return self.requests[counts.index(max(counts))]

    def _column(self, path: InputPath) -> list[Any]:
        column = self._columns.get(path)
        if column is None:
            column = [_value_at(request, path) for request in self.requests]
            self._columns[path] = column
        return column


class _ConditionReader:
    """Reads conditions off the bodies of rules."""

    def __init__(self, modules: Sequence[Module], data: Mapping[str, Any]) -> None:
        self._data = data
        self._rules = {
            rule.path: rule
            for module in reversed(modules)
            for rule in rules_of([module])
            if not rule.is_default
        }

    def conditions(
        self, module: Module, body: Node, base: Request, depth: int = _DEPTH
    ) -> list[Condition]:
        """Return what a body asks of the question, those of the rules that it names included."""
        names: dict[str, Node] = {}
        found: list[Condition] = []
        for stmt in body["query"]["stmts"]:
            kind, inner = next(iter(stmt["literal"].items()))
            if kind == "SomeIn":
                name = var_of(inner["value"])
                if name:
                    names[name] = {"each": inner["collection"]}
                continue
            if kind not in ("Expr", "NotExpr"):
                continue
            expr = inner["expr"]
            target = var_of(expr.get("AssignExpr", {}).get("lhs"))
            if target is not None:
                names[target] = expr["AssignExpr"]["rhs"]
                continue
            within = _ExpressionReader(self._data, module, names, base)
            for each in within.conditions(expr) or self._rule_conditions(module, expr, base, depth):
                found.append(each if kind == "Expr" else _negate(each))
        return [each for each in found if each.passing_values]

    def _rule_conditions(
        self, module: Module, expr: Node, base: Request, depth: int
    ) -> Sequence[Condition]:
        ref = ref_of(expr)
        if ref is None or not depth:
            return []
        rule = self._rules.get(data_path(module, ref) or (*module.package, ref.root))
        body = next(filter(None, (body for body, _ in rule.body_values())), None) if rule else None
        if rule is None or body is None:
            return []
        found = self.conditions(rule.module, body, base, depth - 1)
        return [each._replace(is_direct=False) for each in found]


class _ExpressionReader:
    """What one expression of a body asks of the question."""

    def __init__(
        self, data: Mapping[str, Any], module: Module, names: Mapping[str, Node], base: Request
    ) -> None:
        self._data = data
        self._module = module
        self._names = names
        self._base = base

    def conditions(self, expr: Node) -> list[Condition]:
        kind, inner = next(iter(expr.items()))
        if kind == "BoolExpr":
            return self._comparison(inner)
        if kind == "Membership":
            return self._membership(inner)
        if kind == "Call":
            return self._test(inner)
        path = self.path(expr)
        return [Condition(path, (True,), (False, MISSING))] if path else []

    def _comparison(self, inner: Node) -> list[Condition]:
        signs = {"Lt": "Gt", "Gt": "Lt", "Le": "Ge", "Ge": "Le"}
        sign = inner["op"]
        path, value = self.path(inner["lhs"]), self.value(inner["rhs"])
        if path is None or value is MISSING:
            sign = signs.get(sign, sign)
            path, value = self.path(inner["rhs"]), self.value(inner["lhs"])
        if path is None or value is MISSING:
            return []
        return [_comparison_condition(path, sign, value)]

    def _membership(self, inner: Node) -> list[Condition]:
        path, many = self.path(inner["value"]), self.value(inner["collection"])
        if path is not None and isinstance(many, list | dict):
            members = list(many.values() if isinstance(many, dict) else many)
            if members:
                outside = [each for each in _near_values(members[0]) if each not in members]
                return [Condition(path, tuple(members[:_OTHERS]), tuple(outside))]
        value, place = self.value(inner["value"]), self.path(inner["collection"])
        if place is not None and value is not MISSING:
            return [Condition(place, ([value],), ([], [_near_values(value)[0]], MISSING))]
        return []

    def _test(self, inner: Node) -> list[Condition]:
        ref = ref_of(inner["fcn"])
        path = self.path(inner["params"][0]) if inner["params"] else None
        if ref is None or path is None:
            return []
        samples: tuple[Any, ...] | None = {
            "is_string": ("a",), "is_number": (1, 0), "is_array": ([],), "is_object": ({},),
            "is_boolean": (True,), "is_null": (None,),
        }.get(ref.root)  # fmt: skip
        if samples is not None:
            # What is there and fits is left as it is: another condition may speak of it.
            now = _value_at(self._base, path)
            if type(now) is type(samples[0]):
                samples = (now, *samples)
            other: Any = 7 if ref.root != "is_number" else "7"
            return [Condition(path, samples, (other, MISSING))]
        text = text_of(inner["params"][1]) if len(inner["params"]) == 2 else None
        if ref.root in ("startswith", "endswith", "contains") and text is not None:
            longer = {"startswith": text + "z", "endswith": "z" + text}.get(ref.root, f"z{text}z")
            return [Condition(path, (longer, text), (text[:-1], "z" + text[1:] + "y", 7, MISSING))]
        return []

    def path(self, node: Node) -> InputPath | None:
        """Return the place in the question that an expression names, None if it names none."""
        if "each" in node:
            outer = self.path(node["each"])
            return (*outer, EACH) if outer else None
        root, steps = split_reference(node)
        if root in self._names:
            found = self.path(self._names[root])
        else:
            whole = self._module.aliases.get(root, (root,))
            found = whole[1:] if whole[0] == "input" else None
        names = [self._step(step) for step in steps]
        return None if found is None or MISSING in names else (*found, *names) or None

    def value(self, node: Node) -> Any:
        """Return what an expression is, of literals and data; MISSING if that cannot be told."""
        kind, inner = next(iter(node.items()))
        if kind in _LITERALS:
            return inner["value"]
        if kind in ("Array", "Set"):
            values = [self.value(item) for item in inner["items"]]
            return MISSING if MISSING in values else values
        if kind == "Var" and inner["value"] in self._names:
            return self.value(self._names[inner["value"]])
        root, steps = split_reference(node)
        whole = self._module.aliases.get(root, (root,))
        if whole[0] != "data":
            return MISSING
        found: Any = self._data
        for name in (*whole[1:], *map(self._step, steps)):
            found = found.get(name, MISSING) if isinstance(found, Mapping) else MISSING
        return found

    def _step(self, step: ReferenceStep) -> Any:
        """Return the text that a step goes by, MISSING if that cannot be told."""
        if step.text is not None or step.index is None:
            return MISSING if step.text is None else step.text
        path = self.path(step.index)
        found = _value_at(self._base, path) if path else MISSING
        return found if isinstance(found, str) else MISSING


def _comparison_condition(path: InputPath, sign: str, value: Any) -> Condition:
    near = _near_values(value)
    if sign == "Eq":
        return Condition(path, (value,), near)
    if sign == "Ne":
        return Condition(path, near[:1], (value, *near[1:]))
    if not isinstance(value, int) or isinstance(value, bool):
        return Condition(path, (value,), near)
    holds, fails = {
        "Lt": ((value - 1,), (value, value + 1)),
        "Le": ((value, value - 1), (value + 1,)),
        "Gt": ((value + 1,), (value, value - 1)),
        "Ge": ((value, value + 1), (value - 1,)),
    }[sign]
    return Condition(path, holds, (*fails, str(value), MISSING))


def _near_values(value: Any) -> tuple[Any, ...]:
    """Return what a value is easily taken for, and what is none of its kind."""
    if isinstance(value, bool):
        return (not value, str(value).lower(), MISSING)
    if isinstance(value, int):
        return (value + 1, value - 1, str(value), MISSING)
    if isinstance(value, str):
        return (value + "z", value[:-1], value.swapcase() + "\u00e9", 7, MISSING)
    return ("z", 7, MISSING)


def _negate(condition: Condition) -> Condition:
    return condition._replace(
        passing_values=condition.failing_values, failing_values=condition.passing_values
    )


def _value_at(request: Any, path: InputPath) -> Any:
    for step in path:
        if step == EACH:
            request = request[0] if isinstance(request, list) and request else MISSING
        else:
            request = request.get(step, MISSING) if isinstance(request, dict) else MISSING
    return request


def _with_value(now: Any, path: InputPath, value: Any) -> Any:
    """Return what was given with a value at a place, MISSING taking it away.

    What leads there is made; an element comes alone in its list. All that is not on the way is
    shared with what was given, and nobody changes it.
    """
    if not path:
        return value
    step, rest = path[0], path[1:]
    if step == EACH:
        inner = _with_value(now[0] if isinstance(now, list) and now else {}, rest, value)
        return [] if inner is MISSING else [inner]
    fields = dict(now) if isinstance(now, dict) else {}
    fields[step] = _with_value(fields.get(step), rest, value)
    if fields[step] is MISSING:
        del fields[step]
    return fields
