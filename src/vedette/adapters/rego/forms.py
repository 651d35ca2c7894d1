"""The allow list of forms: the Rego that every engine of ours was proved to decide alike. Pure.

Every head, statement and expression of a rule is of a form named here, or it is refused with its
line and a mend. A form is here because modules made of it at random, and put together at random,
were decided by OPA, by its Wasm and by regorus' compiled program without a difference
(`make diff-engines`); docs/design/policy.md has the list. Tests are no part of it: they run on the
interpreter and on OPA only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from vedette.adapters.rego.kinds import (
    ANY,
    ASKED,
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
    element,
    is_ordered,
    is_plain,
    is_scalar,
    join,
    never_equal,
    object_of,
    record,
    set_of,
)
from vedette.adapters.rego.syntax import (
    Fault,
    Module,
    Node,
    Rule,
    line_of,
    text_of,
    var_of,
)
from vedette.adapters.rego.undefined import Query
from vedette.quick_data import dataclass

Path = tuple[str, ...]

_CONSTANTS = {
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


@dataclass(slots=True)
class _Scope:
    """What is known at one place of a body.

    `loaded` is which of input and data were named before, `doubtful` which of them were first named
    where evaluation may not have come by: within a comprehension.
    """

    names: dict[str, Kind] = field(default_factory=dict)
    asked: dict[Any, Kind] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    iterates: bool = False
    ordered: bool = True
    inner: bool = False

    def nested(self) -> _Scope:
        return _Scope(
            dict(self.names), dict(self.asked), self.used, set(self.loaded), set(self.doubtful),
            inner=True,
        )  # fmt: skip


class _Policy:
    """All rules of a bundle, and the kinds of their values as they become known."""

    def __init__(
        self, modules: Sequence[Module], data: Mapping[str, Any], sample: Mapping[str, Any]
    ) -> None:
        self.data = data
        self.sample = sample
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
            if value is None or _constant(value)
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
            value is None or _constant(value) for _, rule in rest for _, value in rule.values()
        ):
            what = f"{rule.name} may have two values at a time, a conflict that engines treat apart"
            yield Fault(module.path, rule.line, what, "write one definition with `else`")
            return


class _Definition:
    """One definition of a rule, checked from its head to the last body of its `else` chain."""

    def __init__(self, policy: _Policy, module: Module, rule: Rule, *, default: bool) -> None:
        self._policy = policy
        self._module = module
        self._rule = rule
        self._default = default

    def kind(self) -> Kind:
        rule = self._rule
        if rule.kind == "Default":
            if not _constant(rule.head["value"]):
                self._fault(rule.line, "a default that is no constant", "write a constant")
            return self._of(rule.head["value"], _Scope())
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
        scope = _Scope(dict(params))
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
            if scope.iterates and not _constant(value):
                what = f"{rule.name} takes its value out of an iteration"
                self._fault(line, what, "collect the values with `contains`, and take min or max")
            elif (chain or self._default) and not query.certain(value):
                what = "beside `else` or a default, a value that may be undefined"
                mend = "assign it to a name in the body, ask for that name, and give the name"
                self._fault(line, what, mend)
        self._all_used(stmts, scope, line)
        return kind

    # --- statements -------------------------------------------------------------------------

    def _statements(self, stmts: Sequence[Node], scope: _Scope) -> None:
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

    def _expression(self, expr: Node, scope: _Scope) -> None:
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

    def _assignment(self, inner: Node, scope: _Scope) -> None:
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

    def _some_in(self, inner: Node, scope: _Scope) -> None:
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

    def _negation(self, expr: Node, scope: _Scope) -> None:
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

    def _membership(self, inner: Node, scope: _Scope) -> None:
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

    def _comparison(self, inner: Node, scope: _Scope) -> None:
        line = line_of(inner["lhs"], line_of(inner["rhs"], self._rule.line))
        one, other = self._of(inner["lhs"], scope), self._of(inner["rhs"], scope)
        for side, literal in (("lhs", other), ("rhs", one)):
            known = self._always(inner[side], scope)
            if (
                known is not None
                and next(iter(inner["rhs" if side == "lhs" else "lhs"])) in _CONSTANTS
                and known != literal
                and literal != NULL
            ):
                what = f"a {known.name} in every question is compared with a {literal.name}"
                self._fault(line, what, "compare values of one kind")
        if inner["op"] not in ("Eq", "Ne"):
            for kind in (one, other):
                if not is_plain(kind):
                    what = f"a {kind.name} has no order that all engines share"
                    self._fault(line, what, "compare numbers or texts")
                    return
        if not self._literals(inner, scope, line):
            self._comparable(one, other, line, equal=inner["op"] == "Eq")

    def _always(self, node: Node, scope: _Scope) -> Kind | None:
        """Return the scalar kind that a path into the question has in every question."""
        root, steps, line = _unwind(node)
        path = None if root in scope.names else self._absolute(root)
        if path is None or path[0] != "input":
            return None
        found = self._asked_of([*({"text": each} for each in path[1:]), *steps], line)
        return {str: STRING, bool: BOOLEAN, int: NUMBER}.get(type(found))

    def _literals(self, inner: Node, scope: _Scope, line: int) -> bool:
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

    def _bind(self, name: str, kind: Kind, line: int, scope: _Scope) -> None:
        if name in scope.names or self._taken(name):
            self._fault(line, f"the name {name} is taken", "take another")
        scope.names[name] = kind

    def _taken(self, name: str) -> bool:
        return (
            name in ("input", "data")
            or name in self._module.aliases
            or (*self._module.package, name) in self._policy.rules
        )

    def _ask(self, call: Node, scope: _Scope) -> None:
        """Note what a type test says of the name or path that it was asked about."""
        kind = ASKED.get(_function_name(call))
        if kind is None or len(call["params"]) != 1:
            return
        key = self._key(call["params"][0])
        if key is not None:
            scope.asked[key] = kind

    def _all_used(self, stmts: Sequence[Node], scope: _Scope, line: int) -> None:
        for stmt in stmts:
            expr = stmt["literal"].get("Expr", {}).get("expr", {})
            name = var_of(expr.get("AssignExpr", {}).get("lhs", {}))
            if name not in (None, "_") and name not in scope.used:
                at = line_of(expr["AssignExpr"]["rhs"], line)
                self._fault(at, f"nobody reads {name}", "leave the assignment out, or ask for it")

    # --- expressions ------------------------------------------------------------------------

    def _of(self, node: Node, scope: _Scope) -> Kind:
        """Return the kind of an expression's value; note what in it is of no form."""
        kind, inner = next(iter(node.items()))
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        found: Callable[[Node, _Scope], Kind] | None = {
            "Array": self._array,
            "Set": self._set,
            "Object": self._object,
            "Call": self._call,
            "ArithExpr": self._arithmetic,
            "BinExpr": self._sets,
        }.get(kind)
        if kind in _COMPREHENSIONS:
            return self._comprehension(node, scope)
        if found is not None:
            return found(inner, scope)
        if kind in ("Var", "RefDot", "RefBrack"):
            return self._reference(node, scope)
        line = line_of(node, self._rule.line)
        mend = "a comparison stands as a statement of its own; name it as a rule to use its result"
        self._fault(line, f"a value of the kind {kind}, which no form has", mend)
        return ANY

    def _array(self, inner: Node, scope: _Scope) -> Kind:
        return array(join(self._of(item, scope) for item in inner["items"]))

    def _set(self, inner: Node, scope: _Scope) -> Kind:
        return set_of(join(self._collected(item, scope) for item in inner["items"]))

    def _object(self, inner: Node, scope: _Scope) -> Kind:
        fields: list[tuple[str, Kind]] = []
        for _, key, value in inner["fields"]:
            name = text_of(key)
            if name is None or name in dict(fields):
                what = "an object's key that is no text, or is there twice"
                self._fault(line_of(key, self._rule.line), what, "write each key as a text, once")
            fields.append((name or "", self._of(value, scope)))
        return record(dict(fields).items())

    def _collected(self, node: Node, scope: _Scope) -> Kind:
        kind = self._of(node, scope)
        if not is_ordered(kind):
            what = "the order of a set or an object would be seen in what is collected"
            self._fault(line_of(node, self._rule.line), what, "collect the elements themselves")
        return kind

    def _arithmetic(self, inner: Node, scope: _Scope) -> Kind:
        sides = [(inner[side], self._of(inner[side], scope)) for side in ("lhs", "rhs")]
        if inner["op"] == "Sub" and all(kind.name == "set" for _, kind in sides):
            return set_of(join(kind.of or ANY for _, kind in sides))
        for node, kind in sides:
            if kind != NUMBER:
                what = "arithmetic with what may be no number"
                self._fault(line_of(node, self._rule.line), what, _GUARD.format("is_number", "…"))
        return NUMBER

    def _sets(self, inner: Node, scope: _Scope) -> Kind:
        kinds = [self._of(inner[side], scope) for side in ("lhs", "rhs")]
        if any(kind.name != "set" for kind in kinds):
            what = "`|` and `&` with what may be no set"
            self._fault(line_of(inner["lhs"], self._rule.line), what, "name sets")
        return set_of(join(kind.of or ANY for kind in kinds))

    def _comprehension(self, node: Node, scope: _Scope) -> Kind:
        kind, inner = next(iter(node.items()))
        line = line_of(node, self._rule.line)
        if scope.inner:
            mend = "give the inner one a name: a rule, or a function of what it needs"
            self._fault(line, "a comprehension within a comprehension", mend)
        within = scope.nested()
        stmts = inner["query"]["stmts"]
        self._statements(stmts, within)
        if kind == "ObjectCompr":
            self._by_key(inner, within, line)
            found = object_of(self._collected(inner["value"], within))
        else:
            of = self._collected(inner["term"], within)
            found = set_of(of) if kind == "SetCompr" else (array if within.ordered else bag)(of)
        self._all_used(stmts, within, line)
        # The compiled program loads input and data where they are first named, and takes them for
        # loaded ever after: also where what was gone through is empty.
        first = next(iter(stmts[0]["literal"].values())) if stmts else {}
        certain = {_unwind(first["collection"])[0]} if "collection" in first else set()
        certain = {(self._absolute(root) or ("",))[0] for root in certain}
        scope.doubtful |= within.loaded - certain - scope.loaded
        scope.loaded |= within.loaded & certain
        return found

    def _by_key(self, inner: Node, scope: _Scope, line: int) -> None:
        """An object's keys are those of one iteration, so that no two values conflict."""
        self._of(inner["key"], scope)
        loops = [each["literal"]["SomeIn"] for each in inner["query"]["stmts"]
                 if "SomeIn" in each["literal"]]  # fmt: skip
        names = [var_of(loop["key"] or loop["value"]) for loop in loops]
        if len(loops) != 1 or var_of(inner["key"]) != names[0]:
            what = "an object whose keys may come twice, with different values"
            self._fault(line, what, "take as key what one `some key, value in …` iterates by")

    def _call(self, inner: Node, scope: _Scope) -> Kind:
        name = _function_name(inner)
        line = line_of(inner["fcn"], self._rule.line)
        kinds = [self._of(param, scope) for param in inner["params"]]
        path = self._rule_named(inner["fcn"], scope)
        if path is not None:
            if self._policy.arity(path) != len(kinds):
                mend = f"give it {self._policy.arity(path)}"
                self._fault(line, f"{name} does not take {len(kinds)} arguments", mend)
            for kind, param in zip(kinds, inner["params"], strict=True):
                if not is_plain(kind):
                    what = f"a function is given a {kind.name}"
                    mend = "let it name the rule itself, or give it the elements one by one"
                    self._fault(line_of(param, line), what, mend)
            return self._policy.kind(path)
        builtin = BUILTINS.get(name)
        if builtin is None:
            mend = "see docs/design/policy.md for what is"
            what = f"{name} is neither a function of this package nor in the portable profile"
            self._fault(line, what, mend)
            return ANY
        if len(kinds) != len(builtin.params):
            mend = f"give it {len(builtin.params)}"
            self._fault(line, f"{name} does not take {len(kinds)} arguments", mend)
            return ANY
        for wanted, param, kind in zip(builtin.params, inner["params"], kinds, strict=True):
            words = _unfit(wanted, param, kind)
            if words:
                self._fault(line_of(param, line), f"{name} of {words[0]}", words[1])
        if isinstance(builtin.result, Kind):
            return builtin.result
        of = element(kinds[0]) or ANY
        if not is_scalar(of):
            self._fault(line, f"{name} of what has no order that all engines share", "take scalars")
        return of

    # --- references -------------------------------------------------------------------------

    def _reference(self, node: Node, scope: _Scope) -> Kind:
        root, steps, line = _unwind(node)
        if not root:
            what = "a step into what is no name"
            self._fault(line, what, "assign it to a name, and step into that")
            return self._of(_base(node), scope)
        found = self._root(root, steps, line, scope)
        if found is None:
            return ANY
        kind, key, left = found
        for step in left:
            if key is not None and kind == JSON:
                kind = scope.asked.get(key, kind)
                kind = kind if kind.name in COLLECTIONS else JSON
            kind = self._step(kind, step, line, scope)
            key = _longer(key, self._step_key(step))
        return scope.asked.get(key, kind) if key is not None and kind == JSON else kind

    def _root(
        self, root: str, steps: list[Node], line: int, scope: _Scope
    ) -> tuple[Kind, Any, list[Node]] | None:
        """Return the kind of what a reference starts at, its key, and the steps left."""
        if root in scope.names:
            scope.used.add(root)
            return scope.names[root], (root,), steps
        path = self._absolute(root)
        if path is None:
            if (*self._module.package, root) in self._policy.rules:
                return self._value_of((*self._module.package, root), line), (root,), steps
            what = f"the name {root} is nowhere bound" if root != "_" else "`_` as an index"
            self._fault(line, what, "check the spelling; iterate with `some value in collection`")
            return None
        whole = [*({"text": each} for each in path[1:]), *steps]
        if path[0] == "input":
            self._load("input", line, scope)
            self._asked_of(whole, line)
            return JSON, ("input",), whole
        for size in range(len(whole), 0, -1):
            texts = tuple(step.get("text") for step in whole[:size])
            if texts in self._policy.rules:
                return self._value_of(texts, line), ("data", *texts), whole[size:]  # type: ignore[arg-type]
        self._load("data", line, scope)
        self._walk(whole, line, scope)
        return JSON, ("data",), whole

    def _load(self, root: str, line: int, scope: _Scope) -> None:
        if root in scope.doubtful - scope.loaded:
            what = f"{root} is named within a comprehension before it is named outside"
            mend = "give the comprehension, or what stands after it, a rule of its own"
            self._fault(line, what, mend)
        scope.loaded.add(root)

    def _asked_of(self, steps: Sequence[Node], line: int) -> Any:
        """Return what a question has at a path, as far as all have it; note what none has."""
        found: Any = self._policy.sample
        for place, step in enumerate(steps):
            if not isinstance(found, Mapping) or not found or "text" not in step:
                return None
            if step["text"] not in found:
                names = ".".join(str(each["text"]) for each in steps[: place + 1])
                mend = f"there is: {', '.join(sorted(found))}"
                self._fault(line, f"input.{names} is in no question", mend)
                return None
            found = found[step["text"]]
        return found

    def _value_of(self, path: Path, line: int) -> Kind:
        if self._policy.arity(path) >= 0:
            self._fault(line, f"{path[-1]} is a function", "call it")
            return ANY
        return self._policy.kind(path)

    def _absolute(self, root: str) -> Path | None:
        if root in ("input", "data"):
            return (root,)
        path = self._module.aliases.get(root)
        return path if path and path[0] in ("input", "data") else None

    def _walk(self, steps: Sequence[Node], line: int, scope: _Scope) -> None:
        """Go along a path in the data: there OPA takes "1" for 1 in a list, and 1 for "1" elsewhere."""
        places: list[Any] = [self._policy.data]
        for place, step in enumerate(steps):
            texts = tuple(each.get("text") for each in steps[: place + 1])
            if any(package[: place + 1] == texts for package in self._policy.packages) and (
                place + 1 == len(steps) or "text" not in steps[place + 1]
            ):
                what = f"data.{'.'.join(map(str, texts))} is a package, not a value"
                self._fault(line, what, "name a rule in it")
            if any(isinstance(each, list) for each in places) and "number" not in step:
                what = "a list in the data is indexed by what may be a text"
                self._fault(line, what, "index it by a literal number, or use `in`")
            if "text" not in step and not self._text_asked(step, scope):
                for each in places:
                    if isinstance(each, Mapping) and any(map(_NUMERAL.match, each)):
                        what = "an object in the data whose keys look like numbers"
                        self._fault(line, what, "ask is_string(…) of the index before")
                        break
            places = [inner for each in places for inner in _inside(each, step)]

    def _text_asked(self, step: Node, scope: _Scope) -> bool:
        return "index" in step and self._of(step["index"], scope) == STRING

    def _step(self, kind: Kind, step: Node, line: int, scope: _Scope) -> Kind:
        """Return the kind of what a step leads to."""
        index = self._of(step["index"], scope) if "index" in step else None
        if index is not None and index.name not in ("string", "number", "json"):
            self._fault(line, f"an index that is a {index.name}", "index by a text or a number")
        if kind.name in ("any", "json"):
            return kind
        if kind.options and is_plain(kind):
            return JSON
        if kind.name == "object":
            if "text" in step and kind.fields is not None:
                found = dict(kind.fields).get(step["text"])
                if found is None:
                    self._fault(line, f"there is no field {step['text']}", "check the spelling")
                return found or ANY
            if "number" not in step:
                return kind.of or ANY
        if kind.name == "array" and ("number" in step or index == NUMBER):
            return kind.of or ANY
        mends = {
            "set": "ask `value in set`",
            "bag": "its order is not the same everywhere: take min or max, or a known array",
            "array": "index an array by a literal number",
        }
        mend = mends.get(kind.name, "check what it is")
        self._fault(line, f"a step into a {kind.name}", mend)
        return ANY

    def _rule_named(self, node: Node, scope: _Scope) -> Path | None:
        """Return the path of the rule that a node names, None if it is anything else."""
        if not any(each in node for each in ("Var", "RefDot", "RefBrack")):
            return None
        root, steps, _ = _unwind(node)
        if root in scope.names:
            return None
        path: tuple[Any, ...] = (*self._module.package, root)
        absolute = self._absolute(root)
        if absolute is not None:
            path = (*absolute[1:], *(step.get("text") for step in steps))
        elif steps:
            return None
        return path if path in self._policy.rules else None

    def _key(self, node: Node) -> Any:
        """Return what names a place: the same for the same path, None for what is no path."""
        if not any(each in node for each in ("Var", "RefDot", "RefBrack")):
            return None
        root, steps, _ = _unwind(node)
        path = self._absolute(root)
        key: Any = path if path is not None else (root,)
        for step in steps:
            key = _longer(key, self._step_key(step))
        return key

    def _step_key(self, step: Node) -> Any:
        if "text" in step:
            return step["text"]
        if "number" in step:
            return (step["number"],)
        inner = self._key(step["index"])
        return None if inner is None else ("[", inner)

    def _fault(self, line: int, what: str, mend: str) -> None:
        self._policy.faults.append(Fault(self._module.path, line, what, mend))


# --- nodes ------------------------------------------------------------------------------------


def _unfit(wanted: str, param: Node, kind: Kind) -> tuple[str, str] | None:
    """Return why an argument is not what a builtin takes, and the mend; None if it is."""
    if wanted == "plain":
        return None if is_plain(kind) else (f"a {kind.name}", "give it a single value")
    if wanted == "text":
        return None if text_of(param) else ("no literal text", "write a text that is not empty")
    if wanted == "texts":
        fits = kind.name == "array" and kind.of in (STRING, Kind("none"))
        mend = "write [text, text], each asked for with is_string(…) before, in the same body"
        return None if fits else ("what may be no array of texts", mend)
    if wanted == "keys":
        fits = kind.name == "set" and kind.of in (STRING, Kind("none"))
        return None if fits else ("what is no set of texts", 'write {"name", "name"}')
    names = wanted.split()
    if kind.name in names and (kind.name != "array" or is_ordered(kind)):
        return None
    test = "is_" + ("array" if "array" in names else names[0])
    return f"what may be no {' or '.join(names)}", _GUARD.format(test, "…")


def _unwind(node: Node) -> tuple[str, list[Node], int]:
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


def _inside(value: Any, step: Node) -> list[Any]:
    if isinstance(value, Mapping):
        if "index" in step:
            return list(value.values())
        return [value[step["text"]]] if step.get("text") in value else []
    if isinstance(value, list):
        return list(value)
    return []


def _longer(key: Any, step: Any) -> Any:
    return None if key is None or step is None else (*key, step)


def _constant(node: Node) -> bool:
    kind, inner = next(iter(node.items()))
    if kind in _CONSTANTS:
        return True
    if kind in ("Array", "Set"):
        return all(map(_constant, inner["items"]))
    return kind == "Object" and all(
        _constant(part) for each in inner["fields"] for part in each[1:]
    )


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


def _function_name(call: Node) -> str:
    root, steps, _ = _unwind(call["fcn"])
    return ".".join((root, *(str(step.get("text")) for step in steps)))


def _operand(value: Node | None, name: str) -> bool:
    """Say whether a value fails where a name of it is undefined."""
    if not isinstance(value, dict):
        return False
    kind, inner = next(iter(value.items()))
    if kind == "Call":
        return any(_operand(param, name) for param in inner["params"])
    if kind in ("ArithExpr", "BinExpr"):
        return _operand(inner["lhs"], name) or _operand(inner["rhs"], name)
    return kind in ("Var", "RefDot", "RefBrack") and _unwind(value)[0] == name
