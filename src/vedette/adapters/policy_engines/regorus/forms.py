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

from vedette.adapters.policy_engines.regorus.expressions import (
    ExpressionChecker,
    RuleKinds,
    Scope,
    function_name,
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
    POSITIONS,
    REFERENCES,
    Module,
    Node,
    Rule,
    is_constant,
    line_of,
    split_reference,
    var_of,
)
from vedette.adapters.policy_engines.regorus.undefined_check import BodyStatements
from vedette.domain.bundle import Finding


def check_forms(
    modules: Sequence[Module], data: Mapping[str, Any], sample: Mapping[str, Any]
) -> list[Finding]:
    """Return whatever in Rego rules outside tests is of no form on the allow list.

    `sample` has the fields that `input` has; whatever is empty in it may have any.
    """
    rules = RuleKinds(modules, data, kind_of_value(sample), _check_rule)
    for path in rules.rules:
        rules.kind(path)
    return rules.faults


def _check_rule(rules: RuleKinds, definitions: list[Rule]) -> Kind:
    """Check all definitions of one rule; return the kind of its values."""
    rules.faults += _check_together(definitions)
    has_default = any(rule.is_default for rule in definitions)
    return join(_Definition(rules, rule, has_default).kind() for rule in definitions)


def _check_together(definitions: Sequence[Rule]) -> Iterator[Finding]:
    """Find definitions of one name that OPA would not take together, or that may conflict."""
    rest = [rule for rule in definitions if not rule.is_default]
    for rule in definitions[1:]:
        if rule.is_default and definitions[0].is_default:
            yield rule.fault(rule.line, f"{rule.name} has two defaults", "leave one out")
    for rule in definitions:
        if rule.is_default and rest and rest[0].shape == "Set":
            mend = "leave the default out: a set is never undefined"
            yield rule.fault(rule.line, f"{rule.name} is a set and has a default", mend)
    for rule in rest:
        if (rule.shape, len(rule.args)) != (rest[0].shape, len(rest[0].args)):
            what = f"{rule.name} is defined in two ways: as {rest[0].shape} and as {rule.shape}"
            yield rule.fault(rule.line, what, "give one of them another name")
    if len(rest) < 2 or rest[0].shape == "Set":
        return
    true = {"Bool": {"value": True}}
    values = [value or true for rule in rest for _, value in rule.body_values()]
    first = _strip_positions(values[0])
    if not all(is_constant(each) and _strip_positions(each) == first for each in values):
        rule = rest[1]
        what = f"{rule.name} may have two values at a time, a conflict that engines treat apart"
        yield rule.fault(rule.line, what, "write one definition with `else`")


class _Definition:
    """One definition of a rule, checked from its head to the last body of its `else` chain."""

    def __init__(self, rules: RuleKinds, rule: Rule, has_default: bool) -> None:
        self._rules = rules
        self._rule = rule
        self._has_default = has_default
        self._expressions = ExpressionChecker(rules, rule, self._check_statements)
        self._fault = self._expressions.add_fault
        self._kind_of = self._expressions.kind_of

    def kind(self) -> Kind:
        rule = self._rule
        if rule.is_default:
            if not is_constant(rule.head["value"]):
                self._fault(rule.line, "a default that is no constant", "write a constant")
            return self._kind_of(rule.head["value"], Scope())
        params = self._param_kinds()
        if rule.name in BUILTINS or rule.name in ("input", "data"):
            self._fault(rule.line, f"{rule.name} is a word of the language", "name it otherwise")
        values = rule.body_values()
        chain = len(values) > 1
        return join(self._body_kind(body, value, params, chain) for body, value in values)

    def _param_kinds(self) -> dict[str, Kind]:
        found: dict[str, Kind] = {}
        line = self._rule.line
        for name in map(var_of, self._rule.args):
            if name is None:
                mend = "give it a name and compare that in the body"
                self._fault(line, "a parameter that is no name", mend)
                continue
            if name in found or self._is_reserved(name):
                self._fault(line, f"the name {name} is taken", "take another")
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
        total = {path[-1] for path in self._rules.total if path[:-1] == rule.module.package}
        query = BodyStatements(stmts, outer=frozenset(params) | total)
        for name in params:
            if name not in query.required_names and not (not stmts and _is_operand(value, name)):
                mend = f"ask for it (is_string({name}), {name} != null)"
                self._fault(line, f"the parameter {name} is never asked for", mend)
        if scope.has_iteration and chain:
            mend = "give the iteration a rule of its own, and name that"
            self._fault(line_of(body, line), "`else` beside a body that iterates", mend)
        if rule.shape == "Set":
            kind = set_of(self._expressions.collected_kind(rule.head["key"], scope))
        elif value is None:
            kind = BOOLEAN
        else:
            kind = self._kind_of(value, scope)
            if scope.has_iteration and not is_constant(value):
                mend = "collect the values with `contains`, and take min or max"
                self._fault(line, f"{rule.name} takes its value out of an iteration", mend)
            elif (chain or self._has_default) and not query.is_defined(value):
                mend = "assign it to a name in the body, ask for that name, and give the name"
                self._fault(line, "beside `else` or a default, a value that may be undefined", mend)
        self._expressions.check_use(stmts, scope, line)
        return kind

    # --- statements -------------------------------------------------------------------------

    def _check_statements(self, stmts: Sequence[Node], scope: Scope) -> None:
        for stmt in stmts:
            if stmt.get("with_mods"):
                self._fault(stmt, "`with` stands outside a test", "take the value as a parameter")
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
                self._fault(inner, what, mend)
            else:
                mend = "iterate with `some value in collection`"
                self._fault(inner, f"a statement of the kind {kind}, which no form has", mend)

    def _check_expression(self, expr: Node, scope: Scope) -> None:
        kind, inner = next(iter(expr.items()))
        if kind == "AssignExpr":
            self._check_assignment(inner, scope)
        elif kind == "BoolExpr":
            self._check_comparison(inner, scope)
        elif kind == "Membership":
            self._check_membership(inner, scope)
        elif kind == "Call":
            found = self._kind_of(expr, scope)
            if found.name not in ("boolean", "json", "any"):
                what = "a call as a condition whose result is no truth value always holds"
                self._fault(inner, what, "compare what it returns")
            self._record_type_test(inner, scope)
        elif kind in REFERENCES:
            if self._kind_of(expr, scope).name in COLLECTIONS:
                what = "a collection as a condition always holds, also when it is empty"
                self._fault(expr, what, "ask count(…) > 0")
        elif kind != "Bool":
            what = f"a statement of the kind {kind}, which no form has: it would always hold"
            self._fault(expr, what, "compare it with something")

    def _check_assignment(self, inner: Node, scope: Scope) -> None:
        line = line_of(inner, self._rule.line)
        if inner["op"] != "ColEq":
            self._fault(line, "`=` compares or assigns, as it comes", "write `==` or `:=`")
            return
        kind = self._kind_of(inner["rhs"], scope)
        mend = "assign the whole to a name, ask for its type and take elements by number"
        self._bind(inner["lhs"], kind, line, scope, ("a pattern on the left of `:=`", mend))

    def _check_some_in(self, inner: Node, scope: Scope) -> None:
        line = line_of(inner["value"], line_of(inner["collection"], self._rule.line))
        collection = self._kind_of(inner["collection"], scope)
        scope.has_iteration = True
        scope.keeps_order &= collection.name == "array"
        of = self._element_kind(collection, line, "iterate a collection")
        if of == NONE:
            self._fault(line, "nothing is ever in this collection", "leave the iteration out")
        pattern = ("a pattern after `some`", "iterate with names, and compare them")
        if inner["key"] is not None:
            if collection.name not in ("json", "array", "object", "any"):
                what = (
                    f"a {collection.name} has no keys: what comes first is not the same everywhere"
                )
                self._fault(line, what, "iterate with one name")
            index = STRING if collection.fields else JSON
            index = NUMBER if collection.name == "array" else index
            self._bind(inner["key"], index, line, scope, pattern)
        self._bind(inner["value"], of or ANY, line, scope, pattern)

    def _element_kind(self, collection: Kind, line: int, mend: str) -> Kind | None:
        of = element_kind(collection)
        if of is None and collection != ANY:
            self._fault(line, f"nothing is in a {collection.name}", mend)
        return of

    def _check_negation(self, expr: Node, scope: Scope) -> None:
        path = self._expressions.rule_path(expr, scope)
        if path is None:
            what = (
                "`not` before something that is no name: it would hold whenever a field is absent"
            )
            self._fault(expr, what, "name the condition as a rule and negate the name")
        elif self._rules.arity(path) >= 0:
            self._fault(expr, "a function is negated without a call", "name its call as a rule")
        elif self._rules.kind(path).name in COLLECTIONS:
            what = f"`not {path[-1]}` never holds: an empty collection is not false"
            self._fault(expr, what, f"ask count({path[-1]}) == 0")

    def _check_membership(self, inner: Node, scope: Scope) -> None:
        line = line_of(inner["value"], line_of(inner["collection"], self._rule.line))
        if inner["key"] is not None:
            mend = "write collection[key] == value, or `some key, value in collection`"
            self._fault(line, "`key, value in` looks at the value only", mend)
        value = self._kind_of(inner["value"], scope)
        collection = self._kind_of(inner["collection"], scope)
        of = self._element_kind(collection, line, "name a collection")
        if of is not None:
            self._check_comparable(value, of, line)

    def _check_comparison(self, inner: Node, scope: Scope) -> None:
        line = line_of(inner["lhs"], line_of(inner["rhs"], self._rule.line))
        one, other = self._kind_of(inner["lhs"], scope), self._kind_of(inner["rhs"], scope)
        if inner["op"] not in ("Eq", "Ne"):
            for kind in (one, other):
                if not is_plain(kind):
                    what = f"a {kind.name} has no order that all engines share"
                    self._fault(line, what, "compare numbers or texts")
                    return
        if not self._check_array_literals(inner, scope, line):
            self._check_comparable(one, other, line, equal=inner["op"] != "Ne")

    def _check_array_literals(self, inner: Node, scope: Scope, line: int) -> bool:
        """Compare arrays that are written out element by element, as OPA's compiler does."""
        left, right = (inner[side].get("Array", {}).get("items") for side in ("lhs", "rhs"))
        if left is None and right is None:
            return False
        if left is not None and right is not None:
            if len(left) != len(right):
                what = "arrays of different length are never equal"
                self._fault(line, what, "compare one by one")
                return True
            pairs = [(self._kind_of(one, scope), self._kind_of(two, scope))
                     for one, two in zip(left, right, strict=True)]  # fmt: skip
        else:
            kind = self._kind_of(inner["lhs" if left is None else "rhs"], scope)
            if kind.name != "array":
                return False
            written = right if left is None else left
            pairs = [(self._kind_of(one, scope), kind.element or ANY) for one in written]
        for one, two in pairs:
            self._check_comparable(one, two, line)
        return True

    def _check_comparable(self, one: Kind, other: Kind, line: int, *, equal: bool = True) -> None:
        if not (is_ordered(one) and is_ordered(other)):
            what = "the order of a set or an object would be seen"
            self._fault(line, what, "compare sets, or what was made of a known array")
        elif equal and is_disjoint(one, other):
            what = f"a {one.name} never equals a {other.name} of this kind"
            self._fault(line, what, "compare values of one kind")

    def _bind(
        self, node: Node, kind: Kind, line: int, scope: Scope, pattern: tuple[str, str]
    ) -> None:
        """Give a name its kind; `pattern` is what is wrong if the node is none, and the mend."""
        name = var_of(node)
        if name is None:
            self._fault(line, *pattern)
        elif name != "_":
            if name in scope.names or self._is_reserved(name):
                self._fault(line, f"the name {name} is taken", "take another")
            scope.names[name] = kind

    def _is_reserved(self, name: str) -> bool:
        module = self._rule.module
        return (
            name in ("input", "data")
            or name in module.aliases
            or (*module.package, name) in self._rules.rules
        )

    def _record_type_test(self, call: Node, scope: Scope) -> None:
        """Note what a type test says of the name or path that it was asked about."""
        kind = TESTED_KINDS.get(function_name(call))
        if kind is not None and len(call["params"]) == 1:
            key = self._expressions.key_of(call["params"][0])
            if key is not None:
                scope.tested_kinds[key] = kind


# --- nodes --------------------------------------------------------------------------------------


def _strip_positions(node: Node) -> Node:
    """Return a constant without its places in the file."""
    if isinstance(node, dict):
        return {
            name: _strip_positions(inner) for name, inner in node.items() if name not in POSITIONS
        }
    if isinstance(node, list):
        # The first of an object's field, and of nothing else, is where it stands.
        return [
            _strip_positions(each)
            for each in node
            if not (isinstance(each, dict) and "start" in each)
        ]
    return node


def _is_operand(value: Node | None, name: str) -> bool:
    """Say whether a value fails where a name of it is undefined."""
    if value is None:
        return False
    kind, inner = next(iter(value.items()))
    if kind == "Call":
        return any(_is_operand(param, name) for param in inner["params"])
    if kind in ("ArithExpr", "BinExpr"):
        return _is_operand(inner["lhs"], name) or _is_operand(inner["rhs"], name)
    return kind in REFERENCES and split_reference(value)[0] == name
