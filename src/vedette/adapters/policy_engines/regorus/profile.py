"""The portable profile: the Rego that every engine we use decides alike, checked on syntax trees.

Pure: it gets parsed modules and the data document, and returns findings. What it
refuses is refused because engines were seen to differ on it, or to crash (docs/design/policy.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from vedette.adapters.policy_engines.regorus.forms import check_forms
from vedette.adapters.policy_engines.regorus.kinds import BUILTINS
from vedette.adapters.policy_engines.regorus.rule_graph import (
    ENTRY_RULE,
    RuleNames,
    check_cycles,
    rule_names,
)
from vedette.adapters.policy_engines.regorus.syntax import (
    Module,
    RegoRef,
    Rule,
    RulePath,
    collect_nodes,
    data_path,
    ref_of,
    rules_of,
)
from vedette.adapters.policy_engines.regorus.undefined_check import find_undefined
from vedette.domain.base.canonical import MAX_SAFE_INTEGER
from vedette.domain.bundle import Finding
from vedette.policy.golden_requests import build_request

# A safe integer times this is within 64 bits; what is beyond comes rounded out of the compiled
# program, and OPA takes no right absolute value of it.
FACTOR = 1000

PROOFS = ("identity", "grant", "origins", "secrecy", "limits", "holds", "done", "delegation")

# What tests may call besides the builtins of the allow list: they run on the interpreter and on OPA
# only.
TEST_BUILTINS = BUILTINS.keys() | frozenset(
    """array.reverse array.slice intersection is_set json.filter json.patch json.remove object.union
    object.union_n sprintf strings.any_prefix_match strings.any_suffix_match substring sum trim
    trim_left trim_right trim_space union""".split()  # noqa: SIM905 - a list of 20 lines says no more
)

# What a question looks like; what is empty here is open.
_REQUEST = build_request("agent", "tool", {}, [])
_TASK = {"conditions": [{"name": "", "held": False, "why": ""}], "person": False}
_ANCESTOR = {"agent": "", "cover": "", "owner": "", "requested_mode": ""}
_DELEGATION = {"ancestors": [_ANCESTOR], "room": False}
SAMPLE = {
    **_REQUEST,
    "context": {**_REQUEST["context"], "refuses": "", "task": _TASK, "delegation": _DELEGATION},
}


def check_profile(
    modules: Sequence[Module], data: Mapping[str, Any], sample: Mapping[str, Any] = SAMPLE
) -> list[Finding]:
    """Return everything in Rego modules that is outside the portable profile or leads nowhere.

    `sample` has the fields that `input` has; whatever is empty in it may have any.
    """
    known = rule_names(modules)
    deciding = {module.package for module in modules if not module.is_test}
    found: list[Finding] = []
    for module in modules:
        found += _check_placement(module, deciding)
        found += _check_imports(module, known, data)
        for rule in module.rules:
            found += _check_rule(rule, known, data)
    return [
        *found,
        *check_forms(modules, data, sample),
        *_check_overlaps(modules, data),
        *check_cycles(modules),
        *_check_required(modules, known),
    ]


# --- the profile ------------------------------------------------------------------------------


def _check_rule(rule: Rule, known: RuleNames, data: Mapping[str, Any]) -> Iterator[Finding]:
    if rule.is_default and rule.is_function:
        yield rule.fault(rule.line, f"default function {rule.name}", "give it an `else`")
    if "Var" not in rule.head["refr"]:
        mend = "name the rule with one word; collect objects with {key: value | …}"
        yield rule.fault(rule.line, f"rule {rule.name} has a reference as its head", mend)
    yield from _check_numbers(rule, data)
    if rule.module.is_test:
        yield from _check_calls(rule, known)
    else:
        yield from find_undefined(rule)
    for ref in _checked_refs(rule):
        yield from _check_reference(rule, ref, known, data)


def _check_numbers(rule: Rule, data: Mapping[str, Any]) -> Iterator[Finding]:
    """Find numbers that engines would not tell alike: fractions, and all beyond 64 bits."""
    for number in rule.nodes["Number"]:
        value, line = number["value"], number["span"]["line"]
        if not isinstance(value, int):
            yield rule.fault(line, f"{value} is not a whole number", "use a smaller unit")
        elif abs(value) > MAX_SAFE_INTEGER + 1:
            what = f"{value} is beyond what every reader holds"
            yield rule.fault(line, what, "use a larger unit")
    for operation in rule.nodes["ArithExpr"]:
        line = operation["span"]["line"]
        if operation["op"] == "Div":
            yield rule.fault(line, "division makes fractions", "multiply the other side")
        elif operation["op"] == "Mul" and not _is_small_product(rule.module, operation, data):
            what = "a product may be beyond 64 bits, where engines differ"
            mend = f"multiply a field, input.… or data.…, by a literal of at most {FACTOR}"
            yield rule.fault(line, what, mend)


def _is_small_product(module: Module, operation: Any, data: Mapping[str, Any]) -> bool:
    """Say whether a product is that of a small literal and a number of the question or the data.

    A name might hold a product itself, and so on.
    """
    for factor, other in (("lhs", "rhs"), ("rhs", "lhs")):
        literal = operation[factor].get("Number", {}).get("value")
        if not isinstance(literal, int) or abs(literal) > FACTOR:
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


def _check_calls(rule: Rule, known: RuleNames) -> Iterator[Finding]:
    module = rule.module
    for call in rule.nodes["Call"]:
        function = ref_of(call["fcn"])
        # That a path leads somewhere is checked as for any reference.
        if function is None or function.root == "data" or function.root in module.aliases:
            continue
        name = ".".join((function.root, *function.steps))
        if name not in TEST_BUILTINS and name not in known.get(module.package, set()):
            what = f"{name} is neither a function of this package nor in the portable profile"
            yield rule.fault(function.line, what, "see docs/design/policy.md for what is")


def _checked_refs(rule: Rule) -> Iterator[RegoRef]:
    # A test may replace any data, so what `with` names in it need not exist.
    replaced = {
        each
        for mods in rule.nodes["with_mods"]
        for mod in mods
        for each in collect_nodes(mod["refr"])[1]
        if rule.module.is_test
    }
    return (each for each in rule.refs if each not in replaced)


def _check_reference(
    rule: Rule, ref: RegoRef, known: RuleNames, data: Mapping[str, Any]
) -> Iterator[Finding]:
    path = data_path(rule.module, ref)
    if path is None:
        return
    if not path:
        yield rule.fault(ref.line, "`data` as a whole is named", "name what you need of it")
        return
    end = find_missing_step(path, known, data)
    if end is not None and not (rule.module.is_test and path[0] in data):
        mend = "check the spelling, or add the data"
        yield rule.fault(ref.line, _missing(("data", *path), end), mend)


def _missing(path: RulePath, end: str) -> str:
    return f"{'.'.join(path)} does not exist: there is no rule and no data at {end!r}"


def find_missing_step(path: RulePath, known: RuleNames, data: Mapping[str, Any]) -> str | None:
    """Return the step at which a Rego path below `data` leads nowhere, None if there is none."""
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


def _check_placement(module: Module, deciding: Set[RulePath]) -> Iterator[Finding]:
    if module.is_test and module.package in deciding:
        # It would be admitted with tests that pass, and be left out where the bundle decides.
        what = f"a file of tests adds to package {'.'.join(module.package)}, whose rules decide"
        mend = "end the package in _test, or the file in another name"
        yield Finding(module.path, module.package_line, what, mend)
    folder = tuple(module.path.split("/")[:-1])
    package = module.package
    if module.is_test and package and package[-1].endswith("_test"):
        package = (*package[:-1], package[-1].removesuffix("_test"))
    if package != folder:
        what = f"package {'.'.join(module.package)} stands in folder {'/'.join(folder) or '.'}"
        yield Finding(module.path, module.package_line, what, "folders mirror packages")


def _check_imports(module: Module, known: RuleNames, data: Mapping[str, Any]) -> Iterator[Finding]:
    for path, line in module.imports:
        if path in (("rego", "v1"),) or path[0] == "input":
            continue
        if path[0] != "data" or len(path) < 2:
            what = f"import of {'.'.join(path)}"
            yield Finding(module.path, line, what, "import data.… or input.… only")
        elif (end := find_missing_step(path[1:], known, data)) is not None:
            yield Finding(module.path, line, _missing(path, end), "check the spelling")


def _check_overlaps(modules: Sequence[Module], data: Mapping[str, Any]) -> Iterator[Finding]:
    for module in modules:
        value: Any = data
        for step in module.package:
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None:
            what = f"package {'.'.join(module.package)} and a data file share a path"
            yield Finding(module.path, module.package_line, what, "move the data to another folder")


def _check_required(modules: Sequence[Module], known: RuleNames) -> Iterator[Finding]:
    for *parts, name in (*(("vedette", proof, "ok") for proof in PROOFS), ENTRY_RULE):
        package, folder = tuple(parts), "/".join(parts)
        files = [module for module in modules if module.package == package and not module.is_test]
        if not files:
            what = f"package {'.'.join(package)} is missing"
            yield Finding(f"{folder}/", 1, what, "restore it")
        elif name not in known[package]:
            last = files[-1]
            line = last.rules[-1].line if last.rules else last.package_line
            what = f"package {'.'.join(package)} has no rule {name}"
            yield Finding(last.path, line, what, "the file may be cut; restore it")
        elif not any(
            rule.name.startswith("test_") and rule.module.path.rpartition("/")[0] == folder
            for rule in rules_of(modules, tests=True)
            if rule.module.is_test
        ):
            yield Finding(files[0].path, 1, "no tests beside it", f"add {folder}/…_test.rego")
