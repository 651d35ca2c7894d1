"""FleetHarness: a whole fleet in a folder, for tests of agents, policies and the engine itself.

Real store, real policy engine, real content; what a test wants to hold in its hand (clock,
reasoner, sources) is given. Nothing here sleeps on the wall clock for its own sake.

    async with FleetHarness(tmp_path) as fleet:
        await fleet.send(Event("test", "1", "metric.point", "pump", None, {"value": 3}))
        await fleet.settle()
        assert fleet.outcomes() == {"permit": 1}
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from vedette.domain.base.clock import MachineClock
from vedette.domain.bundle import Bundle, Finding
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.identity import Principal
from vedette.domain.ports.policy_engine import PolicyEngine, PolicyStage
from vedette.domain.ports.reasoner import Reasoner
from vedette.domain.ports.sources import Receipt
from vedette.domain.run import ActionRow, Run
from vedette.operations.commands import Order

if TYPE_CHECKING:
    from vedette.app.composition_root import App
    from vedette.config.deployment import Deployment
    from vedette.config.models import ModelPlan
    from vedette.config.settings import StorePlan
    from vedette.domain.display import Display

TESTER = Principal.owner("tester")


_ENGINES: dict[str, PolicyEngine] = {}


class TrustingStage:
    """A PolicyStage that admits every bundle untried: for policies that other tests try out."""

    async def try_out(self, bundle: Bundle) -> list[Finding]:
        """Find nothing."""
        return []

    def load(self, bundle: Bundle) -> PolicyEngine:
        """Make an engine of the bundle; the same one for the same bundle, as compiling is slow."""
        from vedette.adapters.policy_engines.regorus.engine import RegorusEngine

        engine = _ENGINES.get(bundle.digest)
        if engine is None:
            engine = _ENGINES[bundle.digest] = RegorusEngine(bundle)
        return engine


def _no_second_engine(bundle: Bundle) -> None:
    """Make no second engine."""


class FleetHarness:
    """One fleet over the content of `content`, with its state in `folder`.

    `policies` may be another folder (a copy to edit); `reasoners` replaces those of the agents by
    kind ("judge", "adk"); `targets` are the tables that calling tools get. Agents' code runs in
    this process; with `workers`, in processes of its own, as in production. Set `stage` and
    `second` before it is opened for other policy engines: who decides, and who gives the second
    opinion: nobody unless it is set.
    """

    stage: PolicyStage | None = None
    second: PolicyStage | None = None
    # Told if a task of the dispatcher breaks; set before it is opened.
    on_failure: Callable[[str, BaseException | None], None] | None = None

    def __init__(
        self,
        folder: Path,
        *,
        content: Path | None = None,
        policies: Path | None = None,
        reasoners: Mapping[str, Reasoner] | None = None,
        targets: Mapping[str, Mapping[str, Any]] | None = None,
        clock: MachineClock | None = None,
        trial: bool = False,
        workers: bool = False,
        store: StorePlan | None = None,
        edges: Deployment | None = None,
    ) -> None:
        self.folder = folder
        self._edges = edges
        self.content = content or checkout()
        self.policies = policies or self.content / "policies"
        self.targets = targets or {
            "mailbox": {"kind": "maildir", "path": str(folder / "mail")},
            # Nobody listens there: port 9 is the discard service.
            "oncall": {"kind": "webhook", "url": "http://127.0.0.1:9/hook"},
            "board": {"kind": "board", "path": str(folder / "board.db")},
            "week": {
                "kind": "folder",
                "path": str(folder / "week"),
                "read": [str(self.content / "samples" / "harbour_week")],
            },
        }
        self._reasoners = dict(reasoners) if reasoners else None
        self._clock = clock
        self._trial = trial
        self._store = store
        self._workers = workers
        self._app: App | None = None
        # What people are shown of events, as [[displays]] would say; taken up when it is opened.
        self.displays: tuple[Display, ...] = ()
        # What agents may ask, as [models] would say; likewise.
        self.models: Mapping[str, ModelPlan] = {}

    @property
    def app(self) -> App:
        """Return the opened fleet."""
        assert self._app is not None, "the harness is not open"
        return self._app

    async def __aenter__(self) -> FleetHarness:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the fleet and begin to handle."""
        from msgspec.structs import replace

        from vedette.app.composition_root import open_app
        from vedette.config.deployment import Deployment
        from vedette.config.settings import Isolation, Settings, StorePlan

        settings = replace(
            Settings.of(self.content, "harbour"),
            state=self.folder / "state",
            policies=self.policies,
            targets=dict(self.targets),
            isolation=Isolation(self._workers),
            store=self._store or StorePlan(),
            deployment=self._edges or Deployment(),
            displays=self.displays,
            models=self.models,
        )
        self._app = await open_app(
            settings,
            clock=self._clock,
            reasoners=self._reasoners,
            stage=self.stage or (None if self._trial else TrustingStage()),
            second_engine=self.second.load if self.second is not None else _no_second_engine,
        )
        self._app.dispatcher.start(self.on_failure)

    async def close(self) -> None:
        """Stop handling and let go of the store, as a killed runner would on its next start."""
        if self._app is not None:
            app, self._app = self._app, None
            await app.close()

    async def restart(self) -> None:
        """Close and open again on the same state."""
        await self.close()
        await self.open()

    # --- in ---------------------------------------------------------------------------------

    async def send(self, *events: Event, vouched: bool = True) -> list[Receipt]:
        """Hand over events; their envelope is vouched for unless said otherwise."""
        from msgspec.structs import replace

        if vouched:
            events = tuple(replace(event, vouched=ENVELOPE) for event in events)
        return await self.app.intake.accept(events)

    async def wait_until_idle(self, within_s: float = 20) -> None:
        """Return when nothing is left to handle now. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while True:
                self.app.dispatcher.wake_due()
                if self.app.dispatcher.is_idle:
                    return
                await asyncio.sleep(0.002)

    def order(self, reason: str = "a test") -> Order:
        """Return the order of a person."""
        return Order(TESTER, reason)

    def shown_digest(self, row: ActionRow) -> str:
        """Return the digest of what a person is shown of a hold now."""
        from vedette.ledger.history.lists import hold_item

        found: str = hold_item(self.app.store, row, self.app.services.clock.now_us())[
            "shown_digest"
        ]
        return found

    async def approve(self, row: ActionRow, reason: str = "a test") -> dict[str, Any]:
        """Approve a hold as a person who looks at it does."""
        held = self.app.store.runs.action(row.id)
        assert held is not None
        digest = self.shown_digest(held)
        return await self.app.commands.approve(self.order(reason), row.id, digest)

    async def apply_policy(self, folder: Path) -> dict[str, Any]:
        """Make a policy folder live, whatever it loosens."""
        return await self.submit_confirmed("policy_apply", folder=str(folder))

    async def submit_confirmed(
        self, verb: str, *, reason: str = "a test", **args: Any
    ) -> dict[str, Any]:
        """Give a command as a person who confirms what it loosens."""
        from vedette.interfaces.http.command_dispatch import dispatch

        done = await dispatch(self.app.commands, verb, self.order(reason), args)
        if done.get("confirm"):
            args["confirm"] = done["confirm"]
            done = await dispatch(self.app.commands, verb, self.order(reason), args)
        return done

    # --- out --------------------------------------------------------------------------------

    def runs(self, event: Event) -> list[Run]:
        """Return the runs of an event."""
        return self.app.store.runs.runs_of_event(event.key)

    def actions(self, event: Event) -> list[ActionRow]:
        """Return the actions of all runs of an event."""
        return [row for run in self.runs(event) for row in self.app.store.runs.actions(run.id)]

    def outcomes(self) -> dict[str, int]:
        """Return how many actions of the whole fleet stand permitted, held and denied."""
        found: Counter[str] = Counter()
        for counts in self.app.store.tables.counts().values():
            for name, number in counts.items():
                if name.startswith("decided."):
                    found[name.removeprefix("decided.")] += number
        return dict(found)

    def entries(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the ledger's entries of some kinds, as they were sealed."""
        return [json.loads(raw) for _, raw, _, _ in self.app.store.ledger.walk(kinds or None)]

    def body(self, seq: int) -> dict[str, Any]:
        """Return the body of an entry."""
        found = self.app.store.ledger.entry(seq)
        assert found is not None
        assert found[2] is not None
        parsed: dict[str, Any] = json.loads(found[2])
        return parsed


def checkout() -> Path:
    """Return, for tests, the root of the checkout of these sources (agents, policies, memory)."""
    return Path(__file__).resolve().parents[3]


def copy_policies(to: Path, extra: Mapping[str, str] | None = None) -> Path:
    """Copy the shipped policies to a test's folder `to`, with `extra` files written over them."""
    shutil.copytree(checkout() / "policies", to)
    for name, text in (extra or {}).items():
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return to


def remove_tests(folder: Path, names: Sequence[str] = ("*_test.rego",)) -> Path:
    """Remove the Rego tests of policies a test copied (a changed rule may not keep them true)."""
    for name in names:
        for path in folder.rglob(name):
            path.unlink()
    return folder
