"""Roles: the table is closed and complete, and no role is enough for everything."""

from __future__ import annotations

import pytest

from vedette.domain.base.errors import Forbidden
from vedette.domain.identity import ENGINE, Principal
from vedette.domain.roles import (
    ALL_ROLES,
    READ_VERBS,
    REQUIRED_ROLES,
    ROLES,
    WRITE_VERBS,
    may_use_verb,
    require_role,
)
from vedette.interfaces.http.command_dispatch import VERBS
from vedette.interfaces.http.operator_queries import READS as SERVED


def test_every_verb_and_read_that_is_served_has_its_roles_and_nothing_else_has() -> None:
    assert set(REQUIRED_ROLES) == set(VERBS) | set(SERVED) | {"me", "status", "explain"}
    assert not set(READ_VERBS) & set(WRITE_VERBS)


def test_what_is_not_in_the_table_is_refused_to_everybody() -> None:
    assert not may_use_verb(ALL_ROLES, "launch")
    with pytest.raises(Forbidden, match="nobody may 'launch'"):
        require_role(Principal.owner("kim"), ALL_ROLES, "launch")


def test_a_viewer_may_write_nothing_and_each_role_may_read() -> None:
    assert not [verb for verb in WRITE_VERBS if may_use_verb({"viewer"}, verb)]
    for role in ROLES:
        assert all(may_use_verb((role,), read) for read in READ_VERBS)


def test_no_single_role_may_do_everything_and_each_write_needs_exactly_one() -> None:
    for role in ROLES:
        assert any(not may_use_verb((role,), verb) for verb in WRITE_VERBS)
    assert all(len(needed) == 1 for needed in WRITE_VERBS.values())
    # Whoever writes the policy does not answer what it holds.
    assert not WRITE_VERBS["policy_apply"] & WRITE_VERBS["approve"]


def test_a_principal_has_no_role_unless_told() -> None:
    assert Principal("person", "kim").roles == frozenset()
    assert ENGINE.roles == frozenset()
    assert not [verb for verb in REQUIRED_ROLES if may_use_verb(ENGINE.roles, verb)]
    assert Principal.owner("kim").roles == ALL_ROLES


def test_a_refusal_says_who_has_what_and_what_is_needed() -> None:
    kim = Principal("person", "kim", frozenset({"viewer"}))
    with pytest.raises(Forbidden, match="person:kim has viewer; approve needs approver"):
        require_role(kim, kim.roles, "approve")
