"""Expressions of Rego rules: the kind of each, and whether its form is on the allow list. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from vedette.adapters.policy_engines.regorus.kinds import (
    ANY,
    BOOLEAN,
    BUILTINS,
    COLLECTIONS,
    JSON,
    NONE,
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
    COMPREHENSIONS,
    REFERENCES,
    Module,
    Node,
    ReferenceStep,
    Rule,
    RulePath,
    is_constant,
    is_reference,
    line_of,
    rules_of,
    split_reference,
    text_of,
    unwind_reference,
    var_of,
)
from vedette.domain.bundle import Finding

_CONSTANT_KINDS = {
    "String": STRING,
    "RawString": STRING,
    "Number": NUMBER,
    "Bool": BOOLEAN,
    "Null": NULL,
}
# A key that OPA's store finds by a number as well as by a text.
_NUMERAL = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?$")
_GUARD = "ask for it before, in the same body: {0}(…)"

# Names a place, the same for the same path; None for what is no path.
_Key = tuple[Any, ...] | None


class Scope(Struct):
    """What is known of names and values at one place of a Rego rule's body.

    `loaded_roots` is which of input and data were named before, `doubtful_roots` which of them were
    first named within a comprehension, where evaluation may not have come by.
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


class RuleKinds:
    """The Rego rules of a bundle outside tests, and the kinds of their values as they become known.

    `check` is asked once for each rule: it returns the kind of what its definitions give, and puts
    what is wrong with them into `faults`.
    """

    def __init__(
        self,
        modules: Sequence[Module],
        data: Mapping[str, Any],
        request_kind: Kind,
        check: Callable[[RuleKinds, list[Rule]], Kind],
    ) -> None:
        self.data = data
        self.request_kind = request_kind
        self.faults: list[Finding] = []
        self.packages = {module.package for module in modules if not module.is_test}
        self.rules: dict[RulePath, list[Rule]] = {}
        for rule in rules_of(modules):
            self.rules.setdefault(rule.path, []).append(rule)
        # Rules that always have a value: the last word of their `else` chain is a constant.
        self.total = {
            path
            for path, definitions in self.rules.items()
            for rule in definitions
            for body, value in rule.body_values()[-1:]
            if not rule.is_function and rule.shape != "Set" and body is None
            if value is None or is_constant(value)
        }
        self._check = check
        self._kinds: dict[RulePath, Kind] = {}

    def kind(self, path: RulePath) -> Kind:
        """Return the kind of a rule's value, of a function's result; check it at the first time."""
        if path not in self._kinds:
            self._kinds[path] = ANY  # for a rule that depends on itself, which is a fault elsewhere
            self._kinds[path] = self._check(self, self.rules[path])
        return self._kinds[path]

    def arity(self, path: RulePath) -> int:
        """Return how many parameters a rule has, -1 if it is no function."""
        return next((len(rule.args) for rule in self.rules[path] if rule.is_function), -1)


class ExpressionChecker:
    """The checker of expressions in one definition of a Rego rule, by the allow list of forms.

    `check_statements` checks the body of a comprehension in a scope of its own.
    """

    def __init__(
        self,
        rules: RuleKinds,
        rule: Rule,
        check_statements: Callable[[Sequence[Node], Scope], None],
    ) -> None:
        self._rules = rules
        self._rule = rule
        self._module = rule.module
        self._check_statements = check_statements

    def add_fault(self, at: Node | int, what: str, mend: str) -> None:
        self._rules.faults.append(self._rule.fault(at, what, mend))

    def kind_of(self, node: Node, scope: Scope) -> Kind:
        """Return the kind of an expression's value; note what in it is of no form."""
        kind, inner = next(iter(node.items()))
        if kind in _CONSTANT_KINDS:
            return _CONSTANT_KINDS[kind]
        if kind in COMPREHENSIONS:
            return self._comprehension(node, scope)
        if kind in REFERENCES:
            return self._reference(node, scope)
        if kind == "Array":
            return array(join(self.kind_of(item, scope) for item in inner["items"]))
        if kind == "Set":
            return set_of(join(self.collected_kind(item, scope) for item in inner["items"]))
        if kind == "Object":
            return self._object(inner, scope)
        if kind == "Call":
            return self.call_kind(inner, scope)
        if kind == "ArithExpr":
            return self._arithmetic(inner, scope)
        if kind == "BinExpr":
            return self._set_operation(inner, scope)
        mend = "a comparison stands as a statement of its own; name it as a rule to use its result"
        self.add_fault(node, f"a value of the kind {kind}, which no form has", mend)
        return ANY

    def collected_kind(self, node: Node, scope: Scope) -> Kind:
        """Return the kind of what goes into a set, or is collected by a comprehension."""
        kind = self.kind_of(node, scope)
        if not is_ordered(kind):
            what = "the order of a set or an object would be seen in what is collected"
            self.add_fault(node, what, "collect the elements themselves")
        return kind

    def check_use(self, stmts: Sequence[Node], scope: Scope, line: int) -> None:
        """Find what is assigned in a body and never read."""
        for stmt in stmts:
            assignment = stmt["literal"].get("Expr", {}).get("expr", {}).get("AssignExpr", {})
            name = var_of(assignment.get("lhs"))
            if name not in (None, "_") and name not in scope.used_names:
                mend = "leave the assignment out, or ask for it"
                self.add_fault(line_of(assignment["rhs"], line), f"nobody reads {name}", mend)

    def _object(self, inner: Node, scope: Scope) -> Kind:
        fields: dict[str, Kind] = {}
        for _, key, value in inner["fields"]:
            name = text_of(key)
            if name is None or name in fields:
                what = "an object's key that is no text, or is there twice"
                self.add_fault(key, what, "write each key as a text, once")
            fields[name or ""] = self.kind_of(value, scope)
        return record(fields.items())

    def _arithmetic(self, inner: Node, scope: Scope) -> Kind:
        sides = [(inner[side], self.kind_of(inner[side], scope)) for side in ("lhs", "rhs")]
        if inner["op"] == "Sub" and all(kind.name == "set" for _, kind in sides):
            return set_of(join(kind.element or ANY for _, kind in sides))
        for node, kind in sides:
            if kind != NUMBER:
                what = "arithmetic with what may be no number"
                self.add_fault(node, what, _GUARD.format("is_number"))
        return NUMBER

    def _set_operation(self, inner: Node, scope: Scope) -> Kind:
        kinds = [self.kind_of(inner[side], scope) for side in ("lhs", "rhs")]
        if any(kind.name != "set" for kind in kinds):
            self.add_fault(inner["lhs"], "`|` and `&` with what may be no set", "name sets")
        return set_of(join(kind.element or ANY for kind in kinds))

    def _comprehension(self, node: Node, scope: Scope) -> Kind:
        kind, inner = next(iter(node.items()))
        line = line_of(node, self._rule.line)
        if scope.is_nested:
            mend = "give the inner one a name: a rule, or a function of what it needs"
            self.add_fault(line, "a comprehension within a comprehension", mend)
        within = scope.child_scope()
        stmts = inner["query"]["stmts"]
        self._check_statements(stmts, within)
        if kind == "ObjectCompr":
            self._check_keys(inner, within, line)
            found = object_of(self.collected_kind(inner["value"], within))
        else:
            of = self.collected_kind(inner["term"], within)
            found = set_of(of) if kind == "SetCompr" else (array if within.keeps_order else bag)(of)
        self.check_use(stmts, within, line)
        # The compiled program loads input and data where they are first named, and takes them for
        # loaded ever after: also where what was gone through is empty.
        first = next(iter(stmts[0]["literal"].values())) if stmts else {}
        certain: set[str] = set()
        if "collection" in first:
            root, _ = split_reference(first["collection"])
            certain = set((self._absolute_path(root) or ())[:1])
        scope.doubtful_roots |= within.loaded_roots - certain - scope.loaded_roots
        scope.loaded_roots |= within.loaded_roots & certain
        return found

    def _check_keys(self, inner: Node, scope: Scope, line: int) -> None:
        """An object's keys are those of one iteration, so that no two values conflict."""
        self.kind_of(inner["key"], scope)
        loops = [each["literal"]["SomeIn"] for each in inner["query"]["stmts"]
                 if "SomeIn" in each["literal"]]  # fmt: skip
        names = [var_of(loop["key"] or loop["value"]) for loop in loops]
        if len(loops) != 1 or var_of(inner["key"]) != names[0]:
            what = "an object whose keys may come twice, with different values"
            self.add_fault(line, what, "take as key what one `some key, value in …` iterates by")

    def call_kind(self, inner: Node, scope: Scope) -> Kind:
        """Return the kind of what a call returns; note arguments that do not fit."""
        name = function_name(inner)
        params = inner["params"]
        line = line_of(inner["fcn"], self._rule.line)
        kinds = [self.kind_of(param, scope) for param in params]
        path = self.rule_path(inner["fcn"], scope)
        if path is not None:
            self._check_count(name, self._rules.arity(path), kinds, line)
            for kind, param in zip(kinds, params, strict=True):
                if not is_plain(kind):
                    mend = "let it name the rule itself, or give it the elements one by one"
                    self.add_fault(line_of(param, line), f"a function is given a {kind.name}", mend)
            return self._rules.kind(path)
        builtin = BUILTINS.get(name)
        if builtin is None:
            mend = "see docs/design/policy.md for what is"
            what = f"{name} is neither a function of this package nor in the portable profile"
            self.add_fault(line, what, mend)
            return ANY
        if not self._check_count(name, len(builtin.params), kinds, line):
            return ANY
        for expected, param, kind in zip(builtin.params, params, kinds, strict=True):
            words = _argument_fault(expected, param, kind)
            if words:
                self.add_fault(line_of(param, line), f"{name} of {words[0]}", words[1])
        if isinstance(builtin.result, Kind):
            return builtin.result
        of = element_kind(kinds[0]) or ANY
        if not is_scalar(of):
            what = f"{name} of what has no order that all engines share"
            self.add_fault(line, what, "take scalars")
        return of

    def _check_count(self, name: str, wanted: int, kinds: Sequence[Kind], line: int) -> bool:
        if wanted != len(kinds):
            what = f"{name} does not take {len(kinds)} arguments"
            self.add_fault(line, what, f"give it {wanted}")
        return wanted == len(kinds)

    # --- references -------------------------------------------------------------------------

    def _reference(self, node: Node, scope: Scope) -> Kind:
        root, steps = split_reference(node)
        base, _ = unwind_reference(node)
        line = line_of(base, 1)
        if not root:
            mend = "assign it to a name, and step into that"
            self.add_fault(line, "a step into what is no name", mend)
            return self.kind_of(base, scope)
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
        self, root: str, steps: list[ReferenceStep], line: int, scope: Scope
    ) -> tuple[Kind, _Key, list[ReferenceStep]] | None:
        """Return the kind of what a reference starts at, its key, and the steps left."""
        if root in scope.names:
            scope.used_names.add(root)
            return scope.names[root], (root,), steps
        path = self._absolute_path(root)
        if path is None:
            local = (*self._module.package, root)
            if local in self._rules.rules:
                return self._rule_kind(local, line), (root,), steps
            what = f"the name {root} is nowhere bound" if root != "_" else "`_` as an index"
            mend = "check the spelling; iterate with `some value in collection`"
            self.add_fault(line, what, mend)
            return None
        whole = [*map(ReferenceStep, path[1:]), *steps]
        if path[0] == "input":
            self._mark_loaded("input", line, scope)
            return self._rules.request_kind, ("input",), whole
        for size in range(len(whole), 0, -1):
            texts: Any = tuple(step.text for step in whole[:size])
            if texts in self._rules.rules:
                return self._rule_kind(texts, line), ("data", *texts), whole[size:]
        self._mark_loaded("data", line, scope)
        self._check_data_path(whole, line, scope)
        return JSON, ("data",), whole

    def _mark_loaded(self, root: str, line: int, scope: Scope) -> None:
        if root in scope.doubtful_roots - scope.loaded_roots:
            what = f"{root} is named within a comprehension before it is named outside"
            mend = "give the comprehension, or what stands after it, a rule of its own"
            self.add_fault(line, what, mend)
        scope.loaded_roots.add(root)

    def _rule_kind(self, path: RulePath, line: int) -> Kind:
        if self._rules.arity(path) >= 0:
            self.add_fault(line, f"{path[-1]} is a function", "call it")
            return ANY
        return self._rules.kind(path)

    def _absolute_path(self, root: str) -> RulePath | None:
        path = (root,) if root in ("input", "data") else self._module.aliases.get(root, ("",))
        return path if path[0] in ("input", "data") else None

    def _check_data_path(self, steps: Sequence[ReferenceStep], line: int, scope: Scope) -> None:
        """Go along a path in the data: OPA takes "1" for 1 in a list there, and 1 for "1"."""
        values: list[Any] = [self._rules.data]
        for size, step in enumerate(steps, 1):
            texts = tuple(each.text for each in steps[:size])
            if any(package[:size] == texts for package in self._rules.packages) and (
                size == len(steps) or steps[size].text is None
            ):
                what = f"data.{'.'.join(map(str, texts))} is a package, not a value"
                self.add_fault(line, what, "name a rule in it")
            if any(isinstance(each, list) for each in values) and step.number is None:
                what = "a list in the data is indexed by what may be a text"
                self.add_fault(line, what, "index it by a literal number, or use `in`")
            is_text = step.text is not None or (
                step.index is not None and self.kind_of(step.index, scope) == STRING
            )
            if not is_text and any(
                isinstance(each, Mapping) and any(map(_NUMERAL.match, each)) for each in values
            ):
                what = "an object in the data whose keys look like numbers"
                self.add_fault(line, what, "ask is_string(…) of the index before")
            values = [inner for each in values for inner in _step_into(each, step)]

    def _step_kind(self, kind: Kind, step: ReferenceStep, line: int, scope: Scope) -> Kind:
        """Return the kind of what a step leads to."""
        index = None if step.index is None else self.kind_of(step.index, scope)
        if index is not None and index.name not in ("string", "number", "json"):
            self.add_fault(line, f"an index that is a {index.name}", "index by a text or a number")
        if kind.name in ("any", "json"):
            return kind
        if kind.options and is_plain(kind):
            return JSON
        if kind.name == "object":
            if step.text is not None and kind.fields is not None:
                found = dict(kind.fields).get(step.text)
                if found is None:
                    names = ", ".join(name for name, _ in kind.fields)
                    self.add_fault(line, f"there is no field {step.text}", f"there is: {names}")
                return found or ANY
            if step.number is None:
                return kind.element or ANY
        if kind.name == "array" and (step.number is not None or index == NUMBER):
            return kind.element or ANY
        mends = {
            "set": "ask `value in set`",
            "bag": "its order is not the same everywhere: take min or max, or a known array",
            "array": "index an array by a literal number",
        }
        mend = mends.get(kind.name, "check what it is")
        self.add_fault(line, f"a step into a {kind.name}", mend)
        return ANY

    def rule_path(self, node: Node, scope: Scope) -> RulePath | None:
        """Return the path of the rule that a node names, None if it is anything else."""
        if not is_reference(node):
            return None
        root, steps = split_reference(node)
        if root in scope.names:
            return None
        absolute = self._absolute_path(root)
        path: Any = (*self._module.package, root)
        if absolute is not None:
            path = (*absolute[1:], *(step.text for step in steps))
        elif steps:
            return None
        return path if path in self._rules.rules else None

    def key_of(self, node: Node) -> _Key:
        """Return what names a place: the same for the same path, None for what is no path."""
        if not is_reference(node):
            return None
        root, steps = split_reference(node)
        key: _Key = self._absolute_path(root) or (root,)
        for step in steps:
            key = _extend_key(key, self._step_key(step))
        return key

    def _step_key(self, step: ReferenceStep) -> Any:
        if step.index is None:
            return step.text if step.number is None else (step.number,)
        inner = self.key_of(step.index)
        return None if inner is None else ("[", inner)


# --- nodes --------------------------------------------------------------------------------------


def _argument_fault(wanted: str, param: Node, kind: Kind) -> tuple[str, str] | None:
    """Return why an argument is not what a builtin takes, and the mend; None if it is."""
    if wanted == "plain":
        return None if is_plain(kind) else (f"a {kind.name}", "give it a single value")
    if wanted == "text":
        return None if text_of(param) else ("no literal text", "write a text that is not empty")
    if wanted == "texts":
        fits = kind.name == "array" and kind.element in (STRING, NONE)
        mend = "write [text, text], each asked for with is_string(…) before, in the same body"
        return None if fits else ("what may be no array of texts", mend)
    if wanted == "keys":
        fits = kind.name == "set" and kind.element in (STRING, NONE)
        return None if fits else ("what is no set of texts", 'write {"name", "name"}')
    names = wanted.split()
    if kind.name in names and (kind.name != "array" or is_ordered(kind)):
        return None
    test = "is_" + ("array" if "array" in names else names[0])
    return f"what may be no {' or '.join(names)}", _GUARD.format(test)


def _step_into(value: Any, step: ReferenceStep) -> list[Any]:
    if isinstance(value, list):
        return value
    if not isinstance(value, Mapping):
        return []
    if step.index is not None:
        return list(value.values())
    return [value[step.text]] if step.text in value else []


def _extend_key(key: _Key, step: Any) -> _Key:
    return None if key is None or step is None else (*key, step)


def function_name(call: Node) -> str:
    """Return the dotted name of the function that a Rego call calls."""
    root, steps = split_reference(call["fcn"])
    return ".".join((root, *(str(step.text) for step in steps)))
