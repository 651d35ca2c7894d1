"""The Pub/Sub bench and the replay over Pub/Sub measure what they say, in small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.databases import own_database
from tests.bench.pubsub import Options, Result, Way, measure
from tests.bench.pubsub_replay import Came, Replay, replay
from tests.pubsub import Emulator
from tools.real_fleet import ROOT

SMALL = Options(events=60, subscriptions=3, textbook=20, rounds=1, wake=True)


@pytest.mark.parametrize(("name", "events"), [("source", 60), ("textbook", 20)])
async def test_each_way_takes_every_event(
    name: str, events: int, pubsub_emulator: Emulator
) -> None:
    way = await measure(name, pubsub_emulator, SMALL)
    assert (way.name, way.events) == (name, events)
    assert way.cpu_us > 0
    assert way.per_s > 0


def test_the_source_is_compared_with_the_line_of_its_own_round() -> None:
    def ways(name: str, *cpu_us: float) -> list[Way]:
        return [Way(name, 1, each, 1.0, 1, 1.0) for each in cpu_us]

    result = Result(SMALL, {"line": ways("line", 10, 50, 30), "source": ways("source", 30, 60, 45)})
    assert result.above_us == 15


async def test_the_samples_over_twenty_subscriptions_and_postgresql(
    tmp_path: Path, pubsub_emulator: Emulator
) -> None:
    """All events once, those that the broker delivered again and the dead letters sent again too;
    no second effect, and every event accounted for."""
    samples = ROOT / "samples"
    given = Replay(samples / "metrics", samples / "mailbox", rows=8, again=0.2, isolated=False)
    came = await replay(tmp_path, given, pubsub_emulator, own_database().url)
    assert came.wrong() == []
    good = came.published - came.poison
    assert came.redelivered >= came.given_back >= 0.2 * good - 1 > 15
    assert came.redriven == came.poison > 0
    assert sum(agent["effects"] for agent in came.summary["agents"].values()) > 20
    control(came)


def control(came: Came) -> None:
    """Negative control: what must be found, is found."""
    agents, stands = came.summary["agents"], came.account
    name = next(iter(agents))
    more = {**agents[name], "effects": agents[name]["effects"] + 1}
    assert replace(came, summary={**came.summary, "agents": {**agents, name: more}}).wrong()
    assert replace(came, calls=came.effects + 1).wrong()
    assert replace(came, redelivered=0).wrong()
    assert replace(came, redriven=came.poison - 1).wrong()
    for odd in (
        replace(stands, events=stands.events + 1), replace(stands, twice=1),
        replace(stands, nobody=stands.nobody + 1), replace(stands, orphans=1),
        replace(stands, unsettled=1), replace(stands, runs=stands.runs | {"ready": 1}),
    ):  # fmt: skip
        assert replace(came, account=odd).wrong()
