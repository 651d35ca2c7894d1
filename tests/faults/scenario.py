"""What the crash tests do, over and over: a small fleet, and a script that can be taken up again.

The script sends events through a source that remembers its place, approves, stops and resumes,
publishes a policy, erases and sees every run through. Every act of it may be repeated, so after a
crash it is simply done from the start, by a new process on the same folder.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.faults.auditor import Plan, Wanted
from tests.faults.world import FileWorld

from vedette.config.fleet import FleetContents, read_fleet
from vedette.config.settings import Isolation, Settings, StorePlan
from vedette.domain.base.errors import AlreadyDone
from vedette.domain.budget import DAY_US
from vedette.domain.effect import Call, Outcome
from vedette.domain.event import Event
from vedette.domain.run import Step
from vedette.domain.tool import Tool
from vedette.engine.cluster import follow_cluster
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.operations.commands import Commands, Order
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import (
    DESK,
    World,
    deny_policy,
    job,
    note_proposal,
    propose,
    toy_fleet,
    write_policies,
)

AGENTS = ("worker", "other")
DENIED = "slow.send"  # by the policy that the script publishes
START_US = 1_750_000_000_000_000
HOUR_US = 3_600_000_000
FEED = "feed"
URL = "url"  # the file that says at which database a folder's state is kept
BANK = "notes"
BANK_YAML = """\
bank: notes
purpose: What agents would like remembered
scopes: [{name: all, readers: [worker, other], writers: [worker, other]}]
topics: [notes]
"""
BUDGET = "budget: {"
# The toy judge, made to propose a memory where the event says so.
JUDGEMENT = '            detail={"seen": seen},\n'
REMEMBERING = (
    JUDGEMENT + "            candidates=tuple(\n"
    '                Candidate("notes", "all", text)\n'
    '                for text in data.get("remember", "").split(";") if text\n'
    "            ),\n"
)
# What may be broken on purpose: calls before their step is committed, and a target that does again
# what it is asked again, though its tool is declared idempotent by key.
CONTROLS = ("early", "repeating")


def tell_proposal(tool: str, text: str) -> dict[str, Any]:
    """Return the proposal to do something that the target knows by its text."""
    return propose(tool, to=DESK, text=text)


FIRST = [
    job("e1", tell_proposal("wire.send", "e1 a"), key="k0"),
    job(
        "e2",
        tell_proposal("order.place", "e2 a"),
        note_proposal("e2"),
        key="k0",
        value=1,
        remember="that e2",
    ),
    job("e3", tell_proposal("bell.ring", "e3 a"), key="k1", agent="other"),
    job("e4", key="k0", value=2),
    job("e5", tell_proposal("big.send", "e5 a"), note_proposal("e5"), key="k2"),
]
STOPPED = [
    job(
        "e6",
        tell_proposal("wire.send", "e6 a"),
        tell_proposal("order.place", "e6 b"),
        key="k1",
        agent="other",
    ),
    job("e7", tell_proposal("wire.send", "later e7 a"), key="k3"),
]
CHANGED = [
    job("e8", tell_proposal(DENIED, "e8 a"), tell_proposal("wire.send", "e8 b"), key="k0", value=3),
    job("e9", tell_proposal("bell.ring", "e9 a"), note_proposal("e9"), key="k0", value=4),
]
LAST = [
    job("e10", tell_proposal("order.place", "e10 a"), key="k3"),
    job("e11", tell_proposal("bell.ring", "e11 a"), key="k1", agent="other"),
]
EVENTS = [*FIRST, *STOPPED, *CHANGED, *LAST]
# Only these can come to wait for a person.
HOLDING = [
    event
    for event in EVENTS
    if any(each["tool"] in ("bell.ring", "big.send") for each in event.data["do"])
]


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the script is played: the content that all share, what is broken, which store."""

    content: Path
    control: str = ""
    store: str = "sqlite"

    @property
    def changed(self) -> Path:
        """Return the policy folder that the script publishes."""
        return self.content / "changed"


def lay_stage(folder: Path, *, control: str = "", store: str = "sqlite") -> Stage:
    """Write the content of the fleet and the policy that the script will publish."""
    toy_fleet(folder, World(), agents=AGENTS)
    bank = folder / "content" / "memory" / BANK
    bank.mkdir()
    (bank / "bank.yaml").write_text(BANK_YAML, encoding="utf-8")
    charter = folder / "content" / "agents" / "other" / "agent.yaml"
    text = charter.read_text(encoding="utf-8")
    assert text.count(BUDGET) == 1, "the toy budget is another one by now"
    charter.write_text(text.replace(BUDGET, f"{BUDGET}actions_per_day: 3, "), encoding="utf-8")
    for name in AGENTS:
        judge = folder / "content" / "agents" / name / "judge.py"
        text = judge.read_text(encoding="utf-8")
        assert text.count(JUDGEMENT) == 1, "the toy judge is another one by now"
        text = text.replace(JUDGEMENT, REMEMBERING).replace(
            "import Judgement", "import Candidate, Judgement"
        )
        judge.write_text(text, encoding="utf-8")
    write_policies(folder / "changed", AGENTS, extra=deny_policy(DENIED))
    return Stage(folder, control, store)


def fleet_of(stage: Stage, folder: Path, world: FileWorld, clock: ManualClock) -> FleetHarness:
    """Return the fleet of a stage with its state in `folder`."""
    return FleetHarness(
        folder,
        content=stage.content / "content",
        policies=stage.content / "policies",
        targets={"world": {"kind": "world", "world": world}},
        clock=clock,
        store=store_of(folder),
    )


def store_of(folder: Path) -> StorePlan:
    """Return where a folder's state is kept: on the server whose URL lies in it, or in a file."""
    url = folder / URL
    return StorePlan("postgresql", url_file=str(url)) if url.exists() else StorePlan()


def play(stage: Stage, folder: Path, life: int) -> None:
    """Play the script to its end, in whatever state `folder` is; `life` counts the processes."""
    asyncio.run(_play(stage, folder, life))


async def _play(stage: Stage, folder: Path, life: int) -> None:
    clock = ManualClock(START_US + life * HOUR_US)
    world = FileWorld(folder / "world.jsonl", absorbs=stage.control != "repeating")
    fleet = fleet_of(stage, folder, world, clock)
    async with fleet:
        if stage.control == "early":
            call_early(fleet, world)
        async with following(fleet):
            await Script(stage, fleet, clock, world).all()


@asynccontextmanager
async def following(fleet: FleetHarness) -> AsyncIterator[None]:
    """Take up what is published, as a run does; who owns a file publishes everything itself."""
    if not (fleet.folder / URL).exists():
        yield
        return
    app, troubles = fleet.app, list[str]()
    # (There is no other worker whose candidates this one would have to take up.)
    task = asyncio.create_task(
        follow_cluster(app.services, app.rollout, lambda: None, troubles.append)
    )
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not troubles, troubles


def call_early(fleet: FleetHarness, world: FileWorld) -> None:
    """Break the engine on purpose: make the calls of a step before the step is committed."""
    line: Any = fleet.app.services
    send, tools = line.store.steps.send, line.tool_executor
    made: dict[str, Outcome] = {}

    def too_early(step: Step) -> Any:
        for row in step.actions:
            if row.effect == "intended" and row.tries == 0 and row.id not in made:
                args = json.loads(row.record)["args"]
                call = Call(row.tool, args, row.id[4:], row.agent, row.run, {}, (), 1, 0)
                made[row.id] = world.act(call)
        return send(step)

    class Remembering:
        compute_rows, query, close = tools.compute_rows, tools.query, tools.close

        async def perform(self, tool: Tool, call: Call, may_start: Any) -> Outcome | None:
            known: Outcome | None = made.get(f"act_{call.key}")
            if known is not None and known.state == "done":
                return known
            answer: Outcome | None = await tools.perform(tool, call, may_start)
            return answer

    line.store.steps.send, line.tool_executor = too_early, Remembering()


async def publish(commands: Commands, order: Order, folder: Path) -> dict[str, Any]:
    """Make a policy folder live as a person who confirms what it loosens."""
    answer = await commands.policy_apply(order, folder)
    if not answer["confirm"]:
        return answer
    return await commands.policy_apply(order, folder, confirm=answer["confirm"])


Act = Callable[[], Awaitable[object]]


class Script:
    """The acts, each of which may be repeated; `events` are all that are fed, in order."""

    events: Sequence[Event] = EVENTS

    def __init__(
        self, stage: Stage, fleet: FleetHarness, clock: ManualClock, world: FileWorld
    ) -> None:
        self.stage, self.fleet, self.clock, self.world = stage, fleet, clock, world

    async def all(self) -> None:
        """Do everything, once."""
        for _, act in self.acts():
            await act()

    @property
    def commands(self) -> Commands:
        """Return the commands of the fleet that is open now."""
        return self.fleet.app.commands

    def acts(self) -> list[tuple[str, Act]]:
        """Return what is done, in order, and the name of each."""
        order = self._order
        acts: list[tuple[str, Act]] = [
            ("feed", partial(self._feed, FIRST)),
            ("settle", self._settle),
            # Later ones of a key go on while a person thinks: they answer before those come.
            ("wait out a call", self._wait_out),
            ("answer", partial(self._answer, "unknown")),
            ("stop", partial(order, "stop", "stop", agent="other")),
            ("feed a stopped agent", partial(self._feed, STOPPED)),
            ("settle", self._settle),
            ("resume", partial(order, "resume", "resume", agent="other")),
            ("publish", partial(order, "apply", "policy_apply", folder=str(self.stage.changed))),
            ("feed", partial(self._feed, CHANGED)),
            ("answer", partial(self._answer, "any")),
            ("see through", partial(self._see_through, but=LAST)),
            ("erase", partial(order, "erase", "erase", event=FIRST[0].key)),
        ]
        if not (self.fleet.folder / URL).exists():
            # (Workers who share a database share its key, and none of them may change it alone.)
            acts.append(("rotate", partial(order, "rotate", "rotate_key")))
        # By now `other` has spent its day, so its last event waits until a person gives more.
        return [
            *acts,
            ("feed", partial(self._feed, LAST)),
            ("wait for budget", self._wait_for_budget),
            ("raise", partial(order, "raise", "budget_raise", for_us=DAY_US, agent="other")),
            ("see through", self._see_through),
        ]

    async def _settle(self) -> None:
        """Return when nothing is left to handle now (what waits is looked for once at a time)."""
        dispatcher = self.fleet.app.dispatcher
        # For what never ends; a busy machine may stop a child for longer than a minute.
        async with asyncio.timeout(150):
            while True:
                dispatcher.wake_due()
                if dispatcher.is_idle:
                    return
                while not dispatcher.is_idle:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)

    async def _wait_out(self) -> None:
        """Let pass what the longest call may take: nobody is asked about one before."""
        self.clock.advance(60_000_000)
        await self._settle()

    async def _wait_for_budget(self) -> None:
        """Settle until what came last waits for what its agent may spend."""
        await self._settle()

    async def _feed(self, events: list[Event]) -> None:
        """Hand over what the feed has not handed over yet, two by two, with its place."""
        intake = self.fleet.app.intake
        behind = self.events.index(events[0])
        place = int(intake.position(FEED) or 0)
        for at in range(max(place, behind), behind + len(events), 2):
            batch = self.events[at : min(at + 2, behind + len(events))]
            receipts = await intake.accept(batch, position=(FEED, str(at + len(batch))))
            with (self.fleet.folder / "accepted").open("ab", buffering=0) as file:
                for event, receipt in zip(batch, receipts, strict=True):
                    assert receipt.status in ("accepted", "duplicate"), receipt
                    file.write(event.key.encode() + b"\n")

    async def _order(self, name: str, verb: str, **args: Any) -> None:
        """Give an order as a person who confirms what it loosens."""

        async def act(order: Order) -> dict[str, Any]:
            answer = await dispatch(self.commands, verb, order, args)
            if answer.get("confirm"):
                confirmed = {**args, "confirm": answer["confirm"]}
                answer = await dispatch(self.commands, verb, order, confirmed)
            return answer

        await self._once(name, act)

    async def _once(self, name: str, act: Callable[[Any], Any]) -> None:
        order = replace(self.fleet.order("as the script says"), command_id=name)
        try:
            answer = await act(order)
        except AlreadyDone:
            answer = {}
        # (A stop that could not be recorded is told to hold in this process alone.)
        if answer.get("changed", True) and answer.get("recorded", True):
            with (self.fleet.folder / "answered").open("ab", buffering=0) as file:
                file.write(name.encode() + b"\n")

    async def _answer(self, which: str) -> None:
        """Answer holds: what may have happened by what the target says, all others with a yes."""
        store = self.fleet.app.store
        for event in HOLDING:
            for row in [
                r for run in store.runs.runs_of_event(event.key) for r in store.runs.actions(run.id)
            ]:
                if row.hold != "open" or row.waits != "approval":
                    continue
                if which == "unknown" and row.effect != "unknown":
                    continue
                did = row.effect == "unknown" and self.world.happened(row.id.removeprefix("act_"))
                hold, digest = row.id.replace("act_", "hold_"), self.fleet.shown_digest(row)
                verb, name = "deny" if did else "approve", f"{hold} {row.decisions}"
                await self._order(name, verb, hold=hold, digest=digest)
        await self._settle()

    async def _see_through(self, but: Sequence[Event] = ()) -> None:
        """Let time pass and a person answer until every run has ended, but those of some events."""
        store = self.fleet.app.store
        events = [event for event in self.events if event not in but]
        for _ in range(50):
            await self._settle()
            runs = [run for event in events for run in store.runs.runs_of_event(event.key)]
            waiting = [run for run in runs if run.state not in ("done", "dead")]
            if not waiting:
                return
            await self._answer("any")
            self.clock.advance(5_000_000)
        raise AssertionError(f"runs never ended: {waiting}")


def weaken(synchronous: str) -> None:
    """Open every store of this process with another mode of syncing than the shipped one."""
    from vedette.store.sqlite import SqliteStore

    shipped: Any = SqliteStore.__init__

    def weaker(self: Any, *given: Any, **options: Any) -> None:
        shipped(self, *given, **{**options, "synchronous": synchronous})

    opening: Any = SqliteStore
    opening.__init__ = weaker


def settings_of(content: Path) -> Settings:
    """Return the settings of a stage's fleet, for who reads it and judges in this process."""
    return replace(
        Settings.of(content / "content", "harbour"),
        isolation=Isolation(False), targets={"world": {"kind": "world"}},
    )  # fmt: skip


@cache
def read_content(content: Path) -> FleetContents:
    """Return the fleet of a stage as it is declared; read once, before children are forked."""
    settings = settings_of(content)
    return read_fleet(settings.root, settings)


def dump(stage: Stage, folder: Path, *, verify: bool = False, archived: bool = False) -> None:
    """Write what the auditor reads: the exported ledger, and the fleet's own rows and sums.

    Every judgement is made again, and comes out as recorded. With `verify` the product's own
    verification has to find nothing either. Of what is `archived` nothing may be left to judge by.
    """
    from vedette.adapters.ledger_export import export, verify_store
    from vedette.app.judge_releases import rejudge_store
    from vedette.app.stores import open_reader
    from vedette.store.banks import SqliteBank

    settings = replace(settings_of(stage.content), state=folder / "state", store=store_of(folder))
    store = open_reader(settings)
    banks = SqliteBank(folder / "state" / "memory.db")
    try:
        key = (folder / "state" / "ledger.pub").read_text(encoding="ascii")
        witness = folder / "state" / "witness.log"
        if verify:
            report = verify_store(store.ledger, key, witness)
            assert report.ok, report.findings
        judged = rejudge_store(settings, store, ManualClock(START_US), read_content(stage.content))
        assert judged.ok, judged.to_json()
        assert judged.equal or archived, "nothing was judged"
        export(store.ledger, folder / "export", verifier_key=key, witness=witness, bodies=True)
        spent: dict[str, int] = {}
        for agent, unit, _, amount in store.spend.by_minute(0):
            spent[f"{agent} {unit}"] = spent.get(f"{agent} {unit}", 0) + amount
        rows = {
            f"{name}_notes {key}": store.runs.row(f"{name}_notes", key)
            for name in AGENTS
            for key in ("k0", "k1", "k2", "k3")
        }
        fields = {
            "spent": spent,
            "rows": rows,
            "position": store.runs.source_position(FEED),
            "candidates": [[each.text, each.agent, each.event] for each in banks.candidates(BANK)],
        }
        (folder / "told.json").write_text(json.dumps(fields))
    finally:
        banks.close()
        store.close()


def plan(events: Sequence[Event] = EVENTS) -> Plan:
    """Return what the script must come to, for the auditor: read off the events, not the engine."""
    wanted = []
    for event in events:
        for each in event.data["do"]:
            tool, text = each["tool"], each["args"]["text"]
            if tool in ("note.add", DENIED):
                continue
            ordered = tool != "big.send" and not text.startswith("later")
            agent = event.type.removesuffix(".job")
            wanted.append(Wanted(event.key, agent, event.subject or "", tool, text, ordered))
    return Plan(tuple(event.key for event in events), tuple(wanted), str(len(events)))
