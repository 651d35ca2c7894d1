"""Tasks on two releases in a daemon as it is shipped: released beside, killed, and finished."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.model_daemon import DaemonAgent, ModelDaemon

from vedette.store.sqlite import SqliteReader
from vedette.testing.toy_fleet import WORK_GRANTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

JUDGE_PY = """\
from vedette.judging import Judge as Base
from vedette.judging import Judgement, Proposal, Ref


def marks(turn):
    args = {{"event": Ref("/event/id"), "mark": "{word}"}}
    one = Proposal("mark.write", args)
    if turn > 1:
        one = Proposal("task.finish", {{"summary": "{word}"}})
    return Judgement("{word}", 1.0, (one,), final=False)


class Judge(Base):
    def judge(self, seen, briefing):
        return marks(1)

    def judge_outcomes(self, briefing):
        return marks(briefing.turn)
"""
DONE = "version: 1\nconditions:\n  - {name: seen, person: somebody looked at it}\n"


class Daemon(ModelDaemon):
    """A daemon whose agent takes tasks, each of which a person ends."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, {}, [DaemonAgent("worker")])
        self.agent = root / "agents" / "worker"
        path = self.agent / "agent.yaml"
        path.write_text(path.read_text() + "work: {}\n")
        (self.agent / "done.yaml").write_text(DONE)
        grants = root / "policies" / "grants" / "data.yaml"
        one = "    mark.write: {verb: write, resource: mark, impact: low}\n"
        assert one in grants.read_text()
        grants.write_text(grants.read_text().replace(one, one + WORK_GRANTS))
        self.write("old")

    def write(self, word: str) -> None:
        (self.agent / "judge.py").write_text(JUDGE_PY.format(word=word))

    def order(self, *words: str) -> Any:
        done = self.verb(*words, "--reason", "a test", "--json")
        assert done.code == 0, done.err
        return done.json

    def give_task(self) -> str:
        return str(self.order("work", "start", "worker", "--goal", "a mark")["run"])

    def wait_for_hold(self, run: str) -> str:
        """Return the id of the hold that a task waits for, once it does."""
        return str(self.find_hold(run)["hold"])

    def find_hold(self, run: str) -> Any:
        end = time.monotonic() + 60
        while True:
            found = self.verb("hold", "--json").json["items"]
            holds = [one for one in found if one["run"] == run]
            if holds:
                return holds[0]
            assert time.monotonic() < end, self.output
            time.sleep(0.1)

    def labels(self, run: str) -> list[str]:
        with closing(SqliteReader(self.root / ".vedette")) as store:
            return [turn["label"] for turn in store.runs.turns(run)]

    def show(self, run: str) -> Any:
        return self.verb("work", "show", run, "--json").json


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    with made:
        yield made
    made._client.close()


def test_running_tasks_finish_on_the_old_release_beside_new_ones(daemon: Daemon) -> None:
    first = daemon.give_task()
    hold = daemon.wait_for_hold(first)
    daemon.write("new")
    done = daemon.order("agent", "release", "worker")
    assert done["changed"]
    second = daemon.give_task()
    daemon.wait_for_hold(second)
    daemon.order("deny", hold, "--yes")
    daemon.wait_for_hold(first)
    assert (daemon.labels(first), daemon.labels(second)) == (["old"] * 3, ["new"] * 2)
    shown = daemon.show(first)
    assert (shown["release"], shown["live_release"]) == (done["was"], done["release"])
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.stop()
    daemon.start()
    for run, word in ((first, "old"), (second, "new")):
        daemon.order("deny", daemon.wait_for_hold(run), "--yes")
        held = daemon.find_hold(run)
        daemon.order("approve", held["hold"], "--digest", held["shown_digest"])
        assert {*daemon.labels(run)} == {word}
    daemon.wait_for_ends(60)
    assert [daemon.show(run)["state"] for run in (first, second)] == ["done", "done"]
    assert daemon.verb("verify").code == 0
    assert len(daemon.effects) == 2, "one mark each"
