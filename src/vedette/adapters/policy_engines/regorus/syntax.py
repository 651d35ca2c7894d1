"""Syntax trees of Rego, as regorus gives them, read into modules, rules and references. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

Node = Any


class Fault(NamedTuple):
    """A Finding, in a form that costs the throw-away process no import of the nouns."""

    file: str
    line: int
    what: str
    mend: str = ""


class RegoRef(Struct, frozen=True):
    """A reference: its root, the constant steps after it, and whether dynamic ones follow."""

    root: str
    steps: tuple[str, ...]
    dynamic: bool
    line: int


class Rule(Struct, frozen=True):
    """One definition of a rule.

    `locals` are the names it binds itself, `refs` all references of its value and bodies, `nodes`
    its nodes of the kinds in KINDS, `node` all of it.
    """

    name: str
    line: int
    kind: str
    head: Node
    is_function: bool
    locals: frozenset[str]
    refs: tuple[RegoRef, ...]
    nodes: Mapping[str, list[Node]]
    node: Node
    shape: str
    args: list[Node]

    def body_values(self) -> list[tuple[Node | None, Node | None]]:
        """Return each body with its value, along `else`; None for no body and for `true`."""
        if self.kind == "Default":
            return [(None, self.head["value"])]
        given = self.head.get("assign")
        bodies = self.node[self.kind]["bodies"] or [None]
        each = [given, *(body["assign"] for body in bodies[1:])]
        return [
            (body if body and body["query"]["stmts"] else None, value["value"] if value else None)
            for body, value in zip(bodies, each, strict=True)
        ]


class Module(Struct):
    """One parsed file."""

    path: str
    package: tuple[str, ...]
    package_line: int
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    imports: list[tuple[tuple[str, ...], int]] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)

    @property
    def is_test(self) -> bool:
        """Say whether the file holds tests."""
        return self.path.endswith("_test.rego")


NODE_KINDS = (
    "Number",
    "ArithExpr",
    "NotExpr",
    "with_mods",
    "Call",
    "SomeIn",
    "SomeVars",
    "Every",
    "AssignExpr",
    "Membership",
)
_SKIPPED_FIELDS = frozenset({"span", "eidx", "sidx", "qidx", "op", "field"})


def read_modules(syntax: Sequence[Mapping[str, Any]]) -> list[Module]:
    """Make modules of the vendor's syntax trees."""
    return [_read_module(item["ast"], item["source"]) for item in syntax]


def _read_module(tree: Node, source: Mapping[str, str]) -> Module:
    raw = source["contents"].encode("utf-8")
    package = ref_of(tree["package"]["refr"])
    module = Module(source["file"], (), 1)
    if package is not None:
        module.package = (package.root, *package.steps)
        module.package_line = package.line
    for each in tree["imports"]:
        found = ref_of(each["refr"])
        if found is None:
            continue
        path = (found.root, *found.steps)
        module.imports.append((path, found.line))
        alias = _text(raw, each["as"]) if each.get("as") else path[-1]
        module.aliases[alias] = path
    for each in tree["rules"]:
        module.rules.append(_read_rule(raw, each))
    return module


def _read_rule(raw: bytes, node: Node) -> Rule:
    kind, body = next(iter(node.items()))
    if kind == "Default":
        head, args = body, body.get("args") or []
        shape, function, rest = "", bool(args), [body["value"]]
    else:
        shape, head = next(iter(body["head"].items()))
        args = head.get("args") or []
        function = shape == "Func"
        rest = [value for name, value in head.items() if name not in ("refr", "args")]
        rest.append(body["bodies"])
    nodes, refs = collect_nodes(rest)
    root = ref_of(head["refr"])
    return Rule(
        root.root if root else "",
        body["span"]["line"],
        kind,
        head,
        function,
        frozenset((*_vars(args), *_bound_names(raw, nodes))),
        tuple(refs),
        nodes,
        node,
        shape,
        args,
    )


def collect_nodes(start: Node) -> tuple[dict[str, list[Node]], list[RegoRef]]:
    """Return the nodes of the kinds in KINDS within a node, and every reference.

    References inside the brackets of others are found as well.
    """
    nodes: dict[str, list[Node]] = {kind: [] for kind in NODE_KINDS}
    refs: list[RegoRef] = []
    left: list[Node] = [start]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left.extend(node)
            continue
        if not isinstance(node, dict):
            continue
        found = ref_of(node) if _is_ref(node) else None
        if found is not None:
            refs.append(found)
            while "Var" not in node:
                if "RefBrack" in node:
                    left.append(node["RefBrack"]["index"])
                    node = node["RefBrack"]["refr"]
                else:
                    node = node["RefDot"]["refr"]
            continue
        for kind, inner in node.items():
            if kind in nodes:
                nodes[kind].append(inner)
            if kind not in _SKIPPED_FIELDS:
                left.append(inner)
    return nodes, refs


def _bound_names(raw: bytes, nodes: Mapping[str, list[Node]]) -> Iterator[str]:
    for node in nodes["SomeIn"]:
        yield from _vars([node["key"], node["value"]])
    for node in nodes["SomeVars"]:
        yield from (_text(raw, span) for span in node["vars"])
    for node in nodes["Every"]:
        yield from (_text(raw, node[name]) for name in ("key", "value") if node[name])
    for node in nodes["AssignExpr"]:
        if node["op"] == "ColEq":
            yield from _vars(node["lhs"])


def _vars(node: Node) -> Iterator[str]:
    if isinstance(node, list):
        for inner in node:
            yield from _vars(inner)
    elif isinstance(node, dict):
        for kind, inner in node.items():
            if kind == "Var":
                yield str(inner["value"])
            elif kind not in _SKIPPED_FIELDS:
                yield from _vars(inner)


def _text(raw: bytes, span: Mapping[str, int]) -> str:
    return raw[span["start"] : span["end"]].decode("utf-8", "replace")


def ref_of(node: Node) -> RegoRef | None:
    """Return the reference that a node is, or None if it is something else."""
    steps: list[str | None] = []
    while isinstance(node, dict):
        if "Var" in node:
            var = node["Var"]
            constant: list[str] = []
            for step in reversed(steps):
                if step is None:
                    break
                constant.append(step)
            dynamic = len(constant) < len(steps)
            return RegoRef(str(var["value"]), tuple(constant), dynamic, var["span"]["line"])
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


def _is_ref(node: Mapping[str, Any]) -> bool:
    return "Var" in node or "RefDot" in node or "RefBrack" in node


def var_of(node: Node) -> str | None:
    """Return the name that a node is, None if it is something else."""
    return str(node["Var"]["value"]) if node and "Var" in node else None


def text_of(node: Node) -> str | None:
    """Return the literal text that a node is, None if it is something else."""
    found = node.get("String") or node.get("RawString")
    return str(found["value"]) if found else None


def line_of(node: Node, default: int) -> int:
    """Return the first line that a node speaks of."""
    left = [node]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left.extend(reversed(each))
        elif isinstance(each, dict):
            span = each.get("span")
            if isinstance(span, dict):
                return int(span["line"])
            left.extend(reversed(list(each.values())))
    return default


def data_path(module: Module, ref: RegoRef) -> tuple[str, ...] | None:
    """Return the path below `data` that a reference means, None if it is not about data."""
    path = (ref.root, *ref.steps)
    if ref.root in module.aliases:
        path = (*module.aliases[ref.root], *ref.steps)
    return path[1:] if path[0] == "data" else None
