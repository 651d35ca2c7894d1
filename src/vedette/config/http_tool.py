"""The `http:` of a tool in agent.yaml: a request that the engine makes itself, without any code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vedette.config.agent_file import HttpFile, ToolFile
from vedette.config.http_template import (
    SEE_OTHER,
    BadTemplate,
    body_arguments,
    check_url,
    header_problem,
    template_arguments,
)
from vedette.config.problem import Problem, did_you_mean
from vedette.config.yaml import Document, KeyPath
from vedette.domain.base.canonical import canonicalize

# What stands for a function of tools.py where the engine itself calls and asks.
BY_ENGINE = "http"
_SCALAR_KINDS = ("string", "integer", "boolean")
_IDEMPOTENT = ("PUT", "DELETE")  # by their own meaning (RFC 9110, 9.2.2)


def http_facts(shape: HttpFile) -> dict[str, Any]:
    """Return the declaration as the tool keeps it."""
    return shape.model_dump(exclude_none=True)


def http_problems(
    tool: ToolFile, document: Document, path: KeyPath, http_targets: frozenset[str] | None
) -> list[Problem]:
    """Say what is wrong with a tool that the engine performs itself.

    `http_targets` are the targets of kind http; None if that is not known.
    """
    http = tool.http
    assert http is not None
    found = [*_settles_problems(tool, http), *_template_problems(tool, http)]
    for key in ("function", "query", "verify"):
        if getattr(tool, key) is not None:
            what = "a tool with http: is performed by the engine, without tools.py"
            found.append(((key,), what, "remove it, or remove http:"))
    if tool.output == "trusted":
        what, mend = "what a server answers is not trusted", "write output: untrusted"
        found.append((("output",), what, mend))
    if tool.target is None:
        what = "it is not said which server is called"
        found.append((("http",), what, "add target: with the name of a [targets.NAME] table"))
    elif http_targets is not None and tool.target not in http_targets:
        what = f"target {tool.target!r} is not of kind http"
        mend = did_you_mean(tool.target, sorted(http_targets))
        if not http_targets:
            mend = f'add [targets.{tool.target}] with kind = "http" and base_url'
        found.append((("target",), what, mend))
    return [document.problem((*path, *inside), what, mend) for inside, what, mend in found]


ToolProblem = tuple[KeyPath, str, str]


def _settles_problems(tool: ToolFile, http: HttpFile) -> Iterator[ToolProblem]:
    """Say whether an unknown outcome can be settled as the tool says."""
    if tool.settles == "transactional":
        what = "a request is outside of the fleet's own commit"
        yield ("settles",), what, "write idempotent, queryable or none"
    repeats = http.idempotency_header or http.method in _IDEMPOTENT
    if tool.settles == "idempotent" and not repeats:
        what = f"a {http.method} that is sent twice has happened twice"
        yield ("settles",), what, "add idempotency_header: to http, or choose queryable or none"
    if tool.settles == "queryable" and http.query is None:
        what, mend = "queryable needs a query", "add query: to http, or choose none"
        yield ("settles",), what, mend
    if tool.settles == "none" and http.query is not None:
        what = "a tool that settles none is never queried"
        yield ("http", "query"), what, "remove it, or choose queryable"
    if http.verify and http.query is None:
        yield ("http", "verify"), "there is nothing that could be asked", "add query: to http"
    statuses = [("ok", http.ok)]
    if http.query is not None:
        statuses += [("query/done", http.query.done), ("query/absent", http.query.absent)]
        if both := set(http.query.done) & set(http.query.absent):
            what = f"{min(both)} cannot say that it is there and that it is not"
            yield ("http", "query", "absent"), what, "leave it in one of the two"
    for name, listed in statuses:
        lowest = 400 if name == "query/absent" else 200
        highest = 499 if name == "query/absent" else 299
        for place, status in enumerate(listed):
            if name == "ok" and tool.settles == "idempotent" and status in (404, 409, 410):
                continue  # a repeat finds what the first call left
            if name == "ok" and status in SEE_OTHER:
                continue
            if not lowest <= status <= highest and not (name == "query/absent" and status == 204):
                what = f"{status} does not say so"
                yield (
                    ("http", *name.split("/"), place),
                    what,
                    f"write statuses from {lowest} to {highest}"
                    + (", 302 or 303" if name == "ok" else ""),
                )


def _template_problems(tool: ToolFile, http: HttpFile) -> Iterator[ToolProblem]:
    yield from _request_problems(tool, http.url, http.headers, ("http",))
    if http.idempotency_header and (why := header_problem(http.idempotency_header)):
        yield ("http", "idempotency_header"), why, "write for example Idempotency-Key"
    try:
        for name in body_arguments(http.body):
            if name not in tool.args:
                yield ("http", "body"), *_unknown_argument(tool, name)
        canonicalize(http.body)
    except BadTemplate as error:
        yield ("http", "body"), *_split_error(error)
    except ValueError as error:
        what, mend = f"has no canonical form: {error}", "use ASCII keys, text and whole numbers"
        yield ("http", "body"), what, mend
    if http.body is not None and http.method == "DELETE":
        yield ("http", "body"), "a DELETE has no body", "remove it"
    if http.query is None:
        return
    path: KeyPath = ("http", "query")
    yield from _request_problems(tool, http.query.url, http.query.headers, path)
    for pointer, value in http.query.where.items():
        if not pointer.startswith("/"):
            yield (
                (*path, "where", pointer),
                f"{pointer!r} is not a JSON Pointer",
                f"write /{pointer}",
            )
        try:
            for name in template_arguments(value):
                if name not in tool.args:
                    yield (*path, "where", pointer), *_unknown_argument(tool, name)
        except BadTemplate as error:
            yield (*path, "where", pointer), *_split_error(error)


def _request_problems(
    tool: ToolFile, url: str, headers: Mapping[str, str], path: KeyPath
) -> Iterator[ToolProblem]:
    """Whatever decides where a request goes has to be a sink: policy looks at nothing else."""
    try:
        check_url(url)
        for name in template_arguments(url):
            yield from _sink_problems(tool, name, (*path, "url"), "the URL")
        for name in template_arguments(url.partition("?")[0]):
            if tool.args.get(name, "").endswith("?"):
                what = f"a path needs {name!r}, which may be left out"
                yield (*path, "url"), what, "make it needed, or put it into the query"
    except BadTemplate as error:
        yield (*path, "url"), *_split_error(error)
    for header, value in headers.items():
        place: KeyPath = (*path, "headers", header)
        if why := header_problem(header):
            yield place, f"{header!r} {why}", "leave it out"
        try:
            for name in template_arguments(value):
                yield from _sink_problems(tool, name, place, "a header")
        except BadTemplate as error:
            yield place, *_split_error(error)


def _sink_problems(tool: ToolFile, name: str, place: KeyPath, where: str) -> Iterator[ToolProblem]:
    kind = tool.args.get(name)
    if kind is None:
        yield place, *_unknown_argument(tool, name)
        return
    if kind.removesuffix("?") not in _SCALAR_KINDS:
        what = f"{name!r} is {kind}, which has no form in {where}"
        yield place, what, f"use a {', '.join(_SCALAR_KINDS)}"
    if f"/{name}" not in tool.sinks:
        what = f"{name!r} decides where the request goes, and is no sink"
        yield place, what, f"add /{name} to sinks"


def _unknown_argument(tool: ToolFile, name: str) -> tuple[str, str]:
    what = f"{name!r} is no argument of {tool.name!r}"
    return what, did_you_mean(name, list(tool.args))


def _split_error(error: BadTemplate) -> tuple[str, str]:
    what, _, mend = str(error).partition(" | ")
    return what, mend
