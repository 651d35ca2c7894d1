"""The portable profile: the Rego that every engine we use decides alike, checked on syntax trees.

Pure: it gets parsed modules and the data document, and returns findings. What it
refuses is refused because engines were seen to differ on it, or to crash (docs/design/policy.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from vedette.adapters.policy_engines.regorus.forms import check_forms
from vedette.adapters.policy_engines.regorus.golden_inputs import build_request
from vedette.adapters.policy_engines.regorus.kinds import BUILTINS
from vedette.adapters.policy_engines.regorus.syntax import (
    Fault,
    Module,
    RegoRef,
    Rule,
    collect_nodes,
    data_path,
    ref_of,
)
from vedette.adapters.policy_engines.regorus.undefined_check import find_undefined
from vedette.adapters.policy_engines.regorus.unread_rules import find_unread_rules
from vedette.domain.base.canonical import MAX_SAFE_INTEGER

KnownRules = Mapping[tuple[str, ...], set[str]]
FaultFactory = Callable[..., Fault]

# A safe integer times this is within 64 bits; what is beyond comes rounded out of the compiled
# program, and OPA takes no right absolute value of it.
FACTOR = 1000

PROOFS = ("identity", "grant", "origins", "secrecy", "limits", "holds")

# What tests may call besides the builtins of the allow list: they run on the interpreter and on OPA
# only.
TEST_BUILTINS = BUILTINS.keys() | frozenset(
    """array.reverse array.slice intersection is_set json.filter json.patch json.remove object.union
    object.union_n sprintf strings.any_prefix_match strings.any_suffix_match substring sum trim
    trim_left trim_right trim_space union""".split()  # noqa: SIM905 - a list of 20 lines says no more
)


# What a question looks like; what is empty here is open.
SAMPLE = build_request("agent", "tool", {}, [])


def check(
    modules: Sequence[Module], data: Mapping[str, Any], sample: Mapping[str, Any] = SAMPLE
) -> list[Fault]:
    """Return everything in the modules that is outside the profile or leads nowhere.

    `sample` has the fields that `input` has; whatever is empty in it may have any.
    """
    known = _rules_by_package(modules)
    findings: list[Fault] = []
    deciding = {module.package for module in modules if not module.is_test}
    for module in modules:
        findings += _check_placement(module, deciding)
        findings += _check_imports(module, known, data)
        for rule in module.rules:
            findings += _check_rule(module, rule, known, data)
    findings += check_forms(modules, data, sample)
    findings += _check_overlaps(modules, data)
    findings += _check_cycles(modules, _edges(modules, known))
    findings += _check_required(modules, known)
    return findings


def check_unread_rules(modules: Sequence[Module]) -> list[Fault]:
    """Return the rules whose result nobody reads on the way to the decision."""
    return find_unread_rules(modules, _edges(modules, _rules_by_package(modules)))


# --- the profile ------------------------------------------------------------------------------


def _check_rule(
    module: Module, rule: Rule, known: KnownRules, data: Mapping[str, Any]
) -> Iterator[Fault]:
    def at(line: int, what: str, mend: str = "") -> Fault:
        return Fault(module.path, line, what, mend)

    if rule.kind == "Default" and rule.is_function:
        yield at(rule.line, f"default function {rule.name}", "give it an `else`")
    if "Var" not in rule.head["refr"]:
        mend = "name the rule with one word; collect objects with {key: value | …}"
        yield at(rule.line, f"rule {rule.name} has a reference as its head", mend)
    yield from _check_numbers(module, rule, data, at)
    if module.is_test:
        for call in rule.nodes["Call"]:
            yield from _check_call(module, call, known, at)
    else:
        for kept in find_undefined(rule.node):
            yield at(kept.line, kept.what, kept.mend)
    for each in _checked_refs(module, rule):
        yield from _check_reference(module, each, known, data, at)


def _check_numbers(
    module: Module, rule: Rule, data: Mapping[str, Any], at: FaultFactory
) -> Iterator[Fault]:
    """Find numbers that engines would not tell alike: fractions, and all beyond 64 bits."""
    for number in rule.nodes["Number"]:
        value, line = number["value"], number["span"]["line"]
        if not isinstance(value, int):
            yield at(line, f"{value} is not a whole number", "use a smaller unit")
        elif abs(value) > MAX_SAFE_INTEGER + 1:
            yield at(line, f"{value} is beyond what every reader holds", "use a larger unit")
    for operation in rule.nodes["ArithExpr"]:
        line = operation["span"]["line"]
        if operation["op"] == "Div":
            yield at(line, "division makes fractions", "multiply the other side")
        elif operation["op"] == "Mul" and not _is_small_product(module, operation, data):
            what = "a product may be beyond 64 bits, where engines differ"
            mend = f"multiply a field, input.… or data.…, by a literal of at most {FACTOR}"
            yield at(line, what, mend)


def _is_small_product(module: Module, operation: Any, data: Mapping[str, Any]) -> bool:
    """Say whether a product is that of a small literal and a number of the question or the data.

    A name might hold a product itself, and so on.
    """
    for factor, other in (("lhs", "rhs"), ("rhs", "lhs")):
        literal = operation[factor].get("Number")
        if literal is None or not isinstance(literal["value"], int):
            continue
        if abs(literal["value"]) > FACTOR:
            continue
        if "Number" in operation[other]:
            return True
        field = ref_of(operation[other])
        if field is None:
            continue
        path = data_path(module, field)
        if field.root == "input" or (path and find_missing_step(path, {}, data) is None):
            return True
    return False


def _check_call(module: Module, call: Any, known: KnownRules, at: FaultFactory) -> Iterator[Fault]:
    function = ref_of(call["fcn"])
    if function is None:
        return
    name = ".".join((function.root, *function.steps))
    if function.root == "data" or function.root in module.aliases:
        return  # that it leads somewhere is checked as for any reference
    if not function.steps and function.root in known.get(module.package, set()):
        return
    if name not in TEST_BUILTINS:
        yield at(
            function.line,
            f"{name} is neither a function of this package nor in the portable profile",
            "see docs/design/policy.md for what is",
        )


def _checked_refs(module: Module, rule: Rule) -> Iterator[RegoRef]:
    # A test may replace any data, so what `with` names in it need not exist.
    replaced = {
        each
        for mods in rule.nodes["with_mods"]
        for mod in mods
        for each in collect_nodes(mod["refr"])[1]
        if module.is_test
    }
    return (each for each in rule.refs if each not in replaced)


def _check_reference(
    module: Module,
    ref: RegoRef,
    known: KnownRules,
    data: Mapping[str, Any],
    at: FaultFactory,
) -> Iterator[Fault]:
    path = data_path(module, ref)
    if path is None:
        return
    if not path:
        yield at(ref.line, "`data` as a whole is named", "name what you need of it")
        return
    end = find_missing_step(path, known, data)
    if end is None or (module.is_test and path[0] in data):
        return
    yield at(
        ref.line,
        f"data.{'.'.join(path)} does not exist: there is no rule and no data at {end!r}",
        "check the spelling, or add the data",
    )


def find_missing_step(
    path: tuple[str, ...], known: KnownRules, data: Mapping[str, Any]
) -> str | None:
    """Return the step at which a path below `data` leads nowhere, None if it leads somewhere."""
    for package, rules in known.items():
        size = len(package)
        if path[:size] == package[: len(path)] and len(path) <= size:
            return None
        if path[:size] == package and path[size] in rules:
            return None
    value: Any = data
    for step in path:
        if not isinstance(value, Mapping) or step not in value:
            return step
        value = value[step]
    return None


# --- the bundle as a whole --------------------------------------------------------------------


def _rules_by_package(modules: Sequence[Module]) -> dict[tuple[str, ...], set[str]]:
    known: dict[tuple[str, ...], set[str]] = {}
    for module in modules:
        known.setdefault(module.package, set()).update(rule.name for rule in module.rules)
    return known


def _check_placement(module: Module, deciding: Set[tuple[str, ...]]) -> Iterator[Fault]:
    if module.is_test and module.package in deciding:
        # It would be admitted with tests that pass, and be left out where the bundle decides.
        yield Fault(
            module.path,
            module.package_line,
            f"a file of tests adds to package {'.'.join(module.package)}, whose rules decide",
            "end the package in _test, or the file in another name",
        )
    folder = tuple(module.path.split("/")[:-1])
    package = module.package
    if module.is_test and package and package[-1].endswith("_test"):
        package = (*package[:-1], package[-1].removesuffix("_test"))
    if package != folder:
        yield Fault(
            module.path,
            module.package_line,
            f"package {'.'.join(module.package)} stands in folder {'/'.join(folder) or '.'}",
            "folders mirror packages",
        )


def _check_imports(module: Module, known: KnownRules, data: Mapping[str, Any]) -> Iterator[Fault]:
    for path, line in module.imports:
        if path in (("rego", "v1"),) or path[0] == "input":
            continue
        if path[0] != "data" or len(path) < 2:
            what = f"import of {'.'.join(path)}"
            yield Fault(module.path, line, what, "import data.… or input.… only")
        elif (end := find_missing_step(path[1:], known, data)) is not None:
            yield Fault(
                module.path,
                line,
                f"{'.'.join(path)} does not exist: there is no rule and no data at {end!r}",
                "check the spelling",
            )


def _check_overlaps(modules: Sequence[Module], data: Mapping[str, Any]) -> Iterator[Fault]:
    for module in modules:
        value: Any = data
        for step in module.package:
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None:
            yield Fault(
                module.path,
                module.package_line,
                f"package {'.'.join(module.package)} and a data file share a path",
                "move the data to another folder",
            )


def _edges(
    modules: Sequence[Module], known: KnownRules
) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Return which rules each rule names."""
    edges: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for module in modules:
        for rule in module.rules:
            targets = edges.setdefault((*module.package, rule.name), set())
            for each in rule.refs:
                targets.update(_targets(module, rule, each, known))
    return edges


def _check_cycles(
    modules: Sequence[Module], edges: Mapping[tuple[str, ...], set[tuple[str, ...]]]
) -> Iterator[Fault]:
    """Find recursion: both engines crash the process on some forms of it."""
    places = {
        (*module.package, rule.name): (module.path, rule.line)
        for module in reversed(modules)
        for rule in reversed(module.rules)
    }
    state: dict[tuple[str, ...], int] = {}
    for start in sorted(edges):
        circle = _find_cycle(start, edges, state)
        if circle:
            path, line = places[circle[0]]
            way = " → ".join(".".join(name) for name in (*circle, circle[0]))
            yield Fault(path, line, f"recursion: {way}", "rules must not depend on themselves")


def _targets(
    module: Module, rule: Rule, ref: RegoRef, known: KnownRules
) -> Iterator[tuple[str, ...]]:
    if ref.root not in rule.locals and ref.root in known[module.package]:
        yield (*module.package, ref.root)
    path = data_path(module, ref)
    if path is None:
        return
    for package, rules in known.items():
        size = len(package)
        if len(path) > size and path[:size] == package and path[size] in rules:
            yield (*package, path[size])
        elif len(path) <= size and package[: len(path)] == path:
            yield from ((*package, name) for name in rules)


def _find_cycle(
    start: tuple[str, ...],
    edges: Mapping[tuple[str, ...], set[tuple[str, ...]]],
    state: dict[tuple[str, ...], int],
) -> list[tuple[str, ...]]:
    """Return a circle reachable from `start`; 1 in `state`: on the way, 2: known to be clear."""
    if state.get(start):
        return []
    way: list[tuple[str, ...]] = [start]
    left = [iter(sorted(edges.get(start, ())))]
    state[start] = 1
    while way:
        following = next(left[-1], None)
        if following is None:
            state[way.pop()] = 2
            left.pop()
        elif state.get(following) == 1:
            circle = way[way.index(following) :]
            state.update(dict.fromkeys(way, 2))
            return circle
        elif not state.get(following):
            state[following] = 1
            way.append(following)
            left.append(iter(sorted(edges.get(following, ()))))
    return []


def _check_required(modules: Sequence[Module], known: KnownRules) -> Iterator[Fault]:
    wanted = [(("vedette", proof), "ok") for proof in PROOFS]
    for package, rule in (*wanted, (("vedette", "gateway"), "decision")):
        folder = "/".join(package)
        files = [module for module in modules if module.package == package and not module.is_test]
        if not files:
            yield Fault(f"{folder}/", 1, f"package {'.'.join(package)} is missing", "restore it")
        elif rule not in known[package]:
            last = files[-1]
            line = last.rules[-1].line if last.rules else last.package_line
            yield Fault(
                last.path,
                line,
                f"package {'.'.join(package)} has no rule {rule}",
                "the file may be cut; restore it",
            )
        elif not any(
            rule.name.startswith("test_")
            for module in modules
            if module.is_test and module.path.rpartition("/")[0] == folder
            for rule in module.rules
        ):
            yield Fault(files[0].path, 1, "no tests beside it", f"add {folder}/…_test.rego")
