"""The rooms of the engine: few, in the order of the contract, as CONTRIBUTING.md tells."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import vedette

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(vedette.__file__).parent
MOST_ROOMS = 14


def contract() -> list[set[str]]:
    """Return the rooms of each floor, from the top, as the contract of imports has them."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    layers = parser["importlinter:contract:rooms"]["layers"].split("\n")
    return [set(re.findall(r"\w+", layer)) for layer in layers if layer.strip()]


def table() -> list[tuple[int, set[str]]]:
    """Return floor and rooms of each row of CONTRIBUTING.md's table."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE)
    return [(int(floor), set(re.findall(r"`(\w+)`", rooms))) for floor, rooms in rows]


def test_the_table_for_people_is_the_contract() -> None:
    floors = contract()
    assert table() == list(zip(range(len(floors), 0, -1), floors, strict=True))


def test_the_rooms_are_few_and_all_on_a_floor() -> None:
    rooms = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").exists())
    } - {"__init__", "__main__"}
    assert rooms == set().union(*contract())
    assert len(rooms) <= MOST_ROOMS


def test_no_module_is_longer_than_600_lines() -> None:
    long = {
        str(path.relative_to(PACKAGE)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 600
    }
    assert long == {}
