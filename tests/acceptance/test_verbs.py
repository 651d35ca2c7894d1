"""The real `vedette`: from `init` to an approved action and a proof.

One fleet is written and run once; the tests that read it do not change it. Those that do make a
copy, or a fleet of their own. Whatever opens a store to write is a process of its own; what only
looks runs in this one, which spares most of its time.
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.opa import find_opa
from tests.said import START, environment, vedette
from tests.said import said as look

from vedette.app.reset import wipe_state
from vedette.config.settings import Settings
from vedette.domain.base.errors import BadCommand, StoreBusy
from vedette.interfaces.http.unix_socket import socket_of

# The first test waits for a whole run of the samples.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Two of the sample series: one with an incident, one without.
SOURCES = """
[[sources]]
kind = "csv"
name = "series"
path = "samples/metrics/b*.csv"
rate = 0

[[sources]]
kind = "maildir"
name = "sample"
path = "@state/mailbox"
copy_from = "samples/mailbox"
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet as `init` writes it, but for the sources: nothing of this host, no waiting."""
    folder = tmp_path_factory.mktemp("fleet") / "harbour"
    done = vedette(folder.parent, "init", str(folder))
    assert done.code == 0, done.err
    toml = (folder / "vedette.toml").read_text(encoding="utf-8")
    head = toml.partition("[[sources]]")[0].replace("127.0.0.1:8088", "127.0.0.1:0")
    (folder / "vedette.toml").write_text(head + SOURCES, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def fleet(written: Path) -> Path:
    """The fleet after one run of its samples."""
    done = vedette(written, "run", "--until-idle", "--plain")
    assert done.code == 0, done.out + done.err
    (written / "said.txt").write_text(done.out, encoding="utf-8")
    return written


@pytest.fixture
def own(fleet: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(fleet, tmp_path / "own", symlinks=True))


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The fleet at work in a process of its own; ended by its own id."""
    process = subprocess.Popen(
        [*START, "run", "--plain"], cwd=folder, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not socket_of(folder / ".vedette").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def holds(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = look(folder, "hold", "--json").json["items"]
    return found


# --- init, check -----------------------------------------------------------------------------


def test_init_writes_what_check_accepts_and_git_ignores_the_state(written: Path) -> None:
    assert (written / ".gitignore").read_text().splitlines()[-1] == ".vedette/"
    done = look(written, "check", "--json")
    assert (done.code, done.json["ok"]) == (0, True), done.out
    assert not list(written.rglob("__pycache__"))


def test_init_does_not_write_over_anything(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = vedette(tmp_path, "init", ".", "--json")
    assert (done.code, done.error["code"]) == (2, "bad-command")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_check_names_file_line_field_and_mend(written: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "f", ignore=shutil.ignore_patterns(".v*")))
    agent = folder / "agents/inbox_triage/agent.yaml"
    agent.write_text(agent.read_text().replace("settles: idempotent", "settles: maybe", 1))
    rego = folder / "policies/vedette/gateway/decide.rego"
    rego.write_text(rego.read_text() + "\nbroken := \n")
    done = look(folder, "check")
    assert done.code == 1
    line = next(line for line in done.out.splitlines() if "settles" in line)
    number = agent.read_text().splitlines().index("    settles: maybe") + 1
    assert line.startswith(f"agents/inbox_triage/agent.yaml:{number}: tools[0].settles:")
    assert "idempotent" in line
    assert any("policies/vedette/gateway/decide.rego:" in line for line in done.out.splitlines())


def test_check_reads_the_cases_of_every_agent(written: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "f", ignore=shutil.ignore_patterns(".v*")))
    for agent, tool in (("anomaly_detection", "incident.opne"), ("inbox_triage", "mail.flie")):
        case = f"- name: x\n  event: {{type: a, source: b, id: c}}\n  expect: {{held: [{tool}]}}\n"
        (folder / "agents" / agent / "evals" / "wrong.yaml").write_text(case)
    done = look(folder, "check", "--json")
    found = [(p["file"], p["line"]) for p in done.json["problems"] if not p["warning"]]
    agents = ("anomaly_detection", "inbox_triage")
    assert (done.code, found) == (1, [(f"agents/{name}/evals/wrong.yaml", 3) for name in agents])
    line = next(line for line in look(folder, "check").out.splitlines() if "inbox_triage" in line)
    assert line.startswith("agents/inbox_triage/evals/wrong.yaml:3: ")
    assert "mail.flie" in line


def test_check_imports_the_code_of_every_agent_and_makes_its_judge(
    written: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "f", ignore=shutil.ignore_patterns(".v*")))
    judge = folder / "agents/anomaly_detection/judge.py"
    tools = folder / "agents/inbox_triage/tools.py"
    whole = judge.read_text(), tools.read_text()

    def found(judge_end: str = "", tools_end: str = "") -> list[tuple[str, int, str, str]]:
        judge.write_text(whole[0] + judge_end)
        tools.write_text(whole[1] + tools_end)
        done = look(folder, "check", "--json")
        messages = [p for p in done.json["problems"] if not p["warning"]]
        assert done.code == (1 if messages else 0)
        return [(p["file"], p["line"], p["field"], p["what"]) for p in messages]

    lines = len(whole[0].splitlines())
    shown = "agents/anomaly_detection/judge.py"
    assert found(judge_end="\nprint('hello')\n") == []  # the control; and the JSON stays JSON
    (one,) = found(judge_end="\nimport no_such_module\n")
    assert (one[:3], "no_such_module" in one[3]) == ((shown, lines + 2, ""), True)
    (one,) = found(judge_end="\nclass Judge(Judge):\n    def __init__(self, *a):\n        1 / 0\n")
    assert (one[:3], "ZeroDivisionError" in one[3]) == ((shown, lines + 4, ""), True)
    (one,) = found(judge_end="\nJudge = 3\n")
    assert one[:1] + one[3:] == (shown, "Judge is not a judge")
    (one,) = found(judge_end="\nraise SystemExit(0)\n")
    assert (one[0], "ends the process" in one[3]) == (shown, True)
    (one,) = found(tools_end="\nimport no_such_module\n")
    assert one[:2] == ("agents/inbox_triage/tools.py", len(whole[1].splitlines()) + 2)
    name = "function: "
    agent = (folder / "agents/inbox_triage/agent.yaml").read_text().splitlines()
    at, declared = next((n, text) for n, text in enumerate(agent, 1) if name in text)
    (one, *_) = found(tools_end=f"\n{declared.split(name)[1].split()[0].rstrip(',}')} = None\n")
    assert one[:2] == ("agents/inbox_triage/agent.yaml", at)
    assert one[2].startswith("tools[")
    assert "is no function once tools.py is imported" in one[3]


def test_check_says_where_settings_come_from(written: Path) -> None:
    done = vedette(written, "check", "-v", VEDETTE_LIMITS__MAX_HOPS="3")
    rows = {line.split()[0]: line.split()[-2:] for line in done.out.splitlines() if line.strip()}
    assert rows["limits.max_hops"] == ["environment", "VEDETTE_LIMITS__MAX_HOPS"]
    assert rows["fleet"][-1].startswith("vedette.toml:")
    assert done.code == 0


def test_without_a_fleet_nothing_is_guessed(tmp_path: Path) -> None:
    for verb in (["check"], ["run"], ["status"], ["runs"], ["policy", "status"]):
        done = look(tmp_path, *verb)
        assert (done.code, done.out) == (2, ""), verb
        assert "vedette init" in done.err
    assert list(tmp_path.iterdir()) == []


def test_reads_before_the_first_run_are_unavailable(written: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "f", ignore=shutil.ignore_patterns(".v*")))
    for verb in (["status"], ["runs"], ["hold"], ["explain", "run_1234"], ["verify", "decisions"]):
        done = look(folder, *verb, "--json")
        assert (done.code, done.error["code"]) == (3, "bad-store"), verb


def test_a_damaged_store_is_told_plainly(own: Path) -> None:
    state = own / ".vedette"
    for name in ("store.db-wal", "store.db-shm"):
        (state / name).unlink(missing_ok=True)
    with (state / "store.db").open("r+b") as file:
        file.write(b"no database at all")
    done = look(own, "status", "--json")
    assert (done.code, done.error["code"]) == (3, "bad-store")


def test_it_works_from_a_folder_below_and_with_config(fleet: Path, tmp_path: Path) -> None:
    below = look(fleet / "agents" / "inbox_triage", "status", "--json")
    status = look(tmp_path, "--config", str(fleet), "status", "--json")
    assert below.code == status.code == 0
    assert below.json["head"] == status.json["head"] > 0


# --- a run and its reads ---------------------------------------------------------------------


def test_a_run_ends_with_commands_that_work(fleet: Path) -> None:
    said = (fleet / "said.txt").read_text().splitlines()
    tries = said[said.index("try next:") + 1 :]
    assert len(tries) == 3
    assert any(" explain " in line for line in tries)
    for line in tries:
        if " explain " in line:
            assert look(fleet, *line.split()[1:]).code == 0, line


def test_what_is_told_to_try_can_be_pasted(own: Path) -> None:
    """Called by a path, as out of a virtual environment, a verb names that path."""
    script = own / "bin" / "vedette"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom vedette.interfaces.cli import main\n\nmain()\n")
    script.chmod(0o755)

    def said(*command: str) -> list[str]:
        done = subprocess.run(
            command, cwd=own, env=environment(), capture_output=True, text=True, timeout=200,
            check=True,
        )  # fmt: skip
        return done.stdout.splitlines()

    lines = said("bin/vedette", "run", "--until-idle", "--plain")
    tries = lines[lines.index("try next:") + 1 :]
    assert len(tries) == 3
    assert all(line.startswith("  bin/vedette ") for line in tries)
    older = said("bin/vedette", "runs", "--limit", "1")[-1].removeprefix("older: ")
    assert older.startswith("bin/vedette runs --page ")
    assert said(*shlex.split(older))[1:]


def test_a_run_brings_permits_holds_and_denials(fleet: Path) -> None:
    found = look(fleet, "status", "--json").json
    assert found["running"] is False
    for word in ("permits", "holds", "denials"):
        assert sum(agent[word] for agent in found["agents"].values()) > 0, word
    assert sum(agent["dead"] for agent in found["agents"].values()) == 0


def test_runs_come_in_pages(fleet: Path) -> None:
    seen: list[str] = []
    cursor: list[str] = []
    for _ in range(3):
        page = look(fleet, "runs", "--agent", "inbox_triage", "--limit", "7", "--json", *cursor)
        seen += [item["id"] for item in page.json["items"]]
        cursor = ["--before", page.json["older"]]
    assert len(seen) == len(set(seen)) == 21
    assert look(fleet, "runs", "--state", "asleep").code == 2


def test_explain_takes_any_id_and_its_beginning(fleet: Path) -> None:
    held = holds(fleet)[0]
    whole = look(fleet, "explain", held["hold"], "--json")
    short = look(fleet, "explain", held["hold"][:16], "--json")
    assert whole.json["runs"] == short.json["runs"]
    assert whole.json["runs"][0]["id"] == held["run"]
    text = look(fleet, "explain", held["run"]).out
    for word in ("EVENT", "JUDGEMENT", "DECISION HOLD", held["rule"], "revision 1"):
        assert word in text, word
    assert look(fleet, "explain", "run_ffffffffffff").code == 2


def test_a_reader_that_has_seen_enough_is_no_failure(fleet: Path) -> None:
    """As in `vedette explain RUN | head`, whose reader goes before we have written everything."""
    run_id = look(fleet, "runs", "--json").json["items"][0]["id"]
    for arguments in (
        ["explain", run_id],
        ["--help"],
        ["explain", "--help"],
        ["completion", "agent"],
    ):
        reading, writing = os.pipe()
        os.close(reading)
        try:
            done = subprocess.run(
                [*START, *arguments], cwd=fleet, env=environment(), stdout=writing,
                stderr=subprocess.PIPE, text=True, timeout=60, check=False,
            )  # fmt: skip
        finally:
            os.close(writing)
        assert (done.returncode, done.stderr) == (0, ""), arguments


def test_replay_agrees_on_everything(fleet: Path) -> None:
    done = look(fleet, "verify", "decisions", "--json")
    assert (done.code, done.json["ok"], done.json["differed"]) == (0, True, 0)
    assert done.json["agreed"] == done.json["decisions"] > 50


def test_eval_tries_the_shipped_agents_on_their_cases(written: Path) -> None:
    done = vedette(written, "check", "cases", "--json")
    shipped = {folder.name for folder in (written / "agents").iterdir()}
    assert len(shipped) == 4
    assert {case["agent"] for case in done.json["cases"]} == shipped
    wrong = [case for case in done.json["cases"] if not case["ok"]]
    assert (done.code, wrong) == (0, [])


def test_eval_finds_what_is_not_as_expected(written: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "f", ignore=shutil.ignore_patterns(".v*")))
    denies = folder / "agents/anomaly_detection/evals"
    (denies / "wrong.yaml").write_text(
        "- name: a wish\n"
        "  series: {generate: {n: 10}}\n"
        "  expect: {label: alarm, permitted: [incident.open]}\n"
    )
    done = vedette(folder, "check", "cases", "anomaly_detection", "--json")
    wrong = [case for case in done.json["cases"] if not case["ok"]]
    assert done.code == 1
    assert [case["name"] for case in wrong] == ["a wish"]
    assert wrong[0]["where"] == "agents/anomaly_detection/evals/wrong.yaml:1"
    assert len(wrong[0]["differences"]) == 2
    (denies / "wrong.yaml").write_text("- name: x\n  expect: {held: [incident.opne]}\n")
    done = vedette(folder, "check", "cases", "anomaly_detection")
    assert done.code == 2
    assert "wrong.yaml:1" in done.err


# --- answers, without a running fleet and beside one ------------------------------------------


def test_an_approval_is_recorded_used_once_and_acted_on(own: Path) -> None:
    held = next(item for item in holds(own) if item["tool"] == "mail.file")
    why = ("--reason", "it fits", "--command-id", "c1", "--json")
    nobody = vedette(own, "approve", held["hold"], *why)
    assert (nobody.code, nobody.error["code"]) == (2, "not-shown")
    assert f"hold {held['hold']}" in nobody.error["mend"]
    digest = ("--digest", held["shown_digest"][:8])
    order = ("approve", held["hold"], *digest, *why)
    done = vedette(own, *order)
    assert (done.code, done.json["state"], done.json["by"]) == (0, "approved", "here")
    assert vedette(own, *order).json["already_done"] is True
    repeat = vedette(own, "approve", held["hold"], *digest, "--reason", "once more", "--json")
    assert (repeat.code, repeat.error["code"]) == (2, "bad-command")
    assert vedette(own, "run", "--until-idle", "--json").code == 0
    story = look(own, "explain", held["hold"], "--json").json["runs"][0]
    action = next(item for item in story["actions"] if item["id"] == held["action"])
    raw = json.dumps(story)
    assert "it fits" in raw
    assert f"person:{getpass.getuser()}" in raw
    assert action["effects"][-1]["state"] == "done" if "effects" in action else "done" in raw


def test_a_denial_and_a_wrong_digest(own: Path) -> None:
    held = holds(own)[0]
    # Neither too short a one nor that of the action alone, which shows nothing.
    for digest in ("00", held["digest"]):
        wrong = vedette(own, "deny", held["hold"], "--digest", digest, "--reason", "no", "--json")
        assert (wrong.code, wrong.error["code"]) == (2, "not-shown")
    right = ("--digest", held["shown_digest"], "--reason", "no", "--json")
    assert vedette(own, "deny", held["hold"], *right).json["state"] == "denied"
    assert held["hold"] not in [item["hold"] for item in holds(own)]
    assert vedette(own, "deny", "hold_nothing", "--reason", "no").code == 2


def test_verbs_beside_a_running_fleet(own: Path) -> None:
    find_opa()  # without one there is nobody to ask
    with running(own):
        status = look(own, "status", "--json").json
        assert status["running"] is True
        # The fleet that people start has a second engine, which is another one than decides.
        assert status["engine"]["name"].startswith("opa wasm/")
        assert status["second"].startswith("regorus/")
        second = vedette(own, "run", "--until-idle", "--json")
        assert (second.code, second.error["code"]) == (3, "store-busy")
        fresh = vedette(own, "run", "--fresh", "--json")
        assert (fresh.code, fresh.error["code"]) == (3, "store-busy")
        held = holds(own)[0]
        done = vedette(own, "deny", held["hold"], "--reason", "not now", "--json")
        assert (done.json["state"], done.json["by"]) == ("denied", "fleet")
        stopped = vedette(own, "stop", "inbox_triage", "--reason", "busy", "--json").json
        assert stopped["stopped"] == ["agent:inbox_triage"]
        assert vedette(own, "stop", "nobody", "--reason", "busy", "--json").code == 2
        sent = vedette(
            own, "send", "--type", "metric.point", "--source", "csv:by-hand", "--subject", "dial",
            "--data", '{"value": 3.2}', "--reason", "to see", "--json",
        )  # fmt: skip
        assert sent.json["receipts"][0]["status"] == "accepted"
        run_id = sent.json["receipts"][0]["runs"][0]
        story = vedette(own, "explain", run_id, "--json").json
        assert story["event"]["attributes"]["subject"] == "dial"
        person = f"person:{getpass.getuser()}"
        assert f"sent by {person}: to see" in vedette(own, "explain", run_id).out
        applied = vedette(own, "policy", "publish", "--reason", "again", "--json").json
        assert (applied["ok"], applied["changed"]) == (True, False)
        answer = look(own, "explain", held["hold"]).out
        assert f"person:{getpass.getuser()}" in answer
    assert not socket_of(own / ".vedette").exists()
    # The stop outlived its runner.
    assert look(own, "status", "--json").json["stops"] == [
        {"scope": "agent", "name": "inbox_triage"}
    ]
    assert (
        vedette(own, "resume", "inbox_triage", "--reason", "done", "--json").json["stopped"] == []
    )


def test_every_verb_works_beside_a_killed_runner(own: Path) -> None:
    """kill -9 leaves the socket behind, and a lock that nobody holds."""
    with running(own) as process:
        process.kill()
        process.wait(timeout=30)
        socket = socket_of(own / ".vedette")
        assert socket.exists()
        first, second = holds(own)[:2]
        ended = look(own, "runs", "--agent", "inbox_triage", "--state", "done", "--json").json
        event = ended["items"][0]["event"]
        why = ("--reason", "it died", "--json")
        orders = (
            ("stop", "--all"),
            ("resume", "--all"),
            ("approve", first["hold"], "--digest", first["shown_digest"][:16]),
            ("deny", second["hold"]),
            ("send", "--type", "a.b"),
            ("policy", "publish"),
            ("erase", f"event:{event}", "--yes"),
        )
        for order in orders:
            done = vedette(own, *order, *why)
            assert done.code == 0, (order, done.err)
            if order[0] not in ("erase", "policy", "send"):
                assert done.json["by"] == "here", order
        reads = (
            ("status",),
            ("runs",),
            ("explain", first["run"]),
            ("hold",),
            ("policy", "status"),
            ("check", "policy"),
            ("verify", "decisions"),
            ("verify",),
            ("check",),
        )
        for read in reads:
            assert look(own, *read, "--json").code == 0, read
        assert look(own, "status", "--json").json["running"] is False
        assert socket.exists()
        assert vedette(own, "run", "--until-idle", "--json").code == 0
        assert not socket.exists()


# --- send ------------------------------------------------------------------------------------


def test_a_dry_run_needs_no_store_and_writes_nothing(written: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "f", ignore=shutil.ignore_patterns(".v*")))
    event = {"specversion": "1.0", "id": "1", "source": "csv:a", "type": "metric.point"}
    (folder / "event.json").write_text(json.dumps(event))
    done = look(folder, "send", "event.json", "--dry-run", "--json")
    wakes = {item["agent"]: item["wakes"] for item in done.json["events"][0]["agents"]}
    others = ("content_moderation", "inbox_triage", "memory_curator", "weekly_review")
    assert (done.code, wakes) == (0, {"anomaly_detection": True, **dict.fromkeys(others, False)})
    assert all(item["why"] for item in done.json["events"][0]["agents"])
    assert not (folder / ".vedette").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--type", "a.b", "--data", "{"], "bad-event"),
        (["--type", "vedette.tick"], "bad-command"),
        (["--type", "a.b", "--source", "vedette://harbour/schedule/x"], "bad-command"),
        (["missing.json"], "bad-event"),
        (["vedette.toml"], "bad-event"),
        (["--subject", "alone"], "usage"),
        (["vedette.toml", "--type", "a.b"], "usage"),
        (["--type", "a.b", "--data", "@{large}"], "bad-event"),
    ],
)
def test_what_is_no_event_is_refused(
    written: Path, tmp_path: Path, arguments: list[str], code: str
) -> None:
    large = tmp_path / "large.json"
    large.write_text(json.dumps("x" * 300_000))
    given = [item.replace("{large}", str(large)) for item in arguments]
    done = look(written, "send", *given, "--dry-run", "--json")
    assert (done.code, done.error["code"]) == (2, code)


def test_an_event_is_known_the_second_time(own: Path) -> None:
    order = ("send", "--type", "a.b", "--id", "same", "--reason", "again", "--json")
    first, second = vedette(own, *order), vedette(own, *order)
    assert [first.json["receipts"][0]["status"], second.json["receipts"][0]["status"]] == [
        "accepted",
        "duplicate",
    ]


# --- policy ----------------------------------------------------------------------------------


def test_policy_check_apply_and_status(own: Path) -> None:
    before = look(own, "policy", "status", "--json").json
    assert (before["revision"], before["folder"]["differs"]) == (1, False)
    rego = own / "policies/vedette/gateway/decide.rego"
    good = rego.read_text()
    rego.write_text(good + "\nbroken := \n")
    checked = look(own, "check", "policy", "--json")
    assert (checked.code, checked.json["ok"]) == (1, False)
    assert checked.json["findings"][0]["file"].endswith("decide.rego")
    assert checked.json["findings"][0]["line"] > 1
    refused = vedette(own, "policy", "publish", "--reason", "try", "--json")
    assert (refused.code, refused.json["ok"]) == (1, False)
    assert look(own, "policy", "status", "--json").json["revision"] == 1
    rego.write_text(good + "\n# A remark.\n")
    assert look(own, "policy", "status", "--json").json["folder"]["differs"] is True
    assert look(own, "check", "policy").code == 0
    applied = vedette(own, "policy", "publish", "--reason", "a remark", "--json")
    assert (applied.code, applied.json["ok"], applied.json["revision"]) == (0, True, 2)
    after = look(own, "policy", "status", "--json").json
    assert (after["revision"], after["digest"]) == (2, applied.json["digest"])
    assert after["refusals"][0]["findings"]
    assert look(own, "verify", "decisions").code == 0


def test_an_empty_folder_is_no_policy(written: Path, tmp_path: Path) -> None:
    for verb in (["check"], ["check", "--json"]):
        assert look(written, "policy", *verb[:1], str(tmp_path), *verb[1:]).code == 1
    done = look(written, "check", "policy", str(tmp_path / "nowhere"), "--json")
    assert (done.code, done.error["code"]) == (2, "bad-command")


# --- the ledger ------------------------------------------------------------------------------


def test_the_ledger_verifies_here_and_elsewhere(fleet: Path, tmp_path: Path) -> None:
    assert look(fleet, "verify", "--json").json["ok"] is True
    export = tmp_path / "export"
    assert look(fleet, "ledger", "export", str(export)).code == 0
    assert look(tmp_path, "verify", str(export)).code == 0
    key = str(fleet / ".vedette" / "ledger.pub")
    (tmp_path / "proof.json").write_text(look(fleet, "ledger", "prove", "20").out)
    assert look(tmp_path, "verify", "proof.json", "--key", key).code == 0
    assert look(tmp_path, "verify", "proof.json").code == 2
    assert look(fleet, "verify", "--witness", "nowhere").code == 2
    none = look(fleet, "verify", "/nonexistent", "--json")
    assert (none.code, none.error["where"]) == (2, "/nonexistent")
    assert none.error["what"] == "there is no such export or proof"


def test_a_changed_entry_is_found(fleet: Path, tmp_path: Path) -> None:
    export = tmp_path / "export"
    assert look(fleet, "ledger", "export", str(export)).code == 0
    lines = (export / "entries.jsonl").read_bytes().splitlines(keepends=True)
    changed = lines[9].replace(b'"v":1', b'"v":2')
    assert changed != lines[9]
    (export / "entries.jsonl").write_bytes(b"".join([*lines[:9], changed, *lines[10:]]))
    done = look(tmp_path, "verify", str(export), "--json")
    assert (done.code, done.json["ok"]) == (1, False)
    assert done.json["findings"]


def test_erased_content_is_gone_and_the_proof_holds(own: Path) -> None:
    page = look(own, "runs", "--agent", "inbox_triage", "--state", "done", "--json").json
    stories = (look(own, "explain", item["event"], "--json").json for item in page["items"])
    event = next(story["id"] for story in stories if story["runs"][0]["actions"])
    assert look(own, "explain", event, "--json").json["event"]["data"]["from"]
    done = vedette(own, "erase", f"event:{event}", "--yes", "--reason", "asked to", "--json")
    assert (done.code, done.json["by"]) == (0, "here")
    story = look(own, "explain", event, "--json").json["event"]
    assert (story["erased"], story["data"]) == (True, None)
    verified = look(own, "verify", "--json")
    assert (verified.code, verified.json["erased"]) == (0, len(done.json["erased"]))
    replayed = look(own, "verify", "decisions", "--json").json
    assert (replayed["ok"], set(replayed["unreplayable"])) == (True, {"erased"})
    assert vedette(own, "erase", "--reason", "of nothing", "--json").code == 2


# --- fresh -----------------------------------------------------------------------------------


def test_fresh_starts_over_and_keeps_the_targets_record(own: Path) -> None:
    record = own / ".vedette" / "receiver.jsonl"
    record.write_text("{}\n")
    before = look(own, "status", "--json").json
    key = (own / ".vedette" / "ledger.pub").read_text()
    assert vedette(own, "run", "--fresh", "--until-idle", "--json").code == 0
    after = look(own, "status", "--json").json
    assert after["events"]["accepted"] == before["events"]["accepted"]
    assert (own / ".vedette" / "ledger.pub").read_text() != key
    assert record.read_text() == "{}\n"


def state_of(root: Path, *names: str) -> Settings:
    settings = Settings.of(root)
    settings.state.mkdir(parents=True)
    for name in names:
        (settings.state / name).write_text("")
    return settings


def test_wipe_empties_a_state_folder_and_follows_no_link(tmp_path: Path) -> None:
    settings = state_of(tmp_path, "runner.lock", "store.db", "receiver.jsonl")
    outside = tmp_path / "mine"
    outside.mkdir()
    (outside / "letter").write_text("dear")
    (settings.state / "link").symlink_to(outside)
    (settings.state / "mailbox").mkdir()
    assert wipe_state(settings) == ["link", "mailbox", "store.db"]
    assert sorted(path.name for path in settings.state.iterdir()) == [
        "receiver.jsonl",
        "runner.lock",
    ]
    assert (outside / "letter").read_text() == "dear"


def test_wipe_spares_what_is_no_state_folder(tmp_path: Path) -> None:
    settings = state_of(tmp_path, "letter")
    with pytest.raises(BadCommand, match="does not look like"):
        wipe_state(settings)
    assert (settings.state / "letter").exists()


def test_wipe_spares_a_state_folder_around_the_content(tmp_path: Path) -> None:
    (tmp_path / "vedette.toml").write_text("")
    (tmp_path / "runner.lock").write_text("")
    usual = Settings.of(tmp_path)
    around = Settings(
        root=usual.root, fleet="f", state=tmp_path, agents=usual.agents,
        policies=usual.policies, memory=usual.memory,
    )  # fmt: skip
    with pytest.raises(BadCommand, match="would delete"):
        wipe_state(around)
    assert (tmp_path / "vedette.toml").exists()


def test_wipe_spares_a_runners_folder(tmp_path: Path) -> None:
    import fcntl

    settings = state_of(tmp_path, "runner.lock", "store.db")
    with (settings.state / "runner.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreBusy):
            wipe_state(settings)
    assert (settings.state / "store.db").exists()
