"""Syntax trees of Rego, as regorus gives them, read into modules, rules and references. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Node = Any


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference: its root, the constant steps after it, and whether dynamic ones follow."""

    root: str
    steps: tuple[str, ...]
    dynamic: bool
    line: int


@dataclass(frozen=True, slots=True)
class Rule:
    """One definition of a rule: its name, line, and the names it binds locally."""

    name: str
    line: int
    node: Node
    function: bool
    locals: frozenset[str]


@dataclass(slots=True)
class Module:
    """One parsed file."""

    path: str
    package: tuple[str, ...]
    package_line: int
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    imports: list[tuple[tuple[str, ...], int]] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)

    @property
    def test(self) -> bool:
        """Say whether the file holds tests."""
        return self.path.endswith("_test.rego")


def read_modules(syntax: Sequence[Mapping[str, Any]]) -> list[Module]:
    """Make modules of the vendor's syntax trees."""
    return [_module(item) for item in syntax]


def _module(item: Mapping[str, Any]) -> Module:
    tree = item["ast"]
    package = ref_of(tree["package"]["refr"])
    module = Module(item["source"]["file"], (), 1)
    if package is not None:
        module.package = (package.root, *package.steps)
        module.package_line = package.line
    for each in tree["imports"]:
        found = ref_of(each["refr"])
        if found is None:
            continue
        path = (found.root, *found.steps)
        module.imports.append((path, found.line))
        alias = _text(item, each["as"]) if each.get("as") else path[-1]
        module.aliases[alias] = path
    for each in tree["rules"]:
        module.rules.append(_read_rule(item, each))
    return module


def _read_rule(item: Mapping[str, Any], node: Node) -> Rule:
    kind, body = next(iter(node.items()))
    head = body if kind == "Default" else next(iter(body["head"].values()))
    refr = head["refr"]
    root = ref_of(refr)
    function = "Func" in body.get("head", {}) or bool(kind == "Default" and body.get("args"))
    return Rule(
        root.root if root else "",
        body["span"]["line"],
        node,
        function,
        frozenset(_bound(item, body)),
    )


def _bound(item: Mapping[str, Any], node: Node) -> Iterator[str]:
    """Yield the names that a rule binds itself: arguments, `some`, `every`, `:=` in bodies."""
    if isinstance(node, list):
        for inner in node:
            yield from _bound(item, inner)
        return
    if not isinstance(node, dict):
        return
    for kind, inner in node.items():
        if kind == "Func":
            yield from _vars(inner["args"])
        elif kind == "SomeIn":
            yield from _vars([inner["key"], inner["value"]])
        elif kind == "SomeVars":
            yield from (_text(item, span) for span in inner["vars"])
        elif kind == "Every":
            yield from (_text(item, inner[name]) for name in ("key", "value") if inner[name])
        elif kind == "AssignExpr" and inner["op"] == "ColEq":
            yield from _vars(inner["lhs"])
        yield from _bound(item, inner)


def _vars(node: Node) -> Iterator[str]:
    if isinstance(node, list):
        for inner in node:
            yield from _vars(inner)
    elif isinstance(node, dict):
        for kind, inner in node.items():
            if kind == "Var":
                yield str(inner["value"])
            else:
                yield from _vars(inner)


def _text(item: Mapping[str, Any], span: Mapping[str, int]) -> str:
    raw: bytes = item["source"]["contents"].encode("utf-8")
    return raw[span["start"] : span["end"]].decode("utf-8", "replace")


def ref_of(node: Node) -> Ref | None:
    """Return the reference that a node is, or None if it is something else."""
    steps: list[str | None] = []
    while isinstance(node, dict):
        if "Var" in node:
            found = steps[::-1]
            constant: list[str] = []
            for step in found:
                if step is None:
                    break
                constant.append(step)
            var = node["Var"]
            dynamic = len(constant) < len(found)
            return Ref(str(var["value"]), tuple(constant), dynamic, var["span"]["line"])
        if "RefDot" in node:
            steps.append(str(node["RefDot"]["field"][1]))
            node = node["RefDot"]["refr"]
        elif "RefBrack" in node:
            index = node["RefBrack"]["index"]
            text = index.get("String") or index.get("RawString")
            steps.append(str(text["value"]) if text else None)
            node = node["RefBrack"]["refr"]
        else:
            return None
    return None


def refs(node: Node) -> Iterator[Ref]:
    """Yield every reference within a node, also those inside the brackets of others."""
    if isinstance(node, list):
        for inner in node:
            yield from refs(inner)
        return
    if not isinstance(node, dict):
        return
    found = ref_of(node) if _is_ref(node) else None
    if found is not None:
        yield found
        while "Var" not in node:
            if "RefBrack" in node:
                yield from refs(node["RefBrack"]["index"])
                node = node["RefBrack"]["refr"]
            else:
                node = node["RefDot"]["refr"]
        return
    for inner in node.values():
        yield from refs(inner)


def _is_ref(node: Mapping[str, Any]) -> bool:
    return "Var" in node or "RefDot" in node or "RefBrack" in node


def nodes(node: Node, kind: str) -> Iterator[Node]:
    """Yield every node of a kind within a node."""
    if isinstance(node, list):
        for inner in node:
            yield from nodes(inner, kind)
    elif isinstance(node, dict):
        if kind in node:
            yield node[kind]
        for inner in node.values():
            yield from nodes(inner, kind)
