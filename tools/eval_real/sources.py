"""Reads the evaluation data by its layout (folder names and file kinds), never by file lists."""

from __future__ import annotations

import csv
import gzip
import json
import re
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

Pairs = list[tuple[str, str]]


class Intents(NamedTuple):
    """Texts with their intent: training sets by name, and what is scored; `beyond` has none."""

    train: dict[str, Pairs]
    test: Pairs
    beyond: tuple[list[str], ...] = ()


class Mail(NamedTuple):
    """One raw mail, when it was received (UTC) and whether it is spam."""

    raw: bytes
    received: datetime
    spam: bool


def banking(folder: Path) -> Intents | None:
    """Read `train*.csv` and `train_N` as training sets, every other set as what is scored.

    Training rows whose text is scored are left out.
    """
    train: dict[str, Pairs] = {}
    test: Pairs = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        rows = _pairs(path)
        if not rows:
            continue
        if path.name.startswith("train"):
            train["full" if path.is_file() else path.name.removeprefix("train_")] = rows
        else:
            test.extend(rows)
    if not train or not test:
        return None
    test = list(dict.fromkeys(test))
    scored = {_key(text) for text, _ in test}
    fresh = {
        name: [row for row in dict.fromkeys(rows) if _key(row[0]) not in scored]
        for name, rows in train.items()
    }
    return Intents(fresh, test)


def _pairs(path: Path) -> Pairs:
    if path.is_dir() and (path / "seq.in").is_file():
        texts = (path / "seq.in").read_text(encoding="utf-8").splitlines()
        labels = (path / "label").read_text(encoding="utf-8").splitlines()
        return [(t.strip(), c.strip().lower()) for t, c in zip(texts, labels, strict=True)]
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as lines:
            return [
                (row["text"].strip(), row["category"].strip().lower())
                for row in csv.DictReader(lines)
            ]
    return []


def clinc(folder: Path) -> Intents | None:
    """Read the JSON files whose keys end in train, val or test, with `oos_` for out-of-scope.

    Training rows whose text is scored are left out.
    """
    train: Pairs = []
    test: Pairs = []
    beyond: list[list[str]] = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        data = json.loads(path.read_text(encoding="utf-8"))
        for name, rows in data.items():
            if not (isinstance(rows, list) and rows and isinstance(rows[0], list)):
                continue
            pairs = [(str(text), str(label)) for text, label in rows]
            if name.startswith("oos"):
                beyond.append([text for text, _ in pairs])
            elif name == "train":
                train.extend(pairs)
            else:
                test.extend(pairs)
    # What is scored is not learnt from, in whatever spacing and case; see `banking`.
    scored = {_key(text) for text, _ in test} | {_key(text) for part in beyond for text in part}
    train = [row for row in train if _key(row[0]) not in scored]
    return Intents({"full": train}, test, tuple(beyond)) if train and test else None


def mails(folder: Path) -> list[Mail]:
    """Read mails of archives and folders in order of receipt; `spam…` folders hold the spam.

    The time is that of the topmost Received header, since the sender writes the Date. Repeats
    of a body are left out, and mails without a readable time of receipt.
    """
    found: dict[bytes, Mail] = {}
    for name, raw in _files(folder):
        received = _received(raw)
        if received is not None:
            spam = Path(name).parent.name.startswith("spam")
            body = re.split(rb"\r?\n\r?\n", raw, maxsplit=1)[-1]
            found.setdefault(sha256(body).digest(), Mail(raw, received, spam))
    return sorted(found.values(), key=lambda mail: mail.received)


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    if not folder.is_dir():
        return
    for path in sorted(folder.rglob("*")):
        if path.name.endswith((".tar.xz", ".tar.gz", ".tar")):
            with tarfile.open(path) as archive:
                for member in archive:
                    file = archive.extractfile(member) if member.isfile() else None
                    if file is not None:
                        yield member.name, file.read()
        elif path.is_file() and re.match(r"(spam|easy-ham|hard-ham)", path.parent.name):
            yield str(path.relative_to(folder)), path.read_bytes()


def _received(raw: bytes) -> datetime | None:
    head = re.split(rb"\r?\n\r?\n", raw, maxsplit=1)[0].decode("latin-1")
    head = re.sub(r"\r?\n[ \t]+", " ", head)
    for line in head.splitlines():
        if line.lower().startswith("received:") and ";" in line:
            try:
                moment = parsedate_to_datetime(line.rsplit(";", 1)[1].strip())
            except (ValueError, TypeError, IndexError):
                continue
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    return None


def moderation(folder: Path) -> list[dict[str, Any]]:
    """Read JSON lines with `prompt` and labels 0 or 1; each text once."""
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.jsonl*")) if folder.is_dir() else ():
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        for line in text.splitlines():
            row = json.loads(line)
            rows.setdefault(row["prompt"], row)
    return list(rows.values())


def tweets(folder: Path) -> list[tuple[str, bool]]:
    """Read CSV files with `tweet` and `class`; whether each is abusive (class 0 or 1).

    Posts that differ by case and spacing only are one.
    """
    rows: dict[str, tuple[str, bool]] = {}
    for path in sorted(folder.glob("*.csv")) if folder.is_dir() else ():
        with path.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                if "tweet" in row and "class" in row:
                    found = row["tweet"], row["class"] in ("0", "1")
                    rows.setdefault(_key(row["tweet"]), found)
    return list(rows.values())


def _key(text: str) -> str:
    return " ".join(text.lower().split())
