"""Undefined values that regorus' compiled program would keep, and OPA does not. Pure.

For OPA, and for regorus' interpreter, an undefined value fails whatever it stands in. The compiled
program (regorus 0.13) goes on in three places, each of which would make a rule hold that OPA does
not: an assignment (`x := input.missing` is true while nothing asks for `x`, and for `_` nothing
does), an argument whose parameter has no name (`_`), and a term that is collected (`contains`,
comprehensions: the text `<undefined>` is collected). What may stand there is therefore what is
certainly defined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vedette.adapters.policy_engines.regorus.syntax import (
    COMPREHENSIONS,
    SCALARS,
    Node,
    Rule,
    line_of,
    names_in,
    var_of,
    walk_syntax,
)
from vedette.domain.bundle import Finding

# A line, what would be kept there undefined, and the mend.
_Place = tuple[int, str, str]

_ASK_MEND = "ask for {0} beside it, for example by is_string({0}) or {0} != null"
_NAME_MEND = "give it a name and ask for that (is_string, != null), or leave the assignment out"
_COLLECT_MEND = "assign it to a name, ask for that name (is_string, != null), and collect the name"


def find_undefined(rule: Rule) -> Iterator[Finding]:
    """Return where a Rego rule would keep an undefined value."""
    if not rule.is_default:
        for place in _find_places(rule):
            yield rule.fault(*place)


def _find_places(rule: Rule) -> Iterator[_Place]:
    names = outer = frozenset(name for name in map(var_of, rule.args) if name not in (None, "_"))
    for body in rule.node["bodies"] or [None]:
        query = BodyStatements(body["query"]["stmts"] if body else [], outer=outer)
        yield from query.find_undefined()
        if rule.shape == "Set":
            yield from query.check_collected(rule.head["key"])
        yield from _check_nested(body, query.defined_names)
        names |= query.defined_names
    yield from _check_nested(rule.head, names)
    if "_" in map(var_of, rule.args):
        what = "a function parameter without a name is never asked for"
        yield rule.line, what, "leave the parameter out"


def _check_nested(node: Node, outer: frozenset[str]) -> Iterator[_Place]:
    """Look into the comprehensions of a node; `outer` is what is certain around them."""
    for query, terms in _comprehensions(node):
        inner = BodyStatements(query["stmts"], outer=outer)
        yield from inner.find_undefined()
        for term in terms:
            yield from inner.check_collected(term)
        yield from _check_nested([query, terms], inner.defined_names)


class BodyStatements:
    """The statements of one body of a Rego rule: names they bind, and names they fail without."""

    def __init__(self, stmts: list[Node], *, outer: frozenset[str]) -> None:
        self.bound_names: set[str] = set(outer)
        self.required_names: set[str] = set()
        self._assignments: dict[str, Node] = {}
        self._discarded_values: list[Node] = []
        for stmt in stmts:
            self._read_literal(stmt["literal"])
        # What an asked-for assignment is made of is asked for by it.
        grown = True
        while grown:
            before = len(self.required_names)
            for name, value in self._assignments.items():
                if name in self.required_names:
                    self.required_names |= _names(value)
            grown = len(self.required_names) > before

    def _read_literal(self, literal: Mapping[str, Node]) -> None:
        kind, inner = next(iter(literal.items()))
        if kind == "SomeIn":
            self.bound_names |= _names([inner["key"], inner["value"]])
            self.required_names |= _names(inner["collection"])
        elif kind == "Every":
            self.required_names |= _names(inner["domain"])
        elif kind == "Expr":
            expr = inner["expr"]
            assignment = expr.get("AssignExpr", {})
            name = var_of(assignment.get("lhs"))
            if assignment.get("op") != "ColEq" or name is None:
                self.required_names |= _names(expr)
                self.bound_names |= _names(assignment.get("lhs"))
            elif name == "_":
                self._discarded_values.append(assignment["rhs"])
            else:
                self._assignments[name] = assignment["rhs"]

    @property
    def defined_names(self) -> frozenset[str]:
        """Return what is certainly defined within these statements."""
        return frozenset(self.bound_names | self.required_names)

    def find_undefined(self) -> Iterator[_Place]:
        """Return the assignments that may be undefined, and hold all the same."""
        for value in self._discarded_values:
            yield line_of(value, 1), "what is assigned to _ is never asked for", _NAME_MEND
        for name, value in self._assignments.items():
            if name not in self.required_names and not self.is_defined(value):
                what = f"{name} may be undefined, and nothing beside asks for it"
                yield line_of(value, 1), what, _ASK_MEND.format(name)

    def check_collected(self, term: Node) -> Iterator[_Place]:
        """Return a term that is collected if it may be undefined."""
        if not self.is_defined(term):
            yield line_of(term, 1), "what is collected may be undefined", _COLLECT_MEND

    def is_defined(self, value: Node) -> bool:
        """Say whether a value is defined wherever the statements hold."""
        kind, inner = next(iter(value.items()))
        if kind in SCALARS or kind in COMPREHENSIONS:
            return True
        if kind == "Var":
            name = str(inner["value"])
            if name in self._assignments:
                return name in self.required_names or self.is_defined(self._assignments[name])
            return name in self.bound_names or name in self.required_names
        if kind in ("Array", "Set"):
            return all(map(self.is_defined, inner["items"]))
        return kind == "Object" and all(
            self.is_defined(part) for field in inner["fields"] for part in field[1:]
        )


def _names(node: Node) -> set[str]:
    """Return the names in an expression, those within comprehensions left out."""
    return names_in(node, COMPREHENSIONS)


def _comprehensions(node: Node) -> Iterator[tuple[Node, list[Node]]]:
    """Yield query and collected terms of the outermost comprehensions; bodies of `every` too."""
    for kind, inner in walk_syntax(node, COMPREHENSIONS | {"Every"}):
        if kind in COMPREHENSIONS:
            names = ("key", "value") if kind == "ObjectCompr" else ("term",)
            yield inner["query"], [inner[name] for name in names]
        elif kind == "Every":
            yield inner["query"], []
            yield from _comprehensions(inner["domain"])
