"""`vedette check --live`: what the checks of the files cannot see."""

from __future__ import annotations

import asyncio
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from vedette.interfaces.cli.common import sanitize_text, store_reader

if TYPE_CHECKING:
    from vedette.app.doctor import CheckResult
    from vedette.config.settings import Settings

_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL", "untested": "-   "}
_WIDTH = 78


def run_checks(settings: Settings) -> list[CheckResult]:
    """Look at everything, in the order in which a person mends it."""
    import orjson

    from vedette.adapters.identity.secrets import register_secret_manager
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.app import doctor, doctor_network
    from vedette.app.stores import store_exists
    from vedette.config.fleet import read_fleet
    from vedette.domain.base.clock import SystemClock
    from vedette.domain.base.errors import VedetteError
    from vedette.domain.bundle import Bundle
    from vedette.interfaces.http.local_client import LocalClient

    register_secret_manager()
    found = list(doctor.check_machine(settings, is_running=LocalClient(settings.state).is_alive()))
    last_us: int | None = None
    decides: list[doctor.CheckResult] = []
    try:
        if store_exists(settings):
            with store_reader(settings) as store:
                head = store.last_seq()
                entry = store.entry(head) if head else None
                last_us = int(orjson.loads(entry[1])["at"]) if entry else None
                number, digest = store.live_revision()
                files = store.bundle_files(digest) if number else None
                if files is not None:
                    bundle = Bundle.from_record(files, digest)
                    decides = list(doctor.check_engines(settings, bundle, store))
            found.append(doctor.CheckResult("store", "ok", f"can be read; {head:,} entries"))
        else:
            found.append(doctor.CheckResult("store", "ok", "none yet; the first run makes it"))
    except VedetteError as error:
        found.append(doctor.CheckResult("store", "fail", error.what, error.mend or ""))
    now_us = SystemClock().now_us()
    found += doctor_network.check_secrets(settings)
    try:
        found += decides or doctor.check_engines(settings, read_bundle(settings.policies))
    except VedetteError as error:
        found.append(doctor.CheckResult("policy engine", "fail", error.what, error.mend or ""))
    dates: dict[str, tuple[str, int]] = {}
    found += asyncio.run(doctor_network.check_network(settings, dates))
    found += doctor.check_clocks(now_us, last_us, dates)
    agents, _, _ = read_fleet(settings.root, settings, now_us=now_us)
    found += doctor.check_zones(agents, now_us)
    found.append(doctor.check_sandbox(settings, agents))
    return found


def check_lines(checks: list[CheckResult]) -> list[str]:
    """Return a line for each thing, and its mend where there is one."""
    lines = []
    for seen in checks:
        text = f"{_MARKS[seen.state]} {sanitize_text(seen.what)}: {sanitize_text(seen.told)}"
        text += ", not tested" if seen.state == "untested" else ""
        lines += wrap(text, _WIDTH, subsequent_indent="       ")
        if seen.mend:
            mend = f"mend: {sanitize_text(seen.mend)}"
            lines += wrap(mend, _WIDTH, initial_indent="       ", subsequent_indent="         ")
    return lines


def checks_json(checks: list[CheckResult]) -> list[dict[str, Any]]:
    """Return what `--json` prints."""
    return [dict(seen.to_json()) for seen in checks]
