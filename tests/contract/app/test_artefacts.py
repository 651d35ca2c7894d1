"""A fleet with large outcomes: its files, its backups, what people see, a model over the wire."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.artefacts import LOOK, answer, artefact_fleet, long_text, outcomes_of, read, say

from vedette.adapters.ledger_export import verify_store
from vedette.app.backup import back_up, restore
from vedette.config.models import ModelPlan
from vedette.config.settings import Settings
from vedette.domain.artefact import MAX_RANGE_CHARS
from vedette.domain.base.errors import BadCommand, NotFound
from vedette.domain.identity import Principal
from vedette.domain.memory import Briefing
from vedette.domain.model import Model
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.interfaces.cli import cli
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.artefacts import read_artefact
from vedette.ledger.history.explain import explain
from vedette.store.sqlite import SqliteReader
from vedette.testing.harness import FleetHarness
from vedette.testing.model_server import FunctionCall, ModelServer, Request, Turn
from vedette.testing.scripted import ScriptedReasoner
from vedette.testing.toy_fleet import World, job

SIZE = 300_000
PHRASE = "a phrase that is said nowhere else"
# Far behind the head, and where no range that the runs here read lies.
AT = SIZE - 500
TEXT = long_text(SIZE)[:AT] + PHRASE + "y" * 100
KEY = "sk-shown-to-nobody-0123456789"


def reads(briefing: Briefing) -> ReasonerJudgement:
    return say(read(outcomes_of(briefing)[0]["text"]["artefact"], offset=100, length=100))


def fleet_of(folder: Path, text: str = TEXT) -> FleetHarness:
    script = ScriptedReasoner([say(LOOK), reads])
    world = World(answer=answer({"id": 7, "text": text}))
    return artefact_fleet(folder, world, reasoners={"adk": script}, reasoner="adk")


async def handled(fleet: FleetHarness, name: str = "1", key: str = "somebody") -> str:
    """Handle an event; return the id of the artefact of its run."""
    event = job(name, key=key)
    await fleet.send(event)
    await fleet.wait_until_idle()
    (run,) = fleet.runs(event)
    assert run.state == "done"
    data = json.loads(fleet.actions(event)[0].answer or b"{}")["data"]
    return str(data["text"]["artefact"])


# --- files --------------------------------------------------------------------------------------


def windows(fleet: FleetHarness) -> list[bytes]:
    """Return bytes out of the packed content of all artefacts, as close as pages of a file lie."""
    rows = fleet.app.store.parts.database.rows("SELECT bodies FROM segment WHERE bodies NOT NULL")
    packed = [bytes(bodies) for (bodies,) in rows if len(bodies) > SIZE // 4]
    assert len(packed) == 2
    return [one[at : at + 32] for one in packed for at in range(0, len(one) - 32, 2048)]


def holding(folder: Path, phrases: Sequence[bytes]) -> set[str]:
    """Return the names of the files of a state folder that hold one of these phrases."""
    files = [path for path in (folder / "state").rglob("*") if path.is_file()]
    return {path.name for path in files if any(one in path.read_bytes() for one in phrases)}


@pytest.mark.parametrize("by", ["event", "subject"])
async def test_no_file_holds_what_was_erased(tmp_path: Path, by: str) -> None:
    async with fleet_of(tmp_path) as fleet:
        id, other = await handled(fleet), await handled(fleet, "2", "somebody else")
        packed = windows(fleet)
        fleet.app.store.parts.database.rows("PRAGMA wal_checkpoint(FULL)")
        assert holding(tmp_path, packed) == {"store.db", "store.db-wal"}
        event = job("1", key="somebody").key if by == "event" else None
        subject = "somebody" if by == "subject" else None
        done = await fleet.app.commands.erase(fleet.order(), event=event, subject=subject)
        assert done["scrubbed"]
        runs = fleet.app.store.runs
        gone, kept = runs.artefact(id), runs.artefact(other)
        assert gone is not None
        assert gone.artefact is None
        assert kept is not None
        assert kept.artefact is not None
        assert kept.artefact.text == TEXT
        found = read_artefact(fleet.app.store, id)
        assert (found["erased"], found["text"], found["tool"]) == (True, None, "book.look")
        await fleet.app.commands.erase(fleet.order(), subject="somebody else")
        assert holding(tmp_path, packed) == set()
        assert holding(tmp_path, [PHRASE.encode(), TEXT[:40].encode()]) == set()
        assert verified(tmp_path) == ()


def verified(folder: Path) -> tuple[Any, ...]:
    store = SqliteReader(folder / "state")
    try:
        line = (folder / "state" / "ledger.pub").read_text().strip()
        findings = verify_store(store.ledger, line, folder / "state" / "witness.log").findings
        return tuple(findings)
    finally:
        store.close()


async def test_a_backup_carries_it(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path)
    async with fleet:
        id = await handled(fleet)
        await asyncio.to_thread(
            lambda: back_up(fleet.app.settings, tmp_path / "backup", with_keys=True)
        )
    kept = tmp_path / "elsewhere.log"
    shutil.copy(tmp_path / "state" / "witness.log", kept)
    shutil.rmtree(tmp_path / "state")
    settings = replace(Settings.of(tmp_path / "content", "harbour"), state=tmp_path / "state")
    await restore(
        settings, tmp_path / "backup", witness=kept, key=None, who=Principal.owner("kim"),
        reason="the disk is gone",
    )  # fmt: skip
    async with fleet:
        found = fleet.app.store.runs.artefact(id)
        assert found is not None
        assert found.artefact is not None
        assert found.artefact.text == TEXT


# --- people -------------------------------------------------------------------------------------


async def test_explain_tells_of_it_and_does_not_show_it(tmp_path: Path) -> None:
    async with fleet_of(tmp_path) as fleet:
        id = await handled(fleet)
        (run,) = fleet.runs(job("1", key="somebody"))
        told = explain(fleet.app.store, run.id)
        assert len(json.dumps(told)) < 60_000
        assert PHRASE not in json.dumps(told)
        (item,) = [one for one in told["runs"][0]["timeline"] if one["kind"] == "artefact.stored"]
        assert (item["what"], item["size"]) == ("text/plain", len(TEXT))
        assert item["body"] == {
            "artefact": id, "head": TEXT[:500], "label": "untrusted", "type": "text/plain",
        }  # fmt: skip
        look, ranged = told["runs"][0]["actions"]
        assert look["effect"]["outcome"]["data"]["text"]["artefact"] == id
        assert look["effect"]["outcome"]["data"]["text"]["size"] == len(TEXT)
        assert ranged["effect"]["outcome"]["data"]["text"] == TEXT[100:200]
        text = "\n".join(line for _, line in explain_text(told, 100, str))
        assert id in text


async def test_people_read_ranges_of_it(tmp_path: Path) -> None:
    async with fleet_of(tmp_path) as fleet:
        id, store = await handled(fleet), fleet.app.store
        parts = [read_artefact(store, id)]
        while parts[-1]["next"] is not None:
            parts.append(read_artefact(store, id, parts[-1]["next"]))
        assert "".join(part["text"] for part in parts) == TEXT
        for offset, length in ((-1, 1), (0, 0), (0, MAX_RANGE_CHARS + 1)):
            with pytest.raises(BadCommand):
                read_artefact(store, id, offset, length)
        with pytest.raises(NotFound):
            read_artefact(store, "art_" + "0" * 32)


TOML = """\
fleet = "harbour"
state = "{folder}/state"
[content]
agents = "{folder}/content/agents"
policies = "{folder}/policies"
memory = "{folder}/content/memory"
"""


def test_the_verb_shows_a_part_and_moves_no_terminal(tmp_path: Path) -> None:
    text = "first line\n\x1b[2Jsecond\n" + "z" * 30_000

    async def fill() -> str:
        async with fleet_of(tmp_path, text) as fleet:
            return await handled(fleet)

    id = asyncio.run(fill())
    (tmp_path / "vedette.toml").write_text(TOML.format(folder=tmp_path))

    def run(*words: str) -> Any:
        return CliRunner().invoke(cli, ["--config", str(tmp_path), "artefact", "show", *words])

    shown = run(id, "--length", "22").output
    assert shown.startswith(id), shown
    assert shown.splitlines()[2:] == [
        f"text/plain, {len(text):,} characters, untrusted", "0 to 22:", "│ first line",
        "│ \\u001b[2Jsecond", "│", "go on with --offset 22",
    ]  # fmt: skip
    assert "\x1b" not in shown
    answered = CliRunner().invoke(
        cli, ["--config", str(tmp_path), "--json", "artefact", "show", id, "--offset", "30000"]
    )
    assert json.loads(answered.output)["text"] == "z" * (len(text) - 30_000)
    assert run("art_" + "0" * 32).exit_code != 0


# --- a model ------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A model that looks, and reads on by the `next` of each answer until it found the phrase."""

    def script(request: Request) -> Turn:
        if not request.turn:
            return Turn((FunctionCall("book_look", {"name": "all"}),))
        data = request.results[0].content["data"]
        if "head" in data.get("text", ""):
            id, offset = data["text"]["artefact"], data["text"]["size"] - 3 * MAX_RANGE_CHARS
        elif PHRASE in data["text"]:
            return Turn(("It is there.",))
        else:
            id, offset = data["artefact"], data["next"]
        return Turn((FunctionCall("artefact_read", {"id": id, "offset": offset}),))

    with ModelServer(script, keys=(KEY,)) as found:
        yield found


async def test_a_model_reads_two_megabytes_in_ranges(tmp_path: Path, server: ModelServer) -> None:
    text = long_text(2_000_000) + PHRASE
    fleet = artefact_fleet(
        tmp_path, World(answer=answer({"id": 7, "text": text})), reasoner="adk", max_turns=8
    )
    agent = fleet.content / "agents" / "worker"
    (agent / "agent.py").unlink()
    yaml = (agent / "agent.yaml").read_text()
    (agent / "agent.yaml").write_text(yaml.replace("reasoner: adk", "model: wire"))
    (tmp_path / "key").write_text(KEY)
    model = Model("wire", provider="gemini", served_name="gemini-3-pro-preview")
    fleet.models = {"wire": ModelPlan(model, server.url, key_file=str(tmp_path / "key"))}
    async with fleet:
        await fleet.send(job("1"))
        await fleet.wait_until_idle(60)
        (run,) = fleet.runs(job("1"))
        assert run.state == "done"
        read = [row for row in fleet.actions(job("1")) if row.tool == "artefact.read"]
        assert len(read) == 3
        assert all(row.effect == "done" for row in read)
        # No request grows by what was not read.
        assert max(len(json.dumps(one.body)) for one in server.requests) < 100_000
        assert "artefact_read" in server.requests[0].tools
