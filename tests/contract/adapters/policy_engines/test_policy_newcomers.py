"""Wrong policies as a newcomer would write them: each refused with line and mend, never silent.

What each means is plain, and what it would do is nothing, or the opposite. The rules are added to
the shipped bundle as somebody would add them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from vedette.adapters.policy_engines.regorus.engine import InterpreterEngine
from vedette.adapters.policy_engines.regorus.profile import check_profile
from vedette.adapters.policy_engines.regorus.rule_graph import check_unread_rules
from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, read_bundle
from vedette.adapters.policy_engines.regorus.syntax import read_modules
from vedette.domain.base.errors import EngineFailed
from vedette.domain.bundle import Bundle, Finding
from vedette.policy.bundle_data import mount

SHIPPED = read_bundle(Path(__file__).parents[4] / "policies")
DATA = mount(SHIPPED.files)
DENIES = "vedette/denies/denies.rego"
HOLDS = "vedette/holds/holds.rego"
NIGHT = "vedette/night/night.rego"
MAIL = 'input.action.tool == "mail.send"'

# What is added, to which file, and words of what the newcomer is told.
WRONG: dict[str, tuple[str, str, str]] = {
    "a deny in a package that nobody asks": (
        NIGHT, f'package vedette.night\n\ndeny contains "night" if {MAIL}', "nobody on the way",
    ),
    "a package in another folder": (
        "vedette/denies/more.rego", f'package vedette.deny\n\ndeny contains "night" if {MAIL}',
        "folders mirror packages",
    ),
    "a set with a letter too many": (DENIES, f'denies contains "night" if {MAIL}', "deny is read"),
    "a set in capitals": (DENIES, f'Deny contains "night" if {MAIL}', "deny is read"),
    "a set of another package": (DENIES, f'asks contains "night" if {MAIL}', "vedette.holds"),
    "a stop among the denies": (DENIES, f'stops contains "night" if {MAIL}', "vedette.holds"),
    "a deny among the holds": (HOLDS, f'deny contains "night" if {MAIL}', "vedette.denies"),
    "a condition left behind": (DENIES, f"at_night if {MAIL}", "nobody on the way"),
    "a deny that is no set": (DENIES, f'deny := "night" if {MAIL}', "defined in two ways"),
    "a deny without a reason": (DENIES, f"deny if {MAIL}", "defined in two ways"),
    "a deny in brackets": (DENIES, f'deny["night"] if {MAIL}', "reference as its head"),
    "a deny with a default": (DENIES, "default deny := false", "is a set and has a default"),
    "an else after a loop": (
        DENIES,
        'near if {\n\tsome to in input.action.args.to\n\tendswith(to, "@h.eu")\n} else := false'
        '\n\ndeny contains "far" if not near',
        "`else` beside a body that iterates",
    ),
    "an else after a loop in a function": (
        DENIES,
        "kind(tool) := 1 if {\n\tsome each in data.denies.tools\n\teach == tool\n} "
        'else := 2 if tool != null\n\ndeny contains "kind" if kind(input.action.tool) == 1',
        "`else` beside a body that iterates",
    ),
    "a field that is not there": (
        DENIES, 'deny contains "night" if input.acton.tool == "mail.send"', "no field acton",
    ),
    "a field of another part": (
        DENIES, 'deny contains "night" if input.context.tool == "mail.send"', "no field tool",
    ),
    "a field in no part": (
        DENIES, 'deny contains "night" if input.tool == "mail.send"', "no field tool",
    ),
    "a count as a text": (
        DENIES, 'deny contains "many" if input.context.counters.hour > "5"',
        "never equals a string",
    ),
    "a truth as a text": (
        DENIES, 'deny contains "high" if input.action.high_impact == "true"',
        "never equals a string",
    ),
    "a name that is nowhere": (
        DENIES, f'deny contains "night" if {{ at_night; {MAIL} }}', "at_night is nowhere bound",
    ),
    "data that is nowhere": (
        DENIES, 'deny contains "x" if input.subject.agent in data.denys.agents', "data.denys",
    ),
    "a rule of another package that is nowhere": (
        DENIES, 'deny contains "x" if data.vedette.limits.at_night', "no rule and no data",
    ),
    "not in a list": (
        DENIES, 'deny contains "to" if not input.action.args.to in ["a@b.example"]',
        "`not` before something",
    ),
    "not of a field": (DENIES, 'deny contains "to" if not input.action.args.to', "`not` before"),
    "every recipient": (
        DENIES,
        'deny contains "to" if { every to in input.action.args.to { endswith(to, ".example") } }',
        "`every`",
    ),
    "a set that is always there": (
        DENIES, 'deny contains "x" if data.vedette.holds.asks', "always holds",
    ),
    "not of a set": (DENIES, 'deny contains "x" if not data.vedette.holds.asks', "never holds"),
    "a count that is always there": (
        DENIES, 'deny contains "x" if { is_array(input.action.sinks); count(input.action.sinks) }',
        "always holds",
    ),
    "the clock": (DENIES, 'deny contains "night" if time.now_ns() > 5', "time.now_ns"),
    "one sign for two": (DENIES, 'deny contains "x" if { tool = "mail.send"; tool }', "`=`"),
    "any element": (DENIES, 'deny contains "x" if input.action.sinks[_] == "/to"', "as an index"),
    "a reason put together": (
        DENIES,
        'deny contains why if { why := sprintf("no %v", [input.action.tool]); why != "" }',
        "sprintf",
    ),
    "the length of a text": (
        DENIES, 'deny contains "long" if { is_string(input.action.args.text); '
        "count(input.action.args.text) > 9 }", "count of what may be no",
    ),
    "a text that may be none": (
        DENIES, 'deny contains "x" if startswith(input.action.args.to, "a")', "is_string",
    ),
    "two limits at a time": (
        DENIES, f'most := 5 if {MAIL}\n\nmost := 9 if input.context.confidence > 1\n\n'
        'deny contains "x" if input.context.counters.hour > most', "two values at a time",
    ),
    "a function of two": (
        DENIES, 'far(to, tool) if to != tool\n\ndeny contains "x" if far(input.action.args.to)',
        "does not take 1",
    ),
    "a test among the rules": (DENIES, "test_night if deny == set()", "nobody on the way"),
}  # fmt: skip


def added(file: str, text: str) -> Bundle:
    before = SHIPPED.files.get(file, b"")
    return Bundle.of({**SHIPPED.files, file: before + b"\n" + text.encode() + b"\n"})


def faults(bundle: Bundle) -> list[Finding]:
    try:
        syntax = InterpreterEngine(bundle, DATA, tests=True).syntax_trees()
    except EngineFailed as error:
        return [Finding("", 1, str(error))]
    modules = read_modules(syntax)
    return [*check_profile(modules, DATA), *check_unread_rules(modules)]


def test_there_are_enough_and_the_shipped_policy_is_none_of_them() -> None:
    assert len(WRONG) >= 25
    assert faults(SHIPPED) == []


@pytest.mark.parametrize("name", WRONG)
def test_each_is_refused_with_its_line_and_a_mend(name: str) -> None:
    file, text, words = WRONG[name]
    bundle = added(file, text)
    first = SHIPPED.files[file].count(b"\n") if file in SHIPPED.files else 1
    messages = [each for each in faults(bundle) if each.file == file and each.line >= first]
    assert any(words in f"{each.what}; {each.mend}" and each.mend for each in messages), messages


# Near each of them, what is right: nobody must write around a false alarm.
RIGHT = (
    f'deny contains "night" if {MAIL}',
    'deny contains "many" if input.context.counters.hour > 5',
    'deny contains "high" if input.action.high_impact == true',
    'deny contains "to" if { to := input.action.args.to; is_string(to); endswith(to, "x") }',
    'near if {\n\tsome to in input.action.args.to\n\tto == "a"\n}\n\n'
    'deny contains "far" if not near',
    'deny contains "x" if count(data.vedette.holds.asks) > 3',
    'deny contains why if { some sink in input.action.sinks; is_string(sink); '
    'why := concat(":", ["x", sink]); is_string(why) }',
    f"most := 5 if {MAIL}\n\nelse := 9\n\n"
    'deny contains "x" if input.context.counters.hour > most',
)  # fmt: skip


@pytest.mark.parametrize("text", RIGHT)
def test_what_is_right_is_not_refused(text: str) -> None:
    assert faults(added(DENIES, text)) == []


async def test_staging_tells_it() -> None:
    """The same through the trial: a person who publishes sees file, line and mend."""
    file, text, words = WRONG["a set with a letter too many"]
    (found,) = await SubprocessStage().try_out(added(file, text))
    assert (found.file, words in found.mend) == (file, True)
    assert found.line == SHIPPED.files[file].count(b"\n") + 2
