"""State that was made before the modules moved into rooms opens in the program of today.

tests/fixtures/state_before_rooms.tar.xz is what a small fleet left behind, made by make_state.py
beside it with the program of commit 3c4f65e: store, memory bank, policies, kept releases, keys,
identities, an archived stretch of the ledger, a backup, an export, proofs; and a record of what
that program said of it and did with it. Here the program of today is asked the same questions and
given the same orders, by the same functions, each time in a copy. Its clock reads as it did when
the state was made: what expires has not expired.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.contract.store.test_migrate import upgrade
from tests.fixtures import make_state
from tests.fixtures.make_state import Fleet
from tests.said import ROOT, START, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Read by every Python that finds it on its path, before anything else.
CLOCK = """\
import time

_SHIFT_NS = {shift_ns}
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _SHIFT_NS / 1e9
time.time_ns = lambda: _time_ns() + _SHIFT_NS
"""
OPEN_STOPS = [
    {"scope": "agent", "name": "anomaly_detection"},
    {"scope": "tool", "name": "mail.send"},
]


def find_differences(then: Any, now: Any, at: str = "") -> list[str]:
    """Return what was said then and is not said now; an object may say more than it did."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [
            found
            for name, part in then.items()
            for found in find_differences(part, now.get(name, "nothing"), f"{at}/{name}")
        ]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now, strict=True))
        return [found for n, pair in pairs for found in find_differences(*pair, f"{at}/{n}")]
    return [] if then == now else [f"{at}: was {then!r}, is {now!r}"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What lies in the archive; nobody changes it."""
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(make_state.ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def record(parts: Path) -> dict[str, Any]:
    """What the program of then said of it."""
    found = json.loads((parts / "record.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, record: dict[str, Any]) -> Fleet:
    """The program of today, on a machine whose clock reads as when the state was made."""
    folder = tmp_path_factory.mktemp("program")
    shift_ns = record["at_us"] * 1000 - time.time_ns()
    clock = folder / "sitecustomize.py"
    clock.write_text(CLOCK.format(shift_ns=shift_ns), encoding="utf-8")
    path = os.pathsep.join((str(folder), str(ROOT / "src")))
    return Fleet(START, folder / "none", environment(PYTHONPATH=path))


def copy_fleet(program: Fleet, parts: Path, folder: Path) -> Fleet:
    """Return a copy of the fleet of then, for the program of today to change."""
    return program.in_folder(Path(shutil.copytree(parts / "fleet", folder)))


def bring_up(fleet: Fleet) -> Fleet:
    """Do what `vedette upgrade` does, but for the entry that says so."""
    upgrade(fleet.state)
    return fleet


@pytest.fixture(scope="module")
def answers(
    program: Fleet, parts: Path, record: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What the program of today says of the state."""
    fleet = copy_fleet(program, parts, tmp_path_factory.mktemp("answers") / "fleet")
    assert "`vedette upgrade`" in fleet.call("status").stderr
    bring_up(fleet)
    return make_state.ask_questions(fleet, parts / "elsewhere", record["history"])


@pytest.fixture(scope="module")
def outcomes(
    program: Fleet, parts: Path, record: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What came of further orders to it."""
    fleet = bring_up(copy_fleet(program, parts, tmp_path_factory.mktemp("outcomes") / "fleet"))
    return make_state.give_orders(fleet, parts / "mails", record["history"])


@pytest.fixture
def fleet(program: Fleet, parts: Path, tmp_path: Path) -> Fleet:
    """A copy of the fleet for one test."""
    return bring_up(copy_fleet(program, parts, tmp_path / "fleet"))


def compare(record: dict[str, Any], now: dict[str, Any], *names: str) -> None:
    """Hold what is said now against what was said then."""
    found = [line for name in names for line in find_differences(record[name], now[name], name)]
    assert found == []


# --- what is there ----------------------------------------------------------------------------


def test_runs_holds_dead_letters_stops_and_budgets_are_as_they_were(
    record: dict[str, Any], answers: dict[str, Any]
) -> None:
    compare(record["answers"], answers, "status", "runs", "holds", "dead", "agents", "budgets")
    states = {state for agent in answers["status"]["agents"].values() for state in agent["held"]}
    assert states == {"open", "approved", "used", "denied"}
    assert [item["why"] for item in answers["dead"]["items"]] == ["KeyError: 'boat'"]
    assert answers["status"]["stops"] == OPEN_STOPS
    assert max(limit["raised"] for limit in answers["budgets"]["limits"]) == 100


def test_every_story_is_told_as_it_was(record: dict[str, Any], answers: dict[str, Any]) -> None:
    """Events, judgements, decisions with rule and revision, effects, answers; what was erased."""
    stories = [name for name in record["answers"] if name.startswith("explain ")]
    assert len(stories) == 10
    compare(record["answers"], answers, *stories)
    assert answers["explain erased"]["event"]["erased"] is True
    assert answers["explain open"]["event"]["data"]["from"] == "harbourmaster@port.example"


def test_memories_and_candidates_keep_ids_and_states(
    record: dict[str, Any], answers: dict[str, Any]
) -> None:
    compare(record["answers"], answers, "memories")
    ids, items = record["history"]["ids"], answers["memories"]
    states = {item["id"]: item["state"] for item in items}
    learned = {name: states[ids[name]] for name in ("promoted", "candidate", "off", "rejected")}
    assert learned == {
        "promoted": "active", "candidate": "candidate", "off": "off", "rejected": "rejected",
    }  # fmt: skip


def test_policies_keep_their_revisions_digests_and_signatures(
    record: dict[str, Any], answers: dict[str, Any], fleet: Fleet
) -> None:
    compare(record["answers"], answers, "history", "policy", "changes")
    assert [one["revision"] for one in answers["history"]["revisions"]] == [3, 2, 1]
    assert answers["policy"]["shelf"] == {
        "ok": True, "revision": 3, "says": "revision 3, verified; it is the live one",
    }  # fmt: skip
    assert "decide.rego" in answers["policy"]["refusals"][0]["findings"][0]
    # The control: an archive that somebody changed is not verified.
    flip(fleet.state / "bundles" / "harbour.tar.gz", b"package vedette")
    assert fleet.ask("policy", "status")["shelf"]["ok"] is False


def test_the_ledger_verifies_with_its_archive_and_after_the_keys_changed(
    record: dict[str, Any], answers: dict[str, Any]
) -> None:
    compare(record["answers"], answers, "ledger", "segment", "rows", "timelines")
    assert (answers["ledger"]["ok"], answers["ledger"]["keys"]) == (True, 2)
    assert answers["ledger"]["witnessed"] == answers["ledger"]["size"] == record["history"]["head"]
    assert answers["segment"]["ok"] is True
    assert answers["rows"] == {"ok": True, "rows": []}


def test_exports_and_proofs_verify_offline(record: dict[str, Any], answers: dict[str, Any]) -> None:
    compare(record["answers"], answers, "export", "proof one", "proof grown")
    assert all(answers[name]["ok"] for name in ("export", "proof one", "proof grown"))
    assert answers["export"]["bodies"] > 100


def test_an_export_of_today_has_the_bytes_of_then(
    fleet: Fleet, parts: Path, tmp_path: Path
) -> None:
    fleet.ask("ledger", "export", str(tmp_path / "export"), "--bodies")
    for name in ("entries.jsonl", "bodies.jsonl"):
        then = (parts / "export" / name).read_bytes()
        assert (tmp_path / "export" / name).read_bytes().startswith(then), name


def test_decisions_and_judgements_come_out_as_they_did(
    record: dict[str, Any], answers: dict[str, Any]
) -> None:
    compare(record["answers"], answers, "replay", "judges", "deep")
    assert answers["replay"]["agreed"] == answers["replay"]["decisions"] - 1  # one was erased
    assert answers["judges"]["equal"] > 5
    assert answers["judges"]["differences"] == []


def test_identities_are_as_they_were(record: dict[str, Any], answers: dict[str, Any]) -> None:
    compare(record["answers"], answers, "identities")
    validity = {key["agent"]: key["revoked_us"] is None for key in answers["identities"]["keys"]}
    assert validity == {"inbox_triage": True, "memory_curator": False}


# --- how it goes on ---------------------------------------------------------------------------


def test_every_order_comes_to_what_it_came_to_then(
    record: dict[str, Any], outcomes: dict[str, Any]
) -> None:
    compare(record["outcomes"], outcomes, *record["outcomes"])


def test_what_was_approved_is_carried_out_once_and_stops_stand(outcomes: dict[str, Any]) -> None:
    """The same as above, said in words of its own."""
    (used,) = outcomes["approved before"]["actions"]
    assert (used["hold"], used["effect"]["state"]) == ("used", "done")
    stopped, stops = outcomes["stopped series"]
    assert (stopped["state"], stopped["judged"], stops) == ("ready", [], OPEN_STOPS)
    held, sent = outcomes["behind the stop"]
    assert (held["actions"][1]["rule"], held["actions"][1]["effect"]["id"]) == ("stopped", None)
    assert sent is None
    done, sent = outcomes["after the stop"]
    assert done["actions"][1]["hold"] == "used"
    assert sent == [f"{done['actions'][1]['effect']['key']}.vedette"]
    redriven, dead = outcomes["redriven"]
    assert (redriven["state"], dead) == ("done", [])
    assert (outcomes["series"]["state"], len(outcomes["series"]["judged"])) == ("done", 1)
    assert outcomes["ledger"] == {"ok": True, "findings": [], "keys": 3, "archived": 0}
    assert outcomes["rows"] == {"ok": True, "rows": []}


def test_a_backup_is_restored_and_goes_on_without_repeating_anything(
    record: dict[str, Any], program: Fleet, parts: Path, tmp_path: Path
) -> None:
    restoration = make_state.restore_backup(program.in_folder(tmp_path / "fleet"), parts)
    compare(record["restoration"], restoration, *record["restoration"])
    assert restoration["ledger"]["ok"]
    assert restoration["judges"]["equal"] > 100
    assert restoration["status"]["stops"] == [{"scope": "all", "name": ""}]
    # What had been filed, drafted and flagged is absorbed where it happened.
    before, after = record["history"]["mails"], restoration["after"]["mails"]
    assert {name.partition(":")[0] for names in before.values() for name in names} <= {
        name.partition(":")[0] for names in after.values() for name in names
    }


# --- a worker with an identity of then ----------------------------------------------------------


def test_an_identity_that_was_issued_is_taken_and_a_revoked_one_is_not(
    fleet: Fleet, parts: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    toml = fleet.folder / "vedette.toml"
    agents = "inbox_triage", "memory_curator"
    table = f'\n[gateway]\nlisten = "127.0.0.1:{port}"\nagents = {json.dumps(agents)}\n'
    toml.write_text(toml.read_text(encoding="utf-8") + table, encoding="utf-8")
    ids = [run["id"] for run in fleet.ask("runs", "--limit", "200")["items"]]
    with run_process(fleet, "run", "--gateway"):
        url = ("--gateway", f"http://127.0.0.1:{port}")
        workers = [
            (*url, "--agent", agent, "--identity", str(parts / "elsewhere" / f"{agent}.json"))
            for agent in agents
        ]
        with (
            run_process(fleet, "worker", *workers[0]),
            run_process(fleet, "worker", *workers[1]) as refused,
        ):
            fleet.deliver_mails(parts / "mails", make_state.LATER[0])
            end = time.monotonic() + 60
            while not (new := find_new_runs(fleet, ids)):
                assert time.monotonic() < end
                time.sleep(0.2)
            assert refused.stderr is not None
            text = refused.stderr.readline()
            while "refused" not in text:
                assert time.monotonic() < end
                text = refused.stderr.readline()
    assert [run["agent"] for run in new] == ["inbox_triage"]
    assert "401" in text
    assert "revoked" in text


def find_new_runs(fleet: Fleet, before: list[str]) -> list[dict[str, Any]]:
    items = fleet.ask("runs", "--state", "done", "--limit", "200")["items"]
    mailed = fleet.ask("runs", "--agent", "inbox_triage", "--limit", "1")["items"]
    fresh = [run for run in items if run["id"] not in before]
    return fresh if mailed[0]["id"] in {run["id"] for run in fresh} else []


@contextmanager
def run_process(fleet: Fleet, *verb: str) -> Iterator[subprocess.Popen[str]]:
    """Run a verb that goes on until it is told to end."""
    process = subprocess.Popen(
        [*fleet.program, *verb, "--json"], cwd=fleet.folder, env=fleet.environment, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


# --- controls ---------------------------------------------------------------------------------


def flip(file: Path, near: bytes, *, last: bool = False) -> None:
    """Change one bit of the last byte of what stands in a file."""
    raw = bytearray(file.read_bytes())
    at = (raw.rfind(near) if last else raw.find(near)) + len(near) - 1
    assert at >= len(near) - 1, near
    raw[at] ^= 1
    file.write_bytes(raw)


# Stands for the first half of a segment's packed entries, which are another at each upgrade.
PACKED_ENTRIES = b"a segment"


def packed_entries(store: Path) -> bytes:
    """Return the first half of the shortest packed entries, which lie on one page of the file."""
    import apsw

    connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    sql = "SELECT entries FROM segment ORDER BY length(entries) LIMIT 1"
    ((packed,),) = connection.execute(sql).fetchall()
    connection.close()
    assert isinstance(packed, bytes)
    return packed[: len(packed) // 2]


@pytest.mark.parametrize(
    ("file", "near", "question"),
    [
        ("store.db", PACKED_ENTRIES, ("verify",)),
        ("store.db", b"Dogs on board", ("verify",)),
        ("witness.log", b"vedette/harbour", ("verify",)),
        ("archive", b'"kind":"run.closed"', ("verify", "--archive", ".vedette/archive")),
    ],
)
def test_one_changed_bit_is_found(
    fleet: Fleet, file: str, near: bytes, question: tuple[str, ...]
) -> None:
    place = fleet.state / file
    if place.is_dir():
        (place,) = place.rglob("entries.jsonl")
    if near == PACKED_ENTRIES:
        near = packed_entries(place)
    flip(place, near, last=True)
    done = fleet.call(*question, "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout)["findings"]


def test_a_run_that_is_not_what_the_ledger_says_is_found(fleet: Fleet) -> None:
    """A row that was edited, with the column's own meaning, so the store opens."""
    import apsw

    connection = apsw.Connection(str(fleet.state / "store.db"))
    connection.execute("UPDATE action SET effect='failed' WHERE effect='done'")
    connection.close()
    done = fleet.call("store", "check", "--json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (1, False)


def test_a_difference_is_told(record: dict[str, Any]) -> None:
    then = record["outcomes"]
    assert find_differences(then, {**then, "more": 1}) == []
    other = json.loads(json.dumps(then))
    other["later"][0]["actions"][0]["digest"] = "0" * 64
    other["approved before"]["actions"].append(other["approved before"]["actions"][0])
    del other["rollback"]
    found = find_differences(then, other)
    assert [line.partition(":")[0] for line in found] == [
        "/approved before/actions", "/later/0/actions/0/digest", "/rollback",
    ]  # fmt: skip
