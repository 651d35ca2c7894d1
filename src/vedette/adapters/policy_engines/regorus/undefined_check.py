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


class Kept(NamedTuple):
    """An undefined value that would be kept: where, what it is, and the mend."""

    line: int
    what: str
    mend: str


_ASK = "ask for {0} beside it, for example by is_string({0}) or {0} != null"
_NAME = "give it a name and ask for that (is_string, != null), or leave the assignment out"
_COLLECT = "assign it to a name, ask for that name (is_string, != null), and collect the name"


def kept_undefined(node: Mapping[str, Any]) -> Iterator[Kept]:
    """Return where a rule, as the vendor describes it, would keep an undefined value."""
    kind, rule = next(iter(node.items()))
    if kind == "Default":
        return
    shape, head = next(iter(rule["head"].items()))
    args = head.get("args") or []
    params = frozenset(name for name in map(_var, args) if name not in (None, "_"))
    names = params
    for body in rule["bodies"] or [None]:
        known = Query(body["query"]["stmts"] if body else [], outer=params)
        yield from known.faults()
        if shape == "Set":
            yield from known.collected(head["key"])
        yield from _nested(body, known.names)
        names |= known.names
    yield from _nested(head, names)
    if any("Var" in arg and arg["Var"]["value"] == "_" for arg in args):
        what = "a function parameter without a name is never asked for"
        yield Kept(rule["span"]["line"], what, "leave the parameter out")


def _nested(node: Node, outer: frozenset[str]) -> Iterator[Kept]:
    """Look into the comprehensions of a node; `outer` is what is certain around them."""
    for query, terms in _comprehensions(node):
        known = Query(query["stmts"], outer=outer)
        yield from known.faults()
        for term in terms:
            yield from known.collected(term)
        yield from _nested([query, terms], known.names)


class Query:
    """The statements of one body: what they bind, and what they fail without."""

    def __init__(self, stmts: list[Node], *, outer: frozenset[str]) -> None:
        self.assigned: dict[str, Node] = {}
        self.looped: set[str] = set(outer)
        self.asked: set[str] = set()
        self.thrown: list[Node] = []
        for stmt in stmts:
            self._read(stmt["literal"])
        # What an asked-for assignment is made of is asked for by it.
        grown = True
        while grown:
            before = len(self.asked)
            for name, value in self.assigned.items():
                if name in self.asked:
                    self.asked |= _names(value)
            grown = len(self.asked) > before

    def _read(self, literal: Node) -> None:
        kind, inner = next(iter(literal.items()))
        if kind == "SomeIn":
            self.looped |= set().union(*(_names(inner[each]) for each in ("key", "value")))
            self.asked |= _names(inner["collection"])
        elif kind == "Every":
            self.asked |= _names(inner["domain"])
        elif kind == "Expr":
            expr = inner["expr"]
            target = _assigned(expr)
            if target == "_":
                self.thrown.append(expr["AssignExpr"]["rhs"])
            elif target is not None:
                self.assigned[target] = expr["AssignExpr"]["rhs"]
            else:
                self.asked |= _names(expr)
                if "AssignExpr" in expr:
                    self.looped |= _names(expr["AssignExpr"]["lhs"])

    @property
    def names(self) -> frozenset[str]:
        """Return what is certainly defined within these statements."""
        return frozenset(self.looped | self.asked)

    def faults(self) -> Iterator[Kept]:
        for value in self.thrown:
            yield Kept(_line(value, None), "what is assigned to _ is never asked for", _NAME)
        for name, value in self.assigned.items():
            if name not in self.asked and not self.certain(value):
                what = f"{name} may be undefined, and nothing beside asks for it"
                yield Kept(_line(value, None), what, _ASK.format(name))

    def collected(self, term: Node) -> Iterator[Kept]:
        if not self.certain(term):
            yield Kept(_line(term, None), "what is collected may be undefined", _COLLECT)

    def certain(self, value: Node) -> bool:
        """Say whether a value is defined wherever the statements hold."""
        kind, inner = next(iter(value.items()))
        if kind in _SCALARS or kind in _COMPREHENSIONS:
            return True
        if kind == "Var":
            name = str(inner["value"])
            if name in self.assigned:
                return name in self.asked or self.certain(self.assigned[name])
            return name in self.looped or name in self.asked
        if kind in ("Array", "Set"):
            return all(map(self.certain, inner["items"]))
        if kind == "Object":
            return all(self.certain(part) for field in inner["fields"] for part in field[1:])
        return False


# --- the vendor's trees -----------------------------------------------------------------------


def _assigned(expr: Node) -> str | None:
    """Return the name that an expression gives a value by `:=`, None for anything else."""
    found = expr.get("AssignExpr")
    if found is None or found["op"] != "ColEq":
        return None
    return _var(found["lhs"])


def _var(node: Node) -> str | None:
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


def _line(node: Node, otherwise: Node) -> int:
    inner = next(iter(node.values())) if isinstance(node, dict) else None
    span = inner.get("span") if isinstance(inner, dict) else None
    found = span or (otherwise or {}).get("span") or {}
    return int(found.get("line", 1))
