"""Two workers of one fleet on PostgreSQL: what is promoted at one is what the other teaches."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tests.fleet.test_learning import desk, learned, order, taught
from tests.pg import server

from vedette.curating import feed
from vedette.follow import follow
from vedette.load.settings import StorePlan
from vedette.testing.harness import FleetHarness
from vedette.testing.toy import until


def following(fleet: FleetHarness) -> asyncio.Task[None]:
    """Follow the others as the runner does."""
    app, fed = fleet.app, [fleet.app.store.head()]
    curating = app.commands.curating
    assert curating is not None

    def look() -> None:
        fed[0] = feed(app.banks, app.store, fed[0])
        curating.refresh()

    return asyncio.create_task(follow(app.line, app.rollout, look, print))


async def test_what_one_worker_promotes_and_takes_back_the_other_teaches(tmp_path: Path) -> None:
    url = tmp_path / "url"
    url.write_text(server(fsync=False).fresh())
    plan = StorePlan("postgresql", url_file=str(url), lease_us=1_000_000)
    one, other = (desk(tmp_path / name, store=plan) for name in ("one", "other"))
    async with one:
        (tmp_path / "other" / "state").mkdir()
        shutil.copy(tmp_path / "one/state/ledger.key", tmp_path / "other/state/ledger.key")
        async with other:
            tasks = [following(one), following(other)]
            try:
                before = taught(other)
                assert before == taught(one)
                proposed = await order(
                    one, "memory_propose", into="inbox/inbox", text="The pier is shut.", kind="fact"
                )
                await order(one, "memory_approve", id=proposed["candidate"])
                assert taught(one) != before
                await until(lambda: taught(other) != before, 20)
                assert taught(other) == taught(one)
                await order(other, "memory_off", id=proposed["candidate"])
                assert taught(other) == before
                await until(lambda: taught(one) == before, 20)
                assert [each["state"] for each in await learned(one)] == ["off"]
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
