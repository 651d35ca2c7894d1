"""Engines may end on any thread: what belongs to a thread is dropped there, and is bounded."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from vedette.adapters.policy_engines.regorus import engine as regorus_engine
from vedette.adapters.policy_engines.regorus.engine import InterpreterEngine, RegorusEngine
from vedette.adapters.policy_engines.regorus.stage import read_bundle
from vedette.domain.base.errors import EngineFailed
from vedette.domain.bundle import Bundle
from vedette.domain.ports.policy_engine import PolicyEngine
from vedette.policy.bundle_data import mount

BUNDLE = read_bundle(Path(__file__).parents[4] / "policies")
DATA = mount(BUNDLE.files)
TOGGLE = "vedette/denies/toggle.rego"

Make = Callable[[Bundle], PolicyEngine]


def revision(number: int) -> Bundle:
    """Return the shipped bundle with another digest."""
    text = f"# Revision {number}\npackage vedette.denies\n"
    return Bundle.of({**BUNDLE.files, TOGGLE: text.encode()})


@pytest.fixture(params=[RegorusEngine, InterpreterEngine], ids=["compiled", "interpreter"])
def make(request: pytest.FixtureRequest) -> Make:
    kind = request.param
    return lambda bundle: kind(bundle, DATA)


@pytest.fixture
def unraised(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield what could not be raised: pyo3 reports there what is dropped on another thread."""
    found: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: found.append(str(each.exc_value)))
    yield found
    gc.collect()


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def drop(box: list[Any]) -> None:
    box.clear()
    gc.collect()


def circle(engine: PolicyEngine) -> list[Any]:
    """Return a list that only the garbage collector can free."""
    found: list[Any] = [engine]
    found.append(found)
    return found


def test_control_what_a_thread_made_is_reported_when_another_drops_it(
    unraised: list[str],
) -> None:
    import regorus

    box = [regorus.Rvm()]
    in_thread(lambda: drop(box))
    assert ["unsendable" in each for each in unraised] == [True]


def test_engine_may_end_on_another_thread(make: Make, unraised: list[str]) -> None:
    for number in range(3):
        engine = make(revision(number))
        reference = weakref.ref(engine)
        engine.decide(b"{}")
        box = [circle(engine)]
        del engine
        in_thread(lambda box=box: drop(box))  # type: ignore[misc]
        assert reference() is None
    assert unraised == []


def test_engine_that_two_threads_used_may_end_on_a_third(make: Make, unraised: list[str]) -> None:
    box = [make(BUNDLE)]
    used, leave = threading.Event(), threading.Event()

    def use() -> None:
        box[0].decide(b"{}")
        used.set()
        leave.wait(20)

    user = threading.Thread(target=use)
    user.start()
    assert used.wait(20)
    in_thread(lambda: drop(box))
    leave.set()
    user.join()
    assert box == []
    assert unraised == []


def test_error_takes_nothing_to_another_thread(make: Make, unraised: list[str]) -> None:
    box: list[Any] = []

    def fail() -> None:
        with pytest.raises((EngineFailed, ValueError)) as failed:
            make(BUNDLE).decide(b"{")
        box.append(failed.value)
        del failed

    in_thread(fail)
    assert isinstance(box[0], Exception)
    drop(box)
    assert unraised == []


def test_what_does_not_load_takes_nothing_to_another_thread(
    make: Make, unraised: list[str]
) -> None:
    box: list[Any] = []
    broken = Bundle.of({**BUNDLE.files, TOGGLE: b"package vedette.denies\n\nok if {\n"})

    def fail() -> None:
        try:
            make(broken)
        except Exception as error:
            box.append(error)

    in_thread(fail)
    assert "toggle.rego:" in str(box[0])
    drop(box)
    assert unraised == []


def test_thread_keeps_the_last_few_only(make: Make) -> None:
    engines = [make(revision(number)) for number in range(regorus_engine.MAX_ENTRIES + 2)]
    kept = regorus_engine.thread_object_keys()
    assert len(kept) == regorus_engine.MAX_ENTRIES
    assert [engine.digest in kept[-1] for engine in engines[-2:]] == [False, True]
    first = engines[0]
    assert not any(first.digest in key for key in kept)
    assert engines[-1].decide(b"{}") == first.decide(b"{}")  # made anew
    assert first.digest in regorus_engine.thread_object_keys()[-1]


def test_same_rules_over_other_data_are_kept_apart(make: Make) -> None:
    kind = RegorusEngine if "rvm" in make(BUNDLE).name else InterpreterEngine
    rules = Bundle.of(
        {"vedette/gateway/a.rego": b"package vedette.gateway\n\ndecision := data.a.b\n"}
    )
    one, two = kind(rules, {"a": {"b": 1}}), kind(rules, {"a": {"b": 2}})
    assert [one.decide(b"{}"), two.decide(b"{}"), one.decide(b"{}")] == [1, 2, 1]


def test_memory_stays_bounded_over_fifty_swaps(unraised: list[str]) -> None:
    # A long registry in each revision, so that fifty kept ones could not be overlooked.
    data = {**DATA, "registry": {**DATA["registry"], "contacts": dict.fromkeys(_names(), "x")}}
    process = psutil.Process()

    def swap(number: int) -> int:
        engine = RegorusEngine(revision(number), data)
        engine.decide(b"{}")
        return int(process.memory_info().rss)

    before = max(swap(number) for number in range(2 * regorus_engine.MAX_ENTRIES))
    after = max(
        swap(number)
        for number in range(2 * regorus_engine.MAX_ENTRIES, 2 * regorus_engine.MAX_ENTRIES + 50)
    )
    assert len(regorus_engine.thread_object_keys()) == regorus_engine.MAX_ENTRIES
    assert after - before < 15_000_000  # 45 MB if all were kept
    assert unraised == []


def _names() -> list[str]:
    return [f"{number:040}" for number in range(5_000)]
