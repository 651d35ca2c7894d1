"""What an expression of a rule is: its kind, and whether its form is on the list. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from vedette.adapters.policy_engines.regorus.kinds import (
    ANY,
    BOOLEAN,
    BUILTINS,
    COLLECTIONS,
    JSON,
    NULL,
    NUMBER,
    STRING,
    Kind,
    array,
    bag,
    element_kind,
    is_ordered,
    is_plain,
    is_scalar,
    join,
    object_of,
    record,
    set_of,
)
from vedette.adapters.policy_engines.regorus.syntax import (
    Fault,
    Module,
    Node,
    Rule,
    line_of,
    text_of,
    var_of,
)

RulePath = tuple[str, ...]

CONSTANTS = {
    "String": STRING,
    "RawString": STRING,
    "Number": NUMBER,
    "Bool": BOOLEAN,
    "Null": NULL,
}
_COMPREHENSIONS = frozenset({"ArrayCompr", "SetCompr", "ObjectCompr"})
# A key that OPA's store finds by a number as well as by a text.
_NUMERAL = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?$")
_GUARD = "ask for it before, in the same body: {0}({1})"


class Scope(Struct):
    """What is known at one place of a body.

    `loaded_roots` is which of input and data were named before, `doubtful_roots` which of them were
    first named where evaluation may not have come by: within a comprehension.
    """

    names: dict[str, Kind] = field(default_factory=dict)
    tested_kinds: dict[Any, Kind] = field(default_factory=dict)
    used_names: set[str] = field(default_factory=set)
    loaded_roots: set[str] = field(default_factory=set)
    doubtful_roots: set[str] = field(default_factory=set)
    has_iteration: bool = False
    keeps_order: bool = True
    is_nested: bool = False

    def child_scope(self) -> Scope:
        return Scope(
            dict(self.names),
            dict(self.tested_kinds),
            self.used_names,
            set(self.loaded_roots),
            set(self.doubtful_roots),
            is_nested=True,
        )


class PolicyRules(Protocol):
    """The bundle's rules, as far as expressions speak of them."""

    data: Mapping[str, Any]
    request_kind: Kind
    packages: set[RulePath]
    rules: dict[RulePath, list[tuple[Module, Rule]]]
    total: set[RulePath]
    faults: list[Fault]

    def kind(self, path: RulePath) -> Kind:
        """Return the kind of a rule's value, of a function's result."""

    def arity(self, path: RulePath) -> int:
        """Return how many parameters a rule has, -1 if it is no function."""


class ExpressionChecker:
    """The expressions of one definition of a rule."""

    def __init__(self, policy: PolicyRules, module: Module, rule: Rule) -> None:
        self._policy = policy
        self._module = module
        self._rule = rule

    def _check_statements(self, stmts: Sequence[Node], scope: Scope) -> None:
        """Check the statements of a comprehension's body."""
        raise NotImplementedError

    def _check_use(self, stmts: Sequence[Node], scope: Scope, line: int) -> None:
        """Find what is assigned in a body and never read."""
        for stmt in stmts:
            expr = stmt["literal"].get("Expr", {}).get("expr", {})
            name = var_of(expr.get("AssignExpr", {}).get("lhs", {}))
            if name not in (None, "_") and name not in scope.used_names:
                at = line_of(expr["AssignExpr"]["rhs"], line)
                self._add_fault(
                    at, f"nobody reads {name}", "leave the assignment out, or ask for it"
                )

    # --- expressions ------------------------------------------------------------------------

    def _kind_of(self, node: Node, scope: Scope) -> Kind:
        """Return the kind of an expression's value; note what in it is of no form."""
        kind, inner = next(iter(node.items()))
        if kind in CONSTANTS:
            return CONSTANTS[kind]
        found: Callable[[Node, Scope], Kind] | None = {
            "Array": self._array,
            "Set": self._set,
            "Object": self._object,
            "Call": self._call,
            "ArithExpr": self._arithmetic,
            "BinExpr": self._set_operation,
        }.get(kind)
        if kind in _COMPREHENSIONS:
            return self._comprehension(node, scope)
        if found is not None:
            return found(inner, scope)
        if kind in ("Var", "RefDot", "RefBrack"):
            return self._reference(node, scope)
        line = line_of(node, self._rule.line)
        mend = "a comparison stands as a statement of its own; name it as a rule to use its result"
        self._add_fault(line, f"a value of the kind {kind}, which no form has", mend)
        return ANY

    def _array(self, inner: Node, scope: Scope) -> Kind:
        return array(join(self._kind_of(item, scope) for item in inner["items"]))

    def _set(self, inner: Node, scope: Scope) -> Kind:
        return set_of(join(self._collected_kind(item, scope) for item in inner["items"]))

    def _object(self, inner: Node, scope: Scope) -> Kind:
        fields: list[tuple[str, Kind]] = []
        for _, key, value in inner["fields"]:
            name = text_of(key)
            if name is None or name in dict(fields):
                what = "an object's key that is no text, or is there twice"
                self._add_fault(
                    line_of(key, self._rule.line), what, "write each key as a text, once"
                )
            fields.append((name or "", self._kind_of(value, scope)))
        return record(dict(fields).items())

    def _collected_kind(self, node: Node, scope: Scope) -> Kind:
        kind = self._kind_of(node, scope)
        if not is_ordered(kind):
            what = "the order of a set or an object would be seen in what is collected"
            self._add_fault(line_of(node, self._rule.line), what, "collect the elements themselves")
        return kind

    def _arithmetic(self, inner: Node, scope: Scope) -> Kind:
        sides = [(inner[side], self._kind_of(inner[side], scope)) for side in ("lhs", "rhs")]
        if inner["op"] == "Sub" and all(kind.name == "set" for _, kind in sides):
            return set_of(join(kind.element or ANY for _, kind in sides))
        for node, kind in sides:
            if kind != NUMBER:
                what = "arithmetic with what may be no number"
                self._add_fault(
                    line_of(node, self._rule.line), what, _GUARD.format("is_number", "…")
                )
        return NUMBER

    def _set_operation(self, inner: Node, scope: Scope) -> Kind:
        kinds = [self._kind_of(inner[side], scope) for side in ("lhs", "rhs")]
        if any(kind.name != "set" for kind in kinds):
            what = "`|` and `&` with what may be no set"
            self._add_fault(line_of(inner["lhs"], self._rule.line), what, "name sets")
        return set_of(join(kind.element or ANY for kind in kinds))

    def _comprehension(self, node: Node, scope: Scope) -> Kind:
        kind, inner = next(iter(node.items()))
        line = line_of(node, self._rule.line)
        if scope.is_nested:
            mend = "give the inner one a name: a rule, or a function of what it needs"
            self._add_fault(line, "a comprehension within a comprehension", mend)
        within = scope.child_scope()
        stmts = inner["query"]["stmts"]
        self._check_statements(stmts, within)
        if kind == "ObjectCompr":
            self._check_keys(inner, within, line)
            found = object_of(self._collected_kind(inner["value"], within))
        else:
            of = self._collected_kind(inner["term"], within)
            found = set_of(of) if kind == "SetCompr" else (array if within.keeps_order else bag)(of)
        self._check_use(stmts, within, line)
        # The compiled program loads input and data where they are first named, and takes them for
        # loaded ever after: also where what was gone through is empty.
        first = next(iter(stmts[0]["literal"].values())) if stmts else {}
        certain = {split_reference(first["collection"])[0]} if "collection" in first else set()
        certain = {(self._absolute_path(root) or ("",))[0] for root in certain}
        scope.doubtful_roots |= within.loaded_roots - certain - scope.loaded_roots
        scope.loaded_roots |= within.loaded_roots & certain
        return found

    def _check_keys(self, inner: Node, scope: Scope, line: int) -> None:
        """An object's keys are those of one iteration, so that no two values conflict."""
        self._kind_of(inner["key"], scope)
        loops = [each["literal"]["SomeIn"] for each in inner["query"]["stmts"]
                 if "SomeIn" in each["literal"]]  # fmt: skip
        names = [var_of(loop["key"] or loop["value"]) for loop in loops]
        if len(loops) != 1 or var_of(inner["key"]) != names[0]:
            what = "an object whose keys may come twice, with different values"
            self._add_fault(line, what, "take as key what one `some key, value in …` iterates by")

    def _call(self, inner: Node, scope: Scope) -> Kind:
        name = function_name(inner)
        line = line_of(inner["fcn"], self._rule.line)
        kinds = [self._kind_of(param, scope) for param in inner["params"]]
        path = self._rule_path(inner["fcn"], scope)
        if path is not None:
            if self._policy.arity(path) != len(kinds):
                mend = f"give it {self._policy.arity(path)}"
                self._add_fault(line, f"{name} does not take {len(kinds)} arguments", mend)
            for kind, param in zip(kinds, inner["params"], strict=True):
                if not is_plain(kind):
                    what = f"a function is given a {kind.name}"
                    mend = "let it name the rule itself, or give it the elements one by one"
                    self._add_fault(line_of(param, line), what, mend)
            return self._policy.kind(path)
        builtin = BUILTINS.get(name)
        if builtin is None:
            mend = "see docs/design/policy.md for what is"
            what = f"{name} is neither a function of this package nor in the portable profile"
            self._add_fault(line, what, mend)
            return ANY
        if len(kinds) != len(builtin.params):
            mend = f"give it {len(builtin.params)}"
            self._add_fault(line, f"{name} does not take {len(kinds)} arguments", mend)
            return ANY
        for wanted, param, kind in zip(builtin.params, inner["params"], kinds, strict=True):
            words = _argument_fault(wanted, param, kind)
            if words:
                self._add_fault(line_of(param, line), f"{name} of {words[0]}", words[1])
        if isinstance(builtin.result, Kind):
            return builtin.result
        of = element_kind(kinds[0]) or ANY
        if not is_scalar(of):
            self._add_fault(
                line, f"{name} of what has no order that all engines share", "take scalars"
            )
        return of

    # --- references -------------------------------------------------------------------------

    def _reference(self, node: Node, scope: Scope) -> Kind:
        root, steps, line = split_reference(node)
        if not root:
            what = "a step into what is no name"
            self._add_fault(line, what, "assign it to a name, and step into that")
            return self._kind_of(_base(node), scope)
        found = self._resolve_root(root, steps, line, scope)
        if found is None:
            return ANY
        kind, key, left = found
        for step in left:
            if key is not None and kind == JSON:
                kind = scope.tested_kinds.get(key, kind)
                kind = kind if kind.name in COLLECTIONS else JSON
            kind = self._step_kind(kind, step, line, scope)
            key = _extend_key(key, self._step_key(step))
        return scope.tested_kinds.get(key, kind) if key is not None and kind == JSON else kind

    def _resolve_root(
        self, root: str, steps: list[Node], line: int, scope: Scope
    ) -> tuple[Kind, Any, list[Node]] | None:
        """Return the kind of what a reference starts at, its key, and the steps left."""
        if root in scope.names:
            scope.used_names.add(root)
            return scope.names[root], (root,), steps
        path = self._absolute_path(root)
        if path is None:
            if (*self._module.package, root) in self._policy.rules:
                return self._rule_kind((*self._module.package, root), line), (root,), steps
            what = f"the name {root} is nowhere bound" if root != "_" else "`_` as an index"
            self._add_fault(
                line, what, "check the spelling; iterate with `some value in collection`"
            )
            return None
        whole = [*({"text": each} for each in path[1:]), *steps]
        if path[0] == "input":
            self._mark_loaded("input", line, scope)
            return self._policy.request_kind, ("input",), whole
        for size in range(len(whole), 0, -1):
            texts = tuple(step.get("text") for step in whole[:size])
            if texts in self._policy.rules:
                return self._rule_kind(texts, line), ("data", *texts), whole[size:]
        self._mark_loaded("data", line, scope)
        self._check_data_path(whole, line, scope)
        return JSON, ("data",), whole

    def _mark_loaded(self, root: str, line: int, scope: Scope) -> None:
        if root in scope.doubtful_roots - scope.loaded_roots:
            what = f"{root} is named within a comprehension before it is named outside"
            mend = "give the comprehension, or what stands after it, a rule of its own"
            self._add_fault(line, what, mend)
        scope.loaded_roots.add(root)

    def _rule_kind(self, path: RulePath, line: int) -> Kind:
        if self._policy.arity(path) >= 0:
            self._add_fault(line, f"{path[-1]} is a function", "call it")
            return ANY
        return self._policy.kind(path)

    def _absolute_path(self, root: str) -> RulePath | None:
        if root in ("input", "data"):
            return (root,)
        path = self._module.aliases.get(root)
        return path if path and path[0] in ("input", "data") else None

    def _check_data_path(self, steps: Sequence[Node], line: int, scope: Scope) -> None:
        """Go along a path in the data: OPA takes "1" for 1 in a list there, and 1 for "1"."""
        values: list[Any] = [self._policy.data]
        for place, step in enumerate(steps):
            texts = tuple(each.get("text") for each in steps[: place + 1])
            if any(package[: place + 1] == texts for package in self._policy.packages) and (
                place + 1 == len(steps) or "text" not in steps[place + 1]
            ):
                what = f"data.{'.'.join(map(str, texts))} is a package, not a value"
                self._add_fault(line, what, "name a rule in it")
            if any(isinstance(each, list) for each in values) and "number" not in step:
                what = "a list in the data is indexed by what may be a text"
                self._add_fault(line, what, "index it by a literal number, or use `in`")
            if "text" not in step and not self._is_text_index(step, scope):
                for each in values:
                    if isinstance(each, Mapping) and any(map(_NUMERAL.match, each)):
                        what = "an object in the data whose keys look like numbers"
                        self._add_fault(line, what, "ask is_string(…) of the index before")
                        break
            values = [inner for each in values for inner in _step_into(each, step)]

    def _is_text_index(self, step: Node, scope: Scope) -> bool:
        return "index" in step and self._kind_of(step["index"], scope) == STRING

    def _step_kind(self, kind: Kind, step: Node, line: int, scope: Scope) -> Kind:
        """Return the kind of what a step leads to."""
        index = self._kind_of(step["index"], scope) if "index" in step else None
        if index is not None and index.name not in ("string", "number", "json"):
            self._add_fault(line, f"an index that is a {index.name}", "index by a text or a number")
        if kind.name in ("any", "json"):
            return kind
        if kind.options and is_plain(kind):
            return JSON
        if kind.name == "object":
            if "text" in step and kind.fields is not None:
                found = dict(kind.fields).get(step["text"])
                if found is None:
                    names = ", ".join(name for name, _ in kind.fields)
                    self._add_fault(line, f"there is no field {step['text']}", f"there is: {names}")
                return found or ANY
            if "number" not in step:
                return kind.element or ANY
        if kind.name == "array" and ("number" in step or index == NUMBER):
            return kind.element or ANY
        mends = {
            "set": "ask `value in set`",
            "bag": "its order is not the same everywhere: take min or max, or a known array",
            "array": "index an array by a literal number",
        }
        mend = mends.get(kind.name, "check what it is")
        self._add_fault(line, f"a step into a {kind.name}", mend)
        return ANY

    def _rule_path(self, node: Node, scope: Scope) -> RulePath | None:
        """Return the path of the rule that a node names, None if it is anything else."""
        if not any(each in node for each in ("Var", "RefDot", "RefBrack")):
            return None
        root, steps, _ = split_reference(node)
        if root in scope.names:
            return None
        path: tuple[Any, ...] = (*self._module.package, root)
        absolute = self._absolute_path(root)
        if absolute is not None:
            path = (*absolute[1:], *(step.get("text") for step in steps))
        elif steps:
            return None
        return path if path in self._policy.rules else None

    def _key(self, node: Node) -> Any:
        """Return what names a place: the same for the same path, None for what is no path."""
        if not any(each in node for each in ("Var", "RefDot", "RefBrack")):
            return None
        root, steps, _ = split_reference(node)
        path = self._absolute_path(root)
        key: Any = path if path is not None else (root,)
        for step in steps:
            key = _extend_key(key, self._step_key(step))
        return key

    def _step_key(self, step: Node) -> Any:
        if "text" in step:
            return step["text"]
        if "number" in step:
            return (step["number"],)
        inner = self._key(step["index"])
        return None if inner is None else ("[", inner)

    def _add_fault(self, line: int, what: str, mend: str) -> None:
        self._policy.faults.append(Fault(self._module.path, line, what, mend))


# --- nodes --------------------------------------------------------------------------------------


def _argument_fault(wanted: str, param: Node, kind: Kind) -> tuple[str, str] | None:
    """Return why an argument is not what a builtin takes, and the mend; None if it is."""
    if wanted == "plain":
        return None if is_plain(kind) else (f"a {kind.name}", "give it a single value")
    if wanted == "text":
        return None if text_of(param) else ("no literal text", "write a text that is not empty")
    if wanted == "texts":
        fits = kind.name == "array" and kind.element in (STRING, Kind("none"))
        mend = "write [text, text], each asked for with is_string(…) before, in the same body"
        return None if fits else ("what may be no array of texts", mend)
    if wanted == "keys":
        fits = kind.name == "set" and kind.element in (STRING, Kind("none"))
        return None if fits else ("what is no set of texts", 'write {"name", "name"}')
    names = wanted.split()
    if kind.name in names and (kind.name != "array" or is_ordered(kind)):
        return None
    test = "is_" + ("array" if "array" in names else names[0])
    return f"what may be no {' or '.join(names)}", _GUARD.format(test, "…")


def split_reference(node: Node) -> tuple[str, list[Node], int]:
    """Return root, steps and line of a reference: a step has `text`, `number` or `index`."""
    steps: list[Node] = []
    while "Var" not in node:
        if "RefDot" in node:
            steps.append({"text": str(node["RefDot"]["field"][1])})
            node = node["RefDot"]["refr"]
        elif "RefBrack" in node:
            index = node["RefBrack"]["index"]
            number = index.get("Number", {}).get("value")
            text = text_of(index)
            if text is not None:
                steps.append({"text": text})
            elif isinstance(number, int) and number >= 0:
                steps.append({"number": number})
            else:
                steps.append({"index": index})
            node = node["RefBrack"]["refr"]
        else:
            return "", steps[::-1], line_of(node, 1)
    return str(node["Var"]["value"]), steps[::-1], int(node["Var"]["span"]["line"])


def _base(node: Node) -> Node:
    while "RefDot" in node or "RefBrack" in node:
        node = next(iter(node.values()))["refr"]
    return node


def _step_into(value: Any, step: Node) -> list[Any]:
    if isinstance(value, Mapping):
        if "index" in step:
            return list(value.values())
        return [value[step["text"]]] if step.get("text") in value else []
    if isinstance(value, list):
        return list(value)
    return []


def _extend_key(key: Any, step: Any) -> Any:
    return None if key is None or step is None else (*key, step)


def is_constant(node: Node) -> bool:
    kind, inner = next(iter(node.items()))
    if kind in CONSTANTS:
        return True
    if kind in ("Array", "Set"):
        return all(map(is_constant, inner["items"]))
    return kind == "Object" and all(
        is_constant(part) for each in inner["fields"] for part in each[1:]
    )


def function_name(call: Node) -> str:
    root, steps, _ = split_reference(call["fcn"])
    return ".".join((root, *(str(step.get("text")) for step in steps)))
