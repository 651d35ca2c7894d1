"""What becomes of comments on a real board: once, with reasons and evidence, and back again.

The tools by themselves, then a fleet of this agent alone, from the rows of the sample board to
what stands on it, through appeals, an undo and kill -9.
"""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from vedette.adapters.board.target import BOARD
from vedette.adapters.sql.config import SqlFile
from vedette.adapters.sql.source import SqlSource
from vedette.config.agent_loader import load_module
from vedette.domain.base import failpoint
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand, BadFleet, Unavailable
from vedette.domain.effect import Call
from vedette.domain.run import ActionRow
from vedette.domain.target_record import TargetEffect
from vedette.ledger.history.explain import explain
from vedette.operations.undo import undo
from vedette.testing.faults import run_in_child
from vedette.testing.harness import FleetHarness

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "samples/comments/board.sql"
TEXT = "You are a stupid idiot and your crew are useless clowns."
REASONS = {"version": 1, "decision": "hidden", "rule": "moderation/house-respect@1"}


@pytest.fixture
def tools() -> ModuleType:
    return load_module(ROOT / "agents/content_moderation", "tools")


@pytest.fixture
def board(tmp_path: Path) -> Path:
    path = tmp_path / "board.db"
    lay(path)
    return path


def lay(path: Path, only: tuple[str, ...] = ()) -> None:
    """Make the sample board, or only some comments of it and no appeal."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(SCRIPT.read_text(encoding="utf-8"))
        if only:
            marks = ",".join("?" * len(only))
            db.execute("DELETE FROM appeal")
            db.execute(f"DELETE FROM comment WHERE id NOT IN ({marks})", only)


def ask(path: Path, text: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA secure_delete = ON")
        return db.execute(text, values).fetchall()


def state(path: Path, comment: str = "c004") -> tuple[str, Any]:
    ((found, stated),) = ask(path, "SELECT state, statement FROM comment WHERE id = ?", comment)
    return found, None if stated is None else json.loads(stated)


def call(path: Path, tool: str, key: str, *, person: bool = False, **args: Any) -> Call:
    given = {
        "comment": "comment/c004",
        "ground": "House rule 1",
        "text": TEXT,
        "statement": REASONS,
    }
    target = {"kind": "board", "path": str(path)}
    return Call(
        f"comment.{tool}", {**given, **args}, key, "content_moderation", "run_1", target,
        ("content_moderation",), 1, 10_000_000, person,
    )  # fmt: skip


def appeal(path: Path, tool: str, key: str, *, person: bool = True) -> Call:
    both = {"appeal": "appealed/a01", "comment_text": TEXT, "appeal_text": "Sorry."}
    return call(path, tool, key, person=person, **both)


# --- the tools -----------------------------------------------------------------------------------


def test_a_hiding_is_done_once_with_reasons_and_evidence(tools: ModuleType, board: Path) -> None:
    first = tools.hide(call(board, "hide", "k1"))
    before = ask(board, "SELECT * FROM statement")
    assert first == tools.hide(call(board, "hide", "k1"))
    assert first.state == "done"
    assert ask(board, "SELECT * FROM statement") == before
    assert len(before) == 1
    hidden, stated = state(board)
    assert hidden == "hidden"
    assert stated["rule"] == "moderation/house-respect@1"
    assert stated["decided_by"] == "automated means alone"
    assert (stated["run"], stated["effect"]) == ("run_1", "k1")
    assert stated["ground"] == "House rule 1"
    # The author edits the comment: what was judged stays.
    ask(board, "UPDATE comment SET text = 'What a lovely day.' WHERE id = 'c004'")
    ((text, digest),) = ask(board, "SELECT text, digest FROM evidence WHERE effect = 'k1'")
    assert text == TEXT
    assert digest == stated["text_digest"]
    assert ask(board, "SELECT comment_text FROM appealed WHERE id = 'a01'") == [(TEXT,)]
    assert tools.known(call(board, "hide", "k1")) == first
    assert tools.known(call(board, "hide", "other")) is None


def test_a_person_who_approved_stands_in_the_statement(tools: ModuleType, board: Path) -> None:
    tools.hide(call(board, "hide", "k1", person=True))
    assert state(board)[1]["decided_by"] == "a person"


def test_what_is_no_board_knows_of_nothing(tools: ModuleType, board: Path, tmp_path: Path) -> None:
    other, missing = tmp_path / "other.db", tmp_path / "gone.db"
    other.touch()
    for path in (other, missing):
        outcome = tools.known(call(path, "hide", "k1"))
        assert (outcome.state, bool(outcome.error)) == ("unknown", True)
    assert tools.known(call(board, "hide", "k1")) is None


def test_what_was_done_is_taken_back_exactly_and_once(tools: ModuleType, board: Path) -> None:
    tools.approve(call(board, "approve", "k1"))
    approved = state(board)
    tools.hide(call(board, "hide", "k2"))
    assert tools.show(call(board, "show", "k3")).state == "done"
    assert state(board) == approved
    repeat = tools.show(call(board, "show", "k4"))
    assert (repeat.state, state(board)) == ("failed", approved)
    assert "nothing to take back" in repeat.error
    assert tools.reopen(call(board, "reopen", "k5")).state == "failed"


def test_an_approval_is_taken_back(tools: ModuleType, board: Path) -> None:
    before = state(board)
    tools.approve(call(board, "approve", "k1"))
    assert tools.reopen(call(board, "reopen", "k2")).state == "done"
    assert state(board) == before


def test_an_edited_comment_is_not_approved_unseen(tools: ModuleType, board: Path) -> None:
    ask(board, "UPDATE comment SET text = 'Buy my watches' WHERE id = 'c004'")
    outcome = tools.approve(call(board, "approve", "k1"))
    assert (outcome.state, outcome.data["action"]) == ("done", "edited: queued for a person")
    assert outcome == tools.approve(call(board, "approve", "k1"))
    # It is as it says: somebody has it before them, and nothing else happened to it.
    assert state(board) == ("new", None)
    rows = ask(board, "SELECT comment, label, state FROM queue")
    assert rows == [("c004", "edited", "open")]
    assert tools.reopen(call(board, "reopen", "k3")).state == "failed"
    tools.hide(call(board, "hide", "k2"))
    assert state(board)[1]["edited_since"] is True


def test_evidence_is_erased_when_its_time_is_over(tools: ModuleType, board: Path) -> None:
    judged = "What was judged and stands nowhere else."
    tools.hide(call(board, "hide", "k1", text=judged))
    assert judged.encode() in board.read_bytes()
    for days, left in ((179, 1), (181, 0)):
        ask(board, "UPDATE evidence SET kept_at = strftime('%Y-%m-%dT%H:%M:%fZ','now',?)"
            " WHERE effect = 'k1'", f"-{days} days")  # fmt: skip
        tools.escalate(
            call(board, "escalate", f"k{days}", comment="comment/c005", to="x", label="threat")
        )
        texts = ask(board, "SELECT text FROM evidence WHERE effect = 'k1'")
        assert sum(text is not None for (text,) in texts) == left
    # What is left proves what was judged to whoever still has it.
    assert ask(board, "SELECT length(digest) FROM evidence WHERE effect = 'k1'") == [(64,)]
    assert judged.encode() not in board.read_bytes()


def test_whatever_is_done_on_the_board_erases_evidence_whose_time_is_over(
    tools: ModuleType, board: Path
) -> None:
    judged = "What was judged and stands nowhere else."
    tools.hide(call(board, "hide", "k1", text=judged))
    ask(board, "UPDATE evidence SET kept_at = '2020-01-01T00:00:00.000Z'")
    assert judged.encode() in board.read_bytes()
    (fifth,) = [text for (text,) in ask(board, "SELECT text FROM comment WHERE id = 'c005'")]
    assert tools.approve(call(board, "approve", "k2", comment="comment/c005", text=fifth)).state
    assert ask(board, "SELECT text FROM evidence") == [(None,)]
    assert judged.encode() not in board.read_bytes()


def test_an_escalation_puts_a_comment_before_a_person_and_changes_nothing_else(
    tools: ModuleType, board: Path
) -> None:
    before = state(board, "c012")
    sent = call(board, "escalate", "k1", comment="comment/c012", to="oncall@x", label="self_harm")
    assert tools.escalate(sent) == tools.escalate(sent)
    rows = ask(board, "SELECT comment, label, recipient, state FROM queue")
    assert rows == [("c012", "self_harm", "oncall@x", "open")]
    assert state(board, "c012") == before


def test_an_appeal_is_decided_by_a_person_and_once(tools: ModuleType, board: Path) -> None:
    tools.hide(call(board, "hide", "k1"))
    nobody = tools.restore(appeal(board, "restore", "k2", person=False))
    assert (nobody.state, state(board)[0]) == ("failed", "hidden")
    assert tools.restore(appeal(board, "restore", "k3")).state == "done"
    shown, stated = state(board)
    assert shown == "approved"
    assert stated["rule"] == "moderation/house-respect@1"
    assert stated["appeal"]["outcome"] == "reversed"
    assert stated["appeal"]["decided_by"] == "a person"
    other = tools.uphold(appeal(board, "uphold", "k4"))
    assert other.state == "failed"
    assert "was decided: reversed" in other.error
    assert tools.show(call(board, "show", "k5")).state == "failed"
    assert ask(board, "SELECT outcome FROM outcome") == [("reversed",)]


def test_an_upheld_comment_stays_hidden_and_says_so(tools: ModuleType, board: Path) -> None:
    tools.hide(call(board, "hide", "k1"))
    assert tools.uphold(appeal(board, "uphold", "k2")).state == "done"
    hidden, stated = state(board)
    assert (hidden, stated["appeal"]["outcome"]) == ("hidden", "upheld")
    # What a person decided is not overridden by an undo of what came before.
    outcome = tools.show(call(board, "show", "k4"))
    assert outcome.state == "failed"
    assert "a person decided an appeal" in outcome.error
    assert state(board) == (hidden, stated)
    assert tools.restore(appeal(board, "restore", "k3")).state == "failed"


@pytest.mark.parametrize("tool", ["approve", "hide", "show", "reopen", "escalate"])
def test_a_comment_or_board_that_is_not_there(tools: ModuleType, board: Path, tool: str) -> None:
    more: dict[str, Any] = {"to": "x", "label": "threat"}
    missing = call(board, tool, "k1", comment="comment/none", **more)
    function = getattr(tools, tool)
    assert function(missing).state == "failed"
    nowhere = replace(missing, target={"path": str(board.parent / "none.db")})
    assert function(nowhere).state == "retry"
    assert not (board.parent / "none.db").exists()
    assert function(replace(missing, target={})).state == "failed"
    broken = board.parent / "broken.db"
    broken.write_bytes(b"this is no database, and long enough to look at" * 40)
    assert function(replace(missing, target={"path": str(broken)})).state == "failed"


def test_a_board_without_our_tables_gets_them(tools: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    ask(path, "CREATE TABLE comment (id TEXT, text TEXT, state TEXT, statement TEXT)")
    ask(path, "INSERT INTO comment VALUES ('c004', ?, 'new', NULL)", TEXT)
    assert tools.hide(call(path, "hide", "k1")).state == "done"
    assert state(path)[0] == "hidden"


@pytest.mark.parametrize(("point", "rows"), [("board:before", 0), ("board:after", 1)])
def test_a_change_stands_whole_or_not_at_all(
    tools: ModuleType, board: Path, monkeypatch: pytest.MonkeyPatch, point: str, rows: int
) -> None:
    class Dead(BaseException):
        pass

    def die(passed: str) -> None:
        if passed == point:
            raise Dead

    monkeypatch.setattr(failpoint, "hook", die)
    with pytest.raises(Dead):
        tools.hide(call(board, "hide", "k1"))
    monkeypatch.setattr(failpoint, "hook", None)
    for table in ("statement", "evidence"):
        assert ask(board, f"SELECT count(*) FROM {table}") == [(rows,)]
    assert state(board)[0] == ("hidden" if rows else "new")
    assert tools.hide(call(board, "hide", "k1")).state == "done"
    assert ask(board, "SELECT count(*) FROM statement") == [(1,)]


def test_an_alert_sends_the_id_and_not_the_comment(
    tools: ModuleType, board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[bytes, Any]] = []

    def post(url: str, body: bytes, headers: Any, call: Call) -> int:
        sent.append((body, headers))
        return 503 if len(sent) == 1 else 409

    monkeypatch.setattr(tools, "_post", post)
    alert = call(board, "alert", "k1", endpoint="oncall", label="threat", summary="Look now.")
    alert = replace(alert, target={"url": "http://127.0.0.1:9/hook"})
    assert tools.alert(alert).state == "retry"
    assert tools.alert(alert).state == "done"
    assert {headers["Idempotency-Key"] for _, headers in sent} == {"k1"}
    assert not any("vedettereaders" in headers for _, headers in sent)
    assert tools.alert(replace(alert, readers=frozenset({"ann@x.example"}))).state == "done"
    assert sent.pop()[1]["vedettereaders"] == "ann@x.example"
    assert json.loads(sent[0][0])["comment"] == "c004"
    assert b"idiot" not in sent[0][0]
    secret = replace(alert, target={"url": "http://example.org/hook", "token": "t"})
    assert tools.alert(secret).state == "failed"
    assert len(sent) == 2


def statements(table: dict[str, str]) -> list[TargetEffect]:
    return list(BOARD.read_record(table, "board", 0).items or ())


def test_the_board_s_own_record_holds_every_effect(tools: ModuleType, board: Path) -> None:
    tools.hide(call(board, "hide", "k1"))
    tools.show(call(board, "show", "k2"))
    table = {"kind": "board", "path": str(board)}
    items = statements(table)
    assert [(item.key, item.what) for item in items] == [("k1", "hide c004"), ("k2", "show c004")]
    assert all(item.at_us > 1_700_000_000_000_000 for item in items)
    with pytest.raises(Unavailable):
        list(
            BOARD.read_record({**table, "path": str(board.parent / "no.db")}, "board", 0).items
            or ()
        )
    (board.parent / "bad.db").write_bytes(b"no database at all, and long enough" * 40)
    with pytest.raises(BadFleet):
        list(
            BOARD.read_record({**table, "path": str(board.parent / "bad.db")}, "board", 0).items
            or ()
        )


# --- a fleet -------------------------------------------------------------------------------------


def content(folder: Path) -> Path:
    """Lay out a fleet of this agent alone, with the shipped policy."""
    root = folder / "content"
    left_out = shutil.ignore_patterns("__pycache__", ".*")
    name = "agents/content_moderation"
    shutil.copytree(ROOT / name, root / name, ignore=left_out)
    shutil.copytree(ROOT / "memory/moderation", root / "memory/moderation")
    return root


def fleet_of(folder: Path) -> FleetHarness:
    root = folder / "content"
    return FleetHarness(
        folder,
        content=root if root.exists() else content(folder),
        policies=ROOT / "policies",
        targets={
            "board": {"kind": "board", "path": str(folder / "board.db")},
            "oncall": {"kind": "webhook", "url": "http://127.0.0.1:9/hook"},
        },
    )


async def deliver(fleet: FleetHarness, table: str = "comment") -> None:
    name, type = {
        "comment": ("comments", "comment.posted"), "appealed": ("appeals", "comment.appealed"),
    }[table]  # fmt: skip
    shown = () if table == "appealed" else ("id", "thread", "author", "text", "posted_at")
    plan = SqlFile(
        name=name, table=table, type=type, id_column="id", order_column="seq",
        path=str(fleet.folder / "board.db"), columns=list(shown),
        time_column="posted_at", subject_column="author", vouched=["id"],
    )  # fmt: skip
    await SqlSource(plan, SystemClock(), watch=False).deliver(fleet.app.intake)


def holds(fleet: FleetHarness) -> dict[str, ActionRow]:
    """Return the open holds by tool; a test has one of each."""
    found: dict[str, ActionRow] = {}
    for entry in fleet.entries("action.decided"):
        row = fleet.app.store.runs.action(entry["action"])
        if row is not None and row.hold == "open":
            found[row.tool] = row
    return found


def effects(fleet: FleetHarness, tool: str) -> list[ActionRow]:
    rows = [fleet.app.store.runs.action(e["action"]) for e in fleet.entries("action.decided")]
    return [row for row in rows if row is not None and row.tool == tool and row.effect == "done"]


async def test_a_fleet_judges_a_board_and_answers_appeals(tmp_path: Path) -> None:
    board = tmp_path / "board.db"
    lay(board, only=("c001", "c004", "c012", "c033"))
    ask(board, "INSERT INTO appeal VALUES ('a01','c004','gus','Sorry.','2026-06-20T10:00:00Z',1)")
    async with fleet_of(tmp_path) as fleet:
        await deliver(fleet)
        await fleet.wait_until_idle()
        found = dict(ask(board, "SELECT id, state FROM comment"))
        assert found == {"c001": "approved", "c004": "hidden", "c012": "new", "c033": "new"}
        assert ask(board, "SELECT comment, label FROM queue") == [("c012", "self_harm")]
        run = fleet.app.store.runs.action(effects(fleet, "comment.hide")[0].id)
        assert run is not None
        raw = json.dumps(explain(fleet.app.store, run.run), ensure_ascii=False)
        assert "moderation/house-respect@1" in raw
        # A person reads what was not certain, and says so.
        unsure = holds(fleet)["comment.hide"]
        await fleet.approve(unsure, "quoted to insult")
        await fleet.wait_until_idle()
        assert state(board, "c033")[1]["decided_by"] == "a person"
        # Its author appeals: both sides are before the person, and nothing happens until then.
        await deliver(fleet, "appealed")
        await fleet.wait_until_idle()
        assert state(board)[0] == "hidden"
        open_holds = holds(fleet)
        assert set(open_holds) == {"comment.restore", "comment.uphold"}
        shown = json.loads(open_holds["comment.restore"].record)["args"]
        assert (shown["comment_text"], shown["appeal_text"]) == (TEXT, "Sorry.")
        commands = fleet.app.commands
        await commands.deny(fleet.order("he is right"), open_holds["comment.uphold"].id)
        assert state(board)[0] == "hidden"
        await fleet.approve(open_holds["comment.restore"], "he is right")
        await fleet.wait_until_idle()
        assert state(board)[0] == "approved"
        assert state(board)[1]["appeal"]["outcome"] == "reversed"
        # Delivered again, all of it is known.
        before = ask(board, "SELECT * FROM statement")
        await fleet.restart()
        await deliver(fleet)
        await deliver(fleet, "appealed")
        await fleet.wait_until_idle()
        assert ask(board, "SELECT * FROM statement") == before


async def test_a_hiding_is_undone_by_the_verb_exactly_and_once(tmp_path: Path) -> None:
    board = tmp_path / "board.db"
    lay(board, only=("c004",))
    before = state(board)
    async with fleet_of(tmp_path) as fleet:
        await deliver(fleet)
        await fleet.wait_until_idle()
        (row,) = effects(fleet, "comment.hide")
        assert state(board)[0] == "hidden"
        effect = row.id.replace("act_", "eff_")
        await undo(fleet.app.commands, fleet.order("it was a joke between friends"), effect)
        await fleet.wait_until_idle()
        assert state(board) == before
        with pytest.raises(BadCommand, match="undone already"):
            await undo(fleet.app.commands, fleet.order("again"), effect)
        # That it was hidden, and the reasons then given, are on record all the same.
        actions = [a for (a,) in ask(board, "SELECT action FROM statement ORDER BY rowid")]
        assert actions == ["hide", "show"]


async def judge_all(folder: Path) -> int:
    """Let a fleet take up the board and settle; return how many hidings are done."""
    async with fleet_of(folder) as fleet:
        await deliver(fleet)
        await fleet.wait_until_idle()
        return len(effects(fleet, "comment.hide"))


@pytest.mark.forks
def test_kill_minus_nine_between_commit_and_write_happens_once(tmp_path: Path) -> None:
    """Killed with the decision durable and the board not written, and the other way round."""
    wanted = {"c004": "hidden", "c007": "hidden", "c009": "hidden"}
    laid = tmp_path / "laid"
    laid.mkdir()
    lay(laid / "board.db", only=tuple(wanted))
    content(laid)
    # What a fleet loads once is loaded before the forks, and not after each of them.
    calm = Path(shutil.copytree(laid, tmp_path / "calm"))
    assert asyncio.run(judge_all(calm)) == 3
    gc.collect()
    for point in ("call:before", "board:after"):
        left = Path(shutil.copytree(laid, tmp_path / point.replace(":", "-")))
        died = run_in_child(lambda: asyncio.run(judge_all(left)), die_at=point)  # noqa: B023
        assert died.killed, died
        board = left / "board.db"
        dead = ask(board, "SELECT count(*) FROM statement")[0][0]
        # The control: at each point something was open when the child died.
        assert dead == 1 if point == "board:after" else dead < 3
        assert asyncio.run(judge_all(left)) == 3
        assert dict(ask(board, "SELECT id, state FROM comment")) == wanted
        made = dict(ask(board, "SELECT comment, count(*) FROM statement GROUP BY comment"))
        assert made == dict.fromkeys(wanted, 1)
        assert ask(board, "SELECT count(*) FROM evidence") == [(3,)]
