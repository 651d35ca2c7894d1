"""Showing 3: a policy change reaches a fleet at work, with a thousand permitted calls queued."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.kill import VEDETTE
from tools.real_fleet import ROOT, receiver

EVENTS = 1500
QUEUED = 1000

AGENT = """\
version: 1
name: caller
title: Calls a webhook for every event
owner: test@harbourlights.example
mode: act
order_by: id
triggers:
  - on: call.wanted
budget: {actions_per_hour: 100000, actions_per_day: 100000}
tools:
  - name: hook.call
    verb: call
    resource: webhook
    args: {number: string}
    sinks: [/number]
    settles: idempotent
    function: call_hook
    target: hook
    timeout: 30s
"""

JUDGE = """\
from vedette.judging import Briefing, Judge as Base, Judgement, Proposal, Ref


class Judge(Base):
    def judge(self, seen: object, briefing: Briefing) -> Judgement:
        return Judgement("call", 1.0, (Proposal("hook.call", {"number": Ref("/event/id")}),))
"""

TOOLS = """\
import json
import urllib.request

from vedette.domain.effect import Call, Outcome


def call_hook(call: Call) -> Outcome:
    request = urllib.request.Request(
        call.target["url"],
        data=json.dumps(dict(call.args)).encode(),
        headers={"Idempotency-Key": call.key, "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return Outcome("done", {"status": answer.status})
"""

GRANT = """
caller:
  mode: act
  tools:
    hook.call: {verb: call, resource: webhook, impact: low}
"""


def write_fleet(folder: Path, hook: str) -> Path:
    agent = folder / "agents" / "caller"
    agent.mkdir(parents=True)
    (agent / "__init__.py").write_text("")
    (agent / "agent.yaml").write_text(AGENT)
    (agent / "instruction.md").write_text("Call the webhook for every event.\n")
    (agent / "judge.py").write_text(JUDGE)
    (agent / "tools.py").write_text(TOOLS)
    shutil.copytree(ROOT / "memory", folder / "memory")
    shutil.copytree(ROOT / "policies", folder / "policies")
    grants = folder / "policies" / "grants" / "data.yaml"
    grants.write_text(grants.read_text() + GRANT)
    limits = folder / "policies" / "limits" / "data.yaml"
    text = limits.read_text()
    at = text.index("    anomaly_detection:")
    more = "    caller: {minute: 100000, hour: 100000, day: 100000}\n"
    limits.write_text(text[:at] + more + text[at:])
    with (folder / "events.jsonl").open("w") as file:
        for number in range(EVENTS):
            event = {
                "specversion": "1.0", "id": f"{number:05}", "source": "test", "type": "call.wanted",
                "data": {"number": number},
            }  # fmt: skip
            file.write(json.dumps(event) + "\n")
    (folder / "vedette.toml").write_text(
        f"""\
fleet = "harbour"
state = "state"
[serve]
http = ""
[targets.hook]
kind = "webhook"
url = "{hook}"
[[sources]]
kind = "jsonl"
name = "calls"
path = "events.jsonl"
rate = 0
"""
    )
    return folder / "vedette.toml"


def vedette(config: Path, *words: str) -> Any:
    """Run a verb beside the running fleet and return what it printed as JSON."""
    done = subprocess.run(
        [str(VEDETTE), "--config", str(config), *words, "--json"], capture_output=True, timeout=60
    )
    assert done.returncode == 0, (words, done.stdout[-500:], done.stderr[-1000:])
    return json.loads(done.stdout)


def until(true: Callable[[], bool], within_s: float, what: str) -> float:
    """Wait until something is true; return how many seconds it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < within_s, what
        time.sleep(0.02)
    return time.monotonic() - began


def calls(record: Path) -> int:
    return len(record.read_bytes().splitlines()) if record.exists() else 0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A fleet at work whose target takes its time; yields its settings and the target's record."""
    record = tmp_path / "receiver.jsonl"
    with receiver(record, "--delay-ms", "150") as hook:
        config = write_fleet(tmp_path, hook)
        process = subprocess.Popen(
            [sys.executable, "-m", "vedette", "--config", str(config), "run", "--plain"],
            stdout=subprocess.DEVNULL,
        )
        try:
            yield config, record
        finally:
            process.terminate()
            process.wait(20)


def deny_hooks(policies: Path, on: bool) -> None:
    denies = policies / "denies" / "data.yaml"
    text = denies.read_text()
    old, new = ("tools: []", "tools: [hook.call]") if on else ("tools: [hook.call]", "tools: []")
    assert old in text
    denies.write_text(text.replace(old, new))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_no_call_starts_under_the_old_revision_once_apply_returned(
    running: tuple[Path, Path], tmp_path: Path
) -> None:
    config, record = running
    until(lambda: calls(record) > 20, 60, "the fleet did not start to call")
    from vedette.store.sqlite import SqliteReader

    def permitted_and_not_done() -> int:
        store = SqliteReader(tmp_path / "state")
        found = store.tables.counts().get("caller", {}).get("effect.intended", 0)
        store.close()
        return found

    until(lambda: permitted_and_not_done() >= QUEUED, 60, "no thousand permitted calls are queued")

    stricter = tmp_path / "stricter"
    shutil.copytree(tmp_path / "policies", stricter)
    deny_hooks(stricter, True)
    applied = vedette(config, "policy", "publish", str(stricter), "--reason", "no more calls")
    at_return = calls(record)
    assert applied["ok"]
    # It waits for two seconds: on a machine that is short of time some answers come later.
    on_their_way = applied["still_calling"]
    assert on_their_way <= 12, "more than may be called at once"
    assert at_return < EVENTS - QUEUED + 200, "the queue had drained before the change"
    time.sleep(1.0)
    late = calls(record) - at_return
    assert late <= on_their_way, "a call started under the old revision after apply returned"
    assert not wrong_after(tmp_path / "state", applied["revision"])

    # Saving a file does the same, within a second: first the folder itself becomes stricter.
    revision = applied["revision"]
    until(lambda: left(config) == 0, 60, "actions were left undecided")
    store = SqliteReader(tmp_path / "state")
    denied = next(
        run.id
        for run in store.runs.runs_page(agent="caller", state="done", before=None, limit=200)
        if store.runs.actions(run.id)[0].decided == "deny"
    )
    store.close()
    explained = json.dumps(vedette(config, "explain", denied))
    assert (
        f'"policy_rev": {revision - 1}' in explained or f'"revision": {revision - 1}' in explained
    )
    assert f'"policy_rev": {revision}' in explained or f'"revision": {revision}' in explained

    # The folder waits, as another one was published, until it is seen to say what is live.
    deny_hooks(tmp_path / "policies", True)
    until(lambda: not folder_waits(tmp_path / "state"), 10, "the folder was not looked at")
    took = []
    for _ in range(3):
        denies = tmp_path / "policies" / "denies" / "data.yaml"
        revision = live_revision(tmp_path / "state")
        denies.write_text(denies.read_text() + "# looked at\n")
        took.append(until_newer(tmp_path / "state", revision))
    # The best of three, and longer only where the trial alone takes long: other work on the
    # machine counts against the clock on the wall.
    trial = trial_takes(tmp_path / "policies")
    assert min(took) < max(1.0, 2 * trial + 0.3), f"a saved folder took {took} s, a trial {trial} s"

    replayed = vedette(config, "verify", "decisions")
    assert replayed["differed"] in (0, []), replayed
    assert replayed["agreed"] >= EVENTS
    status = vedette(config, "status")
    assert status["agents"]["caller"]["runs"] == {"done": EVENTS}, "an event was lost"


def live_revision(state: Path) -> int:
    from vedette.store.sqlite import SqliteReader

    store = SqliteReader(state)
    number, _ = store.policy.live_revision()
    store.close()
    return number


def folder_waits(state: Path) -> bool:
    from vedette.domain.bundle import Revision
    from vedette.policy.folder import is_folder_waiting
    from vedette.store.sqlite import SqliteReader

    store = SqliteReader(state)
    found = is_folder_waiting(store, Revision(*store.policy.live_revision()))
    store.close()
    return found


def trial_takes(policies: Path) -> float:
    """Return how many seconds the trial of the folder takes by itself: the calibration."""
    from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, read_bundle

    began = time.monotonic()
    assert not asyncio.run(SubprocessStage().try_out(read_bundle(policies)))
    return time.monotonic() - began


def until_newer(state: Path, revision: int) -> float:
    return until(lambda: live_revision(state) > revision, 10, "the saved folder did not go live")


def left(config: Path) -> int:
    from vedette.store.sqlite import SqliteReader

    store = SqliteReader(config.parent / "state")
    found = store.tables.counts().get("caller", {})
    store.close()
    return found.get("effect.intended", 0) + found.get("run.ready", 0)


def wrong_after(state: Path, revision: int) -> list[int]:
    """Return entries after the publication that carry an older revision as a permit."""
    from vedette.store.sqlite import SqliteReader

    store = SqliteReader(state)
    wrong, published = [], None
    for seq, raw, _, _ in store.ledger.walk(("policy.published", "action.decided")):
        entry = json.loads(raw)
        if entry["kind"] == "policy.published" and entry["policy_rev"] == revision:
            published = seq
        elif published is not None and entry["policy_rev"] < revision:
            wrong.append(seq)
    store.close()
    assert published is not None
    return wrong
