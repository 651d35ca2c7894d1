"""The allow list of forms: the Rego that every engine of ours was proved to decide alike. Pure.

Every head, statement and expression of a rule is of a form named here, or it is refused with its
line and a mend. A form is here because modules made of it at random, and put together at random,
were decided by OPA, by its Wasm and by regorus' compiled program without a difference
(`make diff-engines`); docs/design/policy.md has the list. Tests are no part of it: they run on the
interpreter and on OPA only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vedette.adapters.policy_engines.regorus.expression_kinds import (
    ExpressionChecker,
    RulePath,
    Scope,
    function_name,
    is_constant,
    split_reference,
)
from vedette.adapters.policy_engines.regorus.kinds import (
    ANY,
    BOOLEAN,
    BUILTINS,
    COLLECTIONS,
    JSON,
    NONE,
    NUMBER,
    STRING,
    TESTED_KINDS,
    Kind,
    element_kind,
    is_disjoint,
    is_ordered,
    is_plain,
    join,
    kind_of_value,
    set_of,
)
from vedette.adapters.policy_engines.regorus.syntax import (
    Fault,
    Module,
    Node,
    Rule,
    line_of,
    var_of,
)
from vedette.adapters.policy_engines.regorus.undefined_check import Query


def check_forms(
    modules: Sequence[Module], data: Mapping[str, Any], sample: Mapping[str, Any]
) -> list[Fault]:
    """Return whatever in the rules outside tests is of no form on the list.

    `sample` has the fields that `input` has; whatever is empty in it may have any.
    """
    policy = _Policy(modules, data, sample)
    for path in policy.rules:
        policy.kind(path)
    return policy.faults


class _Policy:
    """All rules of a bundle, and the kinds of their values as they become known."""

    def __init__(
        self, modules: Sequence[Module], data: Mapping[str, Any], sample: Mapping[str, Any]
    ) -> None:
        self.data = data
        self.request_kind = kind_of_value(sample)
        self.faults: list[Fault] = []
        self.rules: dict[RulePath, list[tuple[Module, Rule]]] = {}
        self.packages = {module.package for module in modules if not module.is_test}
        for module in modules:
            for rule in module.rules:
                if not module.is_test:
                    self.rules.setdefault((*module.package, rule.name), []).append((module, rule))
        # Rules that always have a value: the last word of their `else` chain is a constant.
        self.total = {
            path
            for path, definitions in self.rules.items()
            for _, rule in definitions
            for body, value in rule.body_values()[-1:]
            if not rule.is_function and rule.shape != "Set" and body is None
            if value is None or is_constant(value)
        }
        self._kinds: dict[RulePath, Kind] = {}

    def kind(self, path: RulePath) -> Kind:
        """Return the kind of a rule's value, of a function's result; check it at the first time."""
        if path not in self._kinds:
            self._kinds[path] = ANY  # for a rule that depends on itself, which is a fault elsewhere
            self._kinds[path] = self._definitions_kind(self.rules[path])
        return self._kinds[path]

    def arity(self, path: RulePath) -> int:
        """Return how many parameters a rule has, -1 if it is no function."""
        args = next((rule.args for _, rule in self.rules[path] if rule.is_function), None)
        return -1 if args is None else len(args)

    def _definitions_kind(self, definitions: Sequence[tuple[Module, Rule]]) -> Kind:
        self.faults += _check_definitions(definitions)
        default = any(rule.kind == "Default" for _, rule in definitions)
        return join(
            _DefinitionChecker(self, module, rule, default=default).kind()
            for module, rule in definitions
        )


def _check_definitions(definitions: Sequence[tuple[Module, Rule]]) -> Iterator[Fault]:
    """Find definitions of one name that OPA would not take together, or that may conflict."""
    first = definitions[0][1]
    rest = [(module, rule) for module, rule in definitions if rule.kind != "Default"]
    for module, rule in definitions[1:]:
        if rule.kind == "Default" and first.kind == "Default":
            yield Fault(module.path, rule.line, f"{rule.name} has two defaults", "leave one out")
    for module, rule in definitions:
        if rule.kind == "Default" and rest and rest[0][1].shape == "Set":
            mend = "leave the default out: a set is never undefined"
            yield Fault(module.path, rule.line, f"{rule.name} is a set and has a default", mend)
    shapes = [(rule.shape, len(rule.args or ())) for _, rule in rest]
    values = [_strip_positions(value) for _, rule in rest for _, value in rule.body_values()]
    for (module, rule), shape in zip(rest, shapes, strict=True):
        if shape != shapes[0]:
            what = f"{rule.name} is defined in two ways: as {shapes[0][0]} and as {shape[0]}"
            yield Fault(module.path, rule.line, what, "give one of them another name")
    if len(rest) < 2 or rest[0][1].shape == "Set":
        return
    for module, rule in rest[1:]:
        if any(value != values[0] for value in values) or not all(
            value is None or is_constant(value)
            for _, rule in rest
            for _, value in rule.body_values()
        ):
            what = f"{rule.name} may have two values at a time, a conflict that engines treat apart"
            yield Fault(module.path, rule.line, what, "write one definition with `else`")
            return


class _DefinitionChecker(ExpressionChecker):
    """One definition of a rule, checked from its head to the last body of its `else` chain."""

    def __init__(self, policy: _Policy, module: Module, rule: Rule, *, default: bool) -> None:
        super().__init__(policy, module, rule)
        self._default = default

    def kind(self) -> Kind:
        rule = self._rule
        if rule.kind == "Default":
            if not is_constant(rule.head["value"]):
                self._add_fault(rule.line, "a default that is no constant", "write a constant")
            return self._kind_of(rule.head["value"], Scope())
        params = self._param_kinds()
        if rule.name in BUILTINS or rule.name in ("input", "data"):
            self._add_fault(
                rule.line, f"{rule.name} is a word of the language", "name it otherwise"
            )
        values = rule.body_values()
        chain = len(values) > 1
        return join(self._body_kind(body, value, params, chain) for body, value in values)

    def _param_kinds(self) -> dict[str, Kind]:
        found: dict[str, Kind] = {}
        for arg in self._rule.args or ():
            name = var_of(arg)
            if name is None:
                what = "a parameter that is no name"
                self._add_fault(
                    self._rule.line, what, "give it a name and compare that in the body"
                )
            elif name in found or self._is_taken(name):
                self._add_fault(self._rule.line, f"the name {name} is taken", "take another")
            if name is not None:
                found[name] = JSON
        return found

    def _body_kind(
        self, body: Node | None, value: Node | None, params: dict[str, Kind], chain: bool
    ) -> Kind:
        rule = self._rule
        line = line_of(value, line_of(body, rule.line))
        scope = Scope(dict(params))
        stmts = body["query"]["stmts"] if body else []
        self._check_statements(stmts, scope)
        total = {path[-1] for path in self._policy.total if path[:-1] == self._module.package}
        query = Query(stmts, outer=frozenset(params) | total)
        for name in params:
            if name not in query.required_names and not (not stmts and _is_operand(value, name)):
                what = f"the parameter {name} is never asked for"
                self._add_fault(line, what, f"ask for it (is_string({name}), {name} != null)")
        if scope.has_iteration and chain:
            what = "`else` beside a body that iterates"
            mend = "give the iteration a rule of its own, and name that"
            self._add_fault(line_of(body, line), what, mend)
        if rule.shape == "Set":
            kind = set_of(self._collected_kind(rule.head["key"], scope))
        elif value is None:
            kind = BOOLEAN
        else:
            kind = self._kind_of(value, scope)
            if scope.has_iteration and not is_constant(value):
                what = f"{rule.name} takes its value out of an iteration"
                self._add_fault(
                    line, what, "collect the values with `contains`, and take min or max"
                )
            elif (chain or self._default) and not query.is_defined(value):
                what = "beside `else` or a default, a value that may be undefined"
                mend = "assign it to a name in the body, ask for that name, and give the name"
                self._add_fault(line, what, mend)
        self._check_use(stmts, scope, line)
        return kind

    # --- statements -------------------------------------------------------------------------

    def _check_statements(self, stmts: Sequence[Node], scope: Scope) -> None:
        for stmt in stmts:
            if stmt.get("with_mods"):
                what = "`with` stands outside a test"
                self._add_fault(
                    line_of(stmt, self._rule.line), what, "take the value as a parameter"
                )
            kind, inner = next(iter(stmt["literal"].items()))
            if kind == "Expr":
                self._check_expression(inner["expr"], scope)
            elif kind == "SomeIn":
                self._check_some_in(inner, scope)
            elif kind == "NotExpr":
                self._check_negation(inner["expr"], scope)
            elif kind == "Every":
                mend = (
                    "collect what passes in a set and ask that none is left: "
                    "`count(all - passing) == 0`"
                )
                what = "`every`: the compiled engine takes it for true where it holds once"
                self._add_fault(line_of(inner, self._rule.line), what, mend)
            else:
                what = f"a statement of the kind {kind}, which no form has"
                mend = "iterate with `some value in collection`"
                self._add_fault(line_of(inner, self._rule.line), what, mend)

    def _check_expression(self, expr: Node, scope: Scope) -> None:
        kind, inner = next(iter(expr.items()))
        if kind == "AssignExpr":
            self._check_assignment(inner, scope)
        elif kind == "BoolExpr":
            self._check_comparison(inner, scope)
        elif kind == "Membership":
            self._check_membership(inner, scope)
        elif kind == "Call":
            found = self._call(inner, scope)
            if found.name not in ("boolean", "json", "any"):
                what = "a call as a condition whose result is no truth value always holds"
                self._add_fault(line_of(inner, self._rule.line), what, "compare what it returns")
            self._record_type_test(inner, scope)
        elif kind in ("Var", "RefDot", "RefBrack"):
            found = self._kind_of(expr, scope)
            if found.name in COLLECTIONS:
                what = "a collection as a condition always holds, also when it is empty"
                self._add_fault(line_of(expr, self._rule.line), what, "ask count(…) > 0")
        elif kind != "Bool":
            what = f"a statement of the kind {kind}, which no form has: it would always hold"
            self._add_fault(line_of(expr, self._rule.line), what, "compare it with something")

    def _check_assignment(self, inner: Node, scope: Scope) -> None:
        line = line_of(inner, self._rule.line)
        name = var_of(inner["lhs"])
        if inner["op"] != "ColEq":
            self._add_fault(line, "`=` compares or assigns, as it comes", "write `==` or `:=`")
            return
        kind = self._kind_of(inner["rhs"], scope)
        if name is None:
            mend = "assign the whole to a name, ask for its type and take elements by number"
            self._add_fault(line, "a pattern on the left of `:=`", mend)
        elif name != "_":
            self._bind(name, kind, line, scope)

    def _check_some_in(self, inner: Node, scope: Scope) -> None:
        line = line_of(inner["value"], line_of(inner["collection"], self._rule.line))
        collection = self._kind_of(inner["collection"], scope)
        scope.has_iteration = True
        scope.keeps_order &= collection.name == "array"
        of = element_kind(collection)
        if of is None:
            if collection != ANY:
                self._add_fault(line, f"nothing is in a {collection.name}", "iterate a collection")
            of = ANY
        elif of == NONE:
            self._add_fault(line, "nothing is ever in this collection", "leave the iteration out")
        key, value = inner["key"], inner["value"]
        if key is not None and collection.name not in ("json", "array", "object", "any"):
            what = f"a {collection.name} has no keys: what comes first is not the same everywhere"
            self._add_fault(line, what, "iterate with one name")
        index = STRING if collection.fields else JSON
        index = NUMBER if collection.name == "array" else index
        for node, kind in ((key, index), (value, of)):
            if node is None:
                continue
            name = var_of(node)
            if name is None:
                mend = "iterate with names, and compare them"
                self._add_fault(line, "a pattern after `some`", mend)
            elif name != "_":
                self._bind(name, kind, line, scope)

    def _check_negation(self, expr: Node, scope: Scope) -> None:
        line = line_of(expr, self._rule.line)
        path = self._rule_path(expr, scope)
        if path is None:
            what = (
                "`not` before something that is no name: it would hold whenever a field is absent"
            )
            self._add_fault(line, what, "name the condition as a rule and negate the name")
        elif self._policy.arity(path) >= 0:
            self._add_fault(line, "a function is negated without a call", "name its call as a rule")
        elif self._policy.kind(path).name in COLLECTIONS:
            what = f"`not {path[-1]}` never holds: an empty collection is not false"
            self._add_fault(line, what, f"ask count({path[-1]}) == 0")

    def _check_membership(self, inner: Node, scope: Scope) -> None:
        line = line_of(inner["value"], line_of(inner["collection"], self._rule.line))
        if inner["key"] is not None:
            mend = "write collection[key] == value, or `some key, value in collection`"
            self._add_fault(line, "`key, value in` looks at the value only", mend)
        value = self._kind_of(inner["value"], scope)
        collection = self._kind_of(inner["collection"], scope)
        of = element_kind(collection)
        if of is None:
            if collection != ANY:
                self._add_fault(line, f"nothing is in a {collection.name}", "name a collection")
        else:
            self._check_comparable(value, of, line)

    def _check_comparison(self, inner: Node, scope: Scope) -> None:
        line = line_of(inner["lhs"], line_of(inner["rhs"], self._rule.line))
        one, other = self._kind_of(inner["lhs"], scope), self._kind_of(inner["rhs"], scope)
        if inner["op"] not in ("Eq", "Ne"):
            for kind in (one, other):
                if not is_plain(kind):
                    what = f"a {kind.name} has no order that all engines share"
                    self._add_fault(line, what, "compare numbers or texts")
                    return
        if not self._check_array_literals(inner, scope, line):
            self._check_comparable(one, other, line, equal=inner["op"] != "Ne")

    def _check_array_literals(self, inner: Node, scope: Scope, line: int) -> bool:
        """Compare arrays that are written out element by element, as OPA's compiler does."""
        sides = [inner[side].get("Array", {}).get("items") for side in ("lhs", "rhs")]
        if sides[0] is None and sides[1] is None:
            return False
        if sides[0] is not None and sides[1] is not None:
            if len(sides[0]) != len(sides[1]):
                self._add_fault(
                    line, "arrays of different length are never equal", "compare one by one"
                )
                return True
            pairs = [
                (self._kind_of(one, scope), self._kind_of(two, scope))
                for one, two in zip(*sides, strict=True)
            ]
        else:
            written, node = (
                (sides[0], inner["rhs"]) if sides[0] is not None else (sides[1], inner["lhs"])
            )
            kind = self._kind_of(node, scope)
            if kind.name != "array":
                return False
            of = kind.element or ANY
            pairs = [(self._kind_of(one, scope), of) for one in written]
        for one, two in pairs:
            self._check_comparable(one, two, line)
        return True

    def _check_comparable(self, one: Kind, other: Kind, line: int, *, equal: bool = True) -> None:
        if not (is_ordered(one) and is_ordered(other)):
            what = "the order of a set or an object would be seen"
            self._add_fault(line, what, "compare sets, or what was made of a known array")
        elif equal and is_disjoint(one, other):
            what = f"a {one.name} never equals a {other.name} of this kind"
            self._add_fault(line, what, "compare values of one kind")

    def _bind(self, name: str, kind: Kind, line: int, scope: Scope) -> None:
        if name in scope.names or self._is_taken(name):
            self._add_fault(line, f"the name {name} is taken", "take another")
        scope.names[name] = kind

    def _is_taken(self, name: str) -> bool:
        return (
            name in ("input", "data")
            or name in self._module.aliases
            or (*self._module.package, name) in self._policy.rules
        )

    def _record_type_test(self, call: Node, scope: Scope) -> None:
        """Note what a type test says of the name or path that it was asked about."""
        kind = TESTED_KINDS.get(function_name(call))
        if kind is None or len(call["params"]) != 1:
            return
        key = self._key(call["params"][0])
        if key is not None:
            scope.tested_kinds[key] = kind


# --- nodes --------------------------------------------------------------------------------------


def _strip_positions(node: Node) -> Node:
    """Return a constant without its places in the file; true for the value that is left out."""
    if node is None:
        return {"Bool": {"value": True}}
    if isinstance(node, dict):
        dull = ("span", "eidx", "sidx", "qidx")
        return {name: _strip_positions(inner) for name, inner in node.items() if name not in dull}
    if isinstance(node, list):
        return [_strip_positions(each) for each in node if not _is_span(each)]
    return node


def _is_span(node: Node) -> bool:
    return isinstance(node, dict) and "line" in node and "start" in node


def _is_operand(value: Node | None, name: str) -> bool:
    """Say whether a value fails where a name of it is undefined."""
    if not isinstance(value, dict):
        return False
    kind, inner = next(iter(value.items()))
    if kind == "Call":
        return any(_is_operand(param, name) for param in inner["params"])
    if kind in ("ArithExpr", "BinExpr"):
        return _is_operand(inner["lhs"], name) or _is_operand(inner["rhs"], name)
    return kind in ("Var", "RefDot", "RefBrack") and split_reference(value)[0] == name
