"""The `http:` of a tool in agent.yaml: a request that the engine makes itself, without any code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vedette.adapters.http.config import HttpFile
from vedette.adapters.http.template import (
    SEE_OTHER,
    BadTemplate,
    body_arguments,
    check_url,
    header_problem,
    template_arguments,
)
from vedette.config.agent_file import ToolFile
from vedette.config.problem import did_you_mean
from vedette.config.yaml import KeyPath
from vedette.domain.argument_schema import ArgumentSchema
from vedette.domain.base.canonical import canonicalize
from vedette.domain.ports.plugin import TableProblem, ToolPerformer, ToolPlugin

_SCALAR_KINDS = ("string", "integer", "number", "boolean")
_IDEMPOTENT = ("PUT", "DELETE")  # by their own meaning (RFC 9110, 9.2.2)


class HttpPlugin(ToolPlugin):
    """The plugin of a tool's `http:` in agent.yaml: a request to a target of kind http."""

    table = HttpFile
    description = "a request that the engine makes, instead of a function"
    target_kind = "http"

    def problems(self, tool: ToolFile, table: HttpFile) -> Iterator[TableProblem]:
        """Yield what is wrong with a tool beyond its shape."""
        yield from _settles_problems(tool, table)
        yield from _template_problems(tool, table)

    def queries(self, table: HttpFile) -> bool:
        """Say whether the target can be asked what came of a call."""
        return table.query is not None

    def verifies(self, table: HttpFile) -> bool:
        """Say whether it is asked after each call, too."""
        return table.verify

    def build(self) -> ToolPerformer:
        """Make what makes the requests."""
        from vedette.adapters.http.tools import HttpTools

        return HttpTools()


def _settles_problems(tool: ToolFile, http: HttpFile) -> Iterator[TableProblem]:
    """Say whether an unknown outcome can be settled as the tool says."""
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


def _template_problems(tool: ToolFile, http: HttpFile) -> Iterator[TableProblem]:
    yield from _request_problems(tool, http.url, http.headers, ("http",))
    if http.idempotency_header and (why := header_problem(http.idempotency_header)):
        yield ("http", "idempotency_header"), why, "write for example Idempotency-Key"
    try:
        for name, is_alone in body_arguments(http.body):
            if name not in tool.kinds:
                yield ("http", "body"), *_unknown_argument(tool, name)
            elif not is_alone:
                yield from _null_problems(tool, name, ("http", "body"), "a text")
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
                if name not in tool.kinds:
                    yield (*path, "where", pointer), *_unknown_argument(tool, name)
                else:
                    yield from _null_problems(tool, name, (*path, "where", pointer), "a text")
        except BadTemplate as error:
            yield (*path, "where", pointer), *_split_error(error)


def _request_problems(
    tool: ToolFile, url: str, headers: Mapping[str, str], path: KeyPath
) -> Iterator[TableProblem]:
    """Whatever decides where a request goes has to be a sink: policy looks at nothing else."""
    try:
        check_url(url)
        for name in template_arguments(url):
            yield from _sink_problems(tool, name, (*path, "url"), "the URL")
        for name in template_arguments(url.partition("?")[0]):
            if tool.kinds.get(name, "").endswith("?"):
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


def _sink_problems(tool: ToolFile, name: str, place: KeyPath, where: str) -> Iterator[TableProblem]:
    kind = tool.kinds.get(name)
    if kind is None:
        yield place, *_unknown_argument(tool, name)
        return
    if kind.removesuffix("?") not in _SCALAR_KINDS:
        what = f"{name!r} is {kind}, which has no form in {where}"
        yield place, what, f"use a {', '.join(_SCALAR_KINDS)}"
    yield from _null_problems(tool, name, place, where)
    if f"/{name}" not in tool.sinks:
        what = f"{name!r} decides where the request goes, and is no sink"
        yield place, what, f"add /{name} to sinks"


def _null_problems(tool: ToolFile, name: str, place: KeyPath, where: str) -> Iterator[TableProblem]:
    """Say that what is decided about null could not be sent."""
    if tool.schema is not None and name in ArgumentSchema(tool.schema).nullable():
        what = f"{name!r} may be null, which has no form in {where}"
        yield place, what, "leave null out of its type, and the argument out of required"


def _unknown_argument(tool: ToolFile, name: str) -> tuple[str, str]:
    what = f"{name!r} is no argument of {tool.name!r}"
    return what, did_you_mean(name, list(tool.kinds))


def _split_error(error: BadTemplate) -> tuple[str, str]:
    what, _, mend = str(error).partition(" | ")
    return what, mend


HTTP = HttpPlugin()
