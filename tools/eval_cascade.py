"""`make eval-cascade`: a judge alone, a model alone and the cascade of both, on the same mails.

The judge is the shipped spam bank, made of the first three tenths of the mails of VEDETTE_DATA by
time, so that there are mails of which it is not sure. The bar from which it settles is chosen on
those received next, on which people also answer what the model proposes; everything is told of the
last. The model is a script of known accuracy by class, in the place of a provider's client: the
rest of the line is real (policy, holds, answers, the measure of its confidence). Whoever is asked
knows what is right. Each of the three is a fleet of its own, in a folder that is removed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import ceil
from pathlib import Path

import orjson
from msgspec import Struct

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from vedette.adapters.mail.parser import parse_mail
from vedette.domain.action import Proposal
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import ModelTurn
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement, StatelessReasoner
from vedette.domain.run import ActionRow
from vedette.judging.calibration import conformal_threshold, expected_error
from vedette.judging.examples import Example
from vedette.judging.spam import SpamBank, mail_words
from vedette.testing.harness import FleetHarness, checkout
from vedette.testing.toy_fleet import World, toy_fleet

# How often the script is right about each class, and what a call costs (millionths).
ACCURACY = {"ham": 0.94, "spam": 0.88}
CALL_MICROS = 2_000
# The share of right verdicts that the bar is to promise, and how many events come between answers.
PROMISE, BATCH = 0.995, 20
# By how much each speaker's stated confidence may be off.
MOST_OFF = 0.05
# As many answers of people, at most, come before the cases that are told of.
WARM_UP = 150
# The shares of the mails, by time, that the bank is made of, and up to which the bar is chosen.
BANK, CHOSEN = 0.3, 0.65
_ROOM = "minute: 60000, hour: 60000"
BOTH, JUDGE, MODEL = "[judge, model]", "judge", "adk"
_TURN = ModelTurn("script", "a" * 64, "first", "", (), "", "{}")


class Case(Struct, frozen=True):
    """One mail: what it is, and what the judge says of it, how sure."""

    id: str
    truth: str
    label: str
    confidence: float

    @property
    def is_right(self) -> bool:
        """Say whether the judge is right."""
        return self.label == self.truth


class Score(Struct, frozen=True):
    """What came of the cases: of all, of what nobody was asked about, and what it cost.

    `stated` are of each verdict, by speaker (judge, model), the confidence that it was decided by
    and whether it was right; those that nobody had measured are not among them.
    """

    cases: int
    asked: int
    right_alone: int
    calls: int
    stated: Mapping[str, Sequence[tuple[float, bool]]]

    @property
    def alone(self) -> int:
        return self.cases - self.asked

    @property
    def accuracy(self) -> float:
        """Return the share of cases that ended right; people are."""
        return (self.right_alone + self.asked) / self.cases

    @property
    def errors(self) -> dict[str, float]:
        """Return by how much each speaker's stated confidence is wrong (expected calibration
        error): of both together a speaker that says little would be hidden by the other.
        """
        return {
            speaker: expected_error(*zip(*stated, strict=True))
            for speaker, stated in sorted(self.stated.items())
        }

    def line(self, name: str) -> str:
        """Return it as a line of the table."""
        alone = self.right_alone / self.alone if self.alone else 1.0
        return (
            f"  {name:<10} right {100 * self.accuracy:5.1f} %, of what it did alone"
            f" {100 * alone:5.1f} %; to people {100 * self.asked / self.cases:5.1f} %;"
            f" calls {self.calls:>4}, {self.calls * CALL_MICROS / 1e6:.2f} of money;"
            f" stated confidence off by {self._format_errors()}"
        )

    def _format_errors(self) -> str:
        return ", ".join(
            f"{speaker} {error:.3f}{'' if error <= MOST_OFF else ' (not met)'}"
            f" of {len(self.stated[speaker])}"
            for speaker, error in self.errors.items()
        )


class _Verdicts(StatelessReasoner):
    """Says of each event what is given, as a judge (`route` "") or as a model."""

    def __init__(self, given: Mapping[str, tuple[str, float]], *, is_model: bool) -> None:
        self.calls, self._given, self._is_model = 0, given, is_model

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        label, confidence = self._given[briefing.event.id]
        to = Ref("/charter/desk")
        wanted = (Proposal("wire.send", {"to": to, "text": label}),)
        if not self._is_model:
            return ReasonerJudgement(label, confidence, wanted)
        self.calls += 1
        return ReasonerJudgement("wire.send", 0.0, wanted, model_calls=1, model_turn=_TURN)


def script_model(cases: Sequence[Case], accuracy: Mapping[str, float]) -> dict[str, str]:
    """Return what a model of this accuracy says of each case: the same each time."""
    classes, found = sorted(accuracy), {}
    for case in cases:
        drawn = random.Random(sha256(case.id.encode()).digest())  # noqa: S311 (no secret)
        others = [one for one in classes if one != case.truth]
        right = drawn.random() < accuracy[case.truth]
        found[case.id] = case.truth if right else drawn.choice(others)
    return found


def choose_bar(cases: Sequence[Case]) -> int:
    """Return the confidence, in thousandths, from which a judge keeps its promise on these cases.

    1000 if it does from none.
    """
    confidences, right = [c.confidence for c in cases], [c.is_right for c in cases]
    found = conformal_threshold(confidences, right, PROMISE)
    return 1000 if found is None else min(1000, ceil(found * 1000))


async def score(
    before: Sequence[Case],
    cases: Sequence[Case],
    accuracy: Mapping[str, float],
    reasoner: str,
    settle_at: int = 1000,
) -> Score:
    """Have a fleet handle the cases in their order; return what came of them.

    Those before are answered by people, and told of nowhere.
    """
    every = [*before, *cases]
    judge = _Verdicts({one.id: (one.label, one.confidence) for one in every}, is_model=False)
    said = {id: (label, 0.0) for id, label in script_model(every, accuracy).items()}
    model = _Verdicts(said, is_model=True)
    truth, asked = {one.id: one.truth for one in every}, set[str]()
    with tempfile.TemporaryDirectory() as folder:
        fleet = _fleet(Path(folder), reasoner, settle_at)
        fleet._reasoners = {"judge": judge, "adk": model}
        stated: dict[str, list[tuple[float, bool]]] = {}
        right_alone = 0
        async with fleet:
            for start in (*range(0, len(before), BATCH), *range(len(before), len(every), BATCH)):
                if start == len(before):
                    asked.clear()
                    stated.clear()
                    right_alone, model.calls = 0, 0
                end = start + BATCH if start >= len(before) else min(start + BATCH, len(before))
                events = [
                    Event("mails", one.id, "worker.job", one.id, None, {})
                    for one in every[start:end]
                ]
                await fleet.send(*events)
                await fleet.wait_until_idle(60)
                for event in events:
                    (row,) = fleet.actions(event)
                    is_right = _args(row)["text"] == truth[event.id]
                    sure = _stated(fleet, row)
                    if sure > 0:
                        is_model = reasoner == MODEL or row.turn > 1
                        speaker = "model" if is_model else "judge"
                        stated.setdefault(speaker, []).append((sure, is_right))
                    if row.hold == "open":
                        asked.add(event.id)
                        await _answer(fleet, row, is_right)
                    else:
                        right_alone += is_right
                await fleet.wait_until_idle(60)
    return Score(len(cases), len(asked), right_alone, model.calls, stated)


def _fleet(folder: Path, reasoner: str, settle_at: int) -> FleetHarness:
    limits = (checkout() / "policies/limits/data.yaml").read_text("utf-8")
    fleet = toy_fleet(
        folder, World(), reasoner=reasoner, model_calls=1_000_000,
        extra={"limits/data.yaml": limits.replace("minute: 600, hour: 6000", _ROOM)},
    )  # fmt: skip
    yaml = folder / "content/agents/worker/agent.yaml"
    if reasoner == BOTH:
        yaml.write_text(f"{yaml.read_text('utf-8')}cascade: {{settle_at: {settle_at}}}\n")
    return fleet


def _args(row: ActionRow) -> Mapping[str, str]:
    args: Mapping[str, str] = orjson.loads(row.record)["args"]
    return args


def _stated(fleet: FleetHarness, row: ActionRow) -> float:
    """Return how sure the turn of an action was, whether or not it was audited."""
    turns = fleet.app.store.runs.turns(row.run)
    return float(next(turn["confidence"] for turn in turns if turn["turn"] == row.turn))


async def _answer(fleet: FleetHarness, row: ActionRow, is_right: bool) -> None:
    if is_right:
        await fleet.approve(row)
    else:
        await fleet.app.commands.deny(fleet.order(), row.id, fleet.shown_digest(row))


async def compare(
    chosen_on: Sequence[Case], told_of: Sequence[Case], accuracy: Mapping[str, float]
) -> tuple[int, dict[str, Score]]:
    """Return the bar, chosen on some cases, and the scores on others: judge, model, cascade."""
    bar = choose_bar(chosen_on)
    unsure = [one for one in chosen_on if int(one.confidence * 1000) < bar]
    return bar, {
        "judge": await score([], told_of, accuracy, JUDGE),
        "model": await score(chosen_on[:WARM_UP], told_of, accuracy, MODEL),
        "cascade": await score(unsure[:WARM_UP], told_of, accuracy, BOTH, bar),
    }


def judge_mails(data: Path) -> tuple[list[Case], list[Case]]:
    """Return the mails that the bar is chosen on and those received later, as the bank made of the
    first judges them.
    """
    from tools.eval_real.sources import mails

    found = mails(data / "spamassassin")
    parsed = [parse_mail(mail.raw) for mail in found]
    labels = ["spam" if mail.spam else "ham" for mail in found]
    made, chosen = int(len(found) * BANK), int(len(found) * CHOSEN)
    bank = SpamBank(
        [Example(str(n), labels[n], mail_words(parsed[n]), facts=parsed[n]) for n in range(made)]
    )
    cases = []
    for n in range(made, len(found)):
        chance = bank.chance(parsed[n]).chance
        label, sure = ("spam", chance) if chance > 0.5 else ("ham", 1 - chance)
        cases.append(Case(f"m{n}", labels[n], label, sure))
    return cases[: chosen - made], cases[chosen - made :]


def main() -> int:
    """Print the table; 3 without data."""
    from tools.eval_real.__main__ import data_folder

    data = data_folder()
    if data is None or not (data / "spamassassin").is_dir():
        print("eval_cascade: skipped, no evaluation data. Mend: set VEDETTE_DATA", file=sys.stderr)
        return 3
    chosen_on, told_of = judge_mails(data)
    bar, scores = asyncio.run(compare(chosen_on, told_of, ACCURACY))
    print(
        f"eval-cascade: {len(told_of)} mails ({sum(c.truth == 'spam' for c in told_of)} spam), the"
        f" last by time; bar {bar} chosen on the {len(chosen_on)} before. The model is a script,"
        f" right about {ACCURACY}; people are right. Policy asks below 0.8."
    )
    for name, one in scores.items():
        print(one.line(name))
    errors = [error for one in scores.values() for error in one.errors.values()]
    return 0 if all(error <= MOST_OFF for error in errors) else 1


if __name__ == "__main__":
    sys.exit(main())
