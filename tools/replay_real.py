"""`make replay-real`: the real data of VEDETTE_DATA through the whole line, with progress.

Every event goes through accept, recall, judge, policy, commit and effect; nothing is switched off.
It ends with counts per agent, and with exit code 1 if an event is not accounted for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tools.real_fleet import Laid, data_folder, lay_out, receiver, unpack_mails


def main() -> int:
    """Return 0 if every event is accounted for, 1 if not, 3 without data."""
    parser = argparse.ArgumentParser(prog="replay_real")
    parser.add_argument("--only", choices=("metrics", "mails"))
    parser.add_argument("--work", type=Path, help="keep the state here instead of a temporary one")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    options = parser.parse_args()
    data = data_folder()
    if data is None:
        print("replay_real: no evaluation data. Mend: set VEDETTE_DATA", file=sys.stderr)
        return 3
    work = options.work or Path(tempfile.mkdtemp(prefix="vedette-replay-"))
    try:
        mailbox = None if options.only == "metrics" else work / "mails"
        if mailbox is not None and not mailbox.exists():
            print("unpacking mails …", file=sys.stderr)
            unpack_mails(data, mailbox)
        series = None if options.only == "mails" else data / "nab" / "data"
        with receiver(work / "receiver.jsonl") as hook:
            laid = lay_out(work, series=series, mailbox=mailbox, hook=hook)
            result = asyncio.run(replay(laid))
        calls = received(work / "receiver.jsonl")
        missing = account(result, laid)
        print(json.dumps(result, indent=2) if options.json else report(result, laid, calls))
        for line in missing:
            print(f"NOT ACCOUNTED FOR: {line}", file=sys.stderr)
        return 1 if missing else 0
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)


async def replay(laid: Laid) -> dict[str, object]:
    """Run the fleet until it is idle; return its summary."""
    from vedette.app.composition_root import open_app
    from vedette.config.settings import load_settings
    from vedette.interfaces.daemon import Daemon, describe_run

    app = await open_app(load_settings(laid.config))
    running = Daemon(app, until_idle=True)
    shown = 0.0

    def progress(now: Daemon) -> None:
        nonlocal shown
        if time.monotonic() - shown < 2:
            return
        shown = time.monotonic()
        done = app.dispatcher.handled_count
        total = laid.metrics + laid.mails
        print(
            f"\r{done:>8,} of {total:,} runs handled, {app.dispatcher.pending:,} pending  ",
            end="", file=sys.stderr, flush=True,
        )  # fmt: skip

    await running.run(progress)
    print(file=sys.stderr)
    result = describe_run(running)
    await app.close()
    return result


def account(result: dict[str, object], laid: Laid) -> list[str]:
    """Return what is not accounted for: events that were not accepted, runs that vanished."""
    agents: dict[str, dict[str, int]] = result["agents"]  # type: ignore[assignment]
    events: dict[str, int] = result["events"]  # type: ignore[assignment]
    missing = []
    expected = laid.metrics + laid.mails
    if events["accepted"] + events["refused"] != expected:
        missing.append(
            f"{expected} delivered, {events['accepted']} accepted, {events['refused']} refused"
        )
    runs = sum(agent["runs"] for agent in agents.values())
    if runs + events["woke_nobody"] < events["accepted"]:
        missing.append(
            f"{events['accepted']} events, {runs} runs, {events['woke_nobody']} woke nobody"
        )
    for name, agent in agents.items():
        if agent["permits"] != agent["effects"] + agent["failed"]:
            missing.append(f"{name}: {agent['permits']} permits, {agent['effects']} effects")
    return missing


def received(record: Path) -> tuple[int, int]:
    """Return (calls, effects) of the webhook target's own record."""
    if not record.exists():
        return 0, 0
    calls = [json.loads(line) for line in record.read_bytes().splitlines()]
    return len(calls), sum(1 for call in calls if call["effect"])


def report(result: dict[str, object], laid: Laid, calls: tuple[int, int]) -> str:
    """Return the closing table."""
    agents: dict[str, dict[str, int]] = result["agents"]  # type: ignore[assignment]
    columns = (
        "runs",
        "actions",
        "permits",
        "holds",
        "denials",
        "effects",
        "failed",
        "waiting",
        "dead",
    )
    lines = [f"{'agent':<20}" + "".join(f"{name:>9}" for name in columns)]
    for name, counts in agents.items():
        lines.append(f"{name:<20}" + "".join(f"{counts[column]:>9,}" for column in columns))
    events: dict[str, int] = result["events"]  # type: ignore[assignment]
    lines += [
        "",
        f"events      {events['accepted']:,} accepted of {laid.metrics:,} rows"
        f" and {laid.mails:,} mails, {events['refused']} refused,"
        f" {events['woke_nobody']} woke nobody",
        f"webhook     {calls[0]:,} calls, {calls[1]:,} effects by its own record",
        f"speed       {result['events_per_second']:,} events/s end to end, "
        f"{result['cpu_us_per_event']:,} us CPU per event ({result['seconds']} s)",
        f"machine     {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}, fdatasync p50 {fsync_p50_us():.0f} us",
    ]
    return "\n".join(lines)


def fsync_p50_us(rounds: int = 100) -> float:
    """Return the median of append 1 KB + fdatasync: what one commit costs on this disk."""
    with tempfile.NamedTemporaryFile(prefix="vedette-sync-") as file:
        took = []
        for _ in range(rounds):
            began = time.perf_counter()
            file.write(b"x" * 1024)
            file.flush()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return sorted(took)[rounds // 2] * 1e6


if __name__ == "__main__":
    raise SystemExit(main())
