"""`[policy]` of vedette.toml, and what may be wrong with it beyond its shape."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from vedette.config.problem import Problem
from vedette.config.yaml import Document
from vedette.domain.base.clock import duration_us
from vedette.domain.base.urls import is_loopback


def policy_problems(policy: Any, document: Document) -> list[Problem]:
    """Return what is wrong with `[policy]` of vedette.toml (`deployment_tables.PolicyFile`)."""
    found: list[Problem] = []
    if not 1_000 <= duration_us(policy.timeout) <= 5_000_000:
        what = "a decision waits from 1ms to 5s"
        found.append(document.problem(("policy", "timeout"), what, "write for example 50ms"))
    wrong = server_url_problem(policy.opa_url)
    if wrong is not None:
        mend = "write http://127.0.0.1:8181, or https://HOST"
        found.append(document.problem(("policy", "opa_url"), wrong, mend))
    if policy.opa_token_env and policy.opa_token_file:
        what, mend = "names the token twice", "keep opa_token_env or opa_token_file"
        found.append(document.problem(("policy", "opa_token_file"), what, mend))
    return found


def server_url_problem(url: str) -> str | None:
    """Return what is wrong with [policy]'s URL of an OPA server, None if nothing is."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is no URL"
    if parts.scheme not in ("http", "https") or not host or port == 0:
        return "is no URL of a server"
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        return "names more than a server"
    if parts.scheme == "http" and not is_loopback(host):
        # Whoever can answer in its place would decide.
        return "plain http leads to another host"
    return None
