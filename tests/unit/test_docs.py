"""The documents hold together: links resolve, commands exist, nothing names a machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from vedette.interfaces.cli import VERBS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("infra/**/*.md"))
    if path.is_file()
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROMISES = 11

# Paths of people's machines, and names of hosts that only somebody's network knows.
_MACHINE = re.compile(
    r"/(?:home|root|Users|work|private|mnt|opt|srv|tmp|var)/\w"
    r"|\b[A-Z]:\\\w"
    r"|\b\w[\w.-]*\.(?:local|lan|corp|internal|intranet)\b"
    r"|\b(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d+\.\d+(?:\.\d+)?\b"
)


def links(text: str) -> Iterator[str]:
    """Yield the relative targets of a page's links, code left out."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"(?<!\[)`[^`\n]+`(?!\])", "", text)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            yield target


def lost(page: Path, text: str) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    found = []
    for target in links(text):
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        leads = aim.exists() and aim.is_relative_to(ROOT)
        if not leads or (anchor and anchor not in anchors(aim)):
            found.append(target)
    return found


def anchors(page: Path) -> set[str]:
    """Return the anchors that headings of a page make."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def commands(text: str) -> list[str]:
    """Return the commands in the `console` blocks of a page."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def unknown(command: str) -> str | None:
    """Return what is wrong with a command, or None if there is such a thing."""
    if not command.startswith("$ "):
        return "it does not begin with '$ '"
    program, *rest = command[2:].split()
    if not rest:
        return "it says too little"
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        return None if re.search(rf"^{re.escape(rest[0])}:", makefile, re.M) else "no such target"
    if program == ".venv/bin/vedette":
        return None if rest[0] in VERBS else "no such verb"
    if program == ".venv/bin/pytest":
        return None if (ROOT / rest[0]).exists() else "no such test"
    return "it is neither make nor vedette nor pytest"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_no_machine_is_named(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert lost(page, text) == []
    assert _MACHINE.findall(text) == []


def test_files_named_in_the_documents_exist() -> None:
    """Tests, tools and policies that a page names in `code` are there."""
    named = re.compile(r"`((?:tests|tools|policies|agents|samples|src|docs)/[\w./-]+)`")
    for page in PAGES:
        for path in named.findall(page.read_text(encoding="utf-8")):
            # "agents/NAME/" stands for any of them.
            if not re.search(r"/[A-Z]+\b", path):
                assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_commands_of_the_readme_exist() -> None:
    found = commands(README)
    assert len(found) >= 15
    assert {command: wrong for command in found if (wrong := unknown(command))} == {}


def test_every_promise_is_named_and_proved_by_tests_of_its_name() -> None:
    named = re.findall(r"^\| (\d+) \| \*\*.+\| `(test_promise_\d\d)` \|$", README, re.MULTILINE)
    assert named == [(str(n), f"test_promise_{n:02}") for n in range(1, PROMISES + 1)]
    tests = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests/acceptance").rglob("test_*.py")
    )
    proved = set(re.findall(r"^(?:async )?def (test_promise_\d\d)_\w+", tests, re.MULTILINE))
    assert {name for _, name in named} == proved


def test_decisions_are_numbered_without_a_gap_and_say_their_number() -> None:
    records = sorted((ROOT / "docs/decisions").glob("*.md"))
    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))
    for number, path in enumerate(records, start=1):
        assert path.read_text(encoding="utf-8").startswith(f"# {number}. "), path.name


def test_what_is_wrong_is_found() -> None:
    """Negative control."""
    page = ROOT / "README.md"
    assert lost(page, "[a](docs/nowhere.md) [b](../outside) [c](docs/glossary.md#nowhere)") == [
        "docs/nowhere.md", "../outside", "docs/glossary.md#nowhere",
    ]  # fmt: skip
    assert lost(page, "[a](docs/glossary.md) [`b`](Makefile) [c](https://example.org)") == []
    assert unknown("$ make nothing")
    assert unknown("$ .venv/bin/vedette fly")
    assert unknown("make run")
    for text in ("see /home/ada/x", "on build7.corp", "at 192.168.0.4", "C:\\Users"):
        assert _MACHINE.search(text), text
    assert not _MACHINE.search("http://127.0.0.1:8088 and /event/data/from, @state/mailbox")
