"""`vedette check --live`: what the checks of the files cannot see."""

from __future__ import annotations

import asyncio
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from vedette.interfaces.cli.common import plain, reading

if TYPE_CHECKING:
    from vedette.app.doctor import Seen
    from vedette.config import Settings

_MARKS = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL", "untested": "-   "}
_WIDE = 78


def look(settings: Settings) -> list[Seen]:
    """Look at everything, in the order in which a person mends it."""
    import orjson

    from vedette.adapters.identity.secrets import wire
    from vedette.adapters.policy_engines.regorus.stage import read_bundle
    from vedette.app import doctor, doctor_network
    from vedette.app.stores import is_there
    from vedette.config import read_fleet
    from vedette.domain.base.clock import SystemClock
    from vedette.domain.base.errors import VedetteError
    from vedette.domain.bundle import Bundle
    from vedette.interfaces.http.local_client import LocalClient

    wire()
    found = list(doctor.machine(settings, runs=LocalClient(settings.state).alive()))
    last_us: int | None = None
    decides: list[doctor.Seen] = []
    try:
        if is_there(settings):
            with reading(settings) as store:
                head = store.head()
                entry = store.entry(head) if head else None
                last_us = int(orjson.loads(entry[1])["at"]) if entry else None
                number, digest = store.revision()
                files = store.bundle(digest) if number else None
                if files is not None:
                    bundle = Bundle.recorded(files, digest)
                    decides = list(doctor.engines(settings, bundle, store))
            found.append(doctor.Seen("store", "ok", f"can be read; {head:,} entries"))
        else:
            found.append(doctor.Seen("store", "ok", "none yet; the first run makes it"))
    except VedetteError as error:
        found.append(doctor.Seen("store", "fail", error.what, error.mend or ""))
    now_us = SystemClock().now_us()
    found += doctor_network.secrets(settings)
    try:
        found += decides or doctor.engines(settings, read_bundle(settings.policies))
    except VedetteError as error:
        found.append(doctor.Seen("policy engine", "fail", error.what, error.mend or ""))
    dates: dict[str, tuple[str, int]] = {}
    found += asyncio.run(doctor_network.outside(settings, dates))
    found += doctor.clocks(now_us, last_us, dates)
    agents, _, _ = read_fleet(settings.root, settings, now_us=now_us)
    found += doctor.zones(agents, now_us)
    found.append(doctor.box(settings, agents))
    return found


def lines_of(found: list[Seen]) -> list[str]:
    """Return a line for each thing, and its mend where there is one."""
    lines = []
    for seen in found:
        text = f"{_MARKS[seen.state]} {plain(seen.what)}: {plain(seen.told)}"
        text += ", not tested" if seen.state == "untested" else ""
        lines += wrap(text, _WIDE, subsequent_indent="       ")
        if seen.mend:
            mend = f"mend: {plain(seen.mend)}"
            lines += wrap(mend, _WIDE, initial_indent="       ", subsequent_indent="         ")
    return lines


def value_of(found: list[Seen]) -> list[dict[str, Any]]:
    """Return what `--json` prints."""
    return [dict(seen.to_json()) for seen in found]
