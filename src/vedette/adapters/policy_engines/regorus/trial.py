"""Tries one bundle, in a process of its own (see `attempt`).

On standard input comes `{"files": {PATH: BASE64}, "compare": true}`. Each line on standard output
is a JSON object: `{"at": …}` before a step that may crash the process, so that the parent can say
where it was, and at last `{"findings": […], "data": …}`, the data document of a bundle with no
findings. The parent gives the deadline; the limits on memory and CPU are set here. The comparison
of the evaluators takes as long as everything else together, so it runs beside it, in a copy of the
process (see `beside`), and not at all where the caller compares with another engine.
"""

from __future__ import annotations

import base64
import gc
import re
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from vedette.adapters.policy_engines.regorus.branch_inputs import branch_requests
from vedette.adapters.policy_engines.regorus.engine import (
    EngineFailed,
    InterpreterEngine,
    RegorusEngine,
)
from vedette.adapters.policy_engines.regorus.forked_check import ForkedCheck
from vedette.adapters.policy_engines.regorus.golden_inputs import (
    NamedRequest,
    forbidden_requests,
    golden_requests,
)
from vedette.adapters.policy_engines.regorus.profile import check, check_unread_rules
from vedette.adapters.policy_engines.regorus.syntax import Fault, Module, read_modules
from vedette.domain.base.errors import BadPolicy
from vedette.domain.bundle import ENTRYPOINT, Bundle
from vedette.domain.decision import Decision, build_denial, parse_decision
from vedette.policy.bundle_data import mount

if TYPE_CHECKING:
    from vedette.domain.ports.policy_engine import PolicyEngine

MEMORY_BYTES = 1 << 30
CPU_SECONDS = 20

_PLACE = re.compile(r"--> (?P<file>[^\n]+?):(?P<line>\d+):\d+\n")
_MESSAGE = re.compile(r"^error: (?P<what>.+)", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Read a bundle, try it, print the findings."""
    _limit()
    # A trial makes millions of small objects, few of them garbage, and ends; its memory is limited.
    gc.disable()
    raw = orjson.loads(sys.stdin.buffer.read())
    files = {path: base64.b64decode(text) for path, text in raw["files"].items()}
    found, data = try_bundle(Bundle.of(files), compare=raw["compare"])
    _emit({"findings": [list(each) for each in found], "data": {} if found else data})
    return 0


def try_bundle(bundle: Bundle, *, compare: bool = True) -> tuple[list[Fault], dict[str, Any]]:
    """Return what is wrong with a bundle, and its data. May crash the process, as regorus may."""
    try:
        data = mount(bundle.files)
    except BadPolicy as error:
        return [_error_fault(error)], {}
    return _sort_faults(_find_faults(bundle, data, compare)), data


def _find_faults(bundle: Bundle, data: Mapping[str, Any], compare: bool) -> list[Fault]:
    manifest = list(_check_manifest(bundle))
    _announce_step("", "parsing")
    try:
        plain = _parse(bundle, data)
    except _ParseError as error:
        return error.findings
    modules = read_modules(plain.syntax_trees())
    comparison = (
        ForkedCheck(lambda: _compare_evaluators(bundle, plain, modules, data), _emit)
        if compare
        else None
    )
    try:
        found = manifest + check(modules, data)
        if found:
            return found
        _announce_step("", "analysing the rules")
        try:
            plain.decide(b"{}")
        except EngineFailed as error:
            return [_engine_fault(str(error))]
        faults = list(_run_tests(plain, modules))
        if comparison is not None and not faults:
            faults = [Fault(*each) for each in comparison.result()]
        return [*check_unread_rules(modules), *faults]
    finally:
        if comparison is not None:
            comparison.end()


class _ParseError(Exception):
    def __init__(self, findings: list[Fault]) -> None:
        super().__init__(str(findings))
        self.findings = findings


def _parse(bundle: Bundle, data: Mapping[str, Any]) -> InterpreterEngine:
    """Parse all modules; on an error parse each alone, so that every broken file is named."""
    try:
        return InterpreterEngine(bundle, data, tests=True)
    except (EngineFailed, BadPolicy) as error:
        findings: list[Fault] = []
        for path, raw in sorted(bundle.files.items()):
            if not path.endswith(".rego"):
                continue
            _announce_step(path, "parsing")
            try:
                InterpreterEngine(Bundle.of({path: raw}), {}, tests=True)
            except EngineFailed as alone:
                findings.append(_engine_fault(str(alone), path))
        raise _ParseError(findings or [_engine_fault(str(error))]) from error


def _check_manifest(bundle: Bundle) -> Iterator[Fault]:
    raw = bundle.files.get(".manifest")
    if raw is None:
        yield Fault(".manifest", 1, "there is no .manifest", "name roots and rego_version 1")
        return
    try:
        manifest = orjson.loads(raw)
        roots, version = manifest["roots"], manifest["rego_version"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        line = error.lineno if isinstance(error, orjson.JSONDecodeError) else 1
        yield Fault(".manifest", line, f"not a manifest: {error}", "name roots and rego_version")
        return
    if version != 1:
        yield Fault(".manifest", 1, f"rego_version {version!r}", "use 1")
    if not isinstance(roots, list) or not all(isinstance(root, str) for root in roots):
        yield Fault(".manifest", 1, "roots is not a list of texts", "")
        return
    folders = {path.rpartition("/")[0] for path in bundle.files if path != ".manifest"}
    for folder in sorted(folders):
        if not any(root in ("", folder) or folder.startswith(root + "/") for root in roots):
            yield Fault(".manifest", 1, f"no root covers {folder or '.'}/", "add it to roots")


def _run_tests(plain: InterpreterEngine, modules: list[Module]) -> Iterator[Fault]:
    for module in modules:
        for rule in module.rules:
            if not module.is_test or not rule.name.startswith("test_"):
                continue
            _announce_step(f"{module.path}:{rule.line}", f"running {rule.name}")
            path = ".".join(("data", *module.package, rule.name))
            try:
                answer = plain.evaluate_rule(path)
            except EngineFailed as error:
                yield Fault(module.path, rule.line, f"{rule.name} failed: {_error_text(error)}")
                continue
            if answer is not True:
                says = "is undefined" if answer is None else f"is {answer!r}"
                yield Fault(module.path, rule.line, f"{rule.name} failed: it {says}", "")


def _compare_evaluators(
    bundle: Bundle, plain: InterpreterEngine, modules: list[Module], data: Mapping[str, Any]
) -> list[Fault]:
    where = _entry_file(bundle)
    _announce_step(where, "compiling")
    try:
        compiled = RegorusEngine(bundle, data)
    except BadPolicy as error:
        return [_engine_fault(error.what, where)]
    granted = golden_requests(data)
    requests = [*granted, *branch_requests(modules, data, granted)]
    found = find_differences(plain, [compiled], requests, where)
    for name, request in forbidden_requests(data):
        _announce_step(where, f"deciding: {name}")
        for engine in (plain, compiled):
            decision, _ = _decide(engine, request)
            if decision.outcome != "deny":
                what = f"{name} is not denied but {decision.outcome} by {decision.rule}"
                found.append(Fault(where, 1, what, "deny what proves nothing"))
                break
    return found


def find_differences(
    plain: PolicyEngine,
    others: Sequence[PolicyEngine],
    requests: Sequence[NamedRequest],
    where: str,
) -> list[Fault]:
    """Return where engines decide otherwise than the interpreter, the first for each engine.

    The interpreter errs where the others say undefined: then they must deny.
    """
    found: list[Fault] = []
    for engine in others:
        for name, request in requests:
            _announce_step(where, f"deciding: {name}")
            first, failed = _decide(plain, request)
            second, _ = _decide(engine, request)
            if second.outcome == "deny" if failed else first == second:
                continue
            says = failed or f"{first.outcome} by {first.rule}"
            what = f"the engines differ on {name!r}: {says}, and {second.outcome} by {second.rule}"
            found.append(Fault(where, 1, what, "keep within the portable profile"))
            break
    return found


def _decide(engine: PolicyEngine, request: object) -> tuple[Decision, str]:
    try:
        return parse_decision(engine.decide(orjson.dumps(request))), ""
    except EngineFailed as error:
        return build_denial("engine.failed"), _error_text(error)


def _entry_file(bundle: Bundle) -> str:
    folder = "/".join(ENTRYPOINT.split(".")[1:-1]) + "/"
    files = [path for path in bundle.modules() if path.startswith(folder)]
    return files[0] if files else folder


# --- words ------------------------------------------------------------------------------------


def _engine_fault(message: str, path: str = "") -> Fault:
    place = _PLACE.search(message)
    message_match = _MESSAGE.search(message)
    what = " ".join((message_match["what"] if message_match else message).split())[:400]
    if place:
        return Fault(place["file"], int(place["line"]), what)
    return Fault(path or "policies", 1, what)


def _error_fault(error: BadPolicy) -> Fault:
    file, _, line = (error.where or "policies:1").rpartition(":")
    return Fault(file, int(line) if line.isdigit() else 1, error.what, error.mend or "")


def _error_text(error: EngineFailed) -> str:
    found = _engine_fault(str(error))
    return f"{found.file}:{found.line}: {found.what}" if found.file != "policies" else found.what


def _sort_faults(findings: list[Fault]) -> list[Fault]:
    return sorted(findings, key=lambda each: (each.file, each.line, each.what))


def _announce_step(file: str, step: str) -> None:
    _emit({"at": file, "step": step})


def _emit(message: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()


def _limit() -> None:
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, MEMORY_BYTES),
    ):
        _, hard = resource.getrlimit(kind)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(kind, (least, hard))
        except (ValueError, OSError):
            continue  # macOS refuses RLIMIT_AS; the parent's deadline still stands


if __name__ == "__main__":
    sys.exit(main())
