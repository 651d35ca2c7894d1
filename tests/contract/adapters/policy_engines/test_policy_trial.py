"""The trial of a policy: begun early, ended whole, and its fork no way around anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vedette.adapters.policy_engines.regorus import stage as stages
from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, Trial, read_bundle
from vedette.domain.bundle import Bundle

POLICIES = Path(__file__).resolve().parents[4] / "policies"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return read_bundle(POLICIES)


def has_ended(group: int) -> bool:
    """Say whether no process of a group is left, within a moment."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


async def test_what_was_begun_is_not_tried_again(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    class Counted(Trial):
        def __init__(self, bundle: Bundle, *, compare: bool = True) -> None:
            made.append(bundle.digest)
            super().__init__(bundle, compare=compare)

    monkeypatch.setattr(stages, "Trial", Counted)
    stage = SubprocessStage()
    stage.begin_trial(bundle)
    stage.begin_trial(bundle)
    assert await stage.try_out(bundle) == []
    assert made == [bundle.digest]
    # What was answered is not kept: asked again, it is tried again.
    assert await stage.try_out(bundle) == []
    assert len(made) == 2


async def test_a_trial_of_another_kind_than_the_one_begun_is_made_anew(bundle: Bundle) -> None:
    """One begun without the comparison must not pass for one with it."""
    stage = SubprocessStage()
    stage.begin_trial(bundle, compare=False)
    (trial,) = stage._trials.values()
    try:
        assert await stage.try_out(bundle) == []
        assert list(stage._trials.values()) == [trial]
        assert await stage.try_rules(bundle) == []
        assert not stage._trials
    finally:
        stage.cancel_trials()


async def test_another_bundle_than_the_one_begun_is_tried_for_itself(bundle: Bundle) -> None:
    stage = SubprocessStage()
    stage.begin_trial(bundle)
    broken = Bundle.of({**bundle.files, "vedette/denies/broken.rego": b"package vedette.denies\n}"})
    try:
        assert [found.file for found in await stage.try_out(broken)] == [
            "vedette/denies/broken.rego"
        ]
    finally:
        stage.cancel_trials()


def test_what_nobody_asks_about_is_ended(bundle: Bundle) -> None:
    stage = SubprocessStage()
    stage.begin_trial(bundle)
    (trial,) = stage._trials.values()
    stage.cancel_trials()
    assert has_ended(trial._process.pid)


async def test_a_missed_deadline_ends_the_fork_too(bundle: Bundle) -> None:
    slow = Bundle.of({**bundle.files, "vedette/denies/slow.rego": SLOW.encode()})
    stage = SubprocessStage(deadline_s=1)
    stage.begin_trial(slow)
    (trial,) = stage._trials.values()
    group = trial._process.pid
    (found,) = await stage.try_out(slow)
    assert found.what == "the trial took longer than 1 s"
    assert has_ended(group)


# A thousand million turns: no machine is through with them in time.
LOOPS = "\n".join(f"\tsome x{n} in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" for n in range(9))
SLOW = f"""package vedette.denies

deny contains "never" if {{
{LOOPS}
\tx0 + x8 == 100
}}
"""


async def test_nothing_is_imported_from_the_current_folder(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("regorus", "orjson", "vedette"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert await SubprocessStage().try_out(bundle) == []


FORKED = """
import os, signal, sys
from vedette.adapters.policy_engines.regorus.trial import ForkedCheck, announce_step
from vedette.domain.bundle import Finding

def work():
    {work}

check = ForkedCheck(work)
announce_step("other.rego:1", "doing something else")
print(check.result()[0], flush=True)
check.end()
"""


def forked(work: str) -> subprocess.CompletedProcess[str]:
    """Run `work` beside a process, in another one."""
    return subprocess.run(
        [sys.executable, "-c", FORKED.format(work=work)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_fork_hands_back_what_it_found() -> None:
    done = forked("return [Finding('a.rego', 3, 'wrong')]")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "a.rego:3: wrong")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_the_process_dies_of_what_its_fork_died_of(number: signal.Signals) -> None:
    done = forked(f"announce_step('a.rego', 'deciding: x'); os.kill(os.getpid(), {int(number)})")
    assert done.returncode == -number
    assert done.stdout.splitlines()[-1] == '{"at":"a.rego","step":"deciding: x"}'


def test_an_error_in_the_fork_is_none_of_its_findings() -> None:
    done = forked("announce_step('a.rego', 'deciding: x'); raise MemoryError('too much')")
    assert (done.returncode, "MemoryError: too much" in done.stderr) == (1, True)
    assert "a.rego:" not in done.stdout


def test_a_fork_that_says_nothing_at_all_admits_nothing() -> None:
    assert forked("os._exit(0)").returncode == 1
