"""The forms of rules that a residual may be made of: none in which OPA could fail. Pure.

A rule that fails (two values of one rule, two of one key) ends the full engine's evaluation with an
error, which is a deny, wherever the rule stands and whether or not its value is needed. A residual
leaves out what is known not to be needed, so it must not leave out an error. Therefore all rules of
a bundle are looked at, and one that could fail by its form refuses a residual for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set

from vedette.adapters.policy_engines.regorus.residual.values import BUILTINS
from vedette.adapters.policy_engines.regorus.syntax import (
    Module,
    Node,
    Rule,
    RulePath,
    names_in,
    rules_of,
    var_of,
    walk_syntax,
)

# What a package step or a rule may be called: a package may have any text as a step, but a residual
# is source, and nothing that could be read as source has a place near it.
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_BUILTIN_WORDS = frozenset(name.partition(".")[0] for name in BUILTINS)


def find_unsupported_form(modules: Sequence[Module]) -> str | None:
    """Return in words the first form of rules that a residual is not made of, None for none."""
    for module in modules:
        if not module.is_test and any(path != ("rego", "v1") for path, _ in module.imports):
            return f"an import in {module.path}"
        if not all(map(_NAME.fullmatch, module.package)):
            return f"a package name that is no word: {module.package!r}"
    by_path: dict[RulePath, list[Rule]] = {}
    for rule in rules_of(modules):
        by_path.setdefault(rule.path, []).append(rule)
        if not all(map(_NAME.fullmatch, rule.path)):
            return f"a rule name that is no word: {rule.path!r}"
    for path, rules in by_path.items():
        if any(_has_unbound_name(rule, by_path.keys()) for rule in rules):
            return f"a name that nothing binds in rule {'.'.join(path)}"
    for path, rules in by_path.items():
        for what in _find_faults(rules):
            return f"{what} in rule {'.'.join(path)}"
    return None


def _has_unbound_name(rule: Rule, rules: Set[RulePath]) -> bool:
    """Say whether a rule names what would stand for each of many values."""
    known = rule.locals | {"input", "data"} | _BUILTIN_WORDS
    loops = [part for each in rule.nodes["SomeIn"] for part in (each["key"], each["value"])]
    ignored = sum(var_of(part) == "_" for part in loops)
    names = [ref.root for ref in rule.refs]
    return names.count("_") > ignored or any(
        name not in known and name != "_" and (*rule.module.package, name) not in rules
        for name in names
    )


def _find_faults(rules: list[Rule]) -> Iterator[str]:
    if len({rule.shape for rule in rules} - {""}) > 1:
        yield "definitions of several shapes"
    defined = [rule for rule in rules if not rule.is_default]
    for rule in rules:
        if "Var" not in rule.head["refr"]:
            yield "a reference as its head"
        if rule.shape not in ("", "Compr", "Func", "Set"):
            yield rule.shape
        if rule.nodes["SomeVars"] or rule.nodes["Every"] or any(rule.nodes["with_mods"]):
            yield "some, every or with"
        if any(
            each["op"] != "ColEq" or var_of(each["lhs"]) is None
            for each in rule.nodes["AssignExpr"]
        ):
            yield "a pattern"
    for rule in defined:
        bodies = rule.node["bodies"]
        if any(bool(body["is_else"]) != (at > 0) for at, body in enumerate(bodies)):
            yield "bodies that follow one another"
        if rule.shape == "Set" and len(bodies) > 1:
            yield "an else of a set"
        for kind, inner in walk_syntax(rule.node):
            if kind == "ObjectCompr" and not _has_one_value_a_key(inner):
                yield "an object that may have two values for a key"
        if rule.shape == "Set":
            continue
        for body, value in rule.body_values():
            if len(defined) > 1 and not _is_true(value):
                yield "several values"
            if body and value and _loop_names(body["query"]["stmts"]) & names_in(value):
                yield "a value out of a loop"


def _is_true(value: Node | None) -> bool:
    return value is None or value.get("Bool", {}).get("value") is True


def _loop_names(statements: Sequence[Node]) -> set[str]:
    """Return the names that a loop of a body binds, and those assigned after it began."""
    found: set[str] = set()
    looped = False
    for statement in statements:
        for kind, inner in statement["literal"].items():
            if kind == "SomeIn":
                looped = True
                found |= names_in([inner["key"], inner["value"]])
            elif looped and kind == "Expr" and "AssignExpr" in inner["expr"]:
                found |= names_in(inner["expr"]["AssignExpr"]["lhs"])
    return found


def _has_one_value_a_key(comprehension: Node) -> bool:
    """Say whether an object's key says in which round of one loop its value was found."""
    loops = [
        inner
        for statement in comprehension["query"]["stmts"]
        for kind, inner in statement["literal"].items()
        if kind == "SomeIn"
    ]
    name = var_of(comprehension["key"])
    if len(loops) != 1 or name is None or name == "_":
        return False
    # Of `some key, value in` the key; of `some value in` the value, which may come twice, and then
    # with the same of everything else.
    return var_of(loops[0]["key"] or loops[0]["value"]) == name
