"""Every spelling of before does what the one of today does, and says how that is spelled.

Asked of a state that has all of it: holds, a dead letter, memories, identities, an archive (see
test_state_of_before.py). What changes something is done in two copies, once in each spelling.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.store.test_migrate import upgrade
from tests.fixtures import make_state
from tests.said import Said, said

from vedette.interfaces.cli.old_spellings import RULES, translate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WHY = "--reason why"
# What only looks, or needs what is not here (a project of Google's, a free port): it refuses.
LOOKS = (
    f"""
policy check | check policy
eval | check cases
--config nowhere gateway | --config nowhere run --gateway
runs --limit 2 --before 20 | runs --limit 2 --page 20
explain-error no-space | explain --error no-space
explain-error | explain --error
plot anomaly nothing | plot nothing
hold list | hold
hold list --after {{hold}} --limit 1 | hold --page {{hold}} --limit 1
hold show {{hold}} | hold {{hold}}
memory list --state off | memory show --state off
dead list --agent inbox_triage --limit 2 | dead --agent inbox_triage --limit 2
dead list --before 400 | dead --page 400
dead show {{dead}} | dead {{dead}}
budget show inbox_triage | budget inbox_triage
mode inbox_triage | agent mode inbox_triage
agent list | agent show
replay | verify decisions
replay --judges | verify judgements
replay --judges --engine wasm | verify judgements
ledger verify | verify
ledger verify --archive .vedette/archive | verify --archive .vedette/archive
ledger verify --deep | verify all
audit targets mailbox --since 7d | verify targets mailbox --since 7d
audit ship --check | verify shipped
audit ship | ledger export --ship
store check | verify rows
store rebuild --check | verify views
store copy --to postgresql://127.0.0.1:1/it {WHY} | migrate postgresql://127.0.0.1:1/it {WHY}
store copy --to-env NO_SUCH {WHY} | migrate env:NO_SUCH {WHY}
pubsub plan | pubsub
pubsub apply | pubsub --apply
pubsub redrive series --most 3 {WHY} | pubsub --redrive series --limit 3 {WHY}
pubsub redrive --most=3 series {WHY} | pubsub --redrive series --limit 3 {WHY}
identity list | identity show
restore --from nowhere --no-witness {WHY} | restore nowhere --witness none {WHY}
restore --from nowhere --no-witness --command-id a {WHY} | restore nowhere --witness none {WHY}
worker --agent a --gateway ftp://no --identity google --audience b | """
    + """\
worker --agent a --gateway ftp://no --identity google:b
schema agent | completion agent
"""
)
ORDERS = f"""
hold claim {{hold}} | hold {{hold}} --claim
hold claim --reason mine {{hold}} | hold {{hold}} --claim --reason mine
hold note {{hold}} noon | hold {{hold}} --note noon
hold note {{hold}} -- --noon | hold {{hold}} --note=--noon
hold note --command-id one {{hold}} noon | hold {{hold}} --note noon --command-id one
approve --group {{group}} --digest 00000000 {WHY} | approve {{group}} --digest 00000000 {WHY}
deny --group {{group}} --yes {WHY} | deny {{group}} --yes {WHY}
correct {{run}} --should booking {WHY} | correct {{run}} booking {WHY}
memory approve {{candidate}} --yes {WHY} | memory set {{candidate}} active --yes {WHY}
memory reject {{candidate}} {WHY} | memory set {{candidate}} rejected {WHY}
memory off {{promoted}} {WHY} | memory set {{promoted}} off {WHY}
memory off --from person:nobody {WHY} | memory set --from person:nobody off {WHY}
memory on {{off}} {WHY} | memory set {{off}} active {WHY}
dead redrive {{dead}} {WHY} | dead {{dead}} --redrive {WHY}
dead redrive --all --yes {WHY} | dead --redrive --all --yes {WHY}
dead drop {{dead}} {WHY} | dead {{dead}} --drop {WHY}
clock confirm {WHY} | resume --clock {WHY}
budget raise inbox_triage --for 2h {WHY} | budget inbox_triage --raise 2h {WHY}
budget raise --fleet --for=2h {WHY} | budget --fleet --raise 2h {WHY}
mode inbox_triage observe {WHY} | agent mode inbox_triage observe {WHY}
new agent desk --like inbox_triage | agent new desk --like inbox_triage
policy apply policies {WHY} | policy publish policies {WHY}
ledger archive --keep 0s {WHY} | ledger archive --before 0s {WHY}
ledger archive --keep 0s --command-id a {WHY} | ledger archive --before 0s --command-id a {WHY}
keys rotate {WHY} | ledger rotate-key {WHY}
erase --event {{event}} --yes {WHY} | erase event:{{event}} --yes {WHY}
erase --subject nobody --yes {WHY} | erase subject:nobody --yes {WHY}
erase --entry 600 --yes {WHY} | erase entry:600 --yes {WHY}
store rebuild | verify views --repair
backup --to copy --with-keys | backup copy --with-keys
identity rotate inbox_triage {WHY} | identity issue --rotate inbox_triage {WHY}
"""


def pairs(text: str) -> list[tuple[str, str]]:
    """Return (spelling of before, spelling of today)."""
    found = [line.partition(" | ") for line in text.strip().splitlines()]
    return [(old, new) for old, _, new in found]


def fold(done: Said, folder: Path) -> tuple[int, str, str]:
    """Return how a verb ended and what it said, without what is another at each call."""
    parts = []
    for text in (done.out, done.err):
        text = text.replace(str(folder), "FOLDER")
        # A key may have a slash in it.
        text = re.sub(r"\bvedette/harbour\+\S+", "KEY", text)
        parts.append(re.sub(r"[\w+-]{20,}={0,2}|[0-9a-f]{8,}|\d+(\.\d+)?", "#", text))
    return done.code, parts[0], parts[1]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state, at the time it was made."""
    folder = tmp_path_factory.mktemp("spellings")
    with tarfile.open(make_state.ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    # A store of before is upgraded by hand; any other verb asks for that.
    upgrade(folder / "fleet" / ".vedette")
    at_us = json.loads((folder / "record.json").read_text(encoding="utf-8"))["at_us"]
    shift_ns = at_us * 1000 - time.time_ns()
    real, real_ns = time.time, time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + shift_ns / 1e9)
        patch.setattr(time, "time_ns", lambda: real_ns() + shift_ns)
        yield folder


@pytest.fixture(scope="module")
def names(state: Path) -> dict[str, str]:
    """What the spellings name."""
    ids = json.loads((state / "record.json").read_text(encoding="utf-8"))["history"]["ids"]
    fleet = state / "fleet"
    found = {name: ids[name] for name in ("dead", "candidate", "promoted", "off")}
    groups = said(fleet, "hold", "--group", "--json").json["items"]
    story = said(fleet, "explain", ids["used"], "--json").json
    return {
        **found, "run": ids["used"], "event": story["event"]["id"], "group": groups[0]["group"],
        "hold": said(fleet, "hold", "--json").json["items"][0]["hold"],
    }  # fmt: skip


def compare(old: Said, new: Said, folders: tuple[Path, Path]) -> None:
    """Hold what came of a spelling of before against what came of today's."""
    hint, _, err = old.err.partition("\n")
    assert hint.startswith("note: this is now `vedette ")
    assert "note: this is now" not in new.err
    then, now = fold(Said(old.code, old.out, err), folders[0]), fold(new, folders[1])
    assert then == now
    assert "error[usage]" not in new.err


@pytest.mark.parametrize("pair", pairs(LOOKS), ids=lambda pair: pair[0])
def test_what_only_looks_is_answered_alike(
    state: Path, names: dict[str, str], pair: tuple[str, str]
) -> None:
    fleet = state / "fleet"
    old, new = (said(fleet, *words.format(**names).split()) for words in pair)
    compare(old, new, (fleet, fleet))


@pytest.mark.parametrize("pair", pairs(ORDERS), ids=lambda pair: pair[0])
def test_an_order_is_carried_out_alike(
    state: Path, names: dict[str, str], tmp_path: Path, pair: tuple[str, str]
) -> None:
    first, second = (Path(shutil.copytree(state / "fleet", tmp_path / str(n))) for n in range(2))
    old = said(first, *pair[0].format(**names).split())
    new = said(second, *pair[1].format(**names).split())
    compare(old, new, (first, second))


def test_no_rule_is_without_a_spelling_here() -> None:
    tried = [f" {old} " for old, _ in pairs(LOOKS + ORDERS)]
    untried = [rule for rule in RULES if not any(f" {' '.join(rule)} " in old for old in tried)]
    assert untried == []


def test_with_json_the_answer_is_that_of_today_and_the_hint_comes_after(state: Path) -> None:
    fleet = state / "fleet"
    old, new = said(fleet, "dead", "list", "--json"), said(fleet, "dead", "--json")
    assert (old.code, old.json["items"], new.err) == (0, new.json["items"], "")
    assert json.loads(old.err)["note"].startswith("this is now `vedette dead`")
    # Of what fails the error is all that stands there, as it is documented.
    assert said(fleet, "dead", "show", "run_0", "--json").error["code"] == "bad-command"


def test_a_name_that_is_missing_makes_no_list_of_what_was_to_be_shown(state: Path) -> None:
    fleet = state / "fleet"
    assert [said(fleet, verb, "show").code for verb in ("hold", "dead")] == [2, 2]


def test_a_repeat_of_bringing_back_is_no_promotion(
    state: Path, names: dict[str, str], tmp_path: Path
) -> None:
    """What is active by the first order is not asked about by the second: its id is known."""
    fleet = Path(shutil.copytree(state / "fleet", tmp_path / "fleet"))
    order = ("memory", "set", names["off"], "active", *WHY.split(), "--command-id", "a", "--json")
    first, second = said(fleet, *order), said(fleet, *order)
    assert (first.code, first.json["moved"][0]["state"]) == (0, "active")
    assert (second.code, second.json["already_done"]) == (0, True)


@pytest.mark.parametrize("new", [new for _, new in pairs(LOOKS + ORDERS)])
def test_a_spelling_of_today_is_left_as_it_is(new: str) -> None:
    assert translate(new.split()) == (new.split(), None)
