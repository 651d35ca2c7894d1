"""Syntax trees of Rego, as regorus gives them, read into modules, rules and references. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec import Struct, field

from vedette.domain.bundle import Finding

# A node is an object with one key, the kind, and what there is to it; or a list of nodes.
Node = Any
RulePath = tuple[str, ...]

SCALARS = frozenset({"String", "RawString", "Number", "Bool", "Null"})
COMPREHENSIONS = frozenset({"ArrayCompr", "SetCompr", "ObjectCompr"})
REFERENCES = frozenset({"Var", "RefDot", "RefBrack"})
# The nodes of a rule that are looked at wherever they stand in it.
_COLLECTED = (
    "Number", "ArithExpr", "with_mods", "Call", "SomeIn", "SomeVars", "Every", "AssignExpr",
)  # fmt: skip
POSITIONS = frozenset({"span", "eidx", "sidx", "qidx"})
_SKIPPED_FIELDS = POSITIONS | {"op", "field"}


class ReferenceStep(Struct, frozen=True):
    """A step of a Rego reference: by a literal text, a literal number, or another expression."""

    text: str | None = None
    number: int | None = None
    index: Node | None = None


class RegoRef(Struct, frozen=True):
    """A Rego reference: its root, and the texts that it steps by before any other step."""

    root: str
    steps: tuple[str, ...]
    line: int


class Module(Struct, eq=False):
    """One parsed file of Rego."""

    path: str
    package: RulePath
    package_line: int
    aliases: dict[str, RulePath] = field(default_factory=dict)
    imports: list[tuple[RulePath, int]] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)

    @property
    def is_test(self) -> bool:
        """Say whether the file holds tests."""
        return self.path.endswith("_test.rego")


class Rule(Struct, frozen=True, eq=False):
    """One definition of a Rego rule, as regorus parsed it.

    `node` is what there is to it; `shape` is Func, Set or Compr, and empty for a default. `locals`
    are the names it binds itself, `refs` all references of its value and bodies, `nodes` its nodes
    of the kinds in `_COLLECTED`.
    """

    module: Module
    name: str
    line: int
    node: Node
    head: Node
    shape: str
    args: list[Node]
    locals: frozenset[str]
    refs: list[RegoRef]
    nodes: Mapping[str, list[Node]]

    @property
    def path(self) -> RulePath:
        """Return its package and name."""
        return (*self.module.package, self.name)

    @property
    def is_default(self) -> bool:
        """Say whether it is a default."""
        return not self.shape

    @property
    def is_function(self) -> bool:
        """Say whether it is called with arguments."""
        return self.shape == "Func" or (self.is_default and bool(self.args))

    def fault(self, at: Node | int, what: str, mend: str = "") -> Finding:
        """Return a finding at a line, or where a node stands."""
        line = at if isinstance(at, int) else line_of(at, self.line)
        return Finding(self.module.path, line, what, mend)

    def body_values(self) -> list[tuple[Node | None, Node | None]]:
        """Return each body with its value, along `else`; None for no body and for `true`."""
        if self.is_default:
            return [(None, self.head["value"])]
        bodies = self.node["bodies"] or [None]
        each = [self.head.get("assign"), *(body["assign"] for body in bodies[1:])]
        return [
            (body if body and body["query"]["stmts"] else None, value["value"] if value else None)
            for body, value in zip(bodies, each, strict=True)
        ]


def rules_of(modules: Sequence[Module], *, tests: bool = False) -> list[Rule]:
    """Return the Rego rules of all modules, of those that hold tests only if asked for."""
    return [rule for module in modules if tests or not module.is_test for rule in module.rules]


def read_modules(syntax: Sequence[Mapping[str, Any]]) -> list[Module]:
    """Return modules, read from the syntax trees of regorus."""
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
    module.rules = [_read_rule(module, raw, each) for each in tree["rules"]]
    return module


def _read_rule(module: Module, raw: bytes, node: Node) -> Rule:
    kind, body = next(iter(node.items()))
    if kind == "Default":
        shape, head, parts = "", body, [body["value"]]
    else:
        shape, head = next(iter(body["head"].items()))
        parts = [value for name, value in head.items() if name not in ("refr", "args")]
        parts.append(body["bodies"])
    args = head.get("args") or []
    nodes, refs = collect_nodes(parts)
    root = ref_of(head["refr"])
    return Rule(
        module, root.root if root else "", body["span"]["line"], body, head, shape, args,
        frozenset((*names_in(args), *_bound_names(raw, nodes))), refs, nodes,
    )  # fmt: skip


def collect_nodes(start: Node) -> tuple[dict[str, list[Node]], list[RegoRef]]:
    """Return the Rego nodes of the kinds in `_COLLECTED` within a node, and every reference.

    References inside the brackets of others are found as well.
    """
    nodes: dict[str, list[Node]] = {kind: [] for kind in _COLLECTED}
    refs: list[RegoRef] = []
    left: list[Node] = [start]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left.extend(node)
            continue
        if not isinstance(node, dict):
            continue
        found = ref_of(node)
        if found is not None:
            refs.append(found)
            left += [
                step["RefBrack"]["index"]
                for step in reversed(unwind_reference(node)[1])
                if "RefBrack" in step
            ]
            continue
        for kind, inner in node.items():
            if kind in nodes:
                nodes[kind].append(inner)
            if kind not in _SKIPPED_FIELDS:
                left.append(inner)
    return nodes, refs


def _bound_names(raw: bytes, nodes: Mapping[str, list[Node]]) -> Iterator[str]:
    for node in nodes["SomeIn"]:
        yield from names_in([node["key"], node["value"]])
    for node in nodes["SomeVars"]:
        yield from (_text(raw, span) for span in node["vars"])
    for node in nodes["Every"]:
        yield from (_text(raw, node[name]) for name in ("key", "value") if node[name])
    for node in nodes["AssignExpr"]:
        if node["op"] == "ColEq":
            yield from names_in(node["lhs"])


def _text(raw: bytes, span: Mapping[str, int]) -> str:
    return raw[span["start"] : span["end"]].decode("utf-8", "replace")


# --- references -------------------------------------------------------------------------------


def unwind_reference(node: Node) -> tuple[Node, list[Node]]:
    """Return the node that a Rego reference starts at, and the nodes of its steps from there on."""
    steps: list[Node] = []
    while "RefDot" in node or "RefBrack" in node:
        steps.append(node)
        node = next(iter(node.values()))["refr"]
    return node, steps[::-1]


def _read_step(node: Node) -> ReferenceStep:
    if "RefDot" in node:
        return ReferenceStep(text=str(node["RefDot"]["field"][1]))
    index = node["RefBrack"]["index"]
    number = index.get("Number", {}).get("value")
    text = text_of(index)
    if text is not None:
        return ReferenceStep(text=text)
    return (
        ReferenceStep(number=number)
        if isinstance(number, int) and number >= 0
        else ReferenceStep(index=index)
    )


def split_reference(node: Node) -> tuple[str, list[ReferenceStep]]:
    """Return the name that a Rego reference starts at (empty for another thing), and its steps."""
    base, steps = unwind_reference(node)
    return var_of(base) or "", [_read_step(step) for step in steps]


def is_reference(node: Node) -> bool:
    """Say whether a node of Rego is a reference: a name, or steps from another node."""
    return not REFERENCES.isdisjoint(node)


def ref_of(node: Node) -> RegoRef | None:
    """Return the Rego reference that a node is, None if it starts at no name or is none."""
    base, _ = unwind_reference(node)
    root, steps = split_reference(node)
    if not root:
        return None
    texts = tuple(str(step.text) for step in takewhile(lambda step: step.text is not None, steps))
    return RegoRef(root, texts, line_of(base, 1))


def data_path(module: Module, ref: RegoRef) -> RulePath | None:
    """Return the path below `data` that a Rego reference means, None if it is not about data."""
    path = (*module.aliases.get(ref.root, (ref.root,)), *ref.steps)
    return path[1:] if path[0] == "data" else None


# --- nodes ------------------------------------------------------------------------------------


def walk_syntax(node: Node, stop: frozenset[str] = frozenset()) -> Iterator[tuple[str, Node]]:
    """Yield each Rego syntax node within a node, with its kind; none within those of `stop`."""
    left = [node]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left.extend(each)
        elif isinstance(each, dict):
            for kind, inner in each.items():
                yield kind, inner
                if kind not in stop:
                    left.append(inner)


def names_in(node: Node, stop: frozenset[str] = frozenset()) -> set[str]:
    """Return the names in a Rego expression, those within nodes of `stop` left out."""
    return {
        str(inner["value"]) for kind, inner in walk_syntax(node, stop | POSITIONS) if kind == "Var"
    }


def var_of(node: Node) -> str | None:
    """Return the name that a node of Rego is, None if it is no name."""
    return str(node["Var"]["value"]) if node and "Var" in node else None


def text_of(node: Node) -> str | None:
    """Return the literal text that a node of Rego is, None if it is none."""
    found = node.get("String") or node.get("RawString")
    return str(found["value"]) if found else None


def is_constant(node: Node) -> bool:
    """Say whether a Rego value is written out: a literal, or a collection of such."""
    kind, inner = next(iter(node.items()))
    if kind in ("Array", "Set"):
        return all(map(is_constant, inner["items"]))
    if kind == "Object":
        return all(is_constant(part) for each in inner["fields"] for part in each[1:])
    return kind in SCALARS


def line_of(node: Node, default: int) -> int:
    """Return the first line of the Rego file that a syntax node names."""
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
