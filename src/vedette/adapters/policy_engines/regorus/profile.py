"""The portable profile: the Rego that every engine we use decides alike, checked on syntax trees.

Pure: it gets parsed modules and the data document, and returns findings. What it
refuses is refused because engines were seen to differ on it, or to crash (docs/design/policy.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from vedette.adapters.policy_engines.regorus.forms import check_forms
from vedette.adapters.policy_engines.regorus.golden_inputs import question
from vedette.adapters.policy_engines.regorus.kinds import BUILTINS
from vedette.adapters.policy_engines.regorus.syntax import (
    Fault,
    Module,
    Ref,
    Rule,
    expand,
    gather,
    ref_of,
)
from vedette.adapters.policy_engines.regorus.undefined_check import kept_undefined
from vedette.adapters.policy_engines.regorus.unread_rules import unread
from vedette.domain.base.canonical import SAFE_INTEGER

Known = Mapping[tuple[str, ...], set[str]]
At = Callable[..., Fault]

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
SAMPLE = question("agent", "tool", {}, [])


def check(
    modules: Sequence[Module], data: Mapping[str, Any], sample: Mapping[str, Any] = SAMPLE
) -> list[Fault]:
    """Return everything in the modules that is outside the profile or leads nowhere.

    `sample` has the fields that `input` has; whatever is empty in it may have any.
    """
    known = _rules_by_package(modules)
    findings: list[Fault] = []
    deciding = {module.package for module in modules if not module.test}
    for module in modules:
        findings += _placed(module, deciding)
        findings += _imports_lead_somewhere(module, known, data)
        for rule in module.rules:
            findings += _rule(module, rule, known, data)
    findings += check_forms(modules, data, sample)
    findings += _overlaps(modules, data)
    findings += _circles(modules, _edges(modules, known))
    findings += _required(modules, known)
    return findings


def check_readers(modules: Sequence[Module]) -> list[Fault]:
    """Return the rules whose result nobody reads on the way to the decision."""
    return unread(modules, _edges(modules, _rules_by_package(modules)))


# --- the profile ------------------------------------------------------------------------------


def _rule(module: Module, rule: Rule, known: Known, data: Mapping[str, Any]) -> Iterator[Fault]:
    def at(line: int, what: str, mend: str = "") -> Fault:
        return Fault(module.path, line, what, mend)

    if rule.kind == "Default" and rule.function:
        yield at(rule.line, f"default function {rule.name}", "give it an `else`")
    if "Var" not in rule.head["refr"]:
        mend = "name the rule with one word; collect objects with {key: value | …}"
        yield at(rule.line, f"rule {rule.name} has a reference as its head", mend)
    yield from _numbers(module, rule, data, at)
    if module.test:
        for call in rule.nodes["Call"]:
            yield from _call(module, call, known, at)
    else:
        for kept in kept_undefined(rule.node):
            yield at(kept.line, kept.what, kept.mend)
    for each in _checked_refs(module, rule):
        yield from _leads_somewhere(module, each, known, data, at)


def _numbers(module: Module, rule: Rule, data: Mapping[str, Any], at: At) -> Iterator[Fault]:
    """Find numbers that engines would not tell alike: fractions, and all beyond 64 bits."""
    for number in rule.nodes["Number"]:
        value, line = number["value"], number["span"]["line"]
        if not isinstance(value, int):
            yield at(line, f"{value} is not a whole number", "use a smaller unit")
        elif abs(value) > SAFE_INTEGER + 1:
            yield at(line, f"{value} is beyond what every reader holds", "use a larger unit")
    for operation in rule.nodes["ArithExpr"]:
        line = operation["span"]["line"]
        if operation["op"] == "Div":
            yield at(line, "division makes fractions", "multiply the other side")
        elif operation["op"] == "Mul" and not _small_product(module, operation, data):
            what = "a product may be beyond 64 bits, where engines differ"
            mend = f"multiply a field, input.… or data.…, by a literal of at most {FACTOR}"
            yield at(line, what, mend)


def _small_product(module: Module, operation: Any, data: Mapping[str, Any]) -> bool:
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
        path = expand(module, field)
        if field.root == "input" or (path and lost(path, {}, data) is None):
            return True
    return False


def _call(module: Module, call: Any, known: Known, at: At) -> Iterator[Fault]:
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


def _checked_refs(module: Module, rule: Rule) -> Iterator[Ref]:
    # A test may replace any data, so what `with` names in it need not exist.
    replaced = {
        each
        for mods in rule.nodes["with_mods"]
        for mod in mods
        for each in gather(mod["refr"])[1]
        if module.test
    }
    return (each for each in rule.refs if each not in replaced)


def _leads_somewhere(
    module: Module,
    ref: Ref,
    known: Known,
    data: Mapping[str, Any],
    at: At,
) -> Iterator[Fault]:
    path = expand(module, ref)
    if path is None:
        return
    if not path:
        yield at(ref.line, "`data` as a whole is named", "name what you need of it")
        return
    end = lost(path, known, data)
    if end is None or (module.test and path[0] in data):
        return
    yield at(
        ref.line,
        f"data.{'.'.join(path)} does not exist: there is no rule and no data at {end!r}",
        "check the spelling, or add the data",
    )


def lost(path: tuple[str, ...], known: Known, data: Mapping[str, Any]) -> str | None:
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


def _placed(module: Module, deciding: Set[tuple[str, ...]]) -> Iterator[Fault]:
    if module.test and module.package in deciding:
        # It would be admitted with tests that pass, and be left out where the bundle decides.
        yield Fault(
            module.path,
            module.package_line,
            f"a file of tests adds to package {'.'.join(module.package)}, whose rules decide",
            "end the package in _test, or the file in another name",
        )
    folder = tuple(module.path.split("/")[:-1])
    package = module.package
    if module.test and package and package[-1].endswith("_test"):
        package = (*package[:-1], package[-1].removesuffix("_test"))
    if package != folder:
        yield Fault(
            module.path,
            module.package_line,
            f"package {'.'.join(module.package)} stands in folder {'/'.join(folder) or '.'}",
            "folders mirror packages",
        )


def _imports_lead_somewhere(
    module: Module, known: Known, data: Mapping[str, Any]
) -> Iterator[Fault]:
    for path, line in module.imports:
        if path in (("rego", "v1"),) or path[0] == "input":
            continue
        if path[0] != "data" or len(path) < 2:
            what = f"import of {'.'.join(path)}"
            yield Fault(module.path, line, what, "import data.… or input.… only")
        elif (end := lost(path[1:], known, data)) is not None:
            yield Fault(
                module.path,
                line,
                f"{'.'.join(path)} does not exist: there is no rule and no data at {end!r}",
                "check the spelling",
            )


def _overlaps(modules: Sequence[Module], data: Mapping[str, Any]) -> Iterator[Fault]:
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


def _edges(modules: Sequence[Module], known: Known) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Return which rules each rule names."""
    edges: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for module in modules:
        for rule in module.rules:
            targets = edges.setdefault((*module.package, rule.name), set())
            for each in rule.refs:
                targets.update(_targets(module, rule, each, known))
    return edges


def _circles(
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
        circle = _circle_from(start, edges, state)
        if circle:
            path, line = places[circle[0]]
            way = " → ".join(".".join(name) for name in (*circle, circle[0]))
            yield Fault(path, line, f"recursion: {way}", "rules must not depend on themselves")


def _targets(module: Module, rule: Rule, ref: Ref, known: Known) -> Iterator[tuple[str, ...]]:
    if ref.root not in rule.locals and ref.root in known[module.package]:
        yield (*module.package, ref.root)
    path = expand(module, ref)
    if path is None:
        return
    for package, rules in known.items():
        size = len(package)
        if len(path) > size and path[:size] == package and path[size] in rules:
            yield (*package, path[size])
        elif len(path) <= size and package[: len(path)] == path:
            yield from ((*package, name) for name in rules)


def _circle_from(
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


def _required(modules: Sequence[Module], known: Known) -> Iterator[Fault]:
    wanted = [(("vedette", proof), "ok") for proof in PROOFS]
    for package, rule in (*wanted, (("vedette", "gateway"), "decision")):
        folder = "/".join(package)
        files = [module for module in modules if module.package == package and not module.test]
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
            if module.test and module.path.rpartition("/")[0] == folder
            for rule in module.rules
        ):
            yield Fault(files[0].path, 1, "no tests beside it", f"add {folder}/…_test.rego")
