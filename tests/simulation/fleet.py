"""The fleet that is simulated, and the targets that its tools reach: the world outside.

Three agents whose judges keep the values of their key, and a tool of each kind of unknown outcome
(`vedette.testing.toy_fleet`). The targets know nothing of any engine: they outlive all kills, and
keep the record by which histories are judged.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.simulation.history import Act, History
from tests.simulation.loop import OWNER, SimLoop
from tests.simulation.plan import AGENTS, DENIED, Delivery

from vedette.domain.effect import Call, Outcome
from vedette.domain.event import ENVELOPE, Event
from vedette.testing import toy_fleet

# A call takes up to this long and its answer this long: together less than its tool's timeout.
TIMEOUT_S = 2.0
# How often a call is tried (`toy`); who was turned away so often may give it up.
_ATTEMPTS = 3
_QUICK, _LATE, _BACK = (5e-4, 1e-2), (0.2, 1.85), (5e-4, 2e-2)
# The folders of the policies that people publish.
POLICIES = {"base": "policies", "strict": "stricter"}

_TOOLS_PY = """\
from vedette.domain.effect import RowWrite


def add_note(call, row):
    texts = [*(row or {}).get("texts", []), call.args["text"]]
    return [RowWrite(f"{call.agent}_notes", call.args["key"], {"texts": texts})]


async def act(call):
    return await call.target["world"].act(call)


async def ask(call):
    return await call.target["world"].ask(call)
"""


def write_content(folder: Path) -> None:
    """Write the agents, their policies and the key that signs these, which no seed can draw."""
    for name in AGENTS:
        toy_fleet.write_agent(folder / "agents", name, reasoner="judge", max_turns=4, calls=100_000)
        agent = folder / "agents" / name
        charter = (agent / "agent.yaml").read_text("utf-8")
        charter = charter.replace("timeout: 30s", f"timeout: {TIMEOUT_S:.0f}s")
        charter = charter.replace("world, high_impact", "world, timeout: 2s, high_impact")
        charter = charter.replace(f"{{on: {name}.job}}", f"{{on: {name}.job}}, {{on: all.job}}")
        (agent / "agent.yaml").write_text(charter, "utf-8")
        (agent / "tools.py").write_text(_TOOLS_PY, "utf-8")
    (folder / "memory").mkdir()
    toy_fleet.write_policies(folder / POLICIES["base"], AGENTS)
    toy_fleet.write_policies(
        folder / POLICIES["strict"], AGENTS, extra=toy_fleet.deny_policy(DENIED)
    )


def write_keys(state: Path) -> None:
    """Write the keys of a state folder, always the same: what OpenSSL draws no seed reaches."""
    state.mkdir(parents=True)
    write_secret(state / "ledger.key", bytes(range(32)))
    write_secret(state / "policy.key", _policy_key())


@cache
def _policy_key() -> bytes:
    key = ec.derive_private_key(20_061_123, ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner reads."""
    path.write_bytes(data)
    path.chmod(0o600)


def event_of(delivery: Delivery, source: str) -> Event:
    """Return the event that a delivery hands over."""
    do = [
        toy_fleet.note_proposal(text_of(delivery, at))
        if tool == "note.add"
        else toy_fleet.send_proposal(text_of(delivery, at), tool)
        for at, tool in enumerate(delivery.tools)
    ]
    data = {"do": do, "value": delivery.value}
    kind = f"{delivery.wakes}.job"
    return Event(source, delivery.name, kind, delivery.key, None, data, vouched=ENVELOPE)


def text_of(delivery: Delivery, at: int) -> str:
    """Return the text of the `at`-th action that an event asks for."""
    return f"{delivery.name}/{at}"


@dataclass
class Manners:
    """How the targets behave at present: how often late, how often an answer is lost, if away."""

    late: float = 0.1
    lost: float = 0.0
    away: float = 0.0
    slow_s: float = 0.0


class Targets:
    """All that tools reach. `durable` says how many entries the ledger has durably."""

    def __init__(
        self, loop: SimLoop, seed: int, durable: Callable[[], int], trace: Callable[[str], None]
    ) -> None:
        self.loop, self.draw = loop, random.Random(f"{seed}/targets")
        self.durable, self.trace = durable, trace
        self.manners = Manners()
        self.acts: list[Act] = []
        self._known: set[tuple[str, str]] = set()
        self._done: set[str] = set()
        self._turned_away = Counter[str]()

    async def act(self, call: Call) -> Outcome:
        """Do what a call asks, and answer within the tool's time, unless the answer is lost."""
        owner, text = OWNER.get(), str(call.args["text"])
        assert owner is not None
        draw, manners = self.draw, self.manners
        answer = self.loop.create_future()
        there_s = draw.uniform(*(_LATE if draw.random() < manners.late else _QUICK))
        back_s, lost = draw.uniform(*_BACK), draw.random() < manners.lost
        self._note("begun", call, owner.name, self.durable())
        self.trace(f"{owner.name} calls {call.tool} {text} of {call.agent}, try {call.attempt}")
        if draw.random() < manners.away:
            self._turned_away[call.key] += 1
            if self._turned_away[call.key] == _ATTEMPTS:
                self._note("refused", call, owner.name, None)
            self.loop.later(back_s, _answer, answer, False)
        else:
            self.loop.later(there_s, self._happen, call, text, owner.name, answer, back_s, lost)
        if await answer:
            self._note("told", call, owner.name, None)
            return Outcome("done", {"id": call.key})
        return Outcome("retry", error="the target is away")

    def _happen(
        self, call: Call, text: str, by: str, answer: Any, back_s: float, lost: bool
    ) -> None:
        name = call.tool, call.key
        # Only what is declared idempotent by its key is so; the others do what they are asked.
        if name not in self._known or call.tool in ("order.place", "bell.ring"):
            self._note("done", call, by, None)
            self._done.add(call.key)
            self.trace(f"the target did {call.tool} {text} of {call.agent}")
        self._known.add(name)
        if not lost:
            self.loop.later(back_s, _answer, answer, True)

    async def ask(self, call: Call) -> Outcome | None:
        """Say what came of a key: done, or nothing that is known."""
        owner = OWNER.get()
        answer = self.loop.create_future()

        def look() -> None:
            known = (call.tool, call.key) in self._known
            self.loop.later(self.draw.uniform(*_BACK), _answer, answer, known)

        self._note("asked", call, owner.name if owner is not None else "", None)
        self.loop.later(self.draw.uniform(*_QUICK), look)
        known = await answer
        self.trace(f"{owner and owner.name} hears of {call.tool} {call.args['text']}: {known}")
        return Outcome("done", {"id": call.key}) if known else None

    def collect(self, history: History) -> None:
        """Take the targets' record into the history, and how long a call may be under way."""
        history.acts, history.quiet_s = self.acts, TIMEOUT_S

    def did(self, key: str) -> bool:
        """Say whether anything was done under a key, as a person looks it up."""
        return key in self._done

    def _note(self, what: str, call: Call, by: str, entries: int | None) -> None:
        text = str(call.args["text"])
        now_s = self.loop.time()
        self.acts.append(Act(now_s, what, call.tool, call.key, text, call.agent, by, entries))


def _answer(future: Any, answer: Any) -> None:
    if not future.done():
        future.set_result(answer)
