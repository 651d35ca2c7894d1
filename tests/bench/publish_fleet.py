"""A fleet of many `vedette run` processes on one PostgreSQL, its target, and publications to it.

The target is the sample webhook receiver, which keeps its own record on disk before it answers.
A publication denies the tool that everything calls, so a call that the target records after the
publication was answered is a call too many; the next one brings the old content back. What the
ledger has is looked at in the end: no decision may stand behind a publication under an older
revision.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.test_policy_change import AGENT, GRANT, JUDGE, TOOLS, deny_hooks
from tools.real_fleet import ROOT, receiver

from vedette.interfaces.http.local_client import LocalClient

UP_S = 120.0
TOGETHER = 4
# So many calls must come under a policy that permits them before it changes again.
MORE = 10
KEYS = ("ledger.key", "ledger.pub", "policy.key", "policy.pub")


@dataclass(slots=True)
class Worker:
    """One process and where it lies."""

    config: Path
    state: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, *, unfenced: bool = False) -> None:
        """Start it; what it says goes to a file of its folder."""
        words = ["--unfenced"] if unfenced else []
        with (self.config.parent / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.publish_worker", *words,
                 "--config", str(self.config), "run", "--plain"],
                stdout=said, stderr=said, cwd=ROOT,
            )  # fmt: skip

    def alive(self) -> bool:
        """Say whether it answers. Raises RuntimeError if it has ended."""
        self.check()
        return LocalClient(self.state).is_alive()

    def check(self) -> None:
        """Raise RuntimeError if it has ended."""
        if self.process is not None and self.process.poll() is not None:
            text = (self.config.parent / "said").read_text()[-2000:]
            raise RuntimeError(f"worker {self.config.parent.name} ended: {text}")

    def end(self, *, kill: bool = False) -> None:
        """End it by its own process id."""
        if self.process is not None:
            (self.process.kill if kill else self.process.terminate)()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def command(self, verb: str, args: dict[str, Any]) -> dict[str, Any]:
        """Give an order over the worker's own socket."""
        return LocalClient(self.state).send_command(verb, "bench", args)

    def confirmed(self, verb: str, args: dict[str, Any]) -> dict[str, Any]:
        """Give an order over the socket, and again with what it is told to loosen confirmed."""
        request = self.command(verb, args)
        if not request["confirm"]:
            return request
        return self.command(verb, args | {"confirm": request["confirm"]})

    def typed(self, *words: str) -> dict[str, Any]:
        """Give an order as a person types it."""
        done = subprocess.run(
            [sys.executable, "-m", "vedette", "--config", str(self.config), *words,
             "--reason", "bench", "--json"],
            capture_output=True, timeout=90, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{words}: {done.stdout[-500:]!r} {done.stderr[-1000:]!r}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@dataclass(slots=True)
class Fleet:
    """Its workers, what its target recorded, its database, and two policies.

    `stricter` denies what everything calls; `milder` is the fleet's own with a remark more.
    """

    folder: Path
    url: str
    record: Path
    stricter: Path
    milder: Path
    workers: list[Worker]

    def calls(self) -> int:
        """Return how many calls the target recorded."""
        if not self.record.exists():
            return 0
        with self.record.open("rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))

    def until(self, true: Callable[[], bool], what: str, within_s: float = UP_S) -> None:
        """Wait until something is true while all workers live. Raises RuntimeError."""
        end = time.monotonic() + within_s
        while not true():
            for worker in self.workers:
                worker.check()
            if time.monotonic() > end:
                raise RuntimeError(f"not within {within_s:g} s: {what}")
            time.sleep(0.05)


@contextmanager
def fleet(
    folder: Path, url: str, count: int, *, rate: float, events: int, burst: int = 0,
    delay_ms: int = 50, processes: bool = False, unfenced: bool = False,
) -> Iterator[Fleet]:  # fmt: skip
    """Run a fleet of `count` workers on the database of `url` until the block ends.

    `burst` events are handed over at once, `events` at `rate` a second. With `processes` agents'
    code runs apart, as in production; `unfenced` takes out what is measured, for a control.
    """
    record = folder / "receiver.jsonl"
    with ExitStack() as stack:
        hook = stack.enter_context(receiver(record, "--delay-ms", str(delay_ms)))
        made = _lay(folder, url, count, hook, (burst, events, rate), processes=processes)
        made.record = record
        for worker in made.workers:
            stack.callback(worker.end)
        first, *others = made.workers
        first.start(unfenced=unfenced)
        made.until(first.alive, "the first worker is up")
        # A few at a time: whoever joins waits for the fleet's lock, and not for ever.
        for at in range(0, len(others), TOGETHER):
            some = others[at : at + TOGETHER]
            for worker in some:
                worker.state.mkdir()
                for name in KEYS:
                    shutil.copy(first.state / name, worker.state / name)
                worker.start(unfenced=unfenced)
            made.until(lambda some=some: all(worker.alive() for worker in some), "workers are up")  # type: ignore[misc]
        yield made


def _lay(
    folder: Path, url: str, count: int, hook: str, load: tuple[int, int, float], *, processes: bool
) -> Fleet:
    burst, events, rate = load
    _content(folder)
    (folder / "url").touch(0o600)
    (folder / "url").write_text(url)
    sources = [("steady", 0, events, rate)] if events else []
    sources += [("burst", events, events + burst, 0.0)] if burst else []
    tables = []
    for name, begin, end, pace in sources:
        (folder / f"{name}.jsonl").write_text("".join(map(_event, range(begin, end))))
        tables.append(
            f'[[sources]]\nkind = "jsonl"\nname = "{name}"\n'
            f"path = {json.dumps(str(folder / f'{name}.jsonl'))}\nrate = {pace:g}\n"
        )
    # Twenty processes on a few cores: with the usual lease those that starve lose their keys.
    lease = "5s" if count < 10 else "15s"
    text = f"""\
fleet = "harbour"
state = "state"
[content]
agents = {json.dumps(str(folder / "agents"))}
policies = {json.dumps(str(folder / "policies"))}
memory = {json.dumps(str(folder / "memory"))}
[store]
kind = "postgresql"
url_file = {json.dumps(str(folder / "url"))}
lease = "{lease}"
[policy]
bundles = {json.dumps(str(folder / "shelf"))}
[isolation]
workers = "{"processes" if processes else "none"}"
[serve]
http = ""
[targets.hook]
kind = "webhook"
url = "{hook}"
{"".join(tables)}"""
    workers = []
    for at in range(count):
        place = folder / f"w{at:02}"
        place.mkdir()
        (place / "vedette.toml").write_text(text)
        workers.append(Worker(place / "vedette.toml", place / "state"))
    stricter = folder / "stricter"
    shutil.copytree(folder / "policies", stricter)
    deny_hooks(stricter, True)
    # Of the folder itself each worker has tried out the content at its start.
    milder = folder / "milder"
    shutil.copytree(folder / "policies", milder)
    denies = milder / "denies" / "data.yaml"
    denies.write_text(denies.read_text() + "# nothing is switched off\n")
    return Fleet(folder, url, folder, stricter, milder, workers)


def _content(folder: Path) -> None:
    agent = folder / "agents" / "caller"
    agent.mkdir(parents=True)
    for name, text in (
        ("__init__.py", ""), ("agent.yaml", AGENT), ("judge.py", JUDGE), ("tools.py", TOOLS),
        ("instruction.md", "Call the webhook for every event.\n"),
    ):  # fmt: skip
        (agent / name).write_text(text)
    shutil.copytree(ROOT / "memory", folder / "memory")
    shutil.copytree(ROOT / "policies", folder / "policies")
    grants = folder / "policies" / "grants" / "data.yaml"
    grants.write_text(grants.read_text() + GRANT)
    limits = folder / "policies" / "limits" / "data.yaml"
    text = limits.read_text()
    at = text.index("    anomaly_detection:")
    more = "    caller: {minute: 1000000, hour: 1000000, day: 1000000}\n"
    limits.write_text(text[:at] + more + text[at:])


def _event(number: int) -> str:
    figures = {
        "specversion": "1.0", "id": f"{number:06}", "source": "bench", "type": "call.wanted",
        "data": {"number": number},
    }  # fmt: skip
    return json.dumps(figures) + "\n"


# --- publications ------------------------------------------------------------------------------


@dataclass(slots=True)
class Change:
    """One publication or rollback, in ms: as its caller saw it, as the engine did, its trial.

    `late` calls were recorded after it was answered, though it denies all. `early` were recorded
    between its commit and its answer: they would be late if the answer did not wait. `between` is
    how many the target recorded while the one before it was live.
    """

    denies: bool
    typed: bool
    took_ms: float
    engine_ms: float
    trial_ms: float
    revision: int
    between: int = 0
    early: int = 0
    late: int = 0
    still_calling: int = 0

    @property
    def fence_ms(self) -> float:
        """Return the time without the trial: to decide anew, commit, and hear of every worker."""
        return self.engine_ms - self.trial_ms


class Commits(threading.Thread):
    """Notes how many calls the target had recorded when a revision's commit was first seen."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(name="commits", daemon=True)
        self._fleet = fleet
        self._ending = threading.Event()
        self.calls: dict[int, int] = {}

    def run(self) -> None:
        import psycopg

        with psycopg.connect(self._fleet.url, autocommit=True) as connection:
            while not self._ending.wait(0.004):
                row = connection.execute("SELECT COALESCE(MAX(number), 0) FROM policy").fetchone()
                assert row is not None
                if row[0] not in self.calls:
                    self.calls[row[0]] = self._fleet.calls()

    def end(self) -> None:
        """End it."""
        self._ending.set()
        self.join()


@dataclass(slots=True)
class Publisher:
    """Denies by publishing the stricter folder, and permits again by rolling back."""

    fleet: Fleet
    commits: Commits
    look_s: float = 0.3
    permitting: int = 0
    changes: list[Change] = field(default_factory=list)
    _answered: int = 0

    def begin(self) -> None:
        """Publish the policy that is rolled back to."""
        folder = {"folder": str(self.fleet.milder)}
        self.permitting = self.fleet.workers[0].command("policy_apply", folder)["revision"]
        self._answered = self.fleet.calls()
        self._go_on()

    def _go_on(self) -> None:
        """Wait until calls come under a policy that permits them: there is load to change under."""
        goal = self._answered + MORE
        self.fleet.until(lambda: self.fleet.calls() >= goal, "calls go on where they are permitted")

    def change(self, *, typed: bool = False) -> Change:
        """Do the next one, each at another worker; wait, and count what the target recorded."""
        workers = self.fleet.workers
        # The first worker runs the sources and has the longest queue: the last one begins.
        worker = workers[-1 - len(self.changes) % len(workers)]
        denies = len(self.changes) % 2 == 0
        between = self.fleet.calls() - self._answered
        if not denies:
            # Up to here nothing may have been called since the deny was answered.
            self.changes[-1].late = between
        began = time.monotonic()
        done = self._deny(worker, typed=typed) if denies else self._permit(worker, typed=typed)
        took = (time.monotonic() - began) * 1000
        self._answered = self.fleet.calls()
        if not done["ok"] or not done["changed"]:
            raise RuntimeError(f"not published: {done}")
        change = Change(
            denies, typed, took, done["took_us"] / 1000, done["trial_us"] / 1000, done["revision"],
            between, still_calling=done["still_calling"],
        )  # fmt: skip
        self.changes.append(change)
        if not denies:
            self._go_on()
            return change
        time.sleep(self.look_s)
        change.late = self.fleet.calls() - self._answered
        seen = self.commits.calls.get(change.revision, self._answered)
        change.early = max(0, self._answered - seen)
        return change

    def _deny(self, worker: Worker, *, typed: bool) -> dict[str, Any]:
        folder = str(self.fleet.stricter)
        if typed:
            return worker.typed("policy", "publish", folder, "--commit", "3f9c2ab")
        return worker.command("policy_apply", {"folder": folder, "commit": "3f9c2ab"})

    def _permit(self, worker: Worker, *, typed: bool) -> dict[str, Any]:
        if typed:
            return worker.typed("policy", "rollback", str(self.permitting), "--yes")
        return worker.confirmed("policy_rollback", {"number": self.permitting})


@contextmanager
def publishing(fleet: Fleet, look_s: float = 0.3) -> Iterator[Publisher]:
    """Publish to a fleet that is at work until the block ends."""
    fleet.until(lambda: fleet.calls() > 0, "the fleet calls its target")
    publisher = Publisher(fleet, Commits(fleet), look_s)
    publisher.commits.start()
    try:
        yield publisher
    finally:
        publisher.commits.end()


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the ledger has: revisions, decisions, and those that stand behind a newer one."""

    revisions: int
    permits: int
    denials: int
    wrong: int
    workers: int


def recorded(url: str) -> Recorded:
    """Read the ledger in order: no decision may follow a publication under an older revision."""
    from vedette.store.postgres import PostgresReader

    store = PostgresReader(url)
    live = revisions = permits = denials = wrong = workers = 0
    try:
        for _, raw, _, _ in store.ledger.walk(
            ("policy.published", "action.decided", "store.opened")
        ):
            entry = json.loads(raw)
            if entry["kind"] == "policy.published":
                live, revisions = entry["policy_rev"], revisions + 1
            elif entry["kind"] == "store.opened":
                workers += 1
            else:
                wrong += entry["policy_rev"] < live
                permits += entry["outcome"] == "permit"
                denials += entry["outcome"] == "deny"
    finally:
        store.close()
    return Recorded(revisions, permits, denials, wrong, workers)


def unfenced_calls(folder: Path, url: str) -> int:
    """Return how many calls come after a publication that nothing waits for and nobody heeds.

    The control: two workers without a barrier and a long queue, and one publication that denies.
    """
    load = {"rate": 0.0, "events": 0, "burst": 1500, "delay_ms": 300}
    with (
        fleet(folder, url, 2, unfenced=True, **load) as made,  # type: ignore[arg-type]
        publishing(made, look_s=2.0) as publisher,
    ):
        made.until(lambda: made.calls() > 50, "the fleet calls its target")
        return publisher.change().late
