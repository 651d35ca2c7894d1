"""`vedette verify targets`: real targets after a real run, and then what went around us."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import sqlite3
import subprocess
import sys
import traceback
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from tests.alarm import sound
from tests.bigquery import Dataset
from tests.bigquery import bigquery as bigquery
from tests.pubsub import Emulator

from vedette.adapters.bigquery.record import record_query
from vedette.adapters.mail.maildir.source import MaildirSource
from vedette.adapters.notify.target import WebhookTarget
from vedette.adapters.pubsub.publisher import publish
from vedette.app.stores import store_reader
from vedette.config.reach import target_plugin
from vedette.config.settings import read_settings
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand, BadFleet, Unavailable
from vedette.domain.effect import Call
from vedette.domain.target_record import Mail, TargetEffect, TargetRecord
from vedette.interfaces.cli import cli
from vedette.ledger.history.audit import (
    RecordedEffect,
    RecordedEffects,
    audit_keys,
    audit_mailbox,
    read_effects,
)
from vedette.testing.harness import FleetHarness, checkout


def read_record(name: str, table: dict[str, Any], since_us: int) -> TargetRecord:
    return target_plugin(table).read_record(table, f"target {name}", since_us)


def audit_problem(table: dict[str, Any]) -> str | None:
    return target_plugin(table).record_problem(table)


SCRIPT = checkout() / "samples" / "receiver" / "receiver.py"
_spec = importlib.util.spec_from_file_location("audited_receiver", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
receiver = importlib.util.module_from_spec(_spec)
sys.modules["audited_receiver"] = receiver
_spec.loader.exec_module(receiver)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the state of a fleet that has filed mails and called a webhook."""
    folder = tmp_path_factory.mktemp("ran")
    record = receiver.Record(folder / "record.jsonl")
    server = receiver.Server("127.0.0.1", 0, record)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        asyncio.run(_run(folder, server.server_address[1]))
        yield folder
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        record.close()


async def _run(folder: Path, port: int) -> None:
    mails = sorted((checkout() / "samples/mailbox/new").iterdir())
    for place in ("new", "cur", "tmp"):
        (folder / "mail" / place).mkdir(parents=True)
    for mail in mails[:40]:
        shutil.copy(mail, folder / "mail/new" / mail.name)
    # Tools reach all of its folder, so the fleet's own files must not lie there.
    board = folder / "board" / "board.db"
    board.parent.mkdir()
    with closing(sqlite3.connect(board)) as db, db:
        db.executescript((checkout() / "samples/comments/board.sql").read_text(encoding="utf-8"))
    targets = {
        "week": {"kind": "folder", "path": str(folder / "week")},
        "board": {"kind": "board", "path": str(board)},
        "mailbox": {
            "kind": "maildir", "path": str(folder / "mail"), "address": "desk@harbour.example",
        },
        "oncall": {
            "kind": "webhook", "url": f"http://127.0.0.1:{port}/hook",
            "record_file": str(folder / "record.jsonl"),
        },
    }  # fmt: skip
    tables = "".join(
        f"[targets.{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in table.items())
        for name, table in targets.items()
    )
    content = "".join(
        f"{name} = {json.dumps(str(checkout() / name))}\n"
        for name in ("agents", "policies", "memory")
    )
    (folder / "vedette.toml").write_text(
        f'fleet = "harbour"\nstate = "state"\n[content]\n{content}{tables}'
    )
    async with FleetHarness(folder, targets=targets) as fleet:
        source = MaildirSource("sample", folder / "mail", clock=SystemClock())
        await source.deliver(fleet.app.intake)
        await sound(fleet)


@pytest.fixture
def copied(ran: Path, tmp_path: Path) -> Path:
    """A copy of it, whose mailbox and record a test may touch."""
    shutil.copytree(ran, tmp_path / "ran")
    toml = (tmp_path / "ran/vedette.toml").read_text()
    (tmp_path / "ran/vedette.toml").write_text(toml.replace(str(ran), str(tmp_path / "ran")))
    return tmp_path / "ran"


def audit(folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    given = ["--config", str(folder), "verify", "targets", "--json", *more]
    done = CliRunner().invoke(cli, given, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    document: dict[str, Any] = json.loads(done.stdout)
    return int(done.return_value), document


def findings(answer: dict[str, Any], target: str) -> list[tuple[str, str]]:
    (found,) = [one for one in answer["targets"] if one["target"] == target]
    return sorted((one["code"], one.get("message") or one["key"]) for one in found["findings"])


def test_people_read_it_too(copied: Path) -> None:
    """From the program itself: what a shell sees, and its exit code."""
    with (copied / "record.jsonl").open("a") as record:
        record.write('{"key": "by\x07hand"}\n'.replace("\x07", "\\u0007"))
    done = subprocess.run(
        [sys.executable, "-m", "vedette", "--config", str(copied), "verify", "targets"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "FOUND no-intent: 'by\\x07hand' (call 2) has no intent" in done.stdout
    _, answer = audit(copied)
    (seen,) = [one for one in answer["targets"] if one["target"] == "mailbox"]
    # How many they are is the judge's to say; that they are not few, the next test checks.
    counted = f"{seen['recorded']} in its record, {seen['done']} of {seen['done']} intents done"
    assert f"mailbox: {counted}, 0 open" in done.stdout
    assert "as the ledger says" in done.stdout


def test_a_run_that_nobody_went_around_has_no_findings(ran: Path) -> None:
    code, answer = audit(ran)
    assert (code, answer["ok"]) == (0, True)
    seen = {one["target"]: one for one in answer["targets"]}
    # It compared something: mails that were filed and flagged, a webhook that was called.
    assert seen["mailbox"]["recorded"] >= 40
    assert seen["mailbox"]["done"] >= 20
    assert seen["oncall"]["done"] == seen["oncall"]["recorded"] == 1
    assert not any(one["open"] or one["erased"] for one in seen.values())


def test_exactly_what_went_around_us_is_listed(copied: Path) -> None:
    since = SystemClock().now_us()
    mail = copied / "mail"
    filed = sorted(path for path in mail.glob(".*/*/*") if path.name.endswith(".harbour"))
    untouched = sorted((mail / "new").iterdir())
    assert len(filed) > 4
    assert untouched
    (mail / ".Elsewhere/cur").mkdir(parents=True)
    (mail / ".Drafts/cur").mkdir(parents=True, exist_ok=True)
    refiled, missing, seen = filed[0], filed[1], filed[2]
    refiled.rename(mail / ".Elsewhere/cur" / refiled.name)
    missing.unlink()
    seen.rename(seen.parents[1] / "cur" / f"{seen.name.partition(':')[0]}:2,T")
    stranger = untouched[0].rename(mail / ".Elsewhere/cur" / f"{untouched[0].name}:2,S")
    (mail / ".Drafts/cur/0123.vedette:2,DS").write_text("Subject: not ours\n\n")
    (mail / "new/1999999999.M1.post").write_text("Subject: new mail is nobody's doing\n\n")
    line = {"key": "by-hand", "effect": True, "n": 2, "body": {}}
    repeat = {"key": "by-hand-refused", "effect": False, "n": 3, "body": {}}
    with (copied / "record.jsonl").open("a") as record:
        record.write(json.dumps(line) + "\n" + json.dumps(repeat) + "\n" + '{"key": "half')
    code, answer = audit(copied)
    assert (code, answer["ok"]) == (1, False)
    assert findings(answer, "oncall") == [("no-intent", "by-hand")]
    name = stranger.name.partition(":")[0]
    assert findings(answer, "mailbox") == sorted(
        [
            ("elsewhere", refiled.name.partition(":")[0]),
            ("not-there", missing.name.partition(":")[0]),
            ("no-intent", seen.name.partition(":")[0]),
            ("no-intent", name),
            ("no-intent", "0123.vedette"),
        ]
    )
    # Each names what the ledger knows of it, so that `vedette explain` goes on from there.
    (mailbox,) = [one for one in answer["targets"] if one["target"] == "mailbox"]
    (elsewhere,) = [f for f in mailbox["findings"] if f["code"] == "elsewhere"]
    assert elsewhere["run"].startswith("run_")
    # From an instant on: what happened before it is left out, a record without times is not.
    code, answer = audit(copied, "--since", _iso(since + 3_600_000_000), "mailbox")
    assert (code, findings(answer, "mailbox")) == (0, [])


def test_the_key_of_another_target_is_no_intent(copied: Path) -> None:
    """Both ways, from the whole verb: a known key does not open another target."""
    with reading_of(copied) as ledger:
        mailbox = next(one for one in ledger.at_target("mailbox") if one.state == "done").key
        (oncall,) = (one.key for one in ledger.at_target("oncall"))
    with (copied / "record.jsonl").open("a") as record:
        record.write(json.dumps({"key": mailbox}) + "\n")
    (copied / "mail/.Drafts/cur").mkdir(parents=True, exist_ok=True)
    (copied / f"mail/.Drafts/cur/{oncall}.vedette:2,").write_text("Subject: not ours\n\n")
    code, answer = audit(copied)
    assert code == 1
    assert findings(answer, "oncall") == [("no-intent", mailbox)]
    assert findings(answer, "mailbox") == [("no-intent", f"{oncall}.vedette")]
    # The same record under two names, or under another one than then: nobody is accused.
    toml = (copied / "vedette.toml").read_text()
    (copied / "mail/.Drafts/cur" / f"{oncall}.vedette:2,").unlink()
    (copied / "record.jsonl").write_text(json.dumps({"key": oncall}) + "\n")
    assert audit(copied)[0] == 0
    table = toml[toml.index("[targets.oncall]") :]
    (copied / "vedette.toml").write_text(toml + table.replace("oncall", "pager"))
    code, answer = audit(copied)
    assert (code, findings(answer, "pager")) == (0, [])
    (copied / "vedette.toml").write_text(toml.replace("[targets.oncall]", "[targets.pager]"))
    code, answer = audit(copied, "pager")
    assert (code, findings(answer, "pager")) == (0, [])
    # The control: another place, and its old name is still that of a target.
    other = table.replace("oncall", "pager").replace("/hook", "/other")
    other = other.replace("record.jsonl", "other.jsonl")
    (copied / "vedette.toml").write_text(toml + other)
    (copied / "other.jsonl").write_text(json.dumps({"key": oncall}) + "\n")
    code, answer = audit(copied)
    assert (code, findings(answer, "pager")) == (1, [("no-intent", oncall)])


def test_a_record_that_forgets_is_not_asked_for_more_than_it_keeps(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = (copied / "vedette.toml").read_text()
    only = toml[: toml.index("[targets.mailbox]")] + toml[toml.index("[targets.oncall]") :]
    (copied / "vedette.toml").write_text(only)
    for keeps_us, expected in ((None, 1), (3_600_000_000, 1), (0, 0)):
        empty = Mock(return_value=TargetRecord(items=(), retention_us=keeps_us))
        monkeypatch.setattr(WebhookTarget, "read_record", empty)
        code, answer = audit(copied)
        assert (code, len(findings(answer, "oncall"))) == (expected, expected)
        assert (answer["targets"][-1]["kept_since"] is None) is (keeps_us is None)


@contextmanager
def reading_of(folder: Path) -> Iterator[RecordedEffects]:
    settings, problems = read_settings(folder / "vedette.toml")
    assert settings is not None, problems
    with store_reader(settings) as store, store.snapshot():
        yield read_effects(store.ledger, lambda agent, tool: None)


def _iso(at_us: int) -> str:
    from vedette.domain.base.clock import iso

    return iso(at_us)


def test_what_the_target_never_saw_is_listed(copied: Path) -> None:
    (copied / "record.jsonl").write_text("")
    code, answer = audit(copied, "oncall")
    ((found, key),) = findings(answer, "oncall")
    assert (code, found) == (1, "not-there")
    assert len(key) > 20


def test_a_record_is_asked_for_over_http(ran: Path, copied: Path) -> None:
    """The live receiver's own listing instead of its file; by hand means by hand."""
    toml = (copied / "vedette.toml").read_text()
    url = next(line for line in toml.splitlines() if line.startswith("url"))[7:-6]
    file = next(line for line in toml.splitlines() if line.startswith("record_file"))
    (copied / "vedette.toml").write_text(toml.replace(file, f'record_url = "{url}/record"'))
    assert audit(copied, "oncall")[0] == 0
    request = urllib.request.Request(
        f"{url}/hook", b"{}", {"Idempotency-Key": "curl", "Content-Length": "2"}
    )
    urllib.request.urlopen(request, timeout=10).close()
    code, answer = audit(copied, "oncall")
    assert (code, findings(answer, "oncall")) == (1, [("no-intent", "curl")])


@pytest.mark.parametrize(
    "url",
    [
        "http://kim:hunter2@127.0.0.1:1/record?token=hunter2#hunter2",
        "http://127.0.0.1:1/a b?token=hunter2",
        "http://127.0.0.1:99999/record?token=hunter2",
        "http://[::1/record?token=hunter2",
        "http://127.0.0.1:x/?token=hunter2",
        "ftp://127.0.0.1/record?token=hunter2",
        "record?token=hunter2",
    ],
)
def test_what_is_wrong_with_a_record_url_is_said_without_its_query(url: str) -> None:
    table = {"kind": "webhook", "record_url": url}
    with pytest.raises((BadFleet, Unavailable)) as refused:
        list(read_record("oncall", table, 0).items or ())
    whole = "".join(traceback.format_exception(refused.value))
    assert "hunter2" not in whole
    assert "target oncall" in str(refused.value)
    reached = url.startswith("http://kim")
    assert ("http://127.0.0.1:1/record: its record cannot be had" in whole) is reached


def test_a_target_without_a_record_is_said_to_be_left_out(copied: Path) -> None:
    toml = (copied / "vedette.toml").read_text()
    file = next(line for line in toml.splitlines() if line.startswith("record_file"))
    (copied / "vedette.toml").write_text(toml.replace(file, ""))
    code, answer = audit(copied)
    assert (code, {one["target"] for one in answer["skipped"]}) == (0, {"oncall", "week"})
    for name in ("oncall", "nowhere"):
        with pytest.raises(BadCommand):
            audit(copied, name)


# --- the comparison by itself ----------------------------------------------------------------


def ledger_of(*claims: RecordedEffect) -> RecordedEffects:
    return RecordedEffects({claim.key: claim for claim in claims})


def claim(key: str, state: str = "done", at: int = 50, seq: int = 1, **more: Any) -> RecordedEffect:
    named = {"target": "post", **more}
    return RecordedEffect(
        key, f"act_{key}", "gull", "run_1", "t.do", state=state, seq=seq, at_us=at, **named
    )  # fmt: skip


@pytest.mark.parametrize(
    ("items", "claims", "expected"),
    [
        ([TargetEffect("a", 50)], [claim("a")], []),
        ([TargetEffect("a")], [claim("a", "failed")], ["despite"]),
        ([TargetEffect("a")], [claim("a", "cancelled")], ["despite"]),
        ([TargetEffect("a"), TargetEffect("a")], [claim("a")], ["twice"]),
        ([TargetEffect("b", 50)], [], ["no-intent"]),
        ([], [claim("a")], ["not-there"]),
        ([], [claim("a", "unknown"), claim("b", "started"), claim("c", "failed")], []),
        ([TargetEffect("a")], [claim("a", "unknown"), claim("b", "intended")], []),
        # Before the time asked for, and done while the record was read already.
        ([TargetEffect("b", 5)], [claim("a", at=5)], []),
        ([], [claim("a", at=100)], []),
        # Meant for another target of ours, or for none: whoever put it here went around us.
        ([TargetEffect("a", 50)], [claim("a", target="other")], ["no-intent"]),
        ([TargetEffect("a")], [claim("a", "failed", target="other")], ["no-intent"]),
        ([TargetEffect("a")], [claim("a", target=None)], ["no-intent"]),
        # Where the decision is erased nobody knows any more what it was meant for.
        ([TargetEffect("a")], [claim("a", target=None, erased=True)], []),
        # Another name of this target.
        ([TargetEffect("a")], [claim("a", target="was-post")], []),
    ],
)
def test_keys_against_intents(
    items: list[TargetEffect], claims: list[RecordedEffect], expected: list[str]
) -> None:
    ledger, names = ledger_of(*claims), {"was-post"}
    found = audit_keys(items, ledger, "post", since_us=10, read_us=100, names=names)
    assert [one["code"] for one in found] == expected


def test_a_key_of_another_target_is_said_to_be_whose() -> None:
    ledger = ledger_of(claim("a", target="other"))
    (found,) = audit_keys(
        [TargetEffect("a", 50, "call 1")], ledger, "post", since_us=0, read_us=100
    )
    assert found["what"] == (
        "'a' (call 1) has no intent here: it is the key of t.do of gull at other"
    )
    assert (found["run"], found["key"]) == ("run_1", "a")


def test_what_a_record_may_have_forgotten_is_not_missed() -> None:
    ledger = ledger_of(claim("old", began_us=19), claim("a", began_us=20))
    times: dict[str, Any] = {"since_us": 10, "read_us": 100}
    found = audit_keys([], ledger, "post", retained_since_us=20, **times)
    assert [one["key"] for one in found] == ["a"]
    found = audit_keys([], ledger, "post", **times)
    assert [one["key"] for one in found] == ["old", "a"], "the control: a record that keeps all"
    # What is still there is held against the ledger, however old.
    ledger = ledger_of(claim("old", "failed", began_us=19))
    assert [
        one["code"]
        for one in audit_keys(
            [TargetEffect("old", 50)], ledger, "post", retained_since_us=20, **times
        )
    ] == ["despite"]


def did(
    key: str, state: str = "done", at: int = 50, seq: int = 1, target: str = "post", **data: Any
) -> RecordedEffect:
    answer = data if state == "done" else None
    return claim(key, state, at, seq, target=target, data=answer, args=data)


@pytest.mark.parametrize(
    ("mails", "claims", "expected"),
    [
        ([Mail("m", "INBOX", "")], [], []),
        ([Mail("m", "A", "")], [did("a", message="m", folder="A")], []),
        ([Mail("m", "A", "")], [did("a", "started", message="m", folder="A")], []),
        ([Mail("m", "INBOX", "")], [did("a", "started", message="m", folder="A")], []),
        ([Mail("m", "A", "")], [did("a", at=100, message="m", folder="A")], []),
        ([Mail("m", "A", "")], [did("a", "failed", message="m", folder="A")], ["no-intent"]),
        (
            [Mail("m", "INBOX", "")],
            [did("a", message="m", folder="A"), did("b", seq=2, message="m", folder="INBOX")],
            [],
        ),
        (
            [Mail("m", "INBOX", "")],
            [did("a", seq=2, message="m", folder="A"), did("b", message="m", folder="INBOX")],
            ["elsewhere"],
        ),
        ([Mail("m", "INBOX", "F")], [did("a", message="m", flag="important", set=True)], []),
        ([Mail("m", "INBOX", "")], [did("a", message="m", flag="seen", set=True)], ["not-there"]),
        (
            [Mail("m", "INBOX", "")],
            [
                did("a", message="m", flag="seen", set=True),
                did("b", seq=2, message="m", flag="seen", set=False),
            ],
            [],
        ),
        ([Mail("m", "INBOX", ""), Mail("m", "A", "")], [], ["twice", "no-intent"]),
        ([Mail("m", "INBOX", "S")], [], ["no-intent"]),
        ([Mail("m", "A", "S")], [], ["no-intent"]),
        # Of ours: sent on by whoever sends, and taken away; a draft is missed.
        ([Mail("k.vedette", "Sent", "S")], [did("k", message="k.vedette", folder="Outbox")], []),
        ([], [did("k", message="k.vedette", folder="Outbox")], []),
        ([], [did("k", message="k.vedette", folder="Drafts")], ["not-there"]),
        ([Mail("k.vedette", "Drafts", "DS")], [claim("k", erased=True)], []),
        ([Mail("k.vedette", "Drafts", "DS")], [claim("k", "failed", erased=True)], ["despite"]),
        # Named as if we had written it, by the key of an effect at another target.
        ([Mail("k.vedette", "Drafts", "S")], [claim("k", target="other")], ["no-intent"]),
        ([Mail("k.vedette", "Drafts", "S")], [claim("k", target="was-post")], []),
        ([Mail("k.vedette", "Drafts", "S")], [claim("k", target=None, erased=True)], []),
        # Filed when the mailbox went by another name; of a mailbox that is gone nothing is missed.
        ([Mail("m", "A", "")], [did("a", message="m", folder="A", target="was-post")], []),
        ([], [did("a", message="m", folder="A", target="was-post")], []),
    ],
)
def test_a_mailbox_against_intents(
    mails: list[Mail], claims: list[RecordedEffect], expected: list[str]
) -> None:
    ledger, names = ledger_of(*claims), {"was-post"}
    found = audit_mailbox(mails, ledger, "post", since_us=10, read_us=100, names=names)
    assert [one["code"] for one in found] == expected


# --- Pub/Sub and BigQuery, by their emulators ------------------------------------------------


def test_a_topic_is_read_without_taking_anything_from_it(
    pubsub_emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vedette.adapters.pubsub.record._PULL_TIMEOUT_S", 0.5)
    from google.pubsub_v1 import PubsubMessage
    from google.pubsub_v1.services.publisher import PublisherClient
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
    from google.pubsub_v1.services.subscriber import SubscriberClient
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
    from grpc import insecure_channel  # type: ignore[import-untyped]

    project = pubsub_emulator.project()
    topic, path = f"projects/{project}/topics/orders", f"projects/{project}/subscriptions/audit"
    publisher = PublisherClient(
        transport=PublisherGrpcTransport(channel=insecure_channel(pubsub_emulator.host))
    )
    subscriber = SubscriberClient(
        transport=SubscriberGrpcTransport(channel=insecure_channel(pubsub_emulator.host))
    )
    publisher.create_topic(name=topic)
    subscriber.create_subscription(name=path, topic=topic)
    table = {
        "kind": "pubsub",
        "project": project,
        "topic": "orders",
        "record_subscription": "audit",
    }
    call = Call("t.publish", {}, "key1", "gull", "run_1", table, ("gull",), 1, 5_000_000)
    for _ in range(2):  # a call that was repeated is one event
        assert publish(call, {"x": 1}, type="t").state == "done"
    publisher.publish(topic=topic, messages=[PubsubMessage(data=b"by hand")])
    clients: list[Any] = [publisher, subscriber]
    for client in clients:
        client.transport.close()
    for _ in range(2):  # and the next audit sees the same
        items = list(read_record("topic", table, 0).items or ())
        keys = sorted(item.key.partition(" ")[0] for item in items)
        assert keys == ["key1", "message"]
        assert all(item.at_us > 0 for item in items)
    assert read_record("topic", table, 0).retention_us == 7 * 86_400_000_000, "its default"
    short = {
        "name": f"{path}-short",
        "topic": topic,
        "message_retention_duration": {"seconds": 660},
    }
    repeat: Any = SubscriberClient(
        transport=SubscriberGrpcTransport(channel=insecure_channel(pubsub_emulator.host))
    )
    repeat.create_subscription(request=short)
    repeat.transport.close()
    found = read_record("topic", {**table, "record_subscription": "audit-short"}, 0)
    assert found.retention_us == 660_000_000
    with pytest.raises(BadFleet, match="NotFound"):
        list(read_record("topic", {**table, "record_subscription": "none"}, 0).items or ())


def test_a_table_is_read_by_its_key_column(bigquery: Dataset) -> None:
    bigquery.ask("CREATE TABLE `{d}.orders` (idempotency_key STRING, made TIMESTAMP, n INT64)")
    row = "'{}', TIMESTAMP '2026-05-0{} 00:00:00+00', 1"
    bigquery.insert(
        "orders", "idempotency_key, made, n",
        [row.format("old", 1), row.format("a", 3), row.format("b", 3), row.format("b", 4)],
    )  # fmt: skip
    project, dataset = bigquery.name.split(".")
    table = {"kind": "bigquery", "project": project, "dataset": dataset, "table": "orders"}
    items = [item.key for item in read_record("orders", table, 0).items or ()]
    assert items == ["a", "b", "b", "old"]
    since = 1_777_680_000_000_000  # 2026-05-02
    found = read_record("orders", {**table, "time_column": "made"}, since).items or ()
    timed = [item.key for item in found]
    assert timed == ["a", "b", "b"]
    with pytest.raises((BadFleet, Unavailable)):
        list(read_record("orders", {**table, "key_column": "no_such"}, 0).items or ())


def test_names_of_a_table_are_names() -> None:
    table = {"project": "p-1", "dataset": "d", "table": "t"}
    for name, value in (("table", "t` WHERE 1=1"), ("key_column", "k`"), ("project", "P;")):
        with pytest.raises(BadFleet):
            record_query({**table, name: value}, "here", 0)


def test_which_targets_keep_a_record() -> None:
    assert audit_problem({"kind": "maildir", "path": "x"}) is None
    assert "record_file" in (audit_problem({"kind": "webhook", "url": "x"}) or "")
    assert "record_subscription" in (audit_problem({"kind": "pubsub"}) or "")
    assert audit_problem({"kind": "fax"}) is not None


def test_which_targets_are_one_place() -> None:
    hook = {"kind": "webhook", "url": "http://x/a", "record_file": "r"}
    topic = {"kind": "pubsub", "project": "p", "topic": "t", "record_subscription": "s"}
    for one, other, same in (
        (hook, {"kind": "webhook", "url": "http://x/a"}, True),
        (hook, {"kind": "webhook", "url": "http://x/b", "record_file": "r"}, True),
        (hook, {"kind": "webhook", "url": "http://x/b"}, False),
        ({"kind": "webhook", "url": "http://x/a"}, {"kind": "webhook", "url": "http://x/b"}, False),
        (topic, {**topic, "record_subscription": None}, True),
        (topic, {**topic, "topic": "u", "record_subscription": "v"}, False),
        (topic, {**topic, "project": "q"}, False),
        ({"kind": "maildir", "path": "r"}, {"kind": "webhook", "path": "r"}, False),
        ({"kind": "fax", "path": "r"}, {"kind": "fax", "path": "r"}, False),
    ):
        assert target_plugin(one).is_same_place(one, other) is same


async def test_what_was_erased_is_found_by_its_key_alone(tmp_path: Path) -> None:
    async with _one_call(tmp_path) as fleet:
        before = read_effects(fleet.app.store.ledger, lambda agent, tool: "oncall")
        (known,) = before.at_target("oncall")
        assert (known.erased, known.args is None) == (False, False)
        for key in {entry["event"] for entry in fleet.entries("event.accepted")}:
            await fleet.app.commands.erase(fleet.order(), event=key)
        after = read_effects(fleet.app.store.ledger, lambda agent, tool: f"{agent}/{tool}")
        claims = after.at_target("anomaly_detection/incident.notify")
        assert [(c.key, c.erased, c.args, c.state) for c in claims] == [
            (known.key, True, None, "done")
        ]


@asynccontextmanager
async def _one_call(folder: Path) -> AsyncIterator[FleetHarness]:
    record = receiver.Record(None)
    server = receiver.Server("127.0.0.1", 0, record)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    try:
        mailbox = {"kind": "maildir", "path": str(folder / "mail")}
        board = {"kind": "board", "path": str(folder / "board.db")}
        targets = {
            "oncall": {"kind": "webhook", "url": url}, "mailbox": mailbox, "board": board,
            "week": {"kind": "folder", "path": str(folder / "week")},
        }  # fmt: skip
        async with FleetHarness(folder, targets=targets) as one:
            await sound(one)
            yield one
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
