"""What becomes of what was asked when no worker comes, or when what comes from it is forged.

Whoever asked is told or gets another worker; nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from tests.workers import JUDGE_PY, Crew, alive, brief, crew, until, write_judge

from vedette.adapters.reasoners.workers import fork_server_start, protocol, supervisor, worker_start
from vedette.adapters.reasoners.workers.frames import BadFrame, Frame, pack_frame
from vedette.adapters.reasoners.workers.pending_call import WorkerLost
from vedette.adapters.reasoners.workers.plain_data import read_plain
from vedette.adapters.reasoners.workers.tool_client import WorkerTools
from vedette.domain.agent import ResourceLimits
from vedette.domain.base.errors import Temporary, Unavailable
from vedette.domain.effect import Call, Outcome
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.tool import Tool
from vedette.interfaces.daemon import Daemon
from vedette.testing.toy_fleet import World, toy_fleet


def ask(there: Crew, *keys: str, **data: Any) -> list[asyncio.Task[ReasonerJudgement]]:
    return [asyncio.create_task(there.judges.reason(brief(key=key, **data))) for key in keys]


async def answers_of(*arguments: asyncio.Task[Any]) -> list[Any]:
    """Return what came of each. Raises TimeoutError if one hangs."""
    return await asyncio.wait_for(asyncio.gather(*arguments, return_exceptions=True), 15)


# --- forged answers --------------------------------------------------------------------------

FORGED = {
    "beyond any float": ["f", "0x1p99999"],
    "a name that cannot be one": ["d", [["t", ["l"]], None]],
    "no number": ["i", "x"],
    "half a byte": ["b", "f"],
    "no tag": [],
}


@pytest.mark.parametrize("expected", FORGED.values(), ids=list(FORGED))
async def test_a_forged_answer_ends_the_question_it_is_for(
    tmp_path: Path, expected: list[Any]
) -> None:
    forged = b"s" + orjson.dumps(expected)
    with pytest.raises(BadFrame, match="no plain data"):
        read_plain(forged)
    async with crew(tmp_path) as there:
        await there.judges.reason(brief(key="early"))
        number = there.judges._handles["worker"]._number + 1
        raw = pack_frame(number, protocol.DONE, forged).hex()
        guilty, *others = ask(there, "guilty", do="garbage", bytes=raw) + ask(there, "a", "b")
        error, *answers = await answers_of(guilty, *others)
        assert "no plain data" in str(error)
        # The worker's true answer is one too many, so it is ended; who is charged is not known.
        assert sum(isinstance(answer, ReasonerJudgement) for answer in answers) >= 1
        assert (await there.judges.reason(brief(key="late"))).label == "seen 1"


async def test_an_answer_that_breaks_us_breaks_its_own_question_only(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        await there.judges.reason(brief(key="early"))
        pid = await there.born()
        handle = there.judges._handles["worker"]
        taken = handle.on_answer

        def breaks(frame: Any, call: Any) -> None:
            if call.key == "bad":
                handle.remove(call)
                raise RuntimeError("what nobody thought of")
            taken(frame, call)

        handle.on_answer = breaks  # type: ignore[method-assign]
        error, *others = await answers_of(*ask(there, "bad", "a", "b"))
        assert "sent garbage: RuntimeError: what nobody thought of" in str(error)
        assert [thought.label for thought in others] == ["seen 1"] * 2
        assert await there.born() != pid
        assert len(there.deaths) == 1


async def test_a_word_that_was_taken_is_not_waited_for_again(tmp_path: Path) -> None:
    """The loop plans to hear the fork server; a judge that must not await may hear it sooner."""
    async with crew(tmp_path) as there:
        await there.judges.reason(brief(key="early"))
        await there.born()
        # On a thread, since without the look before reading it would keep the loop for ever.
        await asyncio.wait_for(asyncio.to_thread(there.pool._on_message), 5)
        assert (await there.judges.reason(brief(key="late"))).label == "seen 1"


# --- workers that cannot be forked -----------------------------------------------------------


@contextmanager
def short_of_files(times: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let the next forks fail as they do when the engine has no file left; yields their count."""
    real, failed = worker_start.fork_worker, [0]

    def fork(*args: Any) -> Any:
        if failed[0] < times:
            failed[0] += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(worker_start, "fork_worker", fork)
        yield failed


@pytest.mark.parametrize("times", [1, 3])
async def test_who_waits_while_no_worker_can_be_forked_is_asked_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The first worker as well as the one after a death, which nobody's call is waiting behind."""
    async with crew(tmp_path) as there:
        with short_of_files(times, monkeypatch) as failed:
            (first,) = await answers_of(*ask(there, "first"))
            assert (first.label, failed) == ("seen 1", [times])
        await there.born()
        with short_of_files(times, monkeypatch) as failed:
            guilty, *others = ask(there, "guilty", do="exit") + ask(there, "a", "b")
            error, *answers = await answers_of(guilty, *others)
            assert failed == [times]
        assert isinstance(error, WorkerLost)
        assert [thought.label for thought in answers] == ["seen 1"] * 2
        assert len(there.deaths) == 1


async def test_where_no_worker_can_ever_be_forked_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with crew(tmp_path) as there:
        with monkeypatch.context() as patched, short_of_files(10**6, monkeypatch):
            patched.setattr(worker_start, "WORKER_WAIT_S", 0.5)
            answers = await answers_of(*ask(there, "a", "b"))
        assert {type(error) for error in answers} == {Unavailable}
        assert "no worker of worker came up within 0.5 s" in str(answers[0])
        assert os.strerror(errno.EMFILE) in str(answers[0])
        assert isinstance(answers[0], Temporary)
        (late,) = await answers_of(*ask(there, "late"))
        assert late.label == "seen 1"


async def test_a_worker_that_cannot_be_made_is_told_to_all_who_wait(tmp_path: Path) -> None:
    async with crew(tmp_path) as there:
        await there.judges.reason(brief(key="early"))
        await there.born()
        handle = there.judges._handles["worker"]
        make = handle._spec_of

        def broken(agent: str) -> Any:
            raise ValueError("no lessons")

        handle._spec_of = broken
        guilty, *others = ask(there, "guilty", do="exit") + ask(there, "a", "b")
        answers = await answers_of(guilty, *others)
        assert {type(error) for error in answers} == {WorkerLost}
        assert all("can be made: ValueError: no lessons" in str(error) for error in answers[1:])
        (repeat,) = await answers_of(*ask(there, "a"))
        assert "no lessons" in str(repeat)
        assert there.pool.worker_pids == {}, "none was forked to be told nothing"
        handle._spec_of = make
        assert (await there.judges.reason(brief(key="late"))).label == "seen 1"


async def test_a_fork_that_fails_charges_nobody(tmp_path: Path) -> None:
    """As it does on a machine that has no process left to give."""
    async with crew(tmp_path) as there:
        tasks = ask(there, "a", "b")
        await asyncio.sleep(0)
        (worker,) = there.pool._handles
        there.pool._on_worker_exit(worker, "could not be started: Resource temporarily unavailable")
        assert [thought.label for thought in await answers_of(*tasks)] == ["seen 1"] * 2
        assert [why for _, _, why in there.deaths] == [
            "could not be started: Resource temporarily unavailable"
        ]


# --- the lock --------------------------------------------------------------------------------


@contextmanager
def held(folder: Path) -> Iterator[Callable[[], None]]:
    """Hold the workers' lock as something that was left behind would; yields what lets it go."""
    path = folder / "state" / fork_server_start.LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(file, fcntl.LOCK_UN)


LEFT = """
def do_leave_behind(data):
    import subprocess, sys
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    return Judgement(str(left.pid), 1.0)


def do_leave_a_copy(data):
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return Judgement(str(pid), 1.0)
"""


@pytest.mark.parametrize("do", ["leave_behind", "leave_a_copy"])
async def test_what_is_left_behind_holds_up_no_other_run_unsaid(tmp_path: Path, do: str) -> None:
    """A program that is left behind has no lock; a copy of a worker has, and it is said.

    In a box there would be neither.
    """
    write_judge(tmp_path / "agents", code=JUDGE_PY + LEFT)
    async with crew(tmp_path, sandboxed=False) as there:
        left = int((await there.judges.reason(brief(do=do))).label)
    messages: list[str] = []
    try:
        assert alive(left)
        async with crew(tmp_path) as there:
            there.pool.set_trouble_callback(messages.append)
            (task,) = ask(there, "next")
            if do == "leave_a_copy":
                await until(lambda: messages != [])
                assert not task.done()
                os.kill(left, 9)
            assert (await asyncio.wait_for(task, 15)).label == "seen 1"
            assert len(messages) == (do == "leave_a_copy")
            assert alive(left) == (do == "leave_behind")
    finally:
        if alive(left):
            os.kill(left, 9)


async def test_a_lock_that_is_never_given_up_is_said_to_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_start, "WORKER_WAIT_S", 5.0)
    messages: list[str] = []
    with held(tmp_path) as let_go:
        async with crew(tmp_path) as there:
            errors = await answers_of(*ask(there, "a", "b"))
            assert {type(error) for error in errors} == {Unavailable}
            path = str(tmp_path / "state" / fork_server_start.LOCK)
            assert "came up within 5 s" in str(errors[0])
            assert path in str(errors[0])
            there.pool.set_trouble_callback(messages.append)
            assert [path in one for one in messages] == [True], "who comes later is told too"
            # Asked of a worker that has been given up and not been born yet.
            waiting = ask(there, "c", "d")
            await asyncio.sleep(0.2)
            let_go()
            assert [thought.label for thought in await answers_of(*waiting)] == ["seen 1"] * 2
            assert there.pool.block_reason() == ""
            assert there.deaths == []


async def test_calls_that_no_worker_came_for_were_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_start, "WORKER_WAIT_S", 0.5)
    folder = tmp_path / "agents" / "worker"
    folder.mkdir(parents=True)
    tool = Tool("order.place", "order", "wire", {}, (), "queryable", "act", "query")
    call = Call("order.place", {}, "k", "worker", "run", {}, ("worker",), 1, 1_000_000)
    requests: list[bool] = []

    def may_start() -> bool:
        requests.append(True)
        return True

    with held(tmp_path):
        async with crew(tmp_path) as there:
            tools = WorkerTools(there.pool, lambda name: (str(folder), None, ResourceLimits()))
            made = asyncio.create_task(tools.perform(tool, call, may_start))
            known = asyncio.create_task(tools.query(tool, call))
            outcomes = await answers_of(made, known)
    assert [type(outcome) for outcome in outcomes] == [Outcome, Outcome]
    assert [outcome.state for outcome in outcomes] == ["retry", "unknown"]
    assert outcomes[0].error.startswith("not called: no worker of worker came up")
    assert requests == []


async def test_who_waits_for_the_lock_ends_with_its_engine(tmp_path: Path) -> None:
    with held(tmp_path):
        async with crew(tmp_path) as there:
            tasks = ask(there, "a")
            await asyncio.sleep(0.5)
            began = time.monotonic()
        assert time.monotonic() - began < 1
        assert there.pool._process.returncode == 0, "by itself"
        await answers_of(*tasks)


async def test_a_crowd_before_the_lock_does_not_keep_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of a process that does not listen yet is bounded; the rest comes later."""
    monkeypatch.setattr(supervisor, "_MAX_QUEUED", 2)
    with held(tmp_path) as let_go:
        async with crew(tmp_path) as there:
            tasks = [
                asyncio.create_task(there.judges.reason(brief(agent=f"agent{n}"))) for n in range(4)
            ]
            await asyncio.sleep(0.3)
            assert len(there.pool._handles) == 2
            let_go()
            assert [thought.label for thought in await answers_of(*tasks)] == ["seen 1"] * 4


async def test_a_run_shows_what_its_workers_wait_for(tmp_path: Path) -> None:
    async with toy_fleet(tmp_path, World()) as fleet:
        pool = SimpleNamespace(set_trouble_callback=lambda trouble: trouble("workers.lock is held"))
        app: Any = fleet.app
        app.pool = pool
        try:
            assert "workers.lock is held" in Daemon(app, until_idle=True).troubles
        finally:
            app.pool = None


async def test_what_a_killed_judge_says_is_not_taken(tmp_path: Path) -> None:
    """Answers may lie in the same bytes behind the word that it was killed for."""
    async with crew(tmp_path) as there:
        await there.judges.reason(brief(key="early"))
        tasks = ask(there, "a")
        await asyncio.sleep(0)
        handle = there.judges._handles["worker"]
        (one,) = handle.pending.values()
        handle.kill("went over its memory limit", charge=False)
        plain, blob = protocol.pack_judgement(
            ReasonerJudgement(label="not to be trusted", confidence=1.0)
        )
        handle.on_answer(Frame(one.number, protocol.DONE, plain, blob), one)
        assert [thought.label for thought in await answers_of(*tasks)] == ["seen 1"]
