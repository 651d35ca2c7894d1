"""docs/guides/import-an-adk-agent.md, done word for word: an ADK agent's function is called once.

Nothing but what the page shows is written, but for the test server's address and the book's place.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance import doc_page
from tests.acceptance.test_give_an_agent_a_model import KEY, Person

from vedette.testing.model_server import FunctionCall, ModelServer, Request, Turn

PAGE = Path(__file__).resolve().parents[2] / "docs/guides/import-an-adk-agent.md"
SHOWN = doc_page.commands(PAGE)

pytestmark = pytest.mark.timeout(240)


def block(kind: str) -> str:
    """Return the page's first block of a kind."""
    found = re.search(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.S)
    assert found is not None
    return found[1]


def books_a_berth(request: Request) -> Turn:
    """Call the imported function, then say that it is done."""
    if request.results:
        return Turn(("A berth is booked.",))
    args = {"boat": "ref:/event/subject", "nights": 2}
    return Turn((FunctionCall("book_berth", args),))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(books_a_berth, keys=(KEY,)) as server:
        yield server


def test_from_an_adk_agent_to_a_berth_that_is_booked_once(
    server: ModelServer, tmp_path: Path
) -> None:
    person = Person(tmp_path, server.url)
    book = tmp_path / "srv"
    book.mkdir()
    theirs = person.shell.folder / "berths"
    theirs.mkdir()
    (theirs / "__init__.py").touch()
    (theirs / ".env").write_text("GOOGLE_API_KEY=of-its-author\n")
    code = block("python").replace("/data", str(book))
    (theirs / "agent.py").write_text(code.replace("gemini-3-flash", "gemini-3-pro-preview"))
    init, refused, imported, check, run, send, look, approve = SHOWN
    person.give(init.command)
    fleet = person.shell.folder
    settings = fleet / "vedette.toml"
    table = block("toml").replace("/data", str(book))
    served = {"gemini-3-flash": "gemini-3-pro-preview"}  # which the test server knows
    for old, new in {**served, "[targets": f'base_url = "{server.url}"\n\n[targets'}.items():
        assert old in table
        table = table.replace(old, new)
    text = settings.read_text("utf-8").replace('http = "127.0.0.1:8088"', 'http = ""')
    settings.write_text(f"{text}\n{table}")

    out = person.give(refused.command)
    assert doc_page.missing(refused, out) is None, out
    assert not (fleet / "agents/berths").exists()
    out = person.give(imported.command)
    assert doc_page.missing(imported, out) is None, out
    assert "not copied: .env" in out
    assert not (fleet / "agents/berths/source/.env").exists()
    out = person.give(check.command, GEMINI_API_KEY=KEY)
    assert "0 problems" in out, out
    assert "grants this agent nothing" in " ".join(out.split())

    grants = fleet / "policies/grants/data.yaml"
    grants.write_text(grants.read_text("utf-8") + block("yaml"))
    person.commands = [init.command, check.command, run.command]
    with person.running() as log:
        until = time.monotonic() + 60
        sent = ""
        while "accepted" not in sent and time.monotonic() < until:
            time.sleep(1)
            sent = person.give(send.command)
        hold = ""
        while not hold and time.monotonic() < until:
            time.sleep(0.5)
            listed = person.give(f"{look.command} --limit 200")
            found = re.search(r"^(hold_\w+) +berths: book_berth", listed, re.MULTILINE)
            hold = found[1] if found else ""
        assert hold, sent + listed + log.read_text()
        lines = book / "berths.txt"
        assert not lines.exists(), "nothing happens before it is approved"
        said = person.agree(approve.command.replace("HOLD", hold))
        listed = ""
        while "berths done" not in listed and time.monotonic() < until:
            time.sleep(0.5)
            listed = " ".join(person.give("vedette runs --agent berths").split())
        assert "berths done" in listed, said + listed + log.read_text()
        assert lines.read_text() == "HL-204 2 north\n"
    assert {status for status in server.statuses if status >= 400} == set()
    results = [result.content for one in server.requests for result in one.results]
    assert any("HL-204" in json.dumps(one) for one in results), "the model is told what came of it"
