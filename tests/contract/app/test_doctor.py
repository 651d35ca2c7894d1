"""`check --live`: each thing that can be wrong is seen, named and comes with its mend."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.imap import server
from tests.said import said
from tests.small import small

from vedette.adapters.files.config import CsvFile
from vedette.adapters.mail.maildir.config import MaildirFile
from vedette.adapters.notify import plugin
from vedette.app import doctor
from vedette.config.fleet import load_fleet
from vedette.config.settings import Sender, Settings, load_settings
from vedette.domain.agent import Agent
from vedette.store.runner_lock import LOCK_FILE, acquire_lock


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("fleet"), each=1)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(Settings.of(tmp_path), state=tmp_path / "state")


def state_of(
    found: Iterator[doctor.CheckResult] | list[doctor.CheckResult], what: str
) -> tuple[str, str]:
    seen = next(one for one in found if one.what == what)
    assert seen.mend or seen.state not in ("fail", "warn"), seen
    return seen.state, seen.told


@contextmanager
def listening() -> Iterator[tuple[int, list[bytes]]]:
    """Listen on a free port and keep what is sent to it."""
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)

        def take() -> None:
            try:
                line, _ = server.accept()
            except OSError:
                return
            with line:
                line.settimeout(60)
                got.append(line.recv(1000))

        thread = threading.Thread(target=take)
        thread.start()
        yield server.getsockname()[1], got
        thread.join(5)


def test_the_whole_page_of_a_fleet_that_is_well(root: Path) -> None:
    with listening() as (port, got):
        toml = root / "vedette.toml"
        url = f"http://127.0.0.1:{port}/hook"
        before = toml.read_text()
        toml.write_text(before + f'\n[targets.oncall]\nkind = "webhook"\nurl = "{url}"\n')
        done = said(root, "check", "--live")
        toml.write_text(before)
    assert done.code == 0, done.out + done.err
    assert got == [b""]  # connected to, and nothing was sent
    for what in ("python", "disk", "fsync", "another run", "policy engine", "target mailbox",
                 "target oncall", "clock", "time zones"):  # fmt: skip
        assert f"ok   {what}: " in done.out
    assert not (root / ".vedette").exists()


def test_python_that_is_too_old_and_a_disk_that_is_full_fail(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "PYTHON", (9, 0))
    usage = type("Usage", (), {"free": 1 << 20})()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    found = list(doctor.check_machine(settings, is_running=False))
    assert state_of(found, "python")[0] == "fail"
    assert state_of(found, "disk") == ("fail", "1 MiB free")


def test_a_runner_that_holds_the_store_and_a_port_that_is_taken_are_seen(
    settings: Settings,
) -> None:
    settings.state.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ("127.0.0.1", taken.getsockname()[1])
        busy = replace(settings, http=address)
        lock = acquire_lock(settings.state / LOCK_FILE)
        found = list(doctor.check_machine(busy, is_running=False))
        lock.close()
        assert state_of(found, "another run")[0] == "fail"
        assert state_of(found, "[serve] http")[0] == "fail"
        spare = list(doctor.check_machine(replace(busy, http_fallback=True), is_running=False))
        assert state_of(spare, "[serve] http")[0] == "warn"
        # With a fleet that answers, its port is its own.
        assert (
            state_of(list(doctor.check_machine(busy, is_running=True)), "[serve] http")[0] == "ok"
        )
    found = list(doctor.check_machine(busy, is_running=False))
    assert {state_of(found, what)[0] for what in ("another run", "[serve] http")} == {"ok"}


@pytest.mark.parametrize(("behind_s", "state"), [(-5, "ok"), (0, "ok"), (3, "warn"), (600, "fail")])
def test_a_clock_behind_the_ledger_is_seen(behind_s: int, state: str) -> None:
    now = 1_795_257_600_000_000
    found = list(doctor.check_clocks(now, now + behind_s * 1_000_000, {}))
    assert found[0].state == state


@pytest.mark.parametrize(("skew_s", "state"), [(0, "ok"), (20, "warn"), (-3600, "fail")])
def test_a_clock_apart_from_a_servers_is_seen(skew_s: int, state: str) -> None:
    from email.utils import formatdate

    now = 1_795_257_600_000_000
    date = formatdate(now / 1e6 + skew_s, usegmt=True)
    found = list(doctor.check_clocks(now, None, {"source p": (date, now)}))
    assert state_of(found, "clock against source p")[0] == state


def test_every_secret_is_looked_for_and_none_is_shown(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN_TOKEN", "swordfish")
    monkeypatch.delenv("LOST_TOKEN", raising=False)
    found = list(
        doctor.check_secrets(
            replace(
                settings,
                targets={"hook": {"kind": "webhook", "token_env": "SEEN_TOKEN"}},
                senders=(Sender("them", token_env="LOST_TOKEN"),),
            )
        )
    )
    assert state_of(found, "secret token of [targets.hook]")[0] == "ok"
    assert state_of(found, "secret token of sender them")[0] == "fail"
    assert "swordfish" not in str(found)


async def test_targets_and_sources_that_are_not_there_fail_and_unknown_ones_are_not_tested(
    settings: Settings, tmp_path: Path
) -> None:
    box = tmp_path / "box"
    for name in ("new", "cur"):
        (box / name).mkdir(parents=True)
    away = MaildirFile(kind="maildir", name="away", path=str(tmp_path / "nowhere"))
    found = await doctor.check_network(
        replace(
            settings,
            targets={
                "gone": {"kind": "webhook", "url": "http://127.0.0.1:9/hook"},
                "box": {"kind": "maildir", "path": str(box)},
                "odd": {"kind": "semaphore"},
            },
            sources=(CsvFile(kind="csv", name="rows", path=str(tmp_path / "*.csv")), away),
        ),
        {},
    )
    assert state_of(found, "target gone")[0] == "fail"
    assert state_of(found, "target box")[0] == "ok"
    assert state_of(found, "target odd")[0] == "untested"
    assert state_of(found, "source rows") == ("fail", "0 files match")
    assert state_of(found, "source away")[0] == "fail"


async def test_a_mail_server_is_logged_into_and_a_wrong_password_is_seen(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = server().mailbox()
    plan = box.source(kind="imap", name="desk", password_env="DESK_PASSWORD")
    monkeypatch.setenv("DESK_PASSWORD", box.server.password)
    before = box.folders()
    found = await doctor.check_network(replace(settings, sources=(plan,)), {})
    assert state_of(found, "source desk")[0] == "ok"
    assert "logged in as" in state_of(found, "source desk")[1]
    assert box.folders() == before
    monkeypatch.setenv("DESK_PASSWORD", "guessed")
    found = await doctor.check_network(replace(settings, sources=(plan,)), {})
    assert state_of(found, "source desk")[0] == "fail"
    assert "guessed" not in str(found)


async def test_who_does_not_answer_is_not_waited_for_for_ever(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "WAIT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as dumb:
        slow = {"kind": "imap", "host": "127.0.0.1", "port": dumb.getsockname()[1], "tls": "none"}
        targets = {"slow": {**slow, "user": "a", "password": "b"}}
        found = await doctor.check_network(replace(settings, targets=targets), {})
    assert state_of(found, "target slow")[0] == "fail"


def test_a_server_without_a_certificate_that_is_trusted_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: Any, **more: Any) -> Any:
        raise ssl.SSLCertVerificationError("self-signed")

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", refuse)
    with listening() as (port, _), pytest.raises(OSError, match="self-signed"):
        plugin.connect_to(f"https://127.0.0.1:{port}/")


def test_schedules_say_when_they_are_due_and_a_missing_zone_database_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vedette.domain.agent import Schedule

    agents = load_fleet(root, load_settings(root / "vedette.toml")).fleet.agents
    agent: Agent = replace(
        next(iter(agents.values())), schedules=(Schedule("hourly", every_us=3_600_000_000),)
    )
    found = list(doctor.check_zones({agent.name: agent}, 1_795_257_600_000_000 + 1))
    assert state_of(found, f"schedule {agent.name}/hourly") == ("ok", "next 2026-11-21T11:00:00Z")
    import zoneinfo

    def none(key: str) -> Any:
        raise zoneinfo.ZoneInfoNotFoundError(key)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", none)
    assert [one.state for one in doctor.check_zones({}, 1)] == ["fail"]
