"""Modules of Rego decided by a real OPA server, OPA's Wasm, regorus' program, and residuals.

A module is a package `vedette.policy.gateway` with a rule `decision`, over the data of
`rego_grammar`. The server and the Wasm get a hundred at a time, each under a package of its own
name; the compiled program gets each for itself. What a module answers a question is a value,
UNDEFINED or FAILED; lists under a key that begins with `bag` are compared as what they are, without
their order (`parse_decision` sorts what it takes from such lists).
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from tests.engines import Engines
from tests.opa import find_opa
from tests.opa_server import _free_port
from tests.rego_grammar import DATA

from vedette.adapters.policy_engines.regorus.engine import InterpreterEngine, RegorusEngine
from vedette.adapters.policy_engines.regorus.profile import check_profile
from vedette.adapters.policy_engines.regorus.residual.code_writer import Unsupported
from vedette.adapters.policy_engines.regorus.residual.compiler import (
    CompiledResidual,
    build_residual,
)
from vedette.adapters.policy_engines.regorus.residual.forms import find_unsupported_form
from vedette.adapters.policy_engines.regorus.residual.values import UNDEFINED as NO_VALUE
from vedette.adapters.policy_engines.regorus.residual.values import GiveWay
from vedette.adapters.policy_engines.regorus.syntax import Module, read_modules
from vedette.domain.base.errors import BadPolicy, EngineFailed
from vedette.domain.bundle import Bundle, Finding

PATH = "vedette/gateway/t.rego"
PACKAGE = "vedette.gateway"
UNDEFINED = "UNDEFINED"
FAILED = "FAILED"
REFUSED = "REFUSED"
GAVE_WAY = "GAVE WAY"
ENTRY = ("vedette", "gateway", "decision")
# To make a residual takes as long as many answers: of so many questions one has a field known.
_KNOWN_IN = 6
_UP_S = 60.0

Answers = list[Any]


def bundle_of(text: str) -> Bundle:
    """Return a module as a bundle of its own."""
    return Bundle.of({PATH: text.encode(), "probe/data.json": orjson.dumps(DATA["probe"])})


def refusals(text: str) -> list[Finding]:
    """Return what the profile has against a module; what lacks beside it is left out."""
    try:
        syntax = InterpreterEngine(bundle_of(text), DATA).syntax_trees()
    except EngineFailed as error:
        return [Finding(PATH, 1, str(error))]
    found = check_profile(read_modules(syntax), DATA, sample={})
    return [each for each in found if each.file == PATH and each.what != "no tests beside it"]


def by_regorus(text: str, questions: Sequence[Any]) -> Answers:
    """Return what the compiled program answers."""
    try:
        engine = RegorusEngine(bundle_of(text), DATA)
    except BadPolicy:
        return [REFUSED] * len(questions)
    return [_answer(engine, one) for one in questions]


def by_residual(text: str, questions: Sequence[Any]) -> Answers:
    """Return what residuals of a module answer: GAVE_WAY where the full engine is to be asked.

    Nothing is known of most questions; of each sixth its field `x`, or `y` where it has no `x`.
    """
    modules = read_modules(InterpreterEngine(bundle_of(text), DATA).syntax_trees())
    if find_unsupported_form(modules) is not None:
        return [GAVE_WAY] * len(questions)
    whole = _residual(modules, {})
    answers = []
    for number, question in enumerate(questions):
        name = next((name for name in "xy" if name in question), None)
        residual = whole
        if number % _KNOWN_IN == 0 and name is not None:
            residual = _residual(modules, {(name,): copy.deepcopy(question[name])})
        answers.append(_residual_answer(residual, question))
    return answers


def _residual(
    modules: Sequence[Module], known: Mapping[tuple[str, ...], Any]
) -> CompiledResidual | None:
    try:
        return build_residual(modules, DATA, ENTRY, known, {}, guarded=False)
    except Unsupported:
        return None


def _residual_answer(residual: CompiledResidual | None, question: Any) -> Any:
    if residual is None:
        return GAVE_WAY
    try:
        found = residual.evaluate(orjson.loads(orjson.dumps(question)))
    except GiveWay:
        return GAVE_WAY
    return UNDEFINED if found is NO_VALUE else plain(found)


def by_wasm(
    engines: Engines, texts: Mapping[int, str], questions: Sequence[Any]
) -> dict[int, Answers]:
    """Return what one Wasm of all the modules answers; `m` in a question names the module."""
    files = {f"b/m{number}/t.rego": _named(number, text) for number, text in texts.items()}
    choice = "".join(
        f"decision := data.b.m{number}.decision if input.m == {number}\n\n" for number in texts
    )
    files["vedette/gateway/choice.rego"] = f"package {PACKAGE}\n\n{choice}".encode()
    files["probe/data.json"] = orjson.dumps(DATA["probe"])
    engine = engines.wasm(Bundle.of(files))
    return {
        number: [_answer(engine, {**one, "m": number}) for one in questions] for number in texts
    }


def _answer(engine: Any, question: Any) -> Any:
    try:
        found = engine.decide(orjson.dumps(question))
    except EngineFailed:
        return FAILED
    return UNDEFINED if found is None else plain(found)


class Server:
    """One `opa run --server` with many modules; its address is a free loopback port."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="vedette-forms-")
        root = Path(self._folder.name)
        for number, text in texts.items():
            (root / f"m{number}.rego").write_bytes(_named(number, text))
        (root / "data.json").write_bytes(orjson.dumps(DATA))
        self.refused = self._compile(root)
        self._url = f"http://127.0.0.1:{(port := _free_port())}"
        self._process = subprocess.Popen(
            [find_opa(), "run", "--server", "--addr", f"127.0.0.1:{port}", "--disable-telemetry",
             "--log-level", "error", str(root)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        end = time.monotonic() + _UP_S
        while not self._up():
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                raise RuntimeError("opa did not come up")
            time.sleep(0.02)

    def _compile(self, root: Path) -> dict[int, str]:
        """Return the modules that OPA does not compile, and take them out."""
        refused: dict[int, str] = {}
        while True:
            done = subprocess.run(
                [find_opa(), "check", "--strict", "--max-errors", "0", str(root)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            found = re.findall(r"/m(\d+)\.rego:\d+: (.*)", done.stderr)
            if done.returncode and not found:
                raise RuntimeError(done.stderr)
            for number, words in found:
                refused.setdefault(int(number), words)
                (root / f"m{number}.rego").unlink(missing_ok=True)
            if not done.returncode:
                return refused

    def answers(self, number: int, questions: Sequence[Any]) -> Answers:
        """Return what a module answers, all questions in one request where none of them fails."""
        if number in self.refused:
            return [REFUSED] * len(questions)
        rule = f"data.b.m{number}.decision"
        query = f"x := [y | some i in input.asked; y := [v | v := {rule} with input as i]]"
        try:
            found = self._post("/v1/query", {"query": query, "input": {"asked": list(questions)}})
            each = found["result"][0]["x"]
            return [plain(one[0]) if one else UNDEFINED for one in each]
        except urllib.error.HTTPError:
            return [self._one(number, question) for question in questions]

    def _one(self, number: int, question: Any) -> Any:
        try:
            found = self._post(f"/v1/data/b/m{number}/decision", {"input": question})
        except urllib.error.HTTPError:
            return FAILED
        return plain(found["result"]) if "result" in found else UNDEFINED

    def _post(self, path: str, body: Any) -> Any:
        request = urllib.request.Request(
            self._url + path, data=orjson.dumps(body), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def _up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


@contextlib.contextmanager
def server(texts: Mapping[int, str]) -> Iterator[Server]:
    """Serve modules by a real OPA until the block ends."""
    found = Server(texts)
    try:
        yield found
    finally:
        found.close()


def _named(number: int, text: str) -> bytes:
    other = text.replace(f"package {PACKAGE}", f"package b.m{number}", 1)
    return other.replace(f"data.{PACKAGE}.", f"data.b.m{number}.").encode()


def plain(value: Any) -> str:
    """Return an answer in one form: types apart (1 is not true), keys sorted, bags sorted."""
    return _dumps(_sorted(value)).decode()


def _sorted(value: Any, *, bag: bool = False) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(each, bag=name.startswith("bag")) for name, each in value.items()}
    if isinstance(value, list):
        found = [_sorted(each) for each in value]
        return sorted(found, key=_dumps) if bag else found
    return value


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
