"""Makes the residual of a bundle's policy for what one (release of an agent, tool) asks.

Known are the fields of the question that are the same whenever it asks, and those that it never
has; a guard compares each by its value and its type before the function is called, and the types
of all others. A residual permits or says nothing: then the full engine is asked.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from vedette.adapters.policy_engines.regorus.engine import InterpreterEngine
from vedette.adapters.policy_engines.regorus.residual import values
from vedette.adapters.policy_engines.regorus.residual.code_writer import Path, Unsupported
from vedette.adapters.policy_engines.regorus.residual.forms import find_unsupported_form
from vedette.adapters.policy_engines.regorus.residual.partial_evaluator import PartialEvaluator
from vedette.adapters.policy_engines.regorus.syntax import Module, RulePath, read_modules
from vedette.domain.base.canonical import MAX_SAFE_INTEGER
from vedette.domain.bundle import ENTRYPOINT, Bundle
from vedette.domain.decision import Decision, parse_decision
from vedette.domain.ports.policy_engine import MAX_QUESTION_BYTES
from vedette.policy.bundle_data import mount

# Lines of one residual; the shipped ones have 800 to 1,100.
MAX_LINES = 4_000

# Fields that are the same in each question of a release about a tool of its.
KNOWN_PATHS: tuple[Path, ...] = (
    ("schema",),
    *(("subject", name) for name in ("id", "agent", "release", "owner", "requested_mode")),
    *(
        ("action", name)
        for name in ("tool", "verb", "declared", "settles", "high_impact", "sinks")
    ),
    ("resource", "type"), ("resource", "id"),
    *(("context", "budget", name) for name in ("hour", "day", "run")),
)  # fmt: skip
# Fields that no question has of which a residual is asked (`vedette.policy.gateway`).
ABSENT_PATHS: tuple[Path, ...] = tuple(
    ("context", name) for name in ("artefact", "delegation", "refuses", "task")
)
# Fields of which the type is known.
KINDS: Mapping[Path, str] = {
    ("now",): "number",
    ("action", "digest"): "string",
    ("action", "args"): "object",
    ("action", "origins"): "object",
    ("action", "sources"): "object",
    ("action", "links"): "array",
    ("action", "readers"): "object",
    ("context", "confidence"): "number",
    ("context", "memories"): "array",
    ("context", "approvals"): "array",
    ("context", "stopped"): "boolean",
    ("context", "trigger"): "string",
    ("context", "turn"): "number",
    ("context", "event", "type"): "string",
    ("context", "event", "source"): "string",
    ("context", "event", "hops"): "number",
    ("context", "event", "lineage"): "array",
    ("context", "event", "vouched"): "array",
    **{("context", "counters", name): "number" for name in ("minute", "hour", "day", "run")},
}
_PYTHON_TYPES = {
    "number": "int", "string": "str", "boolean": "bool", "array": "list", "object": "dict",
}  # fmt: skip

_NAMESPACE: dict[str, Any] = {
    name: getattr(values, name)
    for name in (
        "BUILTINS", "Bag", "RegoSet", "UNDEFINED", "compare", "equal", "get", "is_member",
        "is_near_member", "near", "near_key", "pairs_of", "put", "values_of",
    )
} | {operator.__name__: operator for operator in values.OPERATORS.values()}  # fmt: skip


class CompiledResidual:
    """A function that permits what the full engine permits, of one bundle and the known fields.

    `source` is its Python source, `literals` the numbers and texts that it compares with.
    """

    def __init__(self, source: str, constants: Sequence[Any]) -> None:
        self.source = source
        self.constants = tuple(constants)
        namespace = dict(_NAMESPACE)
        namespace |= {f"K{number}": each for number, each in enumerate(constants)}
        exec(compile(source, "<residual>", "exec"), namespace)  # noqa: S102 - source of our own
        self._fits: Callable[[Any], bool] = namespace["fits"]
        self._evaluate: Callable[[Any], Any] = namespace["evaluate"]

    @property
    def literals(self) -> tuple[int | str, ...]:
        """Return the numbers and texts in its source and constants."""
        found = dict.fromkeys(_find_literals(ast.parse(self.source)))
        left = list(self.constants)
        while left:
            each = left.pop()
            if type(each) in (int, str):
                found[each] = None
            elif isinstance(each, values.RegoSet | values.Bag):
                left += values.values_of(each, MAX_LINES)
            elif isinstance(each, dict):
                left += [*each, *each.values()]
            elif isinstance(each, list | frozenset):
                left += each
        return tuple(found)

    def evaluate(self, request: Any) -> Any:
        """Return what the entry rule comes to, as JSON has it; UNDEFINED if it does not.

        Raises GiveWay, or whatever else, where it is not sure. The question must be one that the
        guard lets through.
        """
        return values.to_json(self._evaluate(request))

    def permit(self, request: bytes) -> Decision | None:
        """Return the permit that a canonical question gets; None where the full engine decides."""
        if len(request) > MAX_QUESTION_BYTES:
            return None
        try:
            question = orjson.loads(request)
            if not self._fits(question):
                return None
            answer = self._evaluate(question)
            if answer is values.UNDEFINED:
                return None
            decision = parse_decision(values.to_json(answer))
        except Exception:  # whatever it is: not sure
            return None
        return decision if decision.outcome == "permit" else None


class BundleCompiler:
    """Makes residuals of one admitted bundle, which is read once; may be used on any thread."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._read: tuple[list[Module], Mapping[str, Any]] | None = None

    def compile(self, request: Mapping[str, Any]) -> CompiledResidual:
        """Return the residual for questions whose known fields are those of `request`.

        Raises Unsupported, a ValueError, for rules that none is made of. Takes some ms.
        """
        if self._read is None:
            data = mount(self._bundle.files)
            modules = read_modules(InterpreterEngine(self._bundle, data).syntax_trees())
            unsupported = find_unsupported_form(modules)
            if unsupported is not None:
                raise Unsupported(unsupported)
            self._read = modules, data
        known: dict[Path, Any] = {path: _find(request, path) for path in KNOWN_PATHS}
        known |= dict.fromkeys(ABSENT_PATHS, values.UNDEFINED)
        entry = tuple(ENTRYPOINT.split(".")[1:])
        return build_residual(*self._read, entry, known, KINDS, outcome="permit")


def build_residual(
    modules: Sequence[Module],
    data: Mapping[str, Any],
    entry: RulePath,
    known: Mapping[Path, Any],
    kinds: Mapping[Path, str],
    *,
    outcome: str | None = None,
    guarded: bool = True,
) -> CompiledResidual:
    """Return the residual of an entry rule; with `outcome`, undefined where that is another.

    Without a guard it is for `evaluate` alone. Raises Unsupported.
    """
    evaluator = PartialEvaluator(modules, data, known, kinds)
    try:
        made = evaluator.rule(entry, outcome=outcome)
    except RecursionError:
        raise Unsupported("rules that stand too deep") from None
    lines = [
        *evaluator.functions,
        f"EMPTY = [None] * {evaluator.slots}",
        "def evaluate(q):",
        "    c = EMPTY[:]",
        f"    return {evaluator.text(made.value)}",
        *(_write_guard(known, kinds, evaluator.constants) if guarded else ["fits = None"]),
    ]
    source = "\n".join(lines) + "\n"
    if source.count("\n") > MAX_LINES:
        raise Unsupported("too much for a function")
    try:
        return CompiledResidual(source, evaluator.constants)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise Unsupported(f"Python does not compile it: {type(error).__name__}") from error


def _write_guard(
    known: Mapping[Path, Any], kinds: Mapping[Path, str], constants: list[Any]
) -> list[str]:
    """Return the source of the guard: each known field by type and value, others by type."""
    lines = ["def fits(q):"]
    for path, value in known.items():
        if value is values.UNDEFINED:
            inner = "q" + "".join(f"[{step!r}]" for step in path[:-1])
            lines.append(f"    if {path[-1]!r} in {inner}: return False")
            continue
        at = "q" + "".join(f"[{step!r}]" for step in path)
        lines += _write_comparison(at, value, constants)
    for path, kind in kinds.items():
        at = "q" + "".join(f"[{step!r}]" for step in path)
        lines += [f"    v = {at}", f"    if type(v) is not {_PYTHON_TYPES[kind]}: return False"]
        if kind == "number":
            lines.append(f"    if not -{MAX_SAFE_INTEGER} <= v <= {MAX_SAFE_INTEGER}: return False")
    return [*lines, "    return True"]


def _write_comparison(at: str, value: Any, constants: list[Any]) -> list[str]:
    if type(value) in (str, int):
        return [
            f"    v = {at}",
            f"    if type(v) is not {type(value).__name__} or v != {value!r}: return False",
        ]
    if value is None or type(value) is bool:
        return [f"    if {at} is not {value!r}: return False"]
    if type(value) is list and all(type(each) is str for each in value):
        # Only texts are equal to texts.
        constants.append(list(value))
        return [
            f"    v = {at}",
            f"    if type(v) is not list or v != K{len(constants) - 1}: return False",
        ]
    raise Unsupported("a known field that is no text, number, truth value or list of texts")


def _find_literals(tree: ast.AST) -> Iterator[int | str]:
    """Yield numbers and texts of source, but for slots and the names of functions."""
    if isinstance(tree, ast.Subscript) and getattr(tree.value, "id", "") in ("c", "BUILTINS"):
        return
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        if isinstance(tree.operand, ast.Constant) and isinstance(tree.operand.value, int):
            yield -tree.operand.value
        return
    if isinstance(tree, ast.Constant) and not isinstance(tree.value, bool):
        if isinstance(tree.value, int | str):
            yield tree.value
        return
    for each in ast.iter_child_nodes(tree):
        yield from _find_literals(each)


def _find(request: Mapping[str, Any], path: Path) -> Any:
    found: Any = request
    for step in path:
        found = found[step]
    return found
