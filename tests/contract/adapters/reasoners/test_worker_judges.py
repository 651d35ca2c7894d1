"""Judges in worker processes: what a misbehaving one may do to others, which is nothing.

Real processes, really killed. The contract of the Reasoner port itself is in test_reasoners.py.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.workers import (
    CHARTER,
    EVERY,
    JUDGE_PY,
    LIMITS,
    REGISTRY,
    Crew,
    alive,
    brief,
    crew,
    until,
    write_judge,
)

from vedette.adapters.reasoners.in_process import InProcessReasoner
from vedette.adapters.reasoners.workers.fork_server_start import COMMAND
from vedette.adapters.reasoners.workers.pending_call import WorkerLost
from vedette.adapters.reasoners.workers.remote_error import Raised
from vedette.config.agent_loader import load_judge
from vedette.domain.agent import ResourceLimits
from vedette.domain.base.errors import Temporary, Unavailable
from vedette.domain.event import Event
from vedette.domain.memory import Briefing, Memory
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement

LOST = [
    ("loop", "took longer than 1 s"),
    ("sleep", "took longer than 1 s"),
    ("stop", "took longer than 1 s"),
    ("eat", "went over its memory limit"),
    ("map", "went over its memory limit"),
    ("segfault", "was ended by SIGSEGV"),
    ("exit", "ended by itself with exit code 3"),
]


async def test_what_is_thought_crosses_the_border_unchanged(tmp_path: Path) -> None:
    memory = Memory(
        "m1", "inbox", 2, "inbox", "fact", ("a",), "text", "0" * 64, "desk", "2026-01-02"
    )
    async with crew(tmp_path) as there:
        briefing = replace(brief(value=0.1), memories=(memory,))
        thought = await there.judges.reason(briefing)
        here = InProcessReasoner(lambda _: load_judge(there.agents / "worker", CHARTER, ()))
        assert thought == await here.reason(briefing)
        (proposal,) = thought.proposals
        assert proposal.args["message"] == Ref("/event/subject")
        assert proposal.args["like"] == {"ref": "/x"}, "a value is never taken for a reference"
        assert thought.detail["charter"] == CHARTER
        assert thought.detail["registry"] == REGISTRY
        assert thought.detail["memories"] == ["inbox/m1@2"]
        assert thought.score == 0.1
        assert thought.candidates[0].topics == ("one", "two")


async def test_what_json_does_not_know_crosses_too(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        thought = await there.judges.reason(brief(do="odd"))
        assert math.isnan(thought.detail["nan"])
        assert thought.detail["big"] == 1 << 80
        assert dict(thought.detail)[3] == (1, b"b")  # type: ignore[index]


@pytest.mark.parametrize(("do", "why"), LOST, ids=[do for do, _ in LOST])
async def test_who_kills_its_worker_is_charged_and_nobody_else(
    tmp_path: Path, do: str, why: str
) -> None:
    # Filling its memory takes long on a slow machine.
    limits = replace(LIMITS, time_us=20_000_000) if do in ("eat", "map") else LIMITS
    async with crew(tmp_path, limits) as there:
        judges = there.judges
        assert (await judges.reason(brief(key="early"))).label == "seen 1"
        pid = await there.born()
        before = [asyncio.create_task(judges.reason(brief(key=f"b{n}"))) for n in range(3)]
        guilty = asyncio.create_task(judges.reason(brief(key="guilty", do=do)))
        after = [asyncio.create_task(judges.reason(brief(key=f"a{n}"))) for n in range(3)]
        other = asyncio.create_task(judges.reason(brief(agent="other")))
        with pytest.raises(WorkerLost, match=why):
            await guilty
        assert isinstance(guilty.exception(), Temporary), "an attempt is counted"
        answers = await asyncio.gather(*before, *after, other)
        assert {thought.label for thought in answers} == {"seen 1"}
        assert not any(thought.needs_state for thought in answers)
        await until(lambda: not alive(pid))
        assert await there.born() != pid
        await until(lambda: bool(there.deaths))  # told by the one that had started it
        assert [death[:2] for death in there.deaths if death[0] == "worker"] == [
            ("worker", "judge")
        ]


NINE = [f"p{n}" for n in range(9)]


async def queue_behind(
    there: Crew, do: str, within_s: float
) -> list[asyncio.Task[ReasonerJudgement]]:
    """Ask nine questions that end workers, then others; return the nine once those are answered."""
    await there.judges.reason(brief(key="early"))
    guilty = [asyncio.create_task(there.judges.reason(brief(key=key, do=do))) for key in NINE]
    others = [asyncio.create_task(there.judges.reason(brief(key=f"k{n}"))) for n in range(30)]
    async with asyncio.timeout(within_s):
        assert {thought.label for thought in await asyncio.gather(*others)} == {"seen 1"}
    return guilty


async def test_questions_that_take_long_keep_no_other_key_waiting(tmp_path: Path) -> None:
    """They have all the time that is theirs, in workers of their own, which end with them."""
    async with crew(tmp_path, replace(LIMITS, time_us=25_000_000)) as there:
        guilty = await queue_behind(there, "sleep", 24)
        assert not there.deaths
        assert not any(task.done() for task in guilty)
        for task in guilty:
            task.cancel()
        await asyncio.gather(*guilty, return_exceptions=True)


async def test_questions_that_end_workers_keep_no_other_key_waiting(tmp_path: Path) -> None:
    """The next worker is there at once, and a second attempt is not made in it."""
    async with crew(tmp_path) as there:
        guilty = await queue_behind(there, "exit", 14)
        answers = await asyncio.gather(*guilty, return_exceptions=True)
        assert {type(each) for each in answers} == {WorkerLost}
        pid, deaths = await there.born(), len(there.deaths)
        with pytest.raises(WorkerLost):
            await there.judges.reason(brief(key=NINE[0], do="exit"))
        assert len(there.deaths) == deaths + 1
        assert (
            await there.judges.reason(brief(key="k1", position=2, previous=1))
        ).label == "seen 2"
        assert there.pid() == pid, "the others' worker was not touched"
        # Once it is answered it is one of the others again.
        assert (await there.judges.reason(brief(key=NINE[0]))).label == "seen 1"
        await until(lambda: len(there.pool._handles) == 1)


async def test_a_worker_that_is_not_hurt_is_kept(tmp_path: Path) -> None:
    """Negative control of the one above: without a death it is the same process."""
    async with crew(tmp_path) as there:
        await there.judges.reason(brief(key="early"))
        pid = await there.born()
        for do, name in (("raise", "KeyError"), ("leave", "SystemExit"), ("alien", "TypeError")):
            with pytest.raises(Raised) as raised:
                await there.judges.reason(brief(key=do, do=do))
            assert type(raised.value).__name__ == name
            assert not isinstance(raised.value, Temporary)
        with pytest.raises(Temporary, match="not now"):
            await there.judges.reason(brief(key="again", do="again"))
        assert (await there.judges.reason(brief(key="late"))).label == "seen 1"
        assert (there.pid(), there.deaths) == (pid, [])


async def test_what_was_raised_reads_as_in_this_process(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        with pytest.raises(Exception, match="no such thing") as far:
            await there.judges.reason(brief(do="raise"))
        here = InProcessReasoner(lambda _: load_judge(there.agents / "worker", CHARTER, ()))
        with pytest.raises(KeyError) as near:
            await here.reason(brief(do="raise"))
        assert [f"{type(e.value).__name__}: {e.value}" for e in (far, near)] == [
            "KeyError: 'no such thing'"
        ] * 2


async def test_an_answer_that_is_too_long_or_none_ends_its_run_only(tmp_path: Path) -> None:
    async with crew(tmp_path, replace(LIMITS, memory=1 << 30)) as there:
        with pytest.raises(Exception, match="at most 8388608 are taken"):
            await there.judges.reason(brief(key="h", do="huge"))
        with pytest.raises(Exception, match="no answer: no judgement: Expected `str`, got"):
            await there.judges.reason(brief(key="w", do="wrong"))
        assert (await there.judges.reason(brief())).label == "seen 1"
        assert there.deaths == []


GARBAGE = {
    "endless": "ff" * 64,
    "nobody asked": "0000000000000000ffff000040",
    "no plain data": "0300000000000000010000004078797a",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=list(GARBAGE))
async def test_garbage_on_the_wire_harms_no_other_agent(tmp_path: Path, data: str) -> None:
    """Nor the engine. Who wrote it cannot be known: an event of the same agent is charged."""
    async with crew(tmp_path) as there:
        briefings = [brief(key="guilty", do="garbage", bytes=data)]
        briefings += [brief(key=f"g{n}") for n in range(3)]
        other = asyncio.create_task(there.judges.reason(brief(agent="other")))
        answers = await asyncio.gather(*map(there.judges.reason, briefings), return_exceptions=True)
        wrong = [answer for answer in answers if isinstance(answer, Exception)]
        assert wrong
        for error in wrong:
            assert "garbage" in str(error) or "is no answer" in str(error)
        assert (await other).label == "seen 1"
        assert (await there.judges.reason(brief(key="late"))).label == "seen 1"


# --- state -----------------------------------------------------------------------------------


class Key:
    """A key's events, and a caller that gives a judge its state as the line does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[tuple[int, Event]] = []
        self.checkpoint: tuple[bytes | None, int] = (None, 0)

    async def judge(self, judges: Any, briefing: Briefing) -> ReasonerJudgement:
        briefing = replace(briefing, previous=self.seen[-1][0] if self.seen else 0)
        try:
            thought: ReasonerJudgement = await judges.reason(briefing)
        except WorkerLost:
            # What was asked first when it was killed is charged, and tried again.
            thought = await judges.reason(briefing)
        if thought.needs_state:
            blob, at = self.checkpoint
            since = [(position, event) for position, event in self.seen if position > at]
            judges.restore_state("worker", self.name, blob, at, since)
            thought = await judges.reason(briefing)
        self.seen.append((briefing.position, briefing.event))
        if thought.checkpoint is not None:
            self.checkpoint = (thought.checkpoint, briefing.position)
        return thought


async def test_decisions_after_kills_equal_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    """State is taken up again after each death; `dump` and `load` are met on the way."""
    async with crew(tmp_path) as there:
        await there.judges.reason(brief(key="warm"))
        here = InProcessReasoner(
            lambda _: load_judge(there.agents / "worker", CHARTER, ()), checkpoint_every=EVERY
        )
        keys = [(Key(f"k{n}"), Key(f"k{n}")) for n in range(3)]
        for position in range(1, 601):
            if position % 97 == 0:
                os.kill(await there.born(), signal.SIGKILL)
            far, near = keys[position % 3]
            briefing = brief(position, key=far.name, value=position / 7)
            thoughts = [await far.judge(there.judges, briefing), await near.judge(here, briefing)]
            assert len({repr(replace(thought, checkpoint=None)) for thought in thoughts}) == 1
        assert len(there.deaths) >= 6
        assert all(far.checkpoint[1] and near.checkpoint[1] for far, near in keys)


async def test_a_judge_that_always_takes_long_is_not_forked_for_every_question(
    tmp_path: Path,
) -> None:
    async with crew(tmp_path, replace(LIMITS, time_us=10_000_000)) as there:
        nap = "\n\ndef do_nap(data):\n    time.sleep(0.4)\n"
        write_judge(there.agents, code=JUDGE_PY + nap)

        async def judge_some(key: str) -> None:
            for number in range(4):  # each of a key that has no state yet
                await there.judges.reason(brief(key=f"{key}{number}", do="nap"))

        await asyncio.gather(*(judge_some(key) for key in "abc"))
        # Asked for each seat and for each worker: that was twice for each of the twelve questions.
        assert len(there.made) <= 12


async def test_a_dead_worker_is_found_when_it_is_next_asked(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        await there.judges.reason(brief())
        pid = await there.born()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: there.pid() == 0)
        assert (await there.judges.reason(brief(2, 1))).needs_state
        there.judges.restore_state("worker", "k", b"7 0.5", 1, [])
        assert (await there.judges.reason(brief(2, 1))).label == "seen 8"


async def test_a_state_is_given_back_event_by_event_in_the_time_of_one(tmp_path: Path) -> None:
    """Ten events of 0.15 s each are longer than a judgement may take; one that hangs is not."""
    slow = brief(observe="slow").event
    async with crew(tmp_path) as there:
        there.judges.restore_state("worker", "k", None, 0, [(n, slow) for n in range(1, 11)])
        assert (await there.judges.reason(brief(11, 10))).label == "seen 11"
        hangs = [(1, slow), (2, brief(observe="loop").event)]
        there.judges.restore_state("worker", "h", None, 0, hangs)
        with pytest.raises(WorkerLost, match=r"took longer than 1 s"):
            await there.judges.reason(brief(3, 2, key="h"))


async def test_a_state_that_was_given_back_is_given_to_the_next_worker_too(
    tmp_path: Path,
) -> None:
    """The line gives a state once. The worker took it up, and dies before it has judged by it."""
    async with crew(tmp_path) as there:
        await there.judges.reason(brief(key="warm"))
        there.judges.restore_state("worker", "k", b"7 0.5", 1, [])
        await until(lambda: not there.judges._handles["worker"].pending)
        guilty = asyncio.create_task(there.judges.reason(brief(key="g", do="exit")))
        await asyncio.sleep(0)
        thought = await there.judges.reason(brief(2, 1))
        assert (thought.label, thought.needs_state) == ("seen 8", False)
        with pytest.raises(WorkerLost):
            await guilty
        # Only until it has been judged by: it would be an old state by then.
        os.kill(await there.born(), signal.SIGKILL)
        await until(lambda: there.pid() == 0)
        assert (await there.judges.reason(brief(3, 2))).needs_state


async def test_a_state_that_cannot_be_given_back_says_why(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        there.judges.restore_state("worker", "k", b"no state", 1, [])
        with pytest.raises(Exception, match="invalid literal for int"):
            await there.judges.reason(brief(2, 1))
        assert (await there.judges.reason(brief(key="other"))).label == "seen 1"


async def test_forgetting_folding_and_renewing(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        judges = there.judges
        judges.drop_state("worker", "k")  # nobody sits there: nothing to forget
        await judges.reason(brief(value=2))
        judges.drop_state("worker", "k")
        assert (await judges.reason(brief(2, 1))).needs_state
        since = [(n, brief(n, value=0.5).event) for n in (3, 4)]
        assert judges.fold_state("worker", b"2 1.0", since) == b"4 2.0"
        await judges.reason(brief(key="n"))
        judges.renew("worker")
        assert (await judges.reason(brief(2, 1, key="n"))).needs_state
        assert there.made.count("worker") == 3  # the limits, and two workers
        assert there.deaths == []


async def test_folding_ends_a_judge_that_hangs(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        await there.judges.reason(brief())
        with pytest.raises(WorkerLost):
            there.judges.fold_state("worker", None, [(1, brief(observe="loop").event)])
        assert (await there.judges.reason(brief(key="n"))).label == "seen 1"


# --- processes -------------------------------------------------------------------------------


async def test_agents_cost_nothing_until_they_have_work(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        assert there.pool.worker_pids == {}
        await there.judges.reason(brief())
        await there.born()
        assert set(there.pool.worker_pids) == {("worker", "judge")}


async def test_an_idle_worker_is_let_go_and_comes_back(tmp_path: Path) -> None:
    async with crew(tmp_path, idle_s=0.2) as there:
        await there.judges.reason(brief())
        pid = await there.born()
        await until(lambda: there.pid() == 0)
        assert not alive(pid)
        assert there.deaths == []
        assert (await there.judges.reason(brief(2, 1))).needs_state


async def test_the_longest_idle_of_too_many_is_let_go(tmp_path: Path) -> None:
    async with crew(tmp_path, most_idle=1) as there:
        for agent in ("first", "second"):
            await there.judges.reason(brief(agent=agent))
            await there.born(agent)
        await until(lambda: set(there.pool.worker_pids) == {("second", "judge")})


async def test_workers_die_with_their_pool(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        await there.judges.reason(brief())
        pid = await there.born()
        busy = asyncio.create_task(there.judges.reason(brief(key="s", do="sleep")))
        await asyncio.sleep(0.05)
        began = time.monotonic()
    assert not alive(pid)
    assert time.monotonic() - began < 1
    with pytest.raises(asyncio.CancelledError):
        await busy
    with pytest.raises(Unavailable):
        await there.judges.reason(brief(key="late"))


ENGINE = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.workers import Crew, brief

async def main():
    crew = Crew(Path(sys.argv[1]))
    await crew.judges.reason(brief())
    print(await crew.born(), flush=True)
    await crew.judges.reason(brief(key="s", do="stop" if sys.argv[2] == "stop" else "loop"))

from msgspec.structs import replace
import tests.workers
tests.workers.LIMITS = replace(tests.workers.LIMITS, time_us=60_000_000)
Crew.__init__.__defaults__ = (tests.workers.LIMITS,)
asyncio.run(main())
"""


@pytest.mark.parametrize("do", ["loop", "stop"])
async def test_workers_die_with_an_engine_that_is_killed(tmp_path: Path, do: str) -> None:
    """One in an endless loop, one that is stopped: neither can notice by itself.

    The next engine's workers are only forked when the last of them is dead.
    """
    code = ENGINE.format(root=str(Path(__file__).parents[4]))
    engine = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", code, str(tmp_path), do], stdout=subprocess.PIPE
    )
    try:
        assert engine.stdout is not None
        pid = int(await asyncio.to_thread(engine.stdout.readline))
        assert alive(pid)
        engine.kill()
        async with crew(tmp_path) as there:
            assert (await there.judges.reason(brief())).label == "seen 1"
            assert not alive(pid), "the lock was given up before the last worker was dead"
    finally:
        engine.kill()
        engine.wait()
        if engine.stdout is not None:
            engine.stdout.close()


async def test_a_killed_fork_server_is_replaced(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        await there.judges.reason(brief())
        pid = await there.born()
        there.pool._process.kill()
        await until(lambda: not alive(pid))
        assert (await there.judges.reason(brief(key="n"))).label == "seen 1"
        assert await there.born() != pid


async def test_who_kills_the_fork_server_is_charged(tmp_path: Path) -> None:
    """So it is not tried for ever; what else was being judged then may be charged once as well.

    In a box it could not.
    """
    async with crew(tmp_path, sandboxed=False) as there:
        await there.judges.reason(brief())
        with pytest.raises(WorkerLost, match="ended with the process that had started it"):
            await there.judges.reason(brief(key="guilty", do="parent"))
        assert (await there.judges.reason(brief(key="n"))).label == "seen 1"


async def test_a_fork_server_that_never_comes_up_charges_nobody(tmp_path: Path) -> None:
    async with crew(tmp_path, command=(sys.executable, "-c", "raise SystemExit(1)")) as there:
        task = asyncio.create_task(there.judges.reason(brief()))
        await until(lambda: len(there.deaths) >= 2)
        assert not task.done()
        there.pool._command = COMMAND
        assert (await task).label == "seen 1"


async def test_a_judge_that_fails_to_load_says_so_to_each_event(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        folder = there.agents / "broken"
        folder.mkdir(parents=True)
        (folder / "judge.py").write_text("import nothing_of_that_name\n")
        for key in ("a", "b"):
            with pytest.raises(Exception, match=r"broken/judge\.py:1: .*nothing_of_that_name"):
                await there.judges.reason(brief(key=key, agent="broken"))
        assert there.deaths == []


async def test_a_judge_that_crashes_while_loading_charges_one_event_each_time(
    tmp_path: Path,
) -> None:
    async with crew(tmp_path) as there:
        folder = there.agents / "broken"
        folder.mkdir(parents=True)
        (folder / "judge.py").write_text("import os\nos._exit(5)\n")
        tasks = [
            asyncio.create_task(there.judges.reason(brief(key=key, agent="broken")))
            for key in ("a", "b")
        ]
        for task in tasks:
            with pytest.raises(WorkerLost, match="exit code 5"):
                await task
        assert len(there.deaths) == 2


async def test_what_is_no_data_is_refused_here(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        with pytest.raises(TypeError, match="cannot go to a worker process"):
            await there.judges.reason(brief(thing=object()))
        assert (await there.judges.reason(brief())).label == "seen 1"


async def test_prints_of_agents_do_not_reach_our_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "print('hello')\nfrom vedette.judging import Judge, Judgement\n"
    code += "class Judge(Judge):\n    def judge(self, seen, briefing):\n"
    code += "        print('judging', flush=True)\n        return Judgement('x', 1.0)\n"
    async with crew(tmp_path) as there:
        folder = there.agents / "loud"
        folder.mkdir(parents=True)
        (folder / "judge.py").write_text(code)
        assert (await there.judges.reason(brief(agent="loud"))).label == "x"
    out, err = capfd.readouterr()
    assert (out, "judging" in err) == ("", True)


def test_limits_are_those_of_the_agent() -> None:
    assert ResourceLimits().time_us == 5_000_000
    assert ResourceLimits().memory == 512 * 1024 * 1024
