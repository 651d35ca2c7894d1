"""Lays out a fleet over other data: shipped content, other sources, a state folder of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Laid:
    """Where a laid-out fleet is, and how many metric rows and mails its sources hold."""

    folder: Path
    config: Path
    metrics: int
    mails: int


def data_folder() -> Path | None:
    """Return the folder of the evaluation data (VEDETTE_DATA), or None."""
    given = os.environ.get("VEDETTE_DATA")
    if given:
        return Path(given)
    shared = ROOT.parent / "shared" / "data"
    return shared if shared.is_dir() else None


def lay_out(
    folder: Path,
    *,
    series: Path | None = None,
    mailbox: Path | None = None,
    hook: str = "http://127.0.0.1:9/hook",
    policies: Path | None = None,
    rate: float = 0,
) -> Laid:
    """Write a vedette.toml into `folder` that runs the shipped agents over the given data.

    `series` is a folder of CSV files (read recursively), `mailbox` a Maildir that is copied into
    the state folder when the fleet first starts. `hook` is where the on-call webhook goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metrics = mails = 0
    text = [
        'fleet = "harbour"',
        'state = "state"',
        "[content]",
        f"agents = {json.dumps(str(ROOT / 'agents'))}",
        f"policies = {json.dumps(str(policies or ROOT / 'policies'))}",
        f"memory = {json.dumps(str(ROOT / 'memory'))}",
        "[serve]",
        'http = ""',
        "[targets.mailbox]",
        'kind = "maildir"',
        'path = "@state/mailbox"',
        'address = "desk@harbourlights.example"',
        "[targets.board]",
        'kind = "board"',
        'path = "@state/board/board.db"',
        "[targets.week]",
        'kind = "folder"',
        'path = "@state/week"',
        "create = true",
        f"read = [{json.dumps(str(ROOT / 'samples' / 'harbour_week'))}]",
        "[targets.oncall]",
        'kind = "webhook"',
        f"url = {json.dumps(hook)}",
    ]
    if series is not None:
        pattern = str(series / "**" / "*.csv")
        text += ["[[sources]]", 'kind = "csv"', 'name = "nab"', f"path = {json.dumps(pattern)}"]
        text += [f"rate = {rate:g}"]
        for file in series.rglob("*.csv"):
            with file.open("rb") as lines:
                metrics += sum(1 for line in lines if line.strip()) - 1
    if mailbox is not None:
        text += ["[[sources]]", 'kind = "maildir"', 'name = "mail"', 'path = "@state/mailbox"']
        text += [f"copy_from = {json.dumps(str(mailbox))}"]
        mails = sum(1 for _ in (mailbox / "new").iterdir())
    config = folder / "vedette.toml"
    config.write_text("\n".join(text) + "\n", encoding="utf-8")
    return Laid(folder, config, metrics, mails)


def unpack_mails(data: Path, mailbox: Path, limit: int | None = None) -> None:
    """Unpack the raw mails of the evaluation data into a new Maildir."""
    for part in ("new", "cur", "tmp"):
        (mailbox / part).mkdir(parents=True, exist_ok=True)
    archive = data / "spamassassin" / "mails-first-half.tar.xz"
    count = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            if not member.isfile() or (limit is not None and count >= limit):
                continue
            source = tar.extractfile(member)
            if source is not None:
                name = member.name.replace("/", "-").removesuffix(".txt")
                (mailbox / "new" / name).write_bytes(source.read())
                count += 1


@contextmanager
def receiver(record: Path, *extra: str) -> Iterator[str]:
    """Run the sample webhook target on a free port; yields its address. Stopped by its own pid."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = ROOT / "samples" / "receiver" / "receiver.py"
    process = subprocess.Popen(
        [sys.executable, str(script), "--port", str(port), "--record", str(record), *extra],
        stdout=subprocess.DEVNULL,
    )
    try:
        _answers(port, process)
        yield f"http://127.0.0.1:{port}/hook"
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 15
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the webhook target did not start")
