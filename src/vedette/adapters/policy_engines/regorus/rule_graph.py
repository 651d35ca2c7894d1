"""The graph of Rego rules that name one another: recursion, and rules that nobody reads. Pure.

A deny in a package that nobody asks, a set whose name has a letter too many, a helper left behind:
each is admitted by every engine and does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from vedette.adapters.policy_engines.regorus.syntax import (
    Module,
    RegoRef,
    Rule,
    RulePath,
    data_path,
    rules_of,
)
from vedette.domain.bundle import Finding

ENTRY_RULE: RulePath = ("vedette", "gateway", "decision")

Edges = Mapping[RulePath, set[RulePath]]
# The names of the rules of each package.
RuleNames = Mapping[RulePath, set[str]]


def rule_names(modules: Sequence[Module]) -> dict[RulePath, set[str]]:
    """Return the names of the Rego rules of each package."""
    known: dict[RulePath, set[str]] = {}
    for module in modules:
        known.setdefault(module.package, set()).update(rule.name for rule in module.rules)
    return known


def rule_edges(modules: Sequence[Module]) -> dict[RulePath, set[RulePath]]:
    """Return which Rego rules each rule names."""
    known = rule_names(modules)
    edges: dict[RulePath, set[RulePath]] = {}
    for rule in rules_of(modules, tests=True):
        targets = edges.setdefault(rule.path, set())
        for ref in rule.refs:
            targets.update(_targets(rule, ref, known))
    return edges


def _targets(rule: Rule, ref: RegoRef, known: RuleNames) -> Iterator[RulePath]:
    module = rule.module
    if ref.root not in rule.locals and ref.root in known[module.package]:
        yield (*module.package, ref.root)
    path = data_path(module, ref)
    if path is None:
        return
    for package, rules in known.items():
        size = len(package)
        if len(path) > size and path[:size] == package and path[size] in rules:
            yield (*package, path[size])
        elif len(path) <= size and package[: len(path)] == path:
            yield from ((*package, name) for name in rules)


def check_cycles(modules: Sequence[Module]) -> Iterator[Finding]:
    """Find recursion of Rego rules: both engines crash the process on some forms of it."""
    edges = rule_edges(modules)
    first_definitions = {rule.path: rule for rule in reversed(rules_of(modules, tests=True))}
    state: dict[RulePath, int] = {}
    for start in sorted(edges):
        cycle = _find_cycle(start, edges, state)
        if cycle:
            rule = first_definitions[cycle[0]]
            way = " → ".join(".".join(name) for name in (*cycle, cycle[0]))
            yield rule.fault(rule.line, f"recursion: {way}", "rules must not depend on themselves")


def _find_cycle(start: RulePath, edges: Edges, state: dict[RulePath, int]) -> list[RulePath]:
    """Return a cycle reachable from `start`; 1 in `state`: on the way, 2: known to be clear."""
    if state.get(start):
        return []
    way: list[RulePath] = [start]
    left = [iter(sorted(edges.get(start, ())))]
    state[start] = 1
    while way:
        following = next(left[-1], None)
        if following is None:
            state[way.pop()] = 2
            left.pop()
        elif state.get(following) == 1:
            cycle = way[way.index(following) :]
            state.update(dict.fromkeys(way, 2))
            return cycle
        elif not state.get(following):
            state[following] = 1
            way.append(following)
            left.append(iter(sorted(edges.get(following, ()))))
    return []


def check_unread_rules(modules: Sequence[Module]) -> list[Finding]:
    """Return the Rego rules outside tests that the decision does not read, once each definition.

    Nothing is said where there is no decision at all.
    """
    edges = rule_edges(modules)
    if ENTRY_RULE not in edges:
        return []
    read = {ENTRY_RULE}
    left = [ENTRY_RULE]
    while left:
        new = edges.get(left.pop(), set()) - read
        read |= new
        left += new
    return [
        rule.fault(
            rule.line,
            f"nobody on the way to the decision reads {'.'.join(rule.path)}",
            _mend(rule.path, read),
        )
        for rule in rules_of(modules)
        if rule.path not in read
    ]


def _mend(path: RulePath, read: set[RulePath]) -> str:
    package, name = path[:-1], path[-1]
    near = get_close_matches(name, [each[-1] for each in read if each[:-1] == package], 1)
    if near:
        return f"check the spelling: {near[0]} is read"
    elsewhere = sorted(".".join(each[:-1]) for each in read if each[-1] == name)
    if elsewhere:
        return f"put it into a package whose {name} is read: {', '.join(elsewhere)}"
    return "let a rule that is read name it, or leave it out"
