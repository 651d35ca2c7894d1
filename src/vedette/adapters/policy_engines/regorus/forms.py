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
    Path,
    Scope,
    Values,
    constant,
    function_name,
    unwind,
)
from vedette.adapters.policy_engines.regorus.kinds import (
    ANY,
    ASKED,
    BOOLEAN,
    BUILTINS,
    COLLECTIONS,
    JSON,
    NONE,
    NUMBER,
    STRING,
    Kind,
    element,
    is_ordered,
    is_plain,
    join,
    never_equal,
    of_value,
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
        self.question = of_value(sample)
        self.faults: list[Fault] = []
        self.rules: dict[Path, list[tuple[Module, Rule]]] = {}
        self.packages = {module.package for module in modules if not module.test}
        for module in modules:
            for rule in module.rules:
                if not module.test:
                    self.rules.setdefault((*module.package, rule.name), []).append((module, rule))
        # Rules that always have a value: the last word of their `else` chain is a constant.
        self.total = {
            path
            for path, definitions in self.rules.items()
            for _, rule in definitions
            for body, value in rule.values()[-1:]
            if not rule.function and rule.shape != "Set" and body is None
            if value is None or constant(value)
        }
        self._kinds: dict[Path, Kind] = {}

    def kind(self, path: Path) -> Kind:
        """Return the kind of a rule's value, of a function's result; check it at the first time."""
        if path not in self._kinds:
            self._kinds[path] = ANY  # for a rule that depends on itself, which is a fault elsewhere
            self._kinds[path] = self._of_definitions(self.rules[path])
        return self._kinds[path]

    def arity(self, path: Path) -> int:
        """Return how many parameters a rule has, -1 if it is no function."""
        args = next((rule.args for _, rule in self.rules[path] if rule.function), None)
        return -1 if args is None else len(args)

    def _of_definitions(self, definitions: Sequence[tuple[Module, Rule]]) -> Kind:
        self.faults += _alike(definitions)
        default = any(rule.kind == "Default" for _, rule in definitions)
        return join(
            _Definition(self, module, rule, default=default).kind() for module, rule in definitions
        )


def _alike(definitions: Sequence[tuple[Module, Rule]]) -> Iterator[Fault]:
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
    values = [_plain_node(value) for _, rule in rest for _, value in rule.values()]
    for (module, rule), shape in zip(rest, shapes, strict=True):
        if shape != shapes[0]:
            what = f"{rule.name} is defined in two ways: as {shapes[0][0]} and as {shape[0]}"
            yield Fault(module.path, rule.line, what, "give one of them another name")
    if len(rest) < 2 or rest[0][1].shape == "Set":
        return
    for module, rule in rest[1:]:
        if any(value != values[0] for value in values) or not all(
            value is None or constant(value) for _, rule in rest for _, value in rule.values()
        ):
            what = f"{rule.name} may have two values at a time, a conflict that engines treat apart"
            yield Fault(module.path, rule.line, what, "write one definition with `else`")
            return


class _Definition(Values):
    """One definition of a rule, checked from its head to the last body of its `else` chain."""

    def __init__(self, policy: _Policy, module: Module, rule: Rule, *, default: bool) -> None:
        super().__init__(policy, module, rule)
        self._default = default

    def kind(self) -> Kind:
        rule = self._rule
        if rule.kind == "Default":
            if not constant(rule.head["value"]):
                self._fault(rule.line, "a default that is no constant", "write a constant")
            return self._of(rule.head["value"], Scope())
        params = self._params()
        if rule.name in BUILTINS or rule.name in ("input", "data"):
            self._fault(rule.line, f"{rule.name} is a word of the language", "name it otherwise")
        values = rule.values()
        chain = len(values) > 1
        return join(self._of_body(body, value, params, chain) for body, value in values)

    def _params(self) -> dict[str, Kind]:
        found: dict[str, Kind] = {}
        for arg in self._rule.args or ():
            name = var_of(arg)
            if name is None:
                what = "a parameter that is no name"
                self._fault(self._rule.line, what, "give it a name and compare that in the body")
            elif name in found or self._taken(name):
                self._fault(self._rule.line, f"the name {name} is taken", "take another")
            if name is not None:
                found[name] = JSON
        return found

    def _of_body(
        self, body: Node | None, value: Node | None, params: dict[str, Kind], chain: bool
    ) -> Kind:
        rule = self._rule
        line = line_of(value, line_of(body, rule.line))
        scope = Scope(dict(params))
        stmts = body["query"]["stmts"] if body else []
        self._statements(stmts, scope)
        total = {path[-1] for path in self._policy.total if path[:-1] == self._module.package}
        query = Query(stmts, outer=frozenset(params) | total)
        for name in params:
            if name not in query.asked and not (not stmts and _operand(value, name)):
                what = f"the parameter {name} is never asked for"
                self._fault(line, what, f"ask for it (is_string({name}), {name} != null)")
        if scope.iterates and chain:
            what = "`else` beside a body that iterates"
            mend = "give the iteration a rule of its own, and name that"
            self._fault(line_of(body, line), what, mend)
        if rule.shape == "Set":
            kind = set_of(self._collected(rule.head["key"], scope))
        elif value is None:
            kind = BOOLEAN
        else:
            kind = self._of(value, scope)
            if scope.iterates and not constant(value):
                what = f"{rule.name} takes its value out of an iteration"
                self._fault(line, what, "collect the values with `contains`, and take min or max")
            elif (chain or self._default) and not query.certain(value):
                what = "beside `else` or a default, a value that may be undefined"
                mend = "assign it to a name in the body, ask for that name, and give the name"
                self._fault(line, what, mend)
        self._all_used(stmts, scope, line)
        return kind

    # --- statements -------------------------------------------------------------------------

    def _statements(self, stmts: Sequence[Node], scope: Scope) -> None:
        for stmt in stmts:
            if stmt.get("with_mods"):
                what = "`with` stands outside a test"
                self._fault(line_of(stmt, self._rule.line), what, "take the value as a parameter")
            kind, inner = next(iter(stmt["literal"].items()))
            if kind == "Expr":
                self._expression(inner["expr"], scope)
            elif kind == "SomeIn":
                self._some_in(inner, scope)
            elif kind == "NotExpr":
                self._negation(inner["expr"], scope)
            elif kind == "Every":
                mend = (
                    "collect what passes in a set and ask that none is left: "
                    "`count(all - passing) == 0`"
                )
                what = "`every`: the compiled engine takes it for true where it holds once"
                self._fault(line_of(inner, self._rule.line), what, mend)
            else:
                what = f"a statement of the kind {kind}, which no form has"
                mend = "iterate with `some value in collection`"
                self._fault(line_of(inner, self._rule.line), what, mend)

    def _expression(self, expr: Node, scope: Scope) -> None:
        kind, inner = next(iter(expr.items()))
        if kind == "AssignExpr":
            self._assignment(inner, scope)
        elif kind == "BoolExpr":
            self._comparison(inner, scope)
        elif kind == "Membership":
            self._membership(inner, scope)
        elif kind == "Call":
            found = self._call(inner, scope)
            if found.name not in ("boolean", "json", "any"):
                what = "a call as a condition whose result is no truth value always holds"
                self._fault(line_of(inner, self._rule.line), what, "compare what it returns")
            self._ask(inner, scope)
        elif kind in ("Var", "RefDot", "RefBrack"):
            found = self._of(expr, scope)
            if found.name in COLLECTIONS:
                what = "a collection as a condition always holds, also when it is empty"
                self._fault(line_of(expr, self._rule.line), what, "ask count(…) > 0")
        elif kind != "Bool":
            what = f"a statement of the kind {kind}, which no form has: it would always hold"
            self._fault(line_of(expr, self._rule.line), what, "compare it with something")

    def _assignment(self, inner: Node, scope: Scope) -> None:
        line = line_of(inner, self._rule.line)
        name = var_of(inner["lhs"])
        if inner["op"] != "ColEq":
            self._fault(line, "`=` compares or assigns, as it comes", "write `==` or `:=`")
            return
        kind = self._of(inner["rhs"], scope)
        if name is None:
            mend = "assign the whole to a name, ask for its type and take elements by number"
            self._fault(line, "a pattern on the left of `:=`", mend)
        elif name != "_":
            self._bind(name, kind, line, scope)

    def _some_in(self, inner: Node, scope: Scope) -> None:
        line = line_of(inner["value"], line_of(inner["collection"], self._rule.line))
        collection = self._of(inner["collection"], scope)
        scope.iterates = True
        scope.ordered &= collection.name == "array"
        of = element(collection)
        if of is None:
            if collection != ANY:
                self._fault(line, f"nothing is in a {collection.name}", "iterate a collection")
            of = ANY
        elif of == NONE:
            self._fault(line, "nothing is ever in this collection", "leave the iteration out")
        key, value = inner["key"], inner["value"]
        if key is not None and collection.name not in ("json", "array", "object", "any"):
            what = f"a {collection.name} has no keys: what comes first is not the same everywhere"
            self._fault(line, what, "iterate with one name")
        index = STRING if collection.fields else JSON
        index = NUMBER if collection.name == "array" else index
        for node, kind in ((key, index), (value, of)):
            if node is None:
                continue
            name = var_of(node)
            if name is None:
                mend = "iterate with names, and compare them"
                self._fault(line, "a pattern after `some`", mend)
            elif name != "_":
                self._bind(name, kind, line, scope)

    def _negation(self, expr: Node, scope: Scope) -> None:
        line = line_of(expr, self._rule.line)
        path = self._rule_named(expr, scope)
        if path is None:
            what = (
                "`not` before something that is no name: it would hold whenever a field is absent"
            )
            self._fault(line, what, "name the condition as a rule and negate the name")
        elif self._policy.arity(path) >= 0:
            self._fault(line, "a function is negated without a call", "name its call as a rule")
        elif self._policy.kind(path).name in COLLECTIONS:
            what = f"`not {path[-1]}` never holds: an empty collection is not false"
            self._fault(line, what, f"ask count({path[-1]}) == 0")

    def _membership(self, inner: Node, scope: Scope) -> None:
        line = line_of(inner["value"], line_of(inner["collection"], self._rule.line))
        if inner["key"] is not None:
            mend = "write collection[key] == value, or `some key, value in collection`"
            self._fault(line, "`key, value in` looks at the value only", mend)
        value = self._of(inner["value"], scope)
        collection = self._of(inner["collection"], scope)
        of = element(collection)
        if of is None:
            if collection != ANY:
                self._fault(line, f"nothing is in a {collection.name}", "name a collection")
        else:
            self._comparable(value, of, line)

    def _comparison(self, inner: Node, scope: Scope) -> None:
        line = line_of(inner["lhs"], line_of(inner["rhs"], self._rule.line))
        one, other = self._of(inner["lhs"], scope), self._of(inner["rhs"], scope)
        if inner["op"] not in ("Eq", "Ne"):
            for kind in (one, other):
                if not is_plain(kind):
                    what = f"a {kind.name} has no order that all engines share"
                    self._fault(line, what, "compare numbers or texts")
                    return
        if not self._literals(inner, scope, line):
            self._comparable(one, other, line, equal=inner["op"] != "Ne")

    def _literals(self, inner: Node, scope: Scope, line: int) -> bool:
        """Compare arrays that are written out element by element, as OPA's compiler does."""
        sides = [inner[side].get("Array", {}).get("items") for side in ("lhs", "rhs")]
        if sides[0] is None and sides[1] is None:
            return False
        if sides[0] is not None and sides[1] is not None:
            if len(sides[0]) != len(sides[1]):
                self._fault(
                    line, "arrays of different length are never equal", "compare one by one"
                )
                return True
            pairs = [
                (self._of(one, scope), self._of(two, scope))
                for one, two in zip(*sides, strict=True)
            ]
        else:
            written, node = (
                (sides[0], inner["rhs"]) if sides[0] is not None else (sides[1], inner["lhs"])
            )
            kind = self._of(node, scope)
            if kind.name != "array":
                return False
            of = kind.of or ANY
            pairs = [(self._of(one, scope), of) for one in written]
        for one, two in pairs:
            self._comparable(one, two, line)
        return True

    def _comparable(self, one: Kind, other: Kind, line: int, *, equal: bool = True) -> None:
        if not (is_ordered(one) and is_ordered(other)):
            what = "the order of a set or an object would be seen"
            self._fault(line, what, "compare sets, or what was made of a known array")
        elif equal and never_equal(one, other):
            what = f"a {one.name} never equals a {other.name} of this kind"
            self._fault(line, what, "compare values of one kind")

    def _bind(self, name: str, kind: Kind, line: int, scope: Scope) -> None:
        if name in scope.names or self._taken(name):
            self._fault(line, f"the name {name} is taken", "take another")
        scope.names[name] = kind

    def _taken(self, name: str) -> bool:
        return (
            name in ("input", "data")
            or name in self._module.aliases
            or (*self._module.package, name) in self._policy.rules
        )

    def _ask(self, call: Node, scope: Scope) -> None:
        """Note what a type test says of the name or path that it was asked about."""
        kind = ASKED.get(function_name(call))
        if kind is None or len(call["params"]) != 1:
            return
        key = self._key(call["params"][0])
        if key is not None:
            scope.asked[key] = kind


# --- nodes --------------------------------------------------------------------------------------


def _plain_node(node: Node) -> Node:
    """Return a constant without its places in the file; true for the value that is left out."""
    if node is None:
        return {"Bool": {"value": True}}
    if isinstance(node, dict):
        dull = ("span", "eidx", "sidx", "qidx")
        return {name: _plain_node(inner) for name, inner in node.items() if name not in dull}
    if isinstance(node, list):
        return [_plain_node(each) for each in node if not _is_span(each)]
    return node


def _is_span(node: Node) -> bool:
    return isinstance(node, dict) and "line" in node and "start" in node


def _operand(value: Node | None, name: str) -> bool:
    """Say whether a value fails where a name of it is undefined."""
    if not isinstance(value, dict):
        return False
    kind, inner = next(iter(value.items()))
    if kind == "Call":
        return any(_operand(param, name) for param in inner["params"])
    if kind in ("ArithExpr", "BinExpr"):
        return _operand(inner["lhs"], name) or _operand(inner["rhs"], name)
    return kind in ("Var", "RefDot", "RefBrack") and unwind(value)[0] == name
