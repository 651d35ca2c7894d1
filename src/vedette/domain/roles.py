"""Roles of people, and what each verb needs: a closed table, so what it does not name is refused.

A viewer reads. An approver answers holds. An operator stops, resumes, sends, redrives and keeps
the record. A policy author makes policy live. None of them includes another, except that each may
read; a person may have several. Who owns the fleet on this machine (the peer of the local socket)
has them all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from vedette.domain.base.errors import Forbidden

Role = Literal["viewer", "approver", "operator", "policy_author"]
ROLES: tuple[Role, ...] = ("viewer", "approver", "operator", "policy_author")
ALL_ROLES: frozenset[Role] = frozenset(ROLES)

_APPROVER: frozenset[Role] = frozenset({"approver"})
_OPERATOR: frozenset[Role] = frozenset({"operator"})
_AUTHOR: frozenset[Role] = frozenset({"policy_author"})

# What only looks. (`would_wake` is asked like a command and changes nothing.)
READ_VERBS: Mapping[str, frozenset[Role]] = dict.fromkeys(
    (
        "would_wake", "me", "status", "changes", "explain", "holds", "runs", "entries", "dead",
        "erasable", "artefact", "releases",
        "memory_list", "memory_show",
    ),
    ALL_ROLES,
)  # fmt: skip

# What changes something: one role each, so that no one of them is enough for everything.
WRITE_VERBS: Mapping[str, frozenset[Role]] = {
    "approve": _APPROVER,
    "deny": _APPROVER,
    "approve_group": _APPROVER,
    "deny_group": _APPROVER,
    "claim": _APPROVER,
    "note": _APPROVER,
    "undo": _OPERATOR,
    "send": _OPERATOR,
    "redrive": _OPERATOR,
    "drop": _OPERATOR,
    "stop": _OPERATOR,
    "resume": _OPERATOR,
    "clock_confirm": _OPERATOR,
    "budget_raise": _OPERATOR,
    "erase": _OPERATOR,
    "correct": _OPERATOR,
    "work_start": _OPERATOR,
    "work_steer": _OPERATOR,
    "work_pause": _OPERATOR,
    "work_resume": _OPERATOR,
    "work_cancel": _OPERATOR,
    "work_move": _OPERATOR,
    "work_add": _OPERATOR,
    "work_goal": _OPERATOR,
    "memory_propose": _OPERATOR,
    "memory_approve": _OPERATOR,
    "memory_reject": _OPERATOR,
    "memory_off": _OPERATOR,
    "memory_on": _OPERATOR,
    "rotate_key": _OPERATOR,
    "agent_release": _OPERATOR,
    "agent_rollback": _OPERATOR,
    "agent_canary": _OPERATOR,
    "agent_canary_end": _OPERATOR,
    "expire": _OPERATOR,
    "let_go": _OPERATOR,
    "settle_restore": _OPERATOR,
    "pubsub_redrive": _OPERATOR,
    "policy_apply": _AUTHOR,
    "policy_rollback": _AUTHOR,
    "mode": _AUTHOR,
}

REQUIRED_ROLES: Mapping[str, frozenset[Role]] = {**READ_VERBS, **WRITE_VERBS}


def may_use_verb(roles: Collection[Role], verb: str) -> bool:
    """Say whether one of these roles is enough for a verb; for one the table lacks none is."""
    return not REQUIRED_ROLES.get(verb, frozenset()).isdisjoint(roles)


def require_role(who: object, roles: Collection[Role], verb: str) -> None:
    """Return if one of these roles is enough for a verb. Raises Forbidden."""
    if may_use_verb(roles, verb):
        return
    needed = REQUIRED_ROLES.get(verb)
    if needed is None:
        raise Forbidden(
            f"nobody may {verb!r}", mend="give the verb its roles in vedette.domain.roles"
        )
    has = ", ".join(sorted(roles)) or "no role"
    raise Forbidden(
        f"{who} has {has}; {verb} needs {' or '.join(sorted(needed))}",
        mend="ask somebody who has it, or whoever gives roles at the identity provider",
    )
