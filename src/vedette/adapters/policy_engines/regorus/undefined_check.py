"""Where the compiled program keeps a value that is undefined, and OPA does not. Pure.

For OPA, and for regorus' interpreter, an undefined value fails whatever it stands in. The compiled
program (regorus 0.13) goes on in three places, each of which would make a rule hold that OPA does
not: an assignment (`x := input.missing` is true while nothing asks for `x`, and for `_` nothing
does), an argument whose parameter has no name (`_`), and a term that is collected (`contains`,
comprehensions: the text `<undefined>` is collected). What may stand there is therefore what is
certainly defined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Node = Any

_SCALARS = frozenset({"String", "RawString", "Number", "Bool", "Null"})
_COMPREHENSIONS = frozenset({"ArrayCompr", "SetCompr", "ObjectCompr"})


class UndefinedValue(NamedTuple):
    """An undefined value that would be kept: where, what it is, and the mend."""

    line: int
    what: str
    mend: str


_ASK_MEND = "ask for {0} beside it, for example by is_string({0}) or {0} != null"
_NAME_MEND = "give it a name and ask for that (is_string, != null), or leave the assignment out"
_COLLECT_MEND = "assign it to a name, ask for that name (is_string, != null), and collect the name"


def find_undefined(node: Mapping[str, Any]) -> Iterator[UndefinedValue]:
    """Return where a rule, as the vendor describes it, would keep an undefined value."""
    kind, rule = next(iter(node.items()))
    if kind == "Default":
        return
    shape, head = next(iter(rule["head"].items()))
    args = head.get("args") or []
    params = frozenset(name for name in map(_variable_name, args) if name not in (None, "_"))
    names = params
    for body in rule["bodies"] or [None]:
        query = Query(body["query"]["stmts"] if body else [], outer=params)
        yield from query.find_undefined()
        if shape == "Set":
            yield from query.check_collected(head["key"])
        yield from _check_nested(body, query.defined_names)
        names |= query.defined_names
    yield from _check_nested(head, names)
    if any("Var" in arg and arg["Var"]["value"] == "_" for arg in args):
        what = "a function parameter without a name is never asked for"
        yield UndefinedValue(rule["span"]["line"], what, "leave the parameter out")


def _check_nested(node: Node, outer: frozenset[str]) -> Iterator[UndefinedValue]:
    """Look into the comprehensions of a node; `outer` is what is certain around them."""
    for query, terms in _comprehensions(node):
        inner = Query(query["stmts"], outer=outer)
        yield from inner.find_undefined()
        for term in terms:
            yield from inner.check_collected(term)
        yield from _check_nested([query, terms], inner.defined_names)


class Query:
    """The statements of one body: what they bind, and what they fail without."""

    def __init__(self, stmts: list[Node], *, outer: frozenset[str]) -> None:
        self.assignments: dict[str, Node] = {}
        self.bound_names: set[str] = set(outer)
        self.required_names: set[str] = set()
        self.discarded_values: list[Node] = []
        for stmt in stmts:
            self._read_literal(stmt["literal"])
        # What an asked-for assignment is made of is asked for by it.
        grown = True
        while grown:
            before = len(self.required_names)
            for name, value in self.assignments.items():
                if name in self.required_names:
                    self.required_names |= _names(value)
            grown = len(self.required_names) > before

    def _read_literal(self, literal: Node) -> None:
        kind, inner = next(iter(literal.items()))
        if kind == "SomeIn":
            self.bound_names |= set().union(*(_names(inner[each]) for each in ("key", "value")))
            self.required_names |= _names(inner["collection"])
        elif kind == "Every":
            self.required_names |= _names(inner["domain"])
        elif kind == "Expr":
            expr = inner["expr"]
            target = _assigned_name(expr)
            if target == "_":
                self.discarded_values.append(expr["AssignExpr"]["rhs"])
            elif target is not None:
                self.assignments[target] = expr["AssignExpr"]["rhs"]
            else:
                self.required_names |= _names(expr)
                if "AssignExpr" in expr:
                    self.bound_names |= _names(expr["AssignExpr"]["lhs"])

    @property
    def defined_names(self) -> frozenset[str]:
        """Return what is certainly defined within these statements."""
        return frozenset(self.bound_names | self.required_names)

    def find_undefined(self) -> Iterator[UndefinedValue]:
        for value in self.discarded_values:
            yield UndefinedValue(
                _line(value, None), "what is assigned to _ is never asked for", _NAME_MEND
            )
        for name, value in self.assignments.items():
            if name not in self.required_names and not self.is_defined(value):
                what = f"{name} may be undefined, and nothing beside asks for it"
                yield UndefinedValue(_line(value, None), what, _ASK_MEND.format(name))

    def check_collected(self, term: Node) -> Iterator[UndefinedValue]:
        if not self.is_defined(term):
            yield UndefinedValue(
                _line(term, None), "what is collected may be undefined", _COLLECT_MEND
            )

    def is_defined(self, value: Node) -> bool:
        """Say whether a value is defined wherever the statements hold."""
        kind, inner = next(iter(value.items()))
        if kind in _SCALARS or kind in _COMPREHENSIONS:
            return True
        if kind == "Var":
            name = str(inner["value"])
            if name in self.assignments:
                return name in self.required_names or self.is_defined(self.assignments[name])
            return name in self.bound_names or name in self.required_names
        if kind in ("Array", "Set"):
            return all(map(self.is_defined, inner["items"]))
        if kind == "Object":
            return all(self.is_defined(part) for field in inner["fields"] for part in field[1:])
        return False


# --- the vendor's trees -----------------------------------------------------------------------


def _assigned_name(expr: Node) -> str | None:
    """Return the name that an expression gives a value by `:=`, None for anything else."""
    found = expr.get("AssignExpr")
    if found is None or found["op"] != "ColEq":
        return None
    return _variable_name(found["lhs"])


def _variable_name(node: Node) -> str | None:
    return str(node["Var"]["value"]) if "Var" in node else None


def _names(node: Node) -> set[str]:
    """Return the names in an expression, those within comprehensions left out."""
    found: set[str] = set()
    left = [node]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left.extend(each)
        elif isinstance(each, dict):
            for kind, inner in each.items():
                if kind == "Var":
                    found.add(str(inner["value"]))
                elif kind not in _COMPREHENSIONS:
                    left.append(inner)
    return found


def _comprehensions(node: Node) -> Iterator[tuple[Node, list[Node]]]:
    """Yield query and collected terms of the outermost comprehensions; bodies of `every` too."""
    left = [node]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left.extend(each)
        elif isinstance(each, dict):
            for kind, inner in each.items():
                if kind in _COMPREHENSIONS:
                    names = ("key", "value") if kind == "ObjectCompr" else ("term",)
                    yield inner["query"], [inner[name] for name in names]
                elif kind == "Every":
                    yield inner["query"], []
                    left.append(inner["domain"])
                else:
                    left.append(inner)


def _line(node: Node, default: Node) -> int:
    inner = next(iter(node.values())) if isinstance(node, dict) else None
    span = inner.get("span") if isinstance(inner, dict) else None
    found = span or (default or {}).get("span") or {}
    return int(found.get("line", 1))
