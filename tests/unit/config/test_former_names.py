"""Agents' code that was written before the modules moved finds what it imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vedette import sdk
from vedette.config.agent_loader import load_module
from vedette.config.former_names import FORMER_MODULES, FormerFinder
from vedette.judging import rank_anomaly

SRC = Path(sdk.__file__).parents[1]
# All that the shipped agents of commit 3c4f65e imported by a name that is another one now.
SHIPPED = {
    "vedette.adapters.adk.tools": ("declared_tools",),
    "vedette.adapters.imap_source.address": ("BEGINNING", "Address", "read_address"),
    "vedette.adapters.imap_source.folder_name": ("quoted",),
    "vedette.adapters.imap_source.pool": ("session_of",),
    "vedette.adapters.imap_source.session": ("MAX_MAIL", "NoFolder", "Session"),
    "vedette.adapters.smtp": ("Unanswered", "deliver"),
    "vedette.crashpoint": ("reach",),
    "vedette.effect": ("Call", "Outcome", "RowWrite"),
    "vedette.errors": ("Permanent", "Temporary", "VedetteError"),
    "vedette.judging.binary": ("Chance",),
    "vedette.judging.extra": ("Extra",),
    "vedette.judging.lexicon": ("Term", "find", "vocabulary"),
    "vedette.judging.normalise": ("Normaliser",),
    "vedette.judging.ranks": (
        "CALM_ROWS", "PAUSE", "VIEWS", "WARM_UP", "Ranks", "Reading", "hour_of",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def finder() -> Iterator[None]:
    """The finder is there, as after any agent was loaded; what it made goes."""
    sys.meta_path.insert(0, FormerFinder)
    yield
    sys.meta_path.remove(FormerFinder)
    for name in [name for name in sys.modules if FormerFinder.find_spec(name, None)]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in SHIPPED.items() for name in names]
)
def test_what_shipped_agents_imported_is_there(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is not None


@pytest.mark.parametrize("module", FORMER_MODULES)
def test_a_former_name_is_no_module_of_today_and_leads_to_one(module: str) -> None:
    place = SRC / module.replace(".", "/")
    assert not place.exists()
    assert not place.with_suffix(".py").exists()
    home, renamed = FORMER_MODULES[module]
    for name in renamed.values():
        assert hasattr(importlib.import_module(home), name)


def test_a_former_name_leads_to_the_very_thing_of_today() -> None:
    names: dict[str, Any] = {}
    exec(
        "from vedette import crashpoint\n"
        "from vedette.effect import Call\n"
        "from vedette.judging.ranks import Ranks\n",
        names,
    )
    assert names["Call"] is sdk.Call
    assert names["crashpoint"].reach is importlib.import_module("vedette.sdk").failpoint
    assert names["Ranks"] is rank_anomaly.Ranks


def test_what_never_was_is_not_found() -> None:
    for name in ("vedette.nothing", "vedette.judging.nothing", "vedette.adapters.imap_source.no"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    with pytest.raises(ImportError, match="Nothing"):
        exec("from vedette.effect import Nothing")


def test_an_agent_of_before_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "keeper"
    folder.mkdir()
    (folder / "judge.py").write_text(
        "from vedette.errors import Temporary\n"
        "from vedette.judging import Judge as Base\n"
        "from vedette.judging.normalise import Normaliser\n\n\n"
        "class Judge(Base):\n    pass\n"
    )
    found = load_module(folder, "judge")
    assert found.Temporary is sdk.Temporary
