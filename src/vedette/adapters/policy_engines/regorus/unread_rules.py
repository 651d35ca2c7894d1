"""Rules whose result nobody reads on the way to the decision: written, and without effect.

A deny in a package that nobody asks, a set whose name has a letter too many, a helper left behind:
each is admitted by every engine and does nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from vedette.adapters.policy_engines.regorus.syntax import Fault, Module

RulePath = tuple[str, ...]
ENTRY_RULE: RulePath = ("vedette", "gateway", "decision")


def find_unread_rules(
    modules: Sequence[Module], edges: Mapping[RulePath, set[RulePath]]
) -> list[Fault]:
    """Return the rules outside tests that the decision does not stand on, once each definition.

    `edges` says which rules each rule names. Nothing is said where there is no decision at all.
    """
    if ENTRY_RULE not in edges:
        return []
    read = {ENTRY_RULE}
    left = [ENTRY_RULE]
    while left:
        for target in edges.get(left.pop(), ()):
            if target not in read:
                read.add(target)
                left.append(target)
    return [
        Fault(
            module.path,
            rule.line,
            f"nobody on the way to the decision reads {'.'.join((*module.package, rule.name))}",
            _mend((*module.package, rule.name), read),
        )
        for module in modules
        for rule in module.rules
        if not module.is_test and (*module.package, rule.name) not in read
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
