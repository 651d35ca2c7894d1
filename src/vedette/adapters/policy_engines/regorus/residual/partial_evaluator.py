"""Partial evaluation of Rego: what is known is computed now, the rest becomes Python source.

N. D. Jones, C. K. Gomard, P. Sestoft, Partial Evaluation and Automatic Program Generation (1993);
written with continuations: each step of an expression or a body is handed what to do with its
value, once for each value that it is known to have. Known are the bundle's rules and data and some
fields of the question; of others only the type. The forms are those of the profile's allow list,
less what is in doubt; any other raises Unsupported, so that nothing is made of such rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from vedette.adapters.policy_engines.regorus.residual import values
from vedette.adapters.policy_engines.regorus.residual.code_writer import (
    ALWAYS,
    MAX_LOOP_DEPTH,
    MAX_STEPS,
    MAYBE,
    NEVER,
    Code,
    Known,
    Path,
    QuestionPart,
    Then,
    Unsupported,
    Value,
    kind_of,
)
from vedette.adapters.policy_engines.regorus.residual.operations import OperationWriter
from vedette.adapters.policy_engines.regorus.residual.values import (
    BUILTINS,
    MAX_ROUNDS,
    OPERATORS,
    TYPE_TESTS,
    UNDEFINED,
    Bag,
    GiveWay,
    RegoSet,
)
from vedette.adapters.policy_engines.regorus.syntax import (
    Module,
    Node,
    Rule,
    RulePath,
    rules_of,
    split_reference,
    unwind_reference,
    var_of,
)
from vedette.domain.base.canonical import MAX_SAFE_INTEGER

_PYTHON_TYPES = {"string": "str", "object": "dict"}
_LITERALS = frozenset({"String", "RawString", "Number", "Bool", "Null"})


Scope = Mapping[str, Value]


class RuleCode(Struct, frozen=True):
    """What came of a rule: a value that may be UNDEFINED.

    It is surely defined where `is_defined` says so, and `true` where it is defined if `is_true`.
    """

    value: Value
    is_defined: bool = False
    is_true: bool = False


class PartialEvaluator(OperationWriter):
    """Writes Python functions for the rules that one entry rule needs.

    `known` are fields of the question by their paths, `kinds` the types of others: whoever calls
    the functions has made sure of both. `functions` and `constants` are what was written.
    """

    def __init__(
        self,
        modules: Sequence[Module],
        data: Mapping[str, Any],
        known: Mapping[Path, Any],
        kinds: Mapping[Path, str],
    ) -> None:
        super().__init__(known, kinds)
        self.functions: list[str] = []
        self.slots = 0
        self._data = data
        self._rules: dict[RulePath, list[Rule]] = {}
        self._prefixes: set[RulePath] = set()
        for rule in rules_of(modules):
            self._rules.setdefault(rule.path, []).append(rule)
            self._prefixes |= {rule.path[:size] for size in range(1, len(rule.path))}
        self._made: dict[RulePath, RuleCode] = {}
        self._function_names: dict[RulePath, str] = {}
        self._open: set[RulePath] = set()
        # Of the function that is being written.
        self._package: RulePath = ()
        self._is_terminal = self._is_function = False
        # What one call costs, in steps of the full engine.
        self._function_work: dict[RulePath, int] = {}

    # --- rules ----------------------------------------------------------------------------------

    def rule(self, path: RulePath, *, outcome: str | None = None) -> RuleCode:
        """Return what a rule comes to; its functions are written.

        With `outcome` the rule's values are objects, and the first that has another `outcome`, and
        all after it, count as undefined. Raises Unsupported.
        """
        if path not in self._made:
            if path in self._open:
                raise Unsupported("a recursion")
            self._open.add(path)
            rules = self._rules[path]
            saved = (
                self.lines, self.depth, self._package, self._is_terminal, self.loops,
                self._is_function,
            )  # fmt: skip
            self.lines, self.depth, self._package, self.loops = [], 1, path[:-1], 0
            work, self.work, self._is_function = self.work, 0, False
            if any(rule.is_function for rule in rules):
                raise Unsupported("a function without arguments")
            make = self._make_set if rules[0].shape == "Set" else self._make_value
            if len({rule.shape == "Set" for rule in rules}) > 1:
                raise Unsupported("a set and a value of one name")
            self._made[path] = make(rules, outcome)
            self.written_work, self.work = self.written_work + self.work, work
            self.lines, self.depth, self._package, self._is_terminal = saved[:4]
            self.loops, self._is_function = saved[4:]
            self._open.discard(path)
        return self._made[path]

    def _make_value(self, rules: list[Rule], outcome: str | None) -> RuleCode:
        slot, self.slots = self.slots, self.slots + 1
        defaults = [rule for rule in rules if rule.is_default]
        rules = [rule for rule in rules if not rule.is_default]
        returned: list[tuple[Value, bool]] = []

        def answer(value: Value) -> str:
            returned.append((value, self.depth == 1))
            self.write(f"c[{slot}] = {self.text(value)}", f"return {self.text(value)}")
            return ALWAYS

        status = self._chain(rules, (), answer, outcome)
        if status != ALWAYS and defaults:
            if len(defaults) > 1 or outcome is not None:
                raise Unsupported("defaults")
            status = self._expression(defaults[0].head["value"], {}, answer)
        if not returned:
            return RuleCode(Known(UNDEFINED))
        if len(returned) == 1 and returned[0][1] and isinstance(returned[0][0], Known):
            return RuleCode(returned[0][0], True)
        self.write(f"c[{slot}] = UNDEFINED", "return UNDEFINED")
        kinds = {kind_of(value) for value, _ in returned}
        kind = kinds.pop() if len(kinds) == 1 else None
        is_true = all(isinstance(value, Known) and value.value is True for value, _ in returned)
        return RuleCode(self._close_rule(slot, kind), status == ALWAYS, is_true)

    def _chain(
        self, rules: list[Rule], args: Sequence[str], then: Then, outcome: str | None = None
    ) -> str:
        """Write bodies with their values, one after the other along `else`."""
        self._is_terminal = True
        status = NEVER
        for rule in rules:
            if rule.shape not in ("Compr", "Func") or len(rule.args) != len(args):
                raise Unsupported("rules of several shapes")
            scope: dict[str, Value] = {}
            for arg, name in zip(rule.args, args, strict=True):
                word = var_of(arg)
                if word is None or word == "_" or word in scope:
                    raise Unsupported("a pattern as an argument")
                scope[word] = Code(name)
            for body, value in rule.body_values():
                if outcome is not None and _field(value, "outcome") != outcome:
                    return MAYBE if status == MAYBE else NEVER
                statements = body["query"]["stmts"] if body else []
                made = {"Bool": {"value": True}} if value is None else value
                status = _either(status, self._body(statements, scope, self._evaluate(made, then)))
                if status == ALWAYS:
                    return status
        return status

    def _evaluate(self, value: Node, then: Then) -> Callable[[Scope], str]:
        return lambda scope: self._expression(value, scope, then)

    def _make_set(self, rules: list[Rule], outcome: str | None) -> RuleCode:
        slot, self.slots = self.slots, self.slots + 1
        self._is_terminal = False
        known: list[Any] = []
        is_known = True

        def collect(value: Value) -> str:
            nonlocal is_known
            if isinstance(value, Known) and self.depth == 1:
                known.append(value.value)
            else:
                is_known = False
            self.write(self.added("r", value))
            return ALWAYS

        self.write("r = RegoSet()")
        for rule in rules:
            for body in rule.node["bodies"] or [None]:
                self._body(
                    body["query"]["stmts"] if body else [],
                    {},
                    self._evaluate(rule.head["key"], collect),
                )
        if is_known:
            return RuleCode(Known(self.fold(RegoSet.of, known)), True)
        self.write(f"c[{slot}] = r", "return r")
        return RuleCode(self._close_rule(slot, "set"), True)

    def _close_rule(self, slot: int, kind: str | None) -> Code:
        # No word of the policy, not even in a comment: a name may hold the end of a line.
        head = [f"def r{slot}(q, c):", f"    r = c[{slot}]"]
        head.append("    if r is not None: return r")
        self.functions.append("\n".join([*head, *self.lines]))
        # What was found once lies in its slot; of what Python calls false the function looks again.
        return Code(f"(c[{slot}] or r{slot}(q, c))", kind)

    def _function(self, path: RulePath, arity: int) -> str:
        """Return the name of the Python function of a Rego function, which is written."""
        if path not in self._function_names:
            name = self._function_names[path] = f"f{len(self._function_names)}"
            if path in self._open:
                raise Unsupported("a recursion")
            self._open.add(path)
            saved = (
                self.lines, self.depth, self._package, self._is_terminal, self.loops,
                self._is_function,
            )  # fmt: skip
            self.lines, self.depth, self._package = [], 1, path[:-1]
            # It may be called in a loop: what one round costs there is counted at each call.
            work, self.work, self.loops, self._is_function = self.work, 0, 1, True
            args = [f"a{number}" for number in range(arity)]

            def answer(value: Value) -> str:
                self.write(f"return {self.text(value)}")
                return ALWAYS

            self._chain(self._rules[path], args, answer)
            self.write("return UNDEFINED")
            head = f"def {name}({', '.join(['q', 'c', *args])}):"
            self.functions.append("\n".join([head, *self.lines]))
            self._function_work[path] = self.work // MAX_ROUNDS
            self.work = work
            self.lines, self.depth, self._package, self._is_terminal = saved[:4]
            self.loops, self._is_function = saved[4:]
            self._open.discard(path)
        elif path in self._open:
            raise Unsupported("a recursion")
        return self._function_names[path]

    # --- bodies ---------------------------------------------------------------------------------

    def _body(self, statements: Sequence[Node], scope: Scope, then: Callable[[Scope], str]) -> str:
        self.count_step()
        if not statements:
            return then(scope)
        if statements[0].get("with_mods"):
            raise Unsupported("with")
        ((kind, inner),) = statements[0]["literal"].items()
        rest = statements[1:]

        def go_on(found: Scope) -> str:
            return self._body(rest, found, then)

        if kind == "SomeIn":
            return self._loop(inner, scope, go_on)
        if kind == "NotExpr":
            return self._negation(inner["expr"], scope, go_on)
        if kind != "Expr":
            raise Unsupported(kind)
        if "AssignExpr" in inner["expr"]:
            assigned = inner["expr"]["AssignExpr"]
            name = var_of(assigned["lhs"])
            if assigned["op"] != "ColEq" or name is None:
                raise Unsupported("a pattern")
            return self._expression(
                assigned["rhs"], scope, lambda value: go_on({**scope, name: value})
            )

        def hold(value: Value) -> str:
            if isinstance(value, Known):
                return NEVER if value.value is False else go_on(scope)
            if value.kind not in (None, "boolean"):
                return go_on(scope)
            test = value.text if value.kind else f"{value.text} is not False"
            return self.where(test, lambda: go_on(scope))

        return self._expression(inner["expr"], scope, hold)

    def _loop(self, inner: Node, scope: Scope, go_on: Callable[[Scope], str]) -> str:
        nodes = [inner[part] for part in ("key", "value") if inner[part] is not None]
        names = [var_of(node) for node in nodes]
        if None in names:
            raise Unsupported("a pattern")
        words = [str(name) for name in names]

        def each(collection: Value) -> str:
            if isinstance(collection, Known):
                return self._unroll(collection.value, words, scope, go_on)
            if self.loops == MAX_LOOP_DEPTH or self._is_function:
                raise Unsupported("loops within loops")
            found = [self.name() for _ in words]
            kinds = ["string" if collection.kind == "object" else None, None][-len(words) :]
            if len(words) == 1:
                kinds = [None]
            source = "pairs_of" if len(words) == 2 else "values_of"
            most = values.MAX_INNER if self.loops else values.MAX_ROUNDS
            text = f"{source}({collection.text}, {most})"
            if collection.kind in ("set", "object", "array"):
                text += f" if {collection.text} else ()"
            mark = len(self.lines)
            self.write(f"for {', '.join(found)} in {text}:")
            bound = {
                word: Code(name, kind)
                for word, name, kind in zip(words, found, kinds, strict=True)
                if word != "_"
            }
            self.depth, self.loops = self.depth + 1, self.loops + 1
            status = go_on({**scope, **bound})
            self.depth, self.loops = self.depth - 1, self.loops - 1
            return self.end_block(mark, status)

        return self._expression(inner["collection"], scope, each)

    def _unroll(
        self, collection: Any, names: list[str], scope: Scope, go_on: Callable[[Scope], str]
    ) -> str:
        """Write what follows once for each element of what is known."""
        try:
            source = values.pairs_of if len(names) == 2 else values.values_of
            rounds = list(source(collection, MAX_STEPS))
        except GiveWay:
            raise Unsupported("a loop over much, or over what has no keys") from None
        status = NEVER
        for found in rounds:
            each = found if len(names) == 2 else (found,)
            bound = {name: Known(one) for name, one in zip(names, each, strict=True) if name != "_"}
            status = _either(status, go_on({**scope, **bound}))
            if status == ALWAYS and self._is_terminal:
                break
        return status

    def _negation(self, expression: Node, scope: Scope, go_on: Callable[[Scope], str]) -> str:
        """Negate a rule by its name: it holds where the rule is undefined or false.

        What is not sure is neither: it leaves by GiveWay.
        """
        root, steps = split_reference(expression)
        texts = tuple(str(step.text) for step in steps)
        path = texts if root == "data" else (*self._package, root)
        if root in scope or (steps and root != "data") or path not in self._rules:
            raise Unsupported("not before what is no rule's name")
        made = self.rule(path)
        if isinstance(made.value, Known):
            held = made.value.value is UNDEFINED or made.value.value is False
            return go_on(scope) if held else NEVER
        if made.is_true:
            return self.where(f"{made.value.text} is not True", lambda: go_on(scope))
        name = self.name()
        self.write(f"{name} = {made.value.text}")
        return self.where(f"{name} is UNDEFINED or {name} is False", lambda: go_on(scope))

    # --- expressions ----------------------------------------------------------------------------

    def _expression(self, node: Node, scope: Scope, then: Then) -> str:
        """Hand on each value that an expression is known to have; none where it is undefined."""
        self.count_step()
        ((kind, inner),) = node.items()
        if kind in _LITERALS:
            return then(Known(_literal(inner.get("value"))))
        if kind in ("Var", "RefDot", "RefBrack"):
            return self._reference(node, scope, then)
        if kind == "Call":
            return self._call(inner, scope, then)
        if kind in ("ArrayCompr", "SetCompr", "ObjectCompr"):
            return self._comprehension(kind, inner, scope, then)
        if kind in ("Array", "Set"):
            return self._all(inner["items"], scope, lambda found: self.made_of(kind, found, then))
        if kind == "Object":
            parts = [part for field in inner["fields"] for part in field[1:]]
            return self._all(parts, scope, lambda found: self.made_of(kind, found, then))
        if kind == "BoolExpr":
            sides = [inner["lhs"], inner["rhs"]]
            return self._all(sides, scope, lambda found: self.compared(inner["op"], found, then))
        if kind == "Membership":
            if inner["key"] is not None:
                raise Unsupported("key, value in")
            sides = [inner["value"], inner["collection"]]
            return self._all(sides, scope, lambda found: self.member(found, then))
        if kind in ("ArithExpr", "BinExpr") and inner["op"] in OPERATORS:
            sides = [inner["lhs"], inner["rhs"]]
            name = OPERATORS[inner["op"]].__name__
            return self._all(
                sides,
                scope,
                lambda found: self.computed(name, OPERATORS[inner["op"]], found, then),
            )
        raise Unsupported(kind)

    def _all(
        self, nodes: Sequence[Node], scope: Scope, then: Then, found: tuple[Value, ...] = ()
    ) -> str:
        if not nodes:
            return then(found)
        return self._expression(
            nodes[0], scope, lambda value: self._all(nodes[1:], scope, then, (*found, value))
        )

    def _call(self, inner: Node, scope: Scope, then: Then) -> str:
        root, steps = split_reference(inner["fcn"])
        if root in scope or root in ("data", "input"):
            raise Unsupported("a call of what has no name of its own")
        if not steps and (*self._package, root) in self._rules:
            path = (*self._package, root)

            def call(found: tuple[Value, ...]) -> str:
                name = self._function(path, len(found))
                self.count_operations(0)
                self.add_work(self._function_work[path])
                return self.defined(f"{name}({', '.join(['q', 'c', *map(self.text, found)])})",
                                     None, then)  # fmt: skip

            return self._all(inner["params"], scope, call)
        name = ".".join([root, *(str(step.text) for step in steps)])
        if name not in BUILTINS:
            raise Unsupported(name)

        def built_in(found: tuple[Value, ...]) -> str:
            kind = kind_of(found[0]) if len(found) == 1 else None
            if name in TYPE_TESTS and kind is not None:
                return then(Known(kind == TYPE_TESTS[name]))
            if name in TYPE_TESTS and TYPE_TESTS[name] in _PYTHON_TYPES:
                test = f"(type({self.text(found[0])}) is {_PYTHON_TYPES[TYPE_TESTS[name]]})"
                return then(Code(test, "boolean"))
            if name == "count" and kind in ("array", "object", "set"):
                return then(self.count_of(found[0]))
            return self.computed(name, BUILTINS[name], found, then)

        return self._all(inner["params"], scope, built_in)

    # --- references -----------------------------------------------------------------------------

    def _reference(self, node: Node, scope: Scope, then: Then) -> str:
        base, nodes = unwind_reference(node)
        root = var_of(base)
        steps: list[Node] = [
            {"String": {"value": each["RefDot"]["field"][1]}}
            if "RefDot" in each
            else each["RefBrack"]["index"]
            for each in nodes
        ]
        if root is None:
            return self._expression(
                base, scope, lambda value: self._walk(value, steps, scope, then)
            )
        if root in scope:
            return self._walk(scope[root], steps, scope, then)
        if root == "input":
            return self._walk(QuestionPart("q", "object"), steps, scope, then)
        if root == "data":
            return self._data_reference(steps, scope, then)
        if (*self._package, root) in self._rules:
            return self._rule_value(
                (*self._package, root), lambda value: self._walk(value, steps, scope, then)
            )
        raise Unsupported(f"a name that nothing binds: {root}")

    def _data_reference(self, steps: list[Node], scope: Scope, then: Then) -> str:
        path: RulePath = ()
        for at, step in enumerate(steps):
            text = step.get("String", {}).get("value")
            if type(text) is not str:
                break
            path = (*path, text)
            if path in self._rules:
                go_on = self._walk_on(steps[at + 1 :], scope, then)
                return self._rule_value(path, go_on)
            if path not in self._prefixes:
                return self._walk(Known(self._data), steps, scope, then)
        raise Unsupported("a package as a value")

    def _rule_value(self, path: RulePath, then: Then) -> str:
        if any(rule.is_function for rule in self._rules[path]):
            raise Unsupported("a function without arguments")
        made = self.rule(path)
        if isinstance(made.value, Known):
            return NEVER if made.value.value is UNDEFINED else then(made.value)
        if made.is_true:
            return self.where(f"{made.value.text} is True", lambda: then(Known(True)))
        if made.is_defined:
            return self.named(made.value.text, made.value.kind, then)
        return self.defined(made.value.text, made.value.kind, then)

    def _walk_on(self, steps: Sequence[Node], scope: Scope, then: Then) -> Then:
        return lambda value: self._walk(value, steps, scope, then)

    def _walk(self, value: Value, steps: Sequence[Node], scope: Scope, then: Then) -> str:
        if not steps:
            return then(value)
        return self._expression(
            steps[0],
            scope,
            lambda index: self.step(
                value, index, lambda found: self._walk(found, steps[1:], scope, then)
            ),
        )

    # --- comprehensions -------------------------------------------------------------------------

    def _comprehension(self, kind: str, inner: Node, scope: Scope, then: Then) -> str:
        name, mark, terminal = self.name(), len(self.lines), self._is_terminal
        self._is_terminal = False
        start = {"ArrayCompr": "[]", "SetCompr": "RegoSet()", "ObjectCompr": "{}"}[kind]
        self.write(f"{name} = {start}")
        depth = self.depth
        known: list[tuple[Any, ...]] = []
        is_known = True

        def collect(found: tuple[Value, ...]) -> str:
            nonlocal is_known
            if self.depth == depth and all(isinstance(value, Known) for value in found):
                known.append(tuple(value.value for value in found if isinstance(value, Known)))
            else:
                is_known = False
            texts = ", ".join(map(self.text, found))
            if kind == "SetCompr":
                self.write(self.added(name, found[0]))
            else:
                self.write(
                    f"put({name}, {texts})" if kind == "ObjectCompr" else f"{name}.append({texts})"
                )
            return ALWAYS

        parts = ["key", "value"] if kind == "ObjectCompr" else ["term"]
        terms = [inner[part] for part in parts]
        self._body(inner["query"]["stmts"], scope, lambda found: self._all(terms, found, collect))
        self._is_terminal = terminal
        if is_known:
            del self.lines[mark:]
            return then(Known(self.fold(_collect_known, kind, known)))
        if kind == "ArrayCompr":
            return self.named(f"Bag({name})", None, then)
        return then(Code(name, "set" if kind == "SetCompr" else "object"))


def _either(one: str, other: str) -> str:
    """Return what is known of two steps of which the second goes on where the first did not."""
    if ALWAYS in (one, other):
        return ALWAYS
    return NEVER if one == other == NEVER else MAYBE


def _literal(value: Any) -> Any:
    if type(value) is int and abs(value) > MAX_SAFE_INTEGER + 1:  # as the profile has it
        raise Unsupported("a number that is not safe")
    if value is not None and type(value) not in (bool, int, str):
        raise Unsupported("a number that is not whole")
    return value


def _field(node: Node | None, name: str) -> str | None:
    """Return the literal text that a written object has under a name."""
    for _, key, value in (node or {}).get("Object", {}).get("fields", ()):
        if key.get("String", {}).get("value") == name:
            found = value.get("String", {}).get("value")
            return found if isinstance(found, str) else None
    return None


def _collect_known(kind: str, found: list[tuple[Any, ...]]) -> Any:
    if kind == "ArrayCompr":
        return Bag([each for (each,) in found])
    if kind == "SetCompr":
        return RegoSet.of(each for (each,) in found)
    made: dict[str, Any] = {}
    for name, value in found:
        values.put(made, name, value)
    return made
