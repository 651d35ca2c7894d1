"""What the verbs print: legible without colour and in 80 columns, times in the reader's zone.

One small fleet is written, run, read and ordered about in this process; each verb is carried out
once, and what it says to people is kept beside what it says as JSON. docs/reference/json.md is
written out of these answers with UPDATE=1.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import pkgutil
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
from tests.artefacts import LOOK, answer, artefact_fleet, long_text, say
from tests.contract.store.test_migrate import unpacked
from tests.said import START, environment
from tests.work_fleet import write_work_fleet
from tools import json_shapes

import vedette.interfaces.cli
from vedette.domain.base.fleet_clock import CLOCK_FILE
from vedette.interfaces.cli import cli, main, output
from vedette.testing.model_server import ModelServer
from vedette.testing.model_server.script import mail_agent
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import World, job, send_proposal, toy_fleet

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "json.md"
MCP_SERVER = ROOT / "tests/contract/adapters/mcp/modern_server.py"
WIDTH = 80
# The mail that gives orders, two of spam and some more: holds, denials, things done.
MAILS = re.compile(r"M00(0[1-6]|63)\.")
ORDERS = "run_ec889561c372a1530da29537f9cb13af"
TOML = """
[[sources]]
kind = "csv"
name = "series"
path = "samples/metrics/berth_power.csv"
rate = 0

[[sources]]
kind = "maildir"
name = "sample"
path = "@state/mailbox"
copy_from = "samples/mailbox"
"""
MODEL = """
[isolation]
workers = "none"
[models.fast]
provider = "gemini"
model = "gemini-3-pro-preview"
key_file = "key"
base_url = "{}"
"""
FILED = {"message": "ref:/event/subject", "folder": "ref:/charter/folders/invoice"}
CASE = """\
- name: an invoice is filed
  event: {type: mail.received, source: "maildir:a", id: a, subject: a, data: {text: an invoice}}
  outcomes: {mail.file: {}}
  expect: {held: [mail.file]}
"""
WORK_CASE = """\
- name: a list is worked off
  task: {goal: Read the letter, conditions: [{name: list, items: closed, at_least: 1}]}
  expect: {conditions: [list], credit_milli: 1000}
"""
TOY = """\
fleet = "harbour"
state = "state"
[content]
agents = "content/agents"
policies = "policies"
memory = "content/memory"
[targets.world]
kind = "webhook"
url = "http://127.0.0.1:9/hook"
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Said:
    """What a verb said: to people, and as JSON; `code` is how it ended."""

    code: int
    text: str
    answer: Any


@dataclass
class Scene:
    """Carries out verbs and remembers what they said, by the words of the verb."""

    folder: Path
    told: list[Any]
    said: dict[str, Said] = field(default_factory=dict)

    def do(self, verb: str, *more: str, both: bool = False, shown: str = "") -> Said:
        """Carry out a verb; `both`: it does not use `say`, and is carried out again for JSON.

        `shown` is its name where a verb says several things.
        """
        code, text = self.give(*verb.split(), *more)
        answer = json.loads(json.dumps(self.told[-1], default=str)) if self.told else None
        if both:
            answer = json.loads(self.give(*verb.split(), *more, "--json")[1])
        self.said[shown or verb] = done = Said(code, text, answer)
        return done

    def give(self, *words: str) -> tuple[int, str]:
        self.told.clear()
        out = io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            pytest.raises(SystemExit) as ended,
        ):
            main(list(words))
        assert isinstance(ended.value.code, int)
        assert "a bug in vedette" not in out.getvalue(), out.getvalue()
        return ended.value.code, out.getvalue()


def every_module() -> list[Any]:
    names = [found.name for found in pkgutil.iter_modules(vedette.interfaces.cli.__path__)]
    return [importlib.import_module(f"vedette.interfaces.cli.{name}") for name in names]


@pytest.fixture(scope="module")
def berlin() -> Iterator[pytest.MonkeyPatch]:
    """A reader in Berlin with 80 columns and no terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        patch.setenv("COLUMNS", str(WIDTH))
        for name in [name for name in os.environ if name.startswith("VEDETTE")]:
            patch.delenv(name)
        time.tzset()
        yield patch
    time.tzset()


@pytest.fixture(scope="module")
def scene(berlin: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    results: list[Any] = []

    def say(value: Any, text: str) -> None:
        results.append(value)
        output.print_result(value, text)

    for module in every_module():
        if module is not output and getattr(module, "print_result", None) is output.print_result:
            berlin.setattr(module, "print_result", say)
    folder = tmp_path_factory.mktemp("output") / "harbour"
    parent_scene = Scene(folder.parent, results)
    parent_scene.do("init", str(folder))
    made = Scene(folder, results, parent_scene.said)
    prune(folder)
    made.do("run --until-idle --plain")
    reads(made)
    writes(made)
    dead(Scene(folder.parent / "toy", results, parent_scene.said))
    large(Scene(folder.parent / "large", results, parent_scene.said))
    work(Scene(folder.parent / "work", results, parent_scene.said))
    older(Scene(folder.parent / "older", results, parent_scene.said))
    with ModelServer(mail_agent(args=FILED), keys=("test-key",)) as server:
        asked(Scene(folder.parent / "asked", results, parent_scene.said), server.url)
    return made


def prune(folder: Path) -> None:
    toml = (folder / "vedette.toml").read_text("utf-8").partition("[[sources]]")[0]
    (folder / "vedette.toml").write_text(toml.replace(":8088", ":0") + TOML, "utf-8")
    for mail in (folder / "samples/mailbox/new").iterdir():
        if not MAILS.search(mail.name):
            mail.unlink()
    series = folder / "samples/metrics/berth_power.csv"
    series.write_text("".join(series.read_text("utf-8").splitlines(True)[:60]), "utf-8")
    for example in folder.glob("memory/*/examples/*.md"):
        if not example.stem.endswith(("-01", "-02", "-03")):
            example.unlink()
    for cases in folder.glob("agents/*/evals/*.yaml"):
        if cases.parts[-3] != "memory_curator":
            cases.unlink()


def reads(made: Scene) -> None:
    """Every verb that changes nothing."""
    made.do("status")
    made.do("runs", "--limit", "5")
    made.do("report")
    made.do("hold", "--limit", "2")
    made.do("hold --group")
    made.do("explain", ORDERS, both=True)
    made.do("plot", "berth_power", "--out", "berth.svg")
    made.do("memory show")
    made.do("memory show", "alert-01", shown="memory show MEMORY")
    made.do("budget")
    made.do("agent mode", "inbox_triage")
    made.do("agent show")
    made.do("agent show", "inbox_triage", shown="agent show AGENT")
    made.do("try", "inbox_triage", "samples/tutorial/school-visit.eml")
    made.do("policy status")
    made.do("policy history")
    made.do("policy diff")
    made.do("check --live")
    made.do("check policy")
    made.do("check cases", "memory_curator")
    made.do("send --dry-run", "--type", "metric.point", "--source", "csv:a")
    made.do("verify")
    for part in ("all", "decisions", "judgements", "rows", "views"):
        made.do(f"verify {part}")
    made.do("verify targets", "mailbox")
    made.do("ledger export", "export")
    made.do("ledger reconstruct", "export", both=True)
    made.do("ledger prove", "20", both=True)
    made.do("explain --error", "bad-command")


def writes(made: Scene) -> None:
    """Every verb that orders something, none of which needs more than this machine.

    Agents' code runs in this process by now: no verb says another word for that, and each needs a
    second less.
    """
    with (made.folder / "vedette.toml").open("a", encoding="utf-8") as toml:
        toml.write('[isolation]\nworkers = "none"\n')
    why = ("--reason", "to see what it says")
    waiting = [item["hold"] for item in made.said["hold"].answer["items"]]
    assert len(waiting) == 2
    made.do("hold", waiting[0], "--claim", shown="hold HOLD --claim")
    note = "it looks as if the harbour master had written it himself"
    made.do("hold", waiting[0], "--note", note, shown="hold HOLD --note")
    seen = made.do("hold", waiting[0], shown="hold HOLD")
    digest = seen.answer["shown_digest"][:16]
    made.do("approve", waiting[0], "--digest", digest, *why)
    made.do("deny", waiting[1], *why)
    made.do("correct", ORDERS, "--right", *why)
    made.do("memory propose", "inbox/inbox", "--text", "The pier is closed in May.", *why)
    proposed = made.said["memory propose"].answer["candidate"]
    made.do("memory set", proposed, "active", "--yes", *why)
    made.do("memory set", proposed, "off", *why, shown="memory set … off")
    made.do("memory set", proposed, "active", *why, shown="memory set … active, again")
    made.do("memory propose", "inbox/inbox", "--text", "The pier is open in May.", *why)
    proposed = made.said["memory propose"].answer["candidate"]
    made.do("memory set", proposed, "rejected", *why, shown="memory set … rejected")
    made.do("send", "--type", "a.b", "--source", "by-hand", *why)
    made.do("stop", "inbox_triage", "--for", "2h", *why)
    made.do("resume", "inbox_triage", *why)
    made.do("budget", "inbox_triage", "--raise", "2h", *why, shown="budget AGENT --raise")
    made.do("agent new", "front_desk", "--like", "inbox_triage")
    with (made.folder / "vedette.toml").open("a", encoding="utf-8") as toml:
        server = json.dumps([sys.executable, str(MCP_SERVER)])
        toml.write(f'[targets.words]\nkind = "mcp"\ncommand = {server}\nread = ["{MCP_SERVER}"]\n')
    made.do("tool list", "--mcp", "words")
    made.do("tool add", "front_desk", "--mcp", "words", "--tool", "echo", "--yes")
    made.do("agent release", "inbox_triage", *why)
    agent = made.folder / "agents/inbox_triage/instruction.md"
    agent.write_text(agent.read_text("utf-8") + "\nBe brief.\n", "utf-8")
    made.do("agent diff", "inbox_triage")
    made.give("run", "--until-idle", "--plain")  # a start releases it
    made.do("agent history", "inbox_triage")
    made.do("agent rollback", "inbox_triage", *why)
    made.do("agent canary", "inbox_triage")
    made.do("policy publish", "--yes", *why)
    made.do("policy rollback", "1", "--yes", *why)
    made.do("undo", done_effect(made), *why)
    made.do("identity issue", "inbox_triage", "--out", "worker.json", *why)
    made.do("identity show")
    made.do("identity issue --rotate", "inbox_triage", *why)
    made.do("identity revoke", "inbox_triage", *why)
    made.do("backup", "copy")
    made.do("ledger rotate-key", *why)
    # Of a mail's run the correction and the undo above are not handled yet, and still need it.
    listed = json.loads(made.give("runs", "--limit", "50", "--json")[1])["items"]
    ended = [r for r in listed if r["state"] == "done" and r["agent"] == "anomaly_detection"]
    made.do("erase", f"event:{ended[0]['event']}", "--yes", *why)
    made.do("verify views --repair")
    made.do("ledger archive", "--before", "0s", *why)
    jump(made.folder / ".vedette")
    made.do("resume --clock", *why)


def jump(state: Path) -> None:
    """Set fleet time an hour ahead, as if the wall clock had been set back while no fleet ran."""
    kept = json.loads((state / CLOCK_FILE).read_text(encoding="ascii"))
    kept["at_us"] += 3_600_000_000
    (state / CLOCK_FILE).write_text(json.dumps(kept), encoding="ascii")


def done_effect(made: Scene) -> str:
    """Return the id of an effect that can be taken back."""
    for run in json.loads(made.give("runs", "--limit", "50", "--json")[1])["items"]:
        for handling in json.loads(made.give("explain", run["id"], "--json")[1])["runs"]:
            for action in handling["actions"]:
                if (action["effect"] or {}).get("state") == "done" and "mail" in action["tool"]:
                    return str(action["effect"]["id"])
    raise AssertionError("nothing was done")


def dead(made: Scene) -> None:
    """The verbs of dead letters, in a fleet of their own that has some."""

    async def letters() -> None:
        async with toy_fleet(made.folder, World()) as fleet:
            fails: dict[str, Any] = {"raise": True}
            await fleet.send(
                *(job(f"{n}", send_proposal(), key=f"k{n}", **fails) for n in range(3))
            )
            await fleet.wait_until_idle()

    made.folder.mkdir()
    asyncio.run(letters())
    (made.folder / "vedette.toml").write_text(TOY, "utf-8")
    why = ("--reason", "mended")
    first, second, _ = [item["run"] for item in made.do("dead").answer["items"]]
    made.do("dead", first, shown="dead RUN")
    made.do("dead --redrive", first, *why)
    made.do("dead --drop", second, *why)


def large(made: Scene) -> None:
    """What a tool answered that is too large for a turn, in a fleet of its own that has some."""

    async def look() -> str:
        world = World(answer=answer({"text": long_text(20_000)}))
        script = ScriptedReasoner([say(LOOK)])
        fleet = artefact_fleet(made.folder, world, reasoners={"adk": script}, reasoner="adk")
        async with fleet:
            await fleet.send(job("1"))
            await fleet.wait_until_idle()
            data = json.loads(fleet.actions(job("1"))[0].answer or b"{}")["data"]
            return str(data["text"]["artefact"])

    made.folder.mkdir()
    id = asyncio.run(look())
    (made.folder / "vedette.toml").write_text(TOY, "utf-8")
    made.do("artefact show", id, "--length", "500")


def work(made: Scene) -> None:
    """The verbs of tasks, in a fleet of their own that takes some."""
    write_work_fleet(made.folder)
    why = ("--reason", "it came")
    given = ("worker", "--goal", "Read the letter", "--done", "done.yaml", "--input", "number=7")
    run = made.do("work start", *given, *why).answer["run"]
    made.do("work list")
    made.do("work steer", run, "--note", "begin with the end", *why)
    made.do("work add", run, "--item", "late", "--title", "one more", *why)
    made.do("work goal", run, "--goal", "Read all", *why)
    made.do("work pause", run, *why)
    made.do("work resume", run, *why)
    made.do("work show", run)
    made.do("work cancel", run, *why)
    with (made.folder / "vedette.toml").open("a", encoding="utf-8") as toml:
        toml.write('[isolation]\nworkers = "none"\n')
    made.give("work", "start", *given, *why, "--command-id", "second")
    second = made.told[-1]["run"]
    assert made.give("run", "--until-idle", "--plain")[0] == 0
    made.do("work show", second, "--trajectory", shown="work show RUN --trajectory")
    made.do("report", shown="report, of a fleet with tasks")
    evals = made.folder / "agents/worker/evals"
    evals.mkdir()
    (evals / "work.yaml").write_text(WORK_CASE, "utf-8")
    made.do("check cases", "worker", shown="check cases AGENT, that takes tasks")


def older(made: Scene) -> None:
    """The verb that a store of an older version asks for."""
    made.folder.mkdir()
    toy_fleet(made.folder, World())
    unpacked(3, made.folder)
    (made.folder / "vedette.toml").write_text(TOY, "utf-8")
    made.do("upgrade", "--reason", "a new version")


def asked(made: Scene, url: str) -> None:
    """The verbs that a model is asked by, or whose recordings are put to the rules."""
    Scene(made.folder.parent, made.told).do("init", str(made.folder))
    (made.folder / "key").write_text("test-key")
    settings = made.folder / "vedette.toml"
    settings.write_text(settings.read_text("utf-8") + MODEL.format(url), "utf-8")
    agent = made.folder / "agents/inbox_triage"
    text = (
        (agent / "agent.yaml")
        .read_text("utf-8")
        .replace("reasoner: judge\nmax_turns: 1", "model: fast")
    )
    (agent / "agent.yaml").write_text(
        text.replace("\nbudget:", "\nbudget:\n  model_calls_per_day: 9")
    )
    for file in (agent / "evals").glob("*.yaml"):
        file.unlink()
    (agent / "evals/one.yaml").write_text(CASE, "utf-8")
    made.do("check cases", "inbox_triage", "--live", "--record", shown="check cases AGENT --live")
    mail = "samples/tutorial/school-visit.eml"
    made.do("try", "inbox_triage", mail, "--live", shown="try AGENT EVENT --live")
    turns = text.replace("model: fast", "reasoner: judge\nmax_turns: 2")
    (agent / "agent.yaml").write_text(turns)
    made.do("try", "inbox_triage", mail, shown="try AGENT EVENT (max_turns: 2)")


# --- all of it --------------------------------------------------------------------------------

# They need a service, a database, a box or a process of their own, or a task on a release of
# before; or print what is no prose.
LEFT_OUT = {"agent import", "completion", "migrate", "pubsub", "restore", "work move", "worker"}
# It warns of a memory that has expired, and of what this machine lacks; there is a difference.
FINDS = {"check --live", "agent diff"}


def leaves(context: click.Context, path: tuple[str, ...] = ()) -> Iterator[str]:
    command = context.command
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(click.Context(below, info_name=name, parent=context), (*path, name))


def test_every_verb_is_carried_out_here(scene: Scene) -> None:
    verbs = set(scene.said)
    missing = {
        verb
        for verb in leaves(click.Context(cli, info_name="vedette"))
        if not any(name == verb or name.startswith(f"{verb} ") for name in verbs)
    }
    assert missing == LEFT_OUT
    failed = {name: said for name, said in scene.said.items() if said.code}
    assert failed.keys() <= FINDS, failed


def too_wide(text: str) -> list[str]:
    """Return the lines that are too wide, but for commands to copy and words that are so alone."""
    lines = [line for line in text.splitlines() if len(line) > WIDTH]
    return [line for line in lines if "vedette " not in line and len(line.split()) > 1]


def test_nothing_is_wider_than_80_columns(scene: Scene) -> None:
    whole = {"ledger prove"}  # JSON, also for people
    found = {
        name: wide
        for name, said in scene.said.items()
        if name not in whole and (wide := too_wide(said.text))
    }
    assert not found
    assert too_wide(scene.said["ledger prove"].text), "the control"


def test_without_a_terminal_there_are_no_escape_codes(scene: Scene) -> None:
    assert not [name for name, said in scene.said.items() if "\x1b" in said.text]


UTC = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z")
LOCAL = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+0[12]:00")


def test_people_read_their_own_time_and_json_has_utc(scene: Scene) -> None:
    # JSON, and findings about the database of time zones, whose words are those of its JSON.
    prose = {n: s.text for n, s in scene.said.items() if n not in ("ledger prove", "check --live")}
    # An event is shown as its sender wrote it.
    event = json.dumps([scene.said[verb].answer for verb in ("explain", "hold")])
    found = {name: UTC.search(text.replace("\n    ", "")) for name, text in prose.items()}
    assert not {name: at[0] for name, at in found.items() if at and at[0] not in event}
    shown = {name for name, text in prose.items() if LOCAL.search(text)}
    assert shown >= {
        "report", "explain", "hold", "budget", "policy status", "policy history",
        "plot", "ledger reconstruct", "stop", "identity show", "dead", "dead RUN",
    }  # fmt: skip
    for name, said in scene.said.items():
        if name not in {"explain", "hold", "hold --group", "hold HOLD"}:  # strangers' words
            assert not LOCAL.search(json.dumps(said.answer)), name


@pytest.mark.parametrize("verb", ["policy status", "policy history", "budget", "report"])
def test_utc_is_shown_on_demand(scene: Scene, verb: str) -> None:
    code, text = scene.give("--utc", *verb.split())
    assert code == 0
    assert UTC.search(text)
    assert not LOCAL.search(text)


# --- colour -----------------------------------------------------------------------------------

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def at_a_terminal(folder: Path, *words: str, **more: str) -> str:
    """Return what a verb prints at a pseudo-terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*START, *words], cwd=folder, env=environment(TERM="xterm-256color", **more),
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    read = b""
    with contextlib.suppress(OSError):  # the other end is closed: it has ended
        while part := os.read(ours, 65536):
            read += part
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return read.decode().replace("\r\n", "\n")


def test_colours_add_nothing_to_the_words(scene: Scene) -> None:
    run = json.loads(scene.give("runs", "--limit", "1", "--json")[1])["items"][0]["id"]
    plain = scene.give("explain", run)[1]
    coloured = at_a_terminal(scene.folder, "explain", run)
    assert COLOUR.search(coloured)
    assert COLOUR.sub("", coloured) == plain
    assert at_a_terminal(scene.folder, "explain", run, NO_COLOR="1") == plain


@pytest.mark.parametrize("seldom", [0, 3])
def test_the_live_view_has_room_in_80_columns(seldom: int) -> None:
    from rich.console import Console

    from vedette.interfaces.cli.live_table import FleetStatus, notable_line, render_view

    numbers = dict.fromkeys(("events", "actions", "permits", "held", "denied", "effects"), 1234)
    agent = {**numbers, "backlog": 0, "would": seldom, "dead": 0}
    seen = FleetStatus({"content_moderation": agent}, 1234, 10.0, 5, 1, [], 3.0)
    entry = {
        "kind": "action.decided", "at": 1, "outcome": "deny", "agent": "inbox_triage",
        "tool": "mail.forward", "rule": "origins.derived", "run": ORDERS,
    }  # fmt: skip
    line = str(notable_line(entry))
    console = Console(width=WIDTH, color_system=None, force_terminal=False)
    with console.capture() as caught:
        console.print(render_view("harbour", "http://127.0.0.1:40000", seen, [line]))
    shown = caught.get()
    for word in ("content_moderation", *numbers, "backlog", ORDERS[:16]):
        assert word in shown
    assert "…" not in shown
    assert ("would" in shown) == bool(seldom)


# --- the documented JSON ----------------------------------------------------------------------


def answers(scene: Scene) -> dict[str, Any]:
    return {name: said.answer for name, said in sorted(scene.said.items())}


def test_json_keeps_the_shape_that_is_documented(scene: Scene) -> None:
    found = answers(scene)
    assert not [name for name, answer in found.items() if answer is None]
    if os.environ.get("UPDATE"):
        PAGE.write_text(json_shapes.page(found), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(json_shapes.HEAD)
    written = json_shapes.read(text)
    assert written.keys() == found.keys(), "run it again with UPDATE=1"
    wrong = {
        name: differs
        for name, answer in found.items()
        if (differs := list(json_shapes.broken(written[name], json_shapes.shape(answer))))
    }
    assert not wrong


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda one: one.pop("b"), "`b` is gone"),
        (lambda one: one.update(b=1), "`b` was text and is whole number"),
        (lambda one: one["a"][0].pop("c"), "`a[].c` is gone"),
        (lambda one: one.update(d=1), "`d` is not written: run it with UPDATE=1"),
    ],
)
def test_a_broken_promise_is_seen(spoil: Callable[[Any], Any], expected: str) -> None:
    answer: dict[str, Any] = {"a": [{"c": None}], "b": "x"}
    written = json_shapes.read(json_shapes.page({"it": answer}))["it"]
    assert list(json_shapes.broken(written, json_shapes.shape(answer))) == []
    assert list(json_shapes.broken(written, json_shapes.shape({"a": [], "b": "y"}))) == []
    spoil(answer)
    assert list(json_shapes.broken(written, json_shapes.shape(answer))) == [expected]
