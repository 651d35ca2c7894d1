"""What hostile visitors once succeeded with, tried again from outside on one running fleet.

Each test is an attack that went through at commit c037529 (see docs/design/hostile-visitors.md),
with others of its kind. Nothing of ours is called but the command line: this file runs unchanged
on any version. The tests share the fleet and come in this order, the last of them end it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.acceptance.visited import STRANGER, WORDS, Visited
from tests.opa import find_opa
from tests.said import said, vedette

pytestmark = pytest.mark.timeout(180)

# What a judge or proposal says of how sure it is: below the bar of 0.8, or no probability.
UNSURE: dict[str, dict[str, str]] = {
    "unsure": {"sure": "0.4"},
    "nearly sure": {"sure": "0.7999"},
    "a boast": {"sure": "0.4", "own": "1.0"},
    "a doubt": {"sure": "0.95", "own": "0.4"},
    "seven": {"sure": "7"},
    "more than sure": {"sure": "1.01"},
    "less than nothing": {"sure": "-1"},
    "no number": {"sure": "float('nan')"},
    "no end": {"sure": "float('inf')"},
    "a truth": {"sure": "True"},
    "a word": {"sure": "'0.9'"},
    "nothing": {"sure": "None"},
}  # fmt: skip
LINKS = ("see https://evil.example/x?told=1", "ask pay@evil.example", "[here](//evil.example/x)")
KINDS = ("csv", "jsonl", "maildir", "imap", "host", "pubsub", "bigquery", "sql", "prometheus",
         "alertmanager")  # fmt: skip
TO_APPROVE = ("approved by a judge", "approved unseen", "approved by an edit", "to be erased")
ATTACKS = ("give_an_order", "read_the_key", "read_the_store", "read_a_token", "read_the_memory",
           "signal_the_engine", "call_out", "write_a_rule", "change_another_agent")  # fmt: skip


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visited]:
    """The fleet after a first round of visitors; its answers to them are what the tests read."""
    visited = Visited(tmp_path_factory.mktemp("visited") / "fleet")
    visited.start()
    try:
        # Between its start and its first event somebody edits the code of an agent.
        edited = visited.root / "agents" / "late" / "words.py"
        edited.write_text('SAYS = "as somebody edited it"\n')
        visited.job("late", "late", text=None)
        visited.job("the control")
        for name in TO_APPROVE:
            visited.job(name, tool="book.send", more="Lobster pots for the admiral")
        visited.job("an added ask")
        visited.job("an added stop")
        visited.job("pay as the memory says", to="memory")
        for link in LINKS:
            visited.job(link)
        visited.job("counsel's secret", readers="counsel@quaylaw.example")
        visited.job("the desk's own", readers="desk@example.org")
        for name, words in UNSURE.items():
            visited.job(name, **words)
        visited.settle(9 + len(LINKS) + len(TO_APPROVE) + len(UNSURE))
        yield visited
    finally:
        visited.stop()


def test_control_an_honest_action_is_done(fleet: Visited) -> None:
    assert fleet.written()["the control"] == "desk@example.org"


# --- the release that ran -------------------------------------------------------------------------


def test_the_code_that_ran_is_the_code_that_was_started(fleet: Visited) -> None:
    assert "as somebody edited it" not in fleet.written()
    assert "as it was released" in fleet.written()
    assert "changed on disk: late" in said(fleet.root, "status").out


# --- confidence -----------------------------------------------------------------------------------


def test_whoever_is_unsure_or_gives_no_probability_does_nothing(fleet: Visited) -> None:
    assert fleet.written().keys() & UNSURE.keys() == set()


# --- policy that people fool themselves with ------------------------------------------------------


def test_a_rule_added_to_asks_or_stops_has_its_effect(fleet: Visited) -> None:
    assert fleet.written().keys() & {"an added ask", "an added stop"} == set()


# --- what strangers chose -------------------------------------------------------------------------


def test_no_value_that_a_stranger_chose_is_where_something_goes(fleet: Visited) -> None:
    """A row's author, a mail's date, the text of a reviewed memory that quotes somebody."""
    chosen = {"a row's author", "a mail's date", "pay as the memory says"}
    assert fleet.written().keys() & chosen == set()


def test_nobody_sends_under_the_name_of_one_of_our_sources(fleet: Visited) -> None:
    said = {
        kind: fleet.post(f"{kind}:desk", "mail.received", kind, {"posted": kind}, subject=STRANGER)
        for kind in KINDS
    }
    fleet.settle(1)
    assert fleet.written().keys() & set(KINDS) == set()
    assert said == dict.fromkeys(KINDS, 403)


def test_no_link_of_a_stranger_goes_out_where_policy_lists_the_text(fleet: Visited) -> None:
    assert fleet.written().keys() & set(LINKS) == set()


def test_what_is_labelled_goes_to_its_readers_only(fleet: Visited) -> None:
    assert fleet.written()["the desk's own"] == "desk@example.org"
    assert "counsel's secret" not in fleet.written()


# --- agents' code ---------------------------------------------------------------------------------


def waiting(fleet: Visited, name: str) -> dict[str, Any]:
    """Return the one hold that an event waits at."""
    items = fleet.read_json("hold", "--limit", "200")["items"]
    (found,) = [item for item in items if name in json.dumps(item)]
    return dict(found)


def label_of(fleet: Visited, run: dict[str, Any]) -> str:
    (story,) = fleet.read_json("explain", run["id"])["runs"]
    return str(story["judgements"][0]["label"])


def need_a_box() -> None:
    """Skip the test where the kernel has no whole box for agents' code; fail it in CI."""
    abi = -1
    if sys.platform == "linux":
        abi = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if abi < 4:
        missing = f"Landlock of Linux 6.7 or newer is needed, and its version here is {abi}"
        if os.environ.get("CI"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)


def test_a_judge_in_observe_gets_at_nothing_of_the_fleet(fleet: Visited) -> None:
    need_a_box()
    held = waiting(fleet, "approved by a judge")
    assert fleet.child is not None
    order = {"hold": held["hold"], "digest": held.get("shown_digest", held["digest"])}
    given: dict[str, Any] = {
        "socket": str(fleet.state / "api.sock"),
        "order": json.dumps({"reason": "mine", "args": order}),
        "state": str(fleet.state), "policies": str(fleet.policies), "pid": fleet.child.pid,
        "agents": str(fleet.root / "agents"), "port": fleet.port,
    }  # fmt: skip
    before = len(fleet.settle(1))
    for attack in ATTACKS:
        fleet.job(attack, "spy", attack=attack, **given)
    runs = fleet.settle(before + len(ATTACKS))
    labels = {run["key"]: label_of(fleet, run) for run in runs if run["agent"] == "spy"}
    assert set(labels) == set(ATTACKS)
    assert [name for name, label in labels.items() if not label.startswith("refused")] == []
    assert waiting(fleet, "approved by a judge")["state"] == "open"
    assert "approved by a judge" not in fleet.written()
    assert not (fleet.policies / "planted.md").exists()
    assert not (fleet.root / "agents" / "clerk" / "planted.py").exists()


# --- people who look ------------------------------------------------------------------------------


def test_a_hold_shows_what_it_is_about(fleet: Visited) -> None:
    for words in (["hold"], ["hold", "--group"]):
        assert "Lobster pots for the admiral" in said(fleet.root, *words).out


def test_an_approval_names_what_was_shown(fleet: Visited) -> None:
    hold = waiting(fleet, "approved unseen")["hold"]
    for more in ([], ["--yes"]):
        assert said(fleet.root, "approve", hold, "--reason", "in haste", *more).code != 0, more
    assert waiting(fleet, "approved unseen")["state"] == "open"
    assert "approved unseen" not in fleet.written()


def test_erasing_shows_and_asks(fleet: Visited) -> None:
    event = next(r for r in fleet.settle(1) if r["agent"] == "late")["event"]
    prompt = said(fleet.root, "erase", f"event:{event}", "--reason", "by mistake", "--json")
    assert prompt.code != 0
    assert fleet.read_json("verify")["erased"] == 0


def test_whoever_sent_what_waits_does_not_keep_it_from_being_erased(fleet: Visited) -> None:
    event = next(r for r in fleet.settle(1) if r["key"] == "to be erased")["event"]
    why = ("--reason", "asked for it")
    erased = said(fleet.root, "erase", f"event:{event}", *why, "--deny-holds", "--yes")
    assert erased.code == 0, erased.err
    assert fleet.read_json("verify")["erased"] > 0
    assert "to be erased" not in said(fleet.root, "hold", "--limit", "200").out


# --- the machine ----------------------------------------------------------------------------------


def test_other_users_read_nothing_of_the_state(fleet: Visited) -> None:
    found = [fleet.state, *fleet.state.rglob("*")]
    assert len(found) > 8
    open_ = [
        str(p) for p in found if stat.S_IMODE(p.lstat().st_mode) & 0o077 and not p.is_symlink()
    ]
    assert open_ == []


def test_a_page_under_another_name_reads_no_metrics(fleet: Visited) -> None:
    for name, status in (
        ("127.0.0.1", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
    ):
        for path in ("metrics", "healthz"):
            answer = httpx.get(
                f"http://127.0.0.1:{fleet.port}/{path}", headers={"Host": name}, trust_env=False
            )
            assert answer.status_code == status, (name, path)


# --- what loosens ---------------------------------------------------------------------------------


def published(fleet: Visited, *arguments: str) -> None:
    """Publish, as who confirms what it loosens where that is asked for."""
    asks = "--yes" in said(fleet.root, *arguments[:2], "--help").out
    sure = ("--yes",) if asks else ()
    done = said(fleet.root, *arguments, "--reason", "a test", *sure)
    assert done.code == 0, done.err


def live(fleet: Visited) -> int:
    return int(fleet.read_json("policy", "status")["revision"])


def test_a_rollback_that_arms_an_agent_again_asks(fleet: Visited) -> None:
    before = live(fleet)
    observed = said(fleet.root, "agent", "mode", "clerk", "observe", "--reason", "to look at it")
    assert observed.code == 0, observed.err
    back = said(fleet.root, "policy", "rollback", str(before), "--reason", "too careful")
    fleet.job("armed again")
    fleet.settle(1)
    assert "armed again" not in fleet.written()
    assert "observe -> act" in back.err + back.out
    assert back.code != 0


def test_what_was_rolled_back_does_not_come_back_by_the_next_save(fleet: Visited) -> None:
    grants = fleet.policies / "grants" / "data.yaml"
    before = live(fleet)
    text = grants.read_text()
    grants.write_text(text.replace("resource: book, impact: high", "resource: book, impact: low"))
    published(fleet, "policy", "publish")
    published(fleet, "policy", "rollback", str(before))
    now = live(fleet)
    limits = fleet.policies / "limits" / "data.yaml"
    limits.write_text(limits.read_text().replace("hops: 8", "hops: 7"))
    end = time.monotonic() + 3
    while time.monotonic() < end and live(fleet) == now:
        time.sleep(0.25)
    assert live(fleet) == now


# --- the end of the fleet -------------------------------------------------------------------------


def test_it_can_be_stopped_while_slow_headers_take_all_connections(fleet: Visited) -> None:
    held: list[socket.socket] = []
    try:
        for at in range(400):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", fleet.port), 5))
                held[-1].sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: %d" % at)
        stopped = said(fleet.root, "stop", "--all", "--reason", "under attack", "--json")
    finally:
        for one in held:
            one.close()
    assert stopped.code == 0, stopped.err


def test_a_fleet_whose_state_is_moved_away_ends(fleet: Visited) -> None:
    assert fleet.child is not None
    new_path = fleet.state.with_name("moved")
    fleet.state.rename(new_path)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            fleet.child.wait(15)
        ended = fleet.child.poll()
    finally:
        fleet.stop()
        shutil.rmtree(fleet.state, ignore_errors=True)
        new_path.rename(fleet.state)
    assert ended not in (None, 0)


def edit(root: Path, *statements: str) -> None:
    for statement in statements:
        file = "view.db" if "view_row" in statement else "store.db"
        with contextlib.closing(sqlite3.connect(root / ".vedette" / file)) as store, store:
            assert store.execute(statement).rowcount > 0, statement


def test_an_approval_that_nobody_gave_is_found(fleet: Visited, tmp_path: Path) -> None:
    """It is no approval to the line either."""
    root = fleet.copy(tmp_path / "fleet")
    edit(
        root,
        "UPDATE action SET hold='approved', approver='person:the-cfo', until_us=9000000000000000 "
        "WHERE hold='open' AND tool='book.send'",
        "UPDATE run SET wake_us=1 WHERE state='waiting'",
    )
    verified = said(root, "verify")
    assert verified.code == 1, verified.out
    assert "the-cfo" in verified.out or "approv" in verified.out
    settings = root / "vedette.toml"
    settings.write_text(re.sub(r'(?m)^(http = ".*):\d+"$', r'\1:0"', settings.read_text()))
    vedette(root, "resume", "--all", "--reason", "a test")
    assert vedette(root, "run", "--until-idle", "--plain", **WORDS).code == 0
    with contextlib.closing(sqlite3.connect(root / ".vedette" / "store.db")) as store:
        sends = store.execute("SELECT hold, effect FROM action WHERE tool='book.send'").fetchall()
    assert set(sends) <= {("open", None), ("denied", None)}  # asked again, or not permitted by now


# What a hand on the store or beside it does, and no key.
EDITS: dict[str, str] = {
    "a policy's row": "UPDATE policy SET digest=replace(digest, 'a', 'b')",
    "a policy's time": "UPDATE policy SET at=at+1",
    "a bundle": "UPDATE bundle SET files="
    "CAST(replace(CAST(files AS TEXT), 'hops: 8', 'hops: 9') AS BLOB)",
    "what lists show": "UPDATE view_row SET "
    "data=CAST(replace(CAST(data AS TEXT), 'clerk', 'spy') AS BLOB)",
    "who holds what": "UPDATE action SET tool='book.write' WHERE hold='open'",
    "what was decided": "UPDATE action SET rule='permit.approved' WHERE decided='permit'",
    "a digest": "UPDATE action SET digest=replace(digest, '1', '2')",
    "an outcome": "UPDATE action SET effect='done' WHERE effect IS NULL",
    "how a run ended": "UPDATE run SET state='done' WHERE state='waiting'",
    "checkpoints": "DELETE FROM checkpoint",
    "a stop": "INSERT INTO stop VALUES('agent', 'clerk', 7)",
}


def test_what_somebody_edited_is_found(fleet: Visited, tmp_path: Path) -> None:
    edited = fleet.copy(tmp_path / "fleet")
    store = edited / ".vedette" / "store.db"
    assert said(edited, "verify", "views").code == 0  # so that there is a read model to be edited
    whole = said(edited, "verify")
    assert whole.code == 0, whole.out
    files = {path: path.read_bytes() for path in store.parent.iterdir() if path.is_file()}
    missed = []
    for name, statement in EDITS.items():
        edit(edited, statement)
        if said(edited, "verify").code == 0:
            missed.append(name)
        for path in [*store.parent.glob("store.db*"), *store.parent.glob("view.db*")]:
            path.unlink()
        for path, content in files.items():
            path.write_bytes(content)
    witness = store.parent / "witness.log"
    lines = files[witness]
    for name, left in (("a witness", b""), ("half a witness", cut(lines))):
        witness.write_bytes(left)
        if said(edited, "verify").code == 0:
            missed.append(name)
    assert missed == []


def cut(witness: bytes) -> bytes:
    """Return its notes but for the last ones."""
    notes = witness.split(b"\n\n\xe2\x80\x94")
    assert len(notes) > 2
    return b"\n\n\xe2\x80\x94".join(notes[: len(notes) // 2]) + b"\n"


# --- before it runs -------------------------------------------------------------------------------


def test_a_link_in_the_state_is_not_written_through(tmp_path: Path) -> None:
    visited = Visited(tmp_path / "fleet")
    visited.state.mkdir()
    for name in ("witness.log", "runner.lock"):
        (tmp_path / name).write_bytes(b"not the fleet's")
        (visited.state / name).symlink_to(tmp_path / name)
    vedette(visited.root, "run", "--until-idle", "--plain", **WORDS)
    for name in ("witness.log", "runner.lock"):
        assert (tmp_path / name).read_bytes() == b"not the fleet's"


def test_check_names_what_lets_text_decide_a_sink(tmp_path: Path) -> None:
    """A sink that takes what was read, and a source whose rows are trusted in every column."""
    visited = Visited(tmp_path / "fleet")
    sinks = visited.policies / "sinks" / "data.yaml"
    grant = "tools:\n  book.write:\n    /to: {accepts: [trusted, derived], otherwise: deny}\n"
    sinks.write_text(sinks.read_text().replace("tools:\n", grant, 1))
    toml = visited.root / "vedette.toml"
    toml.write_text(toml.read_text().replace('kind = "sql"', 'kind = "sql"\nvouches = "envelope"'))
    problems = json.loads(said(visited.root, "check", "--json").out)["problems"]
    places = {problem["field"] for problem in problems if problem["code"] == "sink-reached"}
    assert places == {"tools.book.write./to.accepts", "sources.board.vouches"}


# By the text of the action that each denies, as OPA has it: of each kind that the embedded engine
# decided otherwise when its rules were compiled.
FORMS: dict[str, str] = {
    "an else beside a loop": """
listed if { some one in data.registry.contacts; one == TO } else := false
deny contains "house" if { TEXT == NAME; listed == false }
""",
    "such an else in a function": """
place(to) := "in" if { some one in data.registry.contacts; one == to }
else := "out" if is_string(to)
deny contains "house" if { TEXT == NAME; place(TO) == "out" }
""",
    "two values at a time": """
level := 1 if { TEXT == NAME; is_string(TO) }
level := 2 if { TEXT == NAME; TO != "nobody" }
deny contains "house" if level == 2
""",
    "a sum of a text": """
deny contains "house" if {
	TEXT == NAME
	count([n | some one in [1, TO]; n := one + 1; n != 7]) == 1
}
""",
    "a difference of a text": """
deny contains "house" if {
	TEXT == NAME
	count([n | some one in [1, TO]; n := one - 1; n != 7]) < 2
}
""",
    "a set without a text": """
deny contains "house" if {
	TEXT == NAME
	count([n | some one in [{1}, TO]; n := one - {2}; n != 7]) == 1
}
""",
    "\U0001f6a2": """
deny contains "house" if { TEXT == NAME; count(TEXT) == 1 }
""",
    "a list by a made text": """
at := concat("", ["0"])
deny contains "house" if { TEXT == NAME; data.grants.clerk.memory[at] == "house/notes" }
""",
}


def test_what_opa_denies_is_not_done(tmp_path: Path) -> None:
    visited = Visited(tmp_path / "fleet")
    denies = visited.policies / "vedette" / "denies"
    for number, (name, rules) in enumerate(FORMS.items()):
        words = {
            "NAME": f'"{name}"',
            "TEXT": "input.action.args.text",
            "TO": "input.action.args.to",
        }
        for word, said_as in words.items():
            rules = rules.replace(word, said_as)
        (denies / f"house{number}.rego").write_text(f"package vedette.denies\n{rules}")
    question = {"action": {"tool": "book.write", "args": {"to": "desk@example.org"}}}
    for name in FORMS:
        question["action"]["args"]["text"] = name  # type: ignore[index]
        (tmp_path / "input.json").write_text(json.dumps(question))
        answer = subprocess.run(
            [find_opa(), "eval", "--data", str(visited.policies), "--input",
             str(tmp_path / "input.json"), "data.vedette.denies.deny"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        said_by_opa = json.loads(answer.stdout)
        value = said_by_opa.get("result", [{}])[0].get("expressions", [{}])[0].get("value")
        assert value or "errors" in said_by_opa, (name, answer.stdout)
    try:
        if visited.start(may_end=True):
            for name in FORMS:
                visited.job(name)
            visited.settle(len(FORMS))
    finally:
        visited.stop()
    assert visited.written().keys() & FORMS.keys() == set()
    refused = said(visited.root, "check", "policy").out
    assert [n for n in range(len(FORMS)) if f"house{n}.rego" not in refused] == []
