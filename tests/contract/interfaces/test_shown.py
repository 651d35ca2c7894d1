"""Nobody approves what they cannot see: each shipped source, each verb, whatever the text is.

The texts of tests/fixtures/shown are what the verbs print; UPDATE=1 writes them anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args, get_type_hints

import httpx
import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from tests.contract.adapters.alertmanager.test_alertmanager import ALERT, AUTHORISED, DOORS, PAYLOAD
from tests.contract.interfaces.test_people_cli import Cli
from tests.segments import remove_content

from vedette.adapters.bigquery.rows import RowMapper
from vedette.adapters.bigquery.sql import AT_COLUMN, ROW_COLUMN
from vedette.adapters.files.source import CsvSource, JsonlSource
from vedette.adapters.host.source import HostSource
from vedette.adapters.mail.event import mail_event
from vedette.adapters.mail.maildir.source import MaildirSource
from vedette.adapters.prometheus.series import series_points
from vedette.adapters.pubsub.decoder import Decoder
from vedette.adapters.sql.config import SqlFile
from vedette.adapters.sql.source import SqlSource
from vedette.app.followers.notifications import Notice, mail_text, notice_facts
from vedette.config.settings import load_settings
from vedette.config.settings_file import SourceFile
from vedette.domain import cloudevents
from vedette.domain.action import Proposal
from vedette.domain.agent import Schedule
from vedette.domain.base.clock import from_iso
from vedette.domain.base.errors import DisplayMismatch
from vedette.domain.base.safe_text import is_visible, text_width
from vedette.domain.display import Display
from vedette.domain.event import Event
from vedette.domain.memory import Briefing
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.schedule import Tick
from vedette.interfaces.http.alertmanager_receiver import routes
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.ledger.history.hold_groups import hold_group_id
from vedette.ledger.history.lists import hold_item
from vedette.testing import toy_fleet as toy
from vedette.testing.clock import ManualClock
from vedette.testing.harness import FleetHarness
from vedette.testing.intake import ListIntake
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import DESK, World, toy_fleet

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "shown"
AT_US = from_iso("2026-05-01T06:00:00Z")
LETTER = (
    "From: Ann Pike <ann@pike.example>\nTo: desk@harbour.example\nSubject: {}\n"
    "Date: Fri, 01 May 2026 06:00:00 +0000\nContent-Type: text/plain; charset=utf-8\n\n{}\n"
)
TOML = """\
fleet = "harbour"
state = "{root}/state"
[content]
agents = "{root}/content/agents"
policies = "{root}/policies"
memory = "{root}/content/memory"
[isolation]
workers = "none"
[targets.world]
kind = "webhook"
url = "http://127.0.0.1:9/hook"
[[displays]]
type = "order.*"
source = "pubsub:*"
title = "/data/order/title"
who = "/data/customer"
text = "/data/note"
values = {{ total = "/data/total" }}
"""


def ask(briefing: Briefing) -> ReasonerJudgement:
    """Propose what a person has to answer for, whatever the event says; alike by its source."""
    event = briefing.event
    args = {"to": DESK, "text": "the usual answer"}
    label = f"{event.type} of {event.source.partition(':')[0]}"
    return ReasonerJudgement(label=label, proposals=(Proposal("big.send", args, "as ever", 0.9),))


def fleet_of(folder: Path) -> FleetHarness:
    """Return a fleet of one agent that every event wakes, and its settings as a file."""
    world, clock = World(), ManualClock(AT_US)
    fleet = toy_fleet(
        folder, world, clock=clock, reasoners={"judge": ScriptedReasoner({"worker": [ask]})}
    )
    charter = folder / "content/agents/worker/agent.yaml"
    text = charter.read_text().replace("{on: worker.job}", '{on: "*"}')
    charter.write_text(text.replace("order_by: subject", "order_by: id"))
    (folder / "vedette.toml").write_text(TOML.format(root=folder))
    return fleet


async def hold_all(folder: Path, events: list[Event]) -> None:
    """Let a fleet hold something for each event, and close it."""
    fleet = fleet_of(folder)
    fleet.displays = load_settings(folder / "vedette.toml").displays
    async with fleet:
        receipts = await fleet.app.intake.accept(events)
        assert [receipt.error for receipt in receipts if receipt.status != "accepted"] == []
        await fleet.wait_until_idle()
        assert len(fleet.app.store.runs.holds_page(after=0, limit=200)) == len(events)


def letter_of(subject: str, text: str) -> bytes:
    return LETTER.format(subject, text).encode()


async def events_of_sources(folder: Path) -> dict[str, Event]:
    """Return an event of each kind of source, made by the part that makes its events."""
    clock = ManualClock(AT_US)
    intake = ListIntake()
    for part in ("new", "cur", "tmp"):
        (folder / "box" / part).mkdir(parents=True)
    raw = letter_of("The lease of berth 7", "Dear desk,\n\nmay we keep berth 7?\n\nAnn\n")
    (folder / "box/new/m1").write_bytes(raw)
    await MaildirSource("sample", folder / "box", clock=clock).deliver(intake)
    (folder / "tide.csv").write_text("timestamp,value\n2026-05-01 06:00:00,4.4\n")
    await CsvSource("series", str(folder / "*.csv"), clock).deliver(intake)
    line: dict[str, Any] = {
        "specversion": "1.0",
        "id": "j1",
        "source": "shop",
        "type": "order.placed",
    }
    line |= {"subject": "order 17", "data": {"customer": "Bo Reed", "items": [{"sku": "rope"}]}}
    (folder / "orders.jsonl").write_text(json.dumps(line) + "\n")
    await JsonlSource("orders", str(folder / "*.jsonl"), clock).deliver(intake)
    with closing(sqlite3.connect(folder / "board.db")) as file, file:
        file.execute("CREATE TABLE comment (id TEXT, author TEXT, text TEXT, seq INTEGER UNIQUE)")
        file.execute("INSERT INTO comment VALUES ('c1', 'gus', 'We waited an hour.', 1)")
    plan = SqlFile(
        name="board", table="comment", type="comment.posted", id_column="id", order_column="seq",
        subject_column="author", path=str(folder / "board.db"),
    )  # fmt: skip
    await SqlSource(plan, clock, watch=False).deliver(intake)
    maildir, csv, jsonl, sql = intake.events
    sampled = HostSource("host", clock).sample(AT_US)
    host = next(event for event in sampled if event.subject == "host/load1")
    series = {"metric": {"node": "a"}, "values": [[1777615200, "7.5"]]}
    ((point,), _) = series_points("prometheus:site", {"load{node=a}": series}, ())
    alerts = ListIntake()
    transport = httpx.ASGITransport(app=Starlette(routes=routes(alerts, DOORS, None)))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        said = {**ALERT, "labels": {**ALERT["labels"], "severity": "page"}}
        body = {**PAYLOAD, "alerts": [said]}
        answered = await client.post("/v1/alertmanager/harbour", json=body, headers=AUTHORISED)
        assert answered.status_code == 200, answered.text
    order = {"customer": "Cy Hale", "order": {"title": "12 fenders"}, "total": 340, "note": "Soon."}
    pubsub = Decoder("orders", type="order.placed").decode(
        "m1", json.dumps(order).encode(), {}, "k1", AT_US
    )
    ticked = Tick("worker", Schedule("morning", daily="06:00"), AT_US, "2026-05-01")
    hop = {"specversion": "1.0", "id": "h1", "source": "https://sender.example/x",
           "type": "berth.free", "data": {"berth": 7, "since": "06:00"}}  # fmt: skip
    bigquery = RowMapper("bigquery:orders", "orders", "order.shipped", None, "customer").to_event(
        {AT_COLUMN: AT_US, ROW_COLUMN: "r1", "customer": "Di Moor", "city": "Averil"}
    )
    made: dict[str, Any] = {
        "maildir": maildir, "csv": csv, "jsonl": jsonl, "sql": sql, "prometheus": point,
        "host": replace(host, data={"value": "12.5"}), "alertmanager": alerts.events[0],
        "imap": mail_event("imap:desk", "7/1", raw, subject="7/1", received_us=AT_US),
        "pubsub": pubsub, "bigquery": bigquery,
        "http": cloudevents.from_json(json.dumps(hop).encode(), vouched=frozenset()),
        "schedule": ticked.to_event("harbour"),
    }  # fmt: skip
    assert all(isinstance(event, Event) for event in made.values()), made
    return made


# What each source says, that must be seen wherever its hold is: who, what it is about, the text.
SEEN = {
    "maildir": ("ann@pike.example", "The lease of berth 7", "may we keep berth 7?"),
    "imap": ("ann@pike.example", "The lease of berth 7", "may we keep berth 7?"),
    "csv": ("csv:series", "tide", "4.4"),
    "host": ("host:host", "host/load1", "12.5"),
    "prometheus": ("prometheus:site", "load{node=a}", "7.5"),
    "jsonl": ("shop", "order 17", "Bo Reed"),
    "sql": ("sql:board", "gus", "We waited an hour."),
    "alertmanager": ("alertmanager:harbour", "Flooding", "water in berth 7"),
    "pubsub": ("Cy Hale", "12 fenders", "Soon."),
    "bigquery": ("bigquery:orders", "Di Moor", "Averil"),
    "http": ("https://sender.example/x", "h1", "06:00"),
    "schedule": ("vedette://harbour", "morning", "2026-05-01"),
}


def test_every_kind_of_source_of_the_settings_is_among_those_shown() -> None:
    kinds = {
        get_args(get_type_hints(part)["kind"])[0] for part in get_args(get_args(SourceFile)[0])
    }
    assert {kind.removesuffix("-push") for kind in kinds} <= SEEN.keys()


@pytest.fixture(scope="module")
def harbour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet in which something of every source waits for a person."""
    folder = tmp_path_factory.mktemp("shown")

    async def fill() -> None:
        made = await events_of_sources(folder)
        assert made.keys() == SEEN.keys()
        await hold_all(folder, list(made.values()))

    asyncio.run(fill())
    return folder


@pytest.fixture
def cli(harbour: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return Cli(harbour, capsys, monkeypatch)


def steady(text: str) -> str:
    """Return what was printed without what hangs on the day, the salts and the release."""
    text = re.sub(r" --config \S+", "", re.sub(r"open for [^,]*,", "open for TIME,", text))
    text = re.sub(r"--digest [0-9a-f]{16}", "--digest DIGEST", text)
    return re.sub(r"shown as( *)[0-9a-f]{16}", r"shown as\1DIGEST", text)


def compare(name: str, blocks: Iterable[str]) -> None:
    """Compare blocks, in the order of what they say: which agent's run came first is chance."""
    text = "".join(sorted(blocks))
    path = FIXTURES / f"{name}.txt"
    if os.environ.get("UPDATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(steady(text), "utf-8")
    assert path.read_text("utf-8") == steady(text), "run it again with UPDATE=1"


def listed(cli: Cli) -> dict[str, str]:
    """Return what `hold` prints of each hold, by its id."""
    code, out, err = cli("--utc", "hold", "--limit", "200")
    assert code == 0, err
    parts = re.split(r"^(hold_[0-9a-f]{32})", out, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def source_of(text: str) -> str:
    """Return which source a text is of, by the first that all of its words are in."""
    joined = " ".join(text.replace("│", " ").split())
    found = [name for name, words in SEEN.items() if all(word in joined for word in words)]
    return found[0] if found else joined


def test_the_list_shows_who_what_and_text_of_every_source(cli: Cli) -> None:
    shown = listed(cli)
    joined = " ".join("".join(shown.values()).replace("│", " ").split())
    for name, words in SEEN.items():
        for word in words:
            assert word in joined, (name, word)
    # Two mails say the same; each source but that is found in a hold of its own.
    assert len({source_of(text) for text in shown.values()} & SEEN.keys()) == len(SEEN) - 1
    compare("list", (f"{hold}{text}" for hold, text in shown.items()))


def test_a_group_shows_who_what_and_text_of_every_member(cli: Cli) -> None:
    code, out, _ = cli("--utc", "hold", "--group")
    assert code == 0
    joined = " ".join(out.replace("│", " ").split())
    for name, words in SEEN.items():
        for word in words:
            assert word in joined, (name, word)
    compare("groups", re.split(r"^(?=grp_|look)", out, flags=re.MULTILINE))


def test_an_approval_is_asked_for_with_all_of_it_in_sight(cli: Cli) -> None:
    results = []
    for item in cli.json("hold", "--limit", "200")["items"]:
        code, out, _ = cli("--utc", "approve", item["hold"], "--reason", "x", typed="n\n")
        assert code == 130
        assert source_of(out) in SEEN, out
        code, repeat, _ = cli("--utc", "hold", item["hold"])
        assert repeat.partition("\nanswer it:")[0] == out.partition("\napprove? [y/N]")[0]
        results.append(f"{out}\n")
    compare("approve", results)
    group = cli.json("hold", "--group")["items"][0]["group"]
    code, out, _ = cli("--utc", "approve", "--reason", "x", group, typed="n\n")
    assert code == 130
    assert source_of(out) in SEEN


def test_explain_says_what_was_decided_then_what_it_is_about(cli: Cli) -> None:
    for item in cli.json("hold", "--limit", "200")["items"]:
        code, out, _ = cli("--utc", "explain", item["hold"])
        assert code == 0
        lines = out.splitlines()
        assert lines[0] == "HOLD worker: big.send by impact.high, waits for approval"
        assert lines[1] in ("  written outside, not by us:", "  from the fleet itself:")
        assert source_of(out.partition("\nEVENT ")[0]) in SEEN
        page = cli("explain", item["hold"], "--html", "-")[1]
        assert "<blockquote>" in page.partition("<h2>Event ")[0]


# --- an approval is for what was shown --------------------------------------------------------


async def test_another_display_or_event_is_not_what_was_shown(tmp_path: Path) -> None:
    """What was shown is a function of the record: the same after a restart, and not of another."""
    fleet = fleet_of(tmp_path)
    fleet.displays = (Display("berth.free", title="/data/berth"),)
    event = Event("shop", "1", "berth.free", "s", None, {"berth": "seven", "fee": "10"})
    async with fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        (row,) = fleet.actions(event)
        shown = fleet.shown_digest(row)
        await fleet.restart()
        assert fleet.shown_digest(row) == shown
        # The settings say now that the fee is shown: nobody has seen that yet.
        fleet.displays = (Display("berth.free", title="/data/fee"),)
        await fleet.restart()
        assert fleet.shown_digest(row) != shown
        with pytest.raises(DisplayMismatch, match="is not what was shown"):
            await fleet.app.commands.approve(fleet.order(), row.id, shown)
        assert fleet.entries("hold.approved") == []
        await fleet.approve(row)
        (entry,) = fleet.entries("hold.approved")
        # It can be made again from the record alone: the entry, and the declaration in its body.
        assert entry["action_digest"] == row.digest
        assert fleet.body(entry["seq"])["display"] == fleet.displays[0].to_json()
        assert len(entry["shown_digest"]) == 64


_ORDERS = """tools:
  - {{name: order.book, verb: order, resource: wire, args: {{order: object}},
     sinks: [/order/to], settles: idempotent, function: act, target: world, high_impact: true}}
"""


async def test_a_part_that_is_a_sink_or_was_drawn_is_shown_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy, "AGENT_YAML", toy.AGENT_YAML.replace("tools:\n", _ORDERS, 1))
    grant = "    order.book: {{verb: order, resource: wire, impact: high}}\n    note.add:"
    monkeypatch.setattr(toy, "GRANTS", toy.GRANTS.replace("    note.add:", grant, 1))

    def book(name: str, to: str, number: int) -> Event:
        drawn = {"to": Ref(to), "for": Ref("/event/data/told"), "n": number}
        thought = Proposal("order.book", {"order": drawn})
        plans[name] = ReasonerJudgement(proposals=(thought,), confidence=1.0)
        return toy.job(name, told=f"told {name}")

    plans: dict[str, ReasonerJudgement] = {}
    reasoner = ScriptedReasoner([lambda briefing: plans[briefing.event.id]])
    world = toy.World()
    async with toy.toy_fleet(tmp_path, world, reasoners={"judge": reasoner}) as fleet:
        events = [
            book("1", "/charter/desk", 1), book("2", "/charter/desk", 2),
            book("3", "/charter/note", 1),
        ]  # fmt: skip
        await fleet.send(*events)
        await fleet.wait_until_idle()
        rows = [row for event in events for row in fleet.actions(event)]
        assert [row.decided for row in rows] == ["hold"] * 3
        one, two, other = (hold_item(fleet.app.store, row, 0) for row in rows)
        by_pointer = {each["pointer"]: each for each in one["arguments"]}
        assert set(by_pointer) == {"/order", "/order/to", "/order/for", "/order/n"}
        assert (by_pointer["/order/to"]["sink"], by_pointer["/order/to"]["source"]) == (
            True,
            "/charter/desk",
        )
        assert (by_pointer["/order/for"]["origin"], by_pointer["/order/n"]["origin"]) == (
            "untrusted", "derived",
        )  # fmt: skip
        # What is alike has the same sinks, however deep.
        assert hold_group_id(one) == hold_group_id(two) != hold_group_id(other)


@pytest.mark.parametrize("digest", [None, "", "abcdef1", "x" * 64, "0" * 64, "0" * 65, "action"])
async def test_no_endpoint_takes_an_approval_of_what_was_not_shown(
    tmp_path: Path, digest: str | None
) -> None:
    event = Event("shop", "1", "berth.free", "s", None, {"berth": "seven"})
    async with fleet_of(tmp_path) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        (row,) = fleet.actions(event)
        hold = row.id.replace("act_", "hold_")
        given = {"hold": hold, "digest": row.digest if digest == "action" else digest}
        with pytest.raises(DisplayMismatch) as refused:
            await dispatch(fleet.app.commands, "approve", fleet.order(), given)
        assert f"vedette hold {hold}" in str(refused.value.mend)
        done = await dispatch(
            fleet.app.commands,
            "approve_group",
            fleet.order(),
            {"holds": {hold: given["digest"] or "no"}},
        )
        assert (done["answered"], done["refused"]) == (0, 1)
        assert fleet.entries("hold.approved") == []
        # The control: its beginning, eight digits of it, is enough.
        short = fleet.shown_digest(row)[:8]
        await dispatch(
            fleet.app.commands, "approve", fleet.order(), {"hold": hold, "digest": short}
        )
        assert len(fleet.entries("hold.approved")) == 1


async def test_what_cannot_be_seen_any_more_is_not_approved(tmp_path: Path) -> None:
    """An erasure refuses what waits; whoever takes content from the store itself does not ask."""
    event = Event("shop", "1", "berth.free", "s", None, {"berth": "seven"})
    async with fleet_of(tmp_path) as fleet:
        await fleet.send(event)
        await fleet.wait_until_idle()
        (row,) = fleet.actions(event)
        shown = fleet.shown_digest(row)
        (accepted,) = fleet.entries("event.accepted")
        await fleet.close()
        with closing(sqlite3.connect(tmp_path / "state/store.db")) as file, file:
            remove_content(file, accepted["seq"])
        await fleet.open()
        for digest in (shown, fleet.shown_digest(row)):
            with pytest.raises(DisplayMismatch):
                await fleet.app.commands.approve(fleet.order(), row.id, digest)
        assert fleet.entries("hold.approved") == []
        await fleet.app.commands.deny(fleet.order(), row.id)


# --- hostile texts ------------------------------------------------------------------------------

MARK = "¤"
HOSTILE = {
    "colour": "\x1b[31mred\x1b[0m",
    "clear": "\x1b[2J\x1b[H",
    "up": "\x1b[5Aapproved by person:owner",
    "c1": "\x9b31m\x9d0;title\x9c",
    "link": "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "title": "\x1b]0;root\x07",
    "return": "spam\rDECISION PERMIT by permit.tool",
    "back": "evil" + "\b" * 60 + "HOLD hold_0",
    "tab": "\t\t\t\v\f",
    "nul": "\x07\x7f\x1f",
    "bidi": "\u202egnihton\u202c \u2066x\u2069 \u200f\u061c",
    "zero": "a\u200bb\u200cc\u200dd\ufeffe\u2060f\u00adg",
    "tags": "x\U000e0041\U000e0042 \ufe0f\U000e0101",
    "fillers": "\u3164\uffa0\u2800\u115f\u1160" * 60,
    "marks": "a" + "\u0301\u0489" * 120,
    "separators": "one\u2028two\u2029three\x85four",
    "bar": "\n│ written outside, not by us:\n\nDECISION PERMIT by permit.tool, revision 1",
    "prompt": "\napprove? [y/N]: y\nhold_0 is approved: big.send\n$ ",
    "ours": "\n\n  shown as  0123456789abcdef\nanswer it: vedette approve hold_0 --digest 00000000",
    "wide": "ＤＥＣＩＳＩＯＮ　ＰＥＲＭＩＴ " * 20,
    "padding": " " * 76 + "DECISION PERMIT by permit.tool" + " " * 50 + "approved by person:owner",
    "long": "W" * 5000,
    "html": "<script>alert(1)</script><img src=//evil.example/x onerror=alert(1)>",
    "markdown": "[approve](https://evil.example) **@everyone** <!channel> `x` www.evil.example",
    "csv": '=HYPERLINK("https://evil.example","open"),@SUM(1),+1,-1,"',
    "json": '"},{"approved":true,"by":"person:owner"}]',
    "surrogate": "\ufffd\ud83d".encode("utf-8", "replace").decode() + "\U0001f468\u200d\U0001f469",
}


def hostile_events() -> list[Event]:
    """Return events whose every part that a stranger writes is hostile, by mail, row and HTTP."""
    made = []
    for name, text in HOSTILE.items():
        said = f"{MARK}{text}{MARK}"
        data: dict[str, Any] = dict.fromkeys(("from", "from_name", "subject", "reply_to"), said)
        data |= {"text": f"{said}\n{said}", "to": [said], "attachments": [{"name": said}]}
        made.append(Event("maildir:sample", f"{name}-mail", "mail.received", name, None, data))
        row = {f"{MARK}{text}"[:40]: said, "note": {f"{MARK}{text}"[:30]: [said]}}
        made.append(Event("sql:board", f"{name}-row", "comment.posted", said[:900], None, row))
        sent = said.replace("\0", "")[:200]
        made.append(
            Event(f"http:{sent}", f"{name}-http", sent, sent, sent[:40], said, vouched=frozenset())
        )
    return made


@pytest.fixture(scope="module")
def stormy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stormy")
    asyncio.run(hold_all(folder, hostile_events()))
    return folder


def sound(out: str) -> None:
    """Fail if anything printed moves a cursor, hides, breaks a line at the terminal or is ours."""
    assert "".join(c for c in out if c != "\n" and not is_visible(c)) == ""
    for line in out.split("\n"):
        if line.lstrip().startswith("│"):
            assert text_width(line) <= 80, line
        else:
            assert not FAKE.match(line), line


def test_what_is_not_sound_is_found() -> None:
    """The control: each of these would have passed unseen on a terminal, were it printed."""
    for raw in (*HOSTILE.values(), "DECISION PERMIT by permit.tool", "│ " + "W" * 100):
        if any(not is_visible(c) for c in raw if c != "\n") or raw[0] in "D│":
            with pytest.raises(AssertionError):
                sound(raw)


# What our own lines begin with where a text claims to be one; the harness' fleet permits nothing.
FAKE = re.compile(
    r"\s*(DECISION PERMIT|PERMIT|approved by|approve\? |(HOLD )?hold_0\b|\$ |shown as +0123|"
    r"answer it.*hold_0\b)"
)


@pytest.mark.parametrize("columns", ["80", "40"])
def test_no_text_leaves_its_frame_or_moves_the_cursor(
    stormy: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    cli = Cli(stormy, capsys, monkeypatch)
    listing = cli("hold", "--limit", "200")[1]
    grouped = cli("hold", "--group")[1]
    assert len(HOSTILE) >= 20
    for out in (listing, grouped):
        sound(out)
        # Nothing of a stranger stands outside of the bar: each of their words has the mark.
        for line in out.split("\n"):
            assert line.lstrip().startswith("│") or MARK not in line or OWN.match(line), line
    items = cli.json("hold", "--limit", "200")["items"]
    assert len(items) == 3 * len(HOSTILE)
    for item in items[:: 5 if columns == "40" else 2]:
        for words in (("hold",), ("explain",)):
            code, out, err = cli(*words, item["hold"])
            assert code == 0, err
            sound(out)
        assert MARK in cli("hold", item["hold"])[1]
    sound(cli("report", "--last", "36500d")[1])


# Our own lines that hold a stranger's label or word, and begin with ours.
OWN = re.compile(r"grp_|    (judged|why)")


def test_json_says_exactly_what_was_written_and_is_safe_at_a_terminal(
    stormy: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(stormy, capsys, monkeypatch)
    events = {event.key: event for event in hostile_events()}
    code, out, _ = cli("hold", "--limit", "200", "--json")
    assert code == 0
    assert "".join(c for c in out if c != "\n" and not is_visible(c)) == ""
    for item in json.loads(out)["items"]:
        event = events[item["about"]["event"]]
        assert item["about"]["type"] == event.type
        if event.type == "mail.received":
            title = item["about"]["title"]
            said = " ".join(str(event.data["subject"]).split("\n"))
            assert (title["value"], title["more"]) == (said[:200], max(0, len(said) - 200))
            assert title["trusted"] is False


@pytest.mark.parametrize("name", HOSTILE)
def test_a_notice_holds_no_link_and_no_control(name: str) -> None:
    said = f"{MARK}{HOSTILE[name]}{MARK}"
    part = {"value": said, "trusted": False, "more": 0}
    about = {
        "event": "evt_1", "erased": False, "outside": True, "type": said, "source": said,
        "title": part, "who": part, "when": part, "text": part,
        "fields": [{"name": said, **part}],
    }  # fmt: skip
    notice = Notice(
        "ntc_1", "hold.opened", "worker", "big.send", "impact.high", 1, 1, 1, ["ops"],
        ids=["hold_1"], about={"hold_1": about},
    )  # fmt: skip
    mail = mail_text(notice, "harbour", None)
    sound(mail)
    facts = notice_facts(notice, "harbour", None)
    for text in (mail, json.dumps(facts["about"], ensure_ascii=False)):
        for link in ("://", "www.", "evil.example", "@everyone"):
            assert link not in text, link
    assert MARK not in facts["text"] + facts["look"]
    assert all(line.startswith("  │") or MARK not in line for line in mail.split("\n"))
