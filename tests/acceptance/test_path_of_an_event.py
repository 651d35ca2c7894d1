"""One mail's way through the engine stays short: how many files, how many calls between them.

`.venv/bin/python -m tools.event_path` prints the table.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import FrameType

import pytest
from tools import event_path
from tools.real_fleet import ROOT

from vedette.domain.base.canonical import short_id
from vedette.domain.run import run_id

# What it may be at most, and what is asked for; it began at 83 files, 510 passages, 248 by room.
FILES, ASKED_FILES = 74, 60
PASSAGES, ASKED_PASSAGES = 400, 400
ROOM_PASSAGES, ASKED_ROOM_PASSAGES = 190, 200


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> event_path.EventPath:
    """The path of the mail that docs/one-event.md tells of."""
    found = asyncio.run(event_path.trace_mail(tmp_path_factory.mktemp("event-path")))
    print(event_path.format_path(found, pairs=True))
    print(
        f"asked for: {ASKED_FILES} files, {ASKED_PASSAGES} passages between modules, "
        f"{ASKED_ROOM_PASSAGES} between rooms"
    )
    return found


def test_the_mail_goes_all_the_way(path: event_path.EventPath) -> None:
    """Or few files would mean that little was done."""
    assert path.kinds[0] == "event.accepted"
    assert {"turn.reasoned", "action.decided", "effect.intended", "effect.done"} < {*path.kinds}
    assert path.kinds[-1] == "run.closed"


def test_it_stays_short(path: event_path.EventPath) -> None:
    assert len(path.files) <= FILES
    assert path.passages <= PASSAGES
    assert path.room_passages <= ROOM_PASSAGES


def story() -> list[str]:
    """Return the files of the engine that README's five minutes read, in their order."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    paragraph = readme.partition("Five minutes to know your way")[2]
    return re.findall(r"\(src/vedette/([a-z_/]+\.py)\)", paragraph.partition("\n\n")[0])


def test_five_minutes_read_it_in_its_order(path: event_path.EventPath) -> None:
    """Each file is entered before anything that comes after it in the page's order."""
    files = story()
    assert len(files) == 4, "beside README.md and docs/one-event.md"
    assert [name for name in path.files if name in files] == files


def test_the_profiler_counts() -> None:
    """Control: calls into other modules count, those within one do not; nor what is no engine's."""
    profiler = event_path.PathProfiler()
    sys.setprofile(profiler.observe)
    try:
        short_id("evt", "a")
        run_id("source", "event", "agent")
    finally:
        sys.setprofile(None)
    found = profiler.path
    assert found.files == ["domain/base/canonical.py", "domain/run.py"]
    # `run_id` itself is called by this test; it makes two ids.
    assert found.calls == {("domain/run.py", "domain/base/canonical.py"): 2}
    assert (found.passages, found.room_passages) == (2, 0)


def test_a_coroutine_that_goes_on_is_not_called_anew() -> None:
    """Control."""
    seen: list[bool] = []

    def observe(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "wait_twice":
            seen.append(event_path.is_resumed(frame))

    async def wait_twice() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def run() -> None:
        sys.setprofile(observe)
        await wait_twice()
        sys.setprofile(None)

    asyncio.run(run())
    assert seen == [False, True, True]


def test_a_file_of_the_kit_is_no_file_of_the_path(tmp_path: Path) -> None:
    """Control: what the test kit does is not counted."""
    from vedette.testing import ListIntake

    profiler = event_path.PathProfiler()
    sys.setprofile(profiler.observe)
    try:
        ListIntake()
    finally:
        sys.setprofile(None)
    assert profiler.path.files == []
