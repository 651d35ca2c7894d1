"""The program that tries one bundle on regorus, in a process that `stage.Trial` starts.

On standard input comes `{"files": {PATH: BASE64}, "compare": true}`. Each line on standard output
is a JSON object: `{"at": …}` before a step that may crash the process, so that the parent can say
where it was, and at last `{"findings": […], "data": …}`, the data document of a bundle with no
findings. The parent gives the deadline; the limits on memory and CPU are set here. The comparison
of the evaluators takes as long as everything else together, so it runs beside it, in a fork of the
process (`ForkedCheck`), and not at all where the caller compares with another engine.
"""

from __future__ import annotations

import base64
import gc
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
from msgspec.structs import astuple

from vedette.adapters.policy_engines.regorus.branch_inputs import branch_requests
from vedette.adapters.policy_engines.regorus.engine import InterpreterEngine, RegorusEngine
from vedette.adapters.policy_engines.regorus.profile import check_profile
from vedette.adapters.policy_engines.regorus.rule_graph import check_unread_rules
from vedette.adapters.policy_engines.regorus.syntax import Module, read_modules, rules_of
from vedette.domain.base.errors import BadPolicy, EngineFailed
from vedette.domain.bundle import ENTRYPOINT, Bundle, Finding
from vedette.domain.decision import Decision, build_denial, parse_decision
from vedette.policy.bundle_data import mount
from vedette.policy.golden_requests import NamedRequest, forbidden_requests, golden_requests

if TYPE_CHECKING:
    from vedette.domain.ports.policy_engine import PolicyEngine

MEMORY_BYTES = 1 << 30
CPU_SECONDS = 20
_CHUNK = 1 << 16

_PLACE = re.compile(r"--> (?P<file>[^\n]+?):(?P<line>\d+):\d+\n")
_MESSAGE = re.compile(r"^error: (?P<what>.+)", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Read a bundle from standard input, try it on regorus, print the findings."""
    _limit_resources()
    # A trial makes millions of small objects, few of them garbage, and ends; its memory is limited.
    gc.disable()
    raw = orjson.loads(sys.stdin.buffer.read())
    files = {path: base64.b64decode(text) for path, text in raw["files"].items()}
    found, data = try_bundle(Bundle.of(files), compare=raw["compare"])
    write_trial_line({"findings": list(map(astuple, found)), "data": {} if found else data})
    return 0


def try_bundle(bundle: Bundle, *, compare: bool = True) -> tuple[list[Finding], dict[str, Any]]:
    """Return what regorus finds wrong with a bundle, and its data. May crash the process."""
    try:
        data = mount(bundle.files)
    except BadPolicy as error:
        return [Finding.of(error)], {}
    found = _find_faults(bundle, data, compare)
    return sorted(found, key=lambda each: (each.file, each.line, each.what)), data


def _find_faults(bundle: Bundle, data: Mapping[str, Any], compare: bool) -> list[Finding]:
    announce_step("", "parsing")
    try:
        plain = InterpreterEngine(bundle, data, tests=True)
    except (EngineFailed, BadPolicy) as error:
        return _find_broken_files(bundle) or [_engine_fault(str(error))]
    modules = read_modules(plain.syntax_trees())
    comparison = None
    if compare:
        comparison = ForkedCheck(lambda: _compare_evaluators(bundle, plain, modules, data))
    try:
        found = [*_check_manifest(bundle), *check_profile(modules, data)]
        if found:
            return found
        announce_step("", "analysing the rules")
        try:
            plain.decide(b"{}")
        except EngineFailed as error:
            return [_engine_fault(str(error))]
        found = list(_run_tests(plain, modules))
        if comparison is not None and not found:
            found = comparison.result()
        return [*check_unread_rules(modules), *found]
    finally:
        if comparison is not None:
            comparison.end()


def _find_broken_files(bundle: Bundle) -> list[Finding]:
    """Parse each module alone, so that every broken file is named."""
    found: list[Finding] = []
    for path in bundle.modules(tests=True):
        announce_step(path, "parsing")
        try:
            InterpreterEngine(Bundle.of({path: bundle.files[path]}), {}, tests=True)
        except EngineFailed as error:
            found.append(_engine_fault(str(error), path))
    return found


def _check_manifest(bundle: Bundle) -> Iterator[Finding]:
    raw = bundle.files.get(".manifest")
    if raw is None:
        yield Finding(".manifest", 1, "there is no .manifest", "name roots and rego_version 1")
        return
    try:
        manifest = orjson.loads(raw)
        roots, version = manifest["roots"], manifest["rego_version"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        line = error.lineno if isinstance(error, orjson.JSONDecodeError) else 1
        yield Finding(".manifest", line, f"not a manifest: {error}", "name roots and rego_version")
        return
    if version != 1:
        yield Finding(".manifest", 1, f"rego_version {version!r}", "use 1")
    if not isinstance(roots, list) or not all(isinstance(root, str) for root in roots):
        yield Finding(".manifest", 1, "roots is not a list of texts", "")
        return
    folders = {path.rpartition("/")[0] for path in bundle.files if path != ".manifest"}
    for folder in sorted(folders):
        if not any(root in ("", folder) or folder.startswith(root + "/") for root in roots):
            yield Finding(".manifest", 1, f"no root covers {folder or '.'}/", "add it to roots")


def _run_tests(plain: InterpreterEngine, modules: list[Module]) -> Iterator[Finding]:
    for rule in rules_of(modules, tests=True):
        if not rule.module.is_test or not rule.name.startswith("test_"):
            continue
        announce_step(f"{rule.module.path}:{rule.line}", f"running {rule.name}")
        try:
            answer = plain.evaluate_rule(".".join(("data", *rule.path)))
        except EngineFailed as error:
            yield rule.fault(rule.line, f"{rule.name} failed: {_error_text(error)}")
            continue
        if answer is not True:
            says = "is undefined" if answer is None else f"is {answer!r}"
            yield rule.fault(rule.line, f"{rule.name} failed: it {says}")


def _compare_evaluators(
    bundle: Bundle, plain: InterpreterEngine, modules: list[Module], data: Mapping[str, Any]
) -> list[Finding]:
    where = _entry_file(bundle)
    announce_step(where, "compiling")
    try:
        compiled = RegorusEngine(bundle, data)
    except BadPolicy as error:
        return [_engine_fault(error.what, where)]
    granted = golden_requests(data)
    requests = [*granted, *branch_requests(modules, data, granted)]
    found = find_engine_differences(plain, [compiled], requests, where)
    for name, request in forbidden_requests(data):
        announce_step(where, f"deciding: {name}")
        for engine in (plain, compiled):
            decision, _ = _decide(engine, request)
            if decision.outcome != "deny":
                what = f"{name} is not denied but {decision.outcome} by {decision.rule}"
                found.append(Finding(where, 1, what, "deny what proves nothing"))
                break
    return found


def find_engine_differences(
    plain: PolicyEngine,
    others: Sequence[PolicyEngine],
    requests: Sequence[NamedRequest],
    where: str,
) -> list[Finding]:
    """Return where engines decide otherwise than regorus' interpreter, the first for each engine.

    The interpreter errs where the others say undefined: then they must deny.
    """
    found: list[Finding] = []
    for engine in others:
        for name, request in requests:
            announce_step(where, f"deciding: {name}")
            first, failed = _decide(plain, request)
            second, _ = _decide(engine, request)
            if second.outcome == "deny" if failed else first == second:
                continue
            says = failed or f"{first.outcome} by {first.rule}"
            what = f"the engines differ on {name!r}: {says}, and {second.outcome} by {second.rule}"
            found.append(Finding(where, 1, what, "keep within the portable profile"))
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


# --- a fork -----------------------------------------------------------------------------------


class ForkedCheck:
    """The check of a tried bundle in a fork of the trial's process, which has one thread only.

    A fork has all that was parsed before it, and a processor of its own. It is no thread, because
    the vendor holds the interpreter's lock and its objects belong to their thread. What the fork
    announces comes out here if it dies, so that the last step is known; and of what it crashed of,
    its parent ends too: to whoever watches the trial it is one process.
    """

    def __init__(self, work: Callable[[], Sequence[Finding]]) -> None:
        self._read_fd, write_fd = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                os.close(self._read_fd)
                # What it says goes to the pipe: standard output is the parent's.
                os.dup2(write_fd, 1)
                raw = orjson.dumps({"found": list(map(astuple, work()))}) + b"\n"
                while raw:
                    raw = raw[os.write(1, raw) :]
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write_fd)

    def result(self) -> list[Finding]:
        """Return what `work` found; if it died, say its last step and die of the same."""
        output = b""
        while chunk := os.read(self._read_fd, _CHUNK):
            output += chunk
        lines = output.splitlines()
        code = self._wait()
        last: dict[str, Any] = orjson.loads(lines[-1]) if lines else {}
        if code == 0 and "found" in last:
            return [Finding(*each) for each in last["found"]]
        if last:
            write_trial_line(last)
        if code < 0:
            os.kill(os.getpid(), -code)
        sys.exit(code or 1)

    def end(self) -> None:
        """End the fork if it still runs."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._wait()
        with suppress(OSError):
            os.close(self._read_fd)

    def _wait(self) -> int:
        """Return the exit code of the fork, negative for a signal."""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)


# --- what is said -----------------------------------------------------------------------------


def _engine_fault(message: str, path: str = "policies") -> Finding:
    place = _PLACE.search(message)
    found = _MESSAGE.search(message)
    what = " ".join((found["what"] if found else message).split())[:400]
    return Finding(place["file"], int(place["line"]), what) if place else Finding(path, 1, what)


def _error_text(error: EngineFailed) -> str:
    found = _engine_fault(str(error))
    return f"{found.file}:{found.line}: {found.what}" if found.file != "policies" else found.what


def announce_step(file: str, step: str) -> None:
    """Tell the stage which step of a bundle's trial is next, and at which file."""
    write_trial_line({"at": file, "step": step})


def write_trial_line(message: Mapping[str, Any]) -> None:
    """Write a line of JSON for the stage to the standard output of a bundle's trial."""
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()


def _limit_resources() -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: CPU_SECONDS,
        resource.RLIMIT_AS: MEMORY_BYTES,
    }
    for kind, most in limits.items():
        _, hard = resource.getrlimit(kind)
        with suppress(ValueError, OSError):  # macOS refuses RLIMIT_AS; the deadline still stands
            resource.setrlimit(
                kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
            )
