"""Sources by entry points: the shipped ones, and what a third party's wheel may do wrong.

Wheels are laid into a folder on the import path as an installer would: a package, and beside it
the `.dist-info` with `entry_points.txt`.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vedette.app.sources import build_source
from vedette.config.agent_file import ToolFile
from vedette.config.kinds import Errors
from vedette.config.plugins import plugins
from vedette.config.reserved_names import source_kinds
from vedette.config.settings import read_settings
from vedette.config.tool_table import tool_problems
from vedette.config.yaml import Document
from vedette.domain.base.errors import BadFleet
from vedette.domain.ports.plugin import NOTIFIERS, SOURCES, TOOLS
from vedette.testing import FleetHarness

ROOT = Path(__file__).resolve().parents[3]

GOOD = '''
from dataclasses import dataclass
from typing import ClassVar, Literal

from vedette.sdk import Field, SourcePlugin, Table


class BellTable(Table):
    """A bell."""

    kind: Literal["bell"]
    name: str = Field(description="names the source")
    every: int = Field(default=1, ge=1, description="seconds")


@dataclass(frozen=True)
class Plan:
    kind: ClassVar[str] = "bell"
    name: str
    every: int


class Bell(SourcePlugin):
    table = BellTable

    def problems(self, table, context):
        if table.every > 60:
            yield ("every",), "rings too seldom", "write 60 or less"
        if table.every == 13:
            raise ZeroDivisionError("unlucky")

    def plan(self, table, context):
        if table.every == 14:
            raise KeyError("every")
        return Plan(table.name, table.every)

    def build(self, plan, context):
        raise RuntimeError("no bell")


PLUGIN = Bell()
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith("bell"):
            del sys.modules[name]


def wheel(site: Path, name: str, code: str, points: str) -> None:
    (site / f"{name}.py").write_text(code)
    info = site / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n\n[{SOURCES}]\n{points}\n")


def problems(tmp_path: Path, table: str) -> list[str]:
    file = tmp_path / "vedette.toml"
    file.write_text(f'fleet = "harbour"\n\n[[sources]]\n{table}\n')
    settings, found = read_settings(file)
    assert (settings is None) == bool(found)
    return [str(each) for each in found]


@pytest.mark.parametrize("group", [SOURCES, NOTIFIERS])
def test_the_shipped_ones_are_registered_as_any_other(group: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"][group]
    assert plugins(group).names() == tuple(sorted(declared))
    for kind in declared:
        fields = plugins(group).get(kind).table.fields()
        assert {"kind", "name"} <= set(fields)


def test_a_wheel_adds_a_source(site: Path, tmp_path: Path) -> None:
    wheel(site, "bell", GOOD, "bell = bell:PLUGIN")
    assert plugins(SOURCES).names()[-1] == "bell", "the shipped ones stand first"
    assert "bell" in source_kinds(), "nobody outside may claim its events"
    assert problems(tmp_path, 'kind = "bell"\nname = "noon"') == []
    settings, _ = read_settings(tmp_path / "vedette.toml")
    assert settings is not None
    assert [(plan.kind, plan.name) for plan in settings.sources] == [("bell", "noon")]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('every = 0', "vedette.toml:6: sources[0].every: must be at least 1, found 0"),
        ('every = 61', "vedette.toml:6: sources[0].every: rings too seldom (write 60 or less)"),
        ('evry = 1', "vedette.toml:6: sources[0].evry: unknown key (did you mean 'every'?)"),
        (
            'every = 13',
            "vedette.toml:3: sources[0]: 'bell' of bell 1.2 failed: ZeroDivisionError: unlucky "
            "(mend or uninstall bell)",
        ),
    ],
)  # fmt: skip
def test_its_table_is_checked_as_ours_are(
    site: Path, tmp_path: Path, table: str, expected: str
) -> None:
    wheel(site, "bell", GOOD, "bell = bell:PLUGIN")
    assert problems(tmp_path, f'kind = "bell"\nname = "noon"\n{table}') == [expected]


async def test_what_fails_later_names_the_wheel_too(site: Path, tmp_path: Path) -> None:
    wheel(site, "bell", GOOD, "bell = bell:PLUGIN")
    with pytest.raises(BadFleet, match=r"'bell' of bell 1.2 failed: KeyError: 'every'"):
        problems(tmp_path, 'kind = "bell"\nname = "noon"\nevery = 14')
    assert problems(tmp_path, 'kind = "bell"\nname = "noon"') == []
    settings, _ = read_settings(tmp_path / "vedette.toml")
    assert settings is not None
    async with FleetHarness(tmp_path / "fleet") as fleet:
        with pytest.raises(BadFleet, match=r"'bell' of bell 1.2 failed: RuntimeError: no bell"):
            build_source(settings.sources[0], fleet.app, until_idle=True)


@pytest.mark.parametrize(
    ("code", "point", "expected"),
    [
        ("import not_there_at_all", "bell:PLUGIN", "cannot be loaded: ModuleNotFoundError: No mod"),
        ("raise SystemError('old')", "bell:PLUGIN", "cannot be loaded: SystemError: old"),
        ("", "bell:PLUGIN", "cannot be loaded: AttributeError: module 'bell' has no attribute"),
        ("PLUGIN = 3", "bell:PLUGIN", "is no plugin: bell:PLUGIN is no instance of SourcePlugin"),
        (
            GOOD.replace("    table = BellTable\n", ""),
            "bell:PLUGIN",
            "is no plugin: bell:PLUGIN has no table of vedette.sdk.Table",
        ),
        (
            GOOD.replace('Literal["bell"]\n', 'Literal["gong"]\n'),
            "bell:PLUGIN",
            "is no plugin: bell:PLUGIN has a table without kind: Literal['bell']",
        ),
        (
            GOOD.replace("every: int = Field", "every: set = Field"),
            "bell:PLUGIN",
            "is no plugin: bell:PLUGIN has a table that cannot be read: TypeError: no check",
        ),
        (GOOD.replace("    name: str = ", "    title: str = "), "bell:PLUGIN", "without a name"),
    ],
)
def test_a_broken_plugin_is_told_with_line_and_wheel(
    site: Path, tmp_path: Path, code: str, point: str, expected: str
) -> None:
    wheel(site, "bell", code, f"bell = {point}")
    (found,) = problems(tmp_path, 'kind = "bell"\nname = "noon"')
    assert found.startswith("vedette.toml:4: sources[0].kind: 'bell' of bell 1.2 ")
    assert expected in found
    assert found.endswith("(mend or uninstall bell)")
    # Who does not name it is not troubled by it.
    assert problems(tmp_path, 'kind = "host"\nname = "host"') == []


@pytest.mark.parametrize("kind", ["bell", "csv"])
def test_a_kind_that_two_wheels_bring_is_nobodys(site: Path, tmp_path: Path, kind: str) -> None:
    wheel(site, "bell", GOOD, f"{kind} = bell:PLUGIN")
    wheel(site, "belfry", GOOD, f"{kind} = bell:PLUGIN")
    (found,) = problems(tmp_path, f'kind = "{kind}"\nname = "noon"\npath = "x"')
    assert found.startswith(f"vedette.toml:4: sources[0].kind: {kind!r} is brought by belfry 1.2 ")
    assert "bell 1.2" in found
    assert ("vedette 0" in found) == (kind == "csv")
    assert found.endswith("(uninstall one of them)")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise ImportError('old')", "vedette.toml:4: notify.to[0].kind: 'bell' of bell 1.2 "),
        (GOOD, "is no plugin: bell:PLUGIN is no instance of NotifierPlugin"),
    ],
)
def test_a_broken_notifier_is_told_likewise(
    site: Path, tmp_path: Path, code: str, expected: str
) -> None:
    wheel(site, "bell", code, "")
    points = f"[{NOTIFIERS}]\nbell = bell:PLUGIN\n"
    (site / "bell-1.2.dist-info" / "entry_points.txt").write_text(points)
    file = tmp_path / "vedette.toml"
    file.write_text('fleet = "harbour"\n\n[[notify.to]]\nkind = "bell"\n')
    _, (found,) = read_settings(file)
    assert expected in str(found)
    assert str(found).endswith("(mend or uninstall bell)")


def test_a_wheel_that_is_on_the_path_twice_counts_where_it_is_first(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(site, "bell", "raise ImportError", "bell = bell:PLUGIN")
    first = tmp_path / "first"
    first.mkdir()
    wheel(first, "bell", GOOD, "bell = bell:PLUGIN")
    monkeypatch.syspath_prepend(str(first))
    assert problems(tmp_path, 'kind = "bell"\nname = "noon"') == []


def test_a_kind_that_nobody_brings_is_told_with_all_there_are(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, 'kind = "bell"\nname = "noon"')
    assert found.startswith("vedette.toml:3: sources[0]: 'bell' is not known here (write 'alert")
    (found,) = problems(tmp_path, 'kind = "maildri"\nname = "noon"')
    assert found.endswith("'maildri' is not known here (did you mean 'maildir'?)")


def test_without_its_own_entry_points_vedette_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(BadFleet, match="nothing installed brings 'csv'") as raised:
        plugins(SOURCES).get("csv")
    assert "its entry points are missing" in str(raised.value.mend)
    with pytest.raises(BadFleet, match="no kind of source is known"):
        source_kinds()


def test_only_what_is_named_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "vedette.toml"
    file.write_text('fleet = "harbour"\n[[sources]]\nkind = "csv"\nname = "n"\npath = "*.csv"\n')
    code = "import sys; from pathlib import Path\n"
    code += "from vedette.config.settings import load_settings\n"
    code += "load_settings(Path(sys.argv[1]))\n"
    code += "print(*(m for m in sys.modules if m.startswith('vedette.adapters')))\n"
    code += "print('importlib.metadata' in sys.modules)"
    done: Any = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "vedette.adapters vedette.adapters.files vedette.adapters.files.config "
        "vedette.adapters.files.plugin", "False",
    ]  # fmt: skip


TOOL = """
from vedette.sdk import Field, Table, ToolPerformer, ToolPlugin


class Ringing(Table):
    hour: str = Field(description="when it rings")


class Bell(ToolPlugin):
    table = Ringing

    def queries(self, table):
        return table.hour == "noon"

    def build(self):
        return ToolPerformer()


PLUGIN = Bell()
"""


@pytest.mark.parametrize(
    ("hour", "settles", "found"),
    [("noon", "queryable", []), ("night", "none", []),
     ("night", "queryable", ["tools[0].settles"])],
)  # fmt: skip
def test_a_tool_that_nobody_can_ask_about_does_not_settle_by_a_query(
    site: Path, hour: str, settles: str, found: list[str]
) -> None:
    """The port's own `query` says that a call never was: it would be made again."""
    wheel(site, "bell_wheel", TOOL, f"[{TOOLS}]\nbell = bell_wheel:PLUGIN")
    errors: Errors = []
    given = {"name": "bell.ring", "verb": "ring", "resource": "bell", "sinks": []}
    tool = ToolFile.check({**given, "settles": settles, "bell": {"hour": hour}}, (), errors)
    assert (errors, tool and tool.performer) == ([], "bell")
    shape: Any = SimpleNamespace(tools=[tool])
    found_problems = tool_problems(shape, Document("agent.yaml", {}), None, {})
    assert [each.field for each in found_problems] == found


@pytest.mark.parametrize("name", ["artefact", "work"])
def test_no_plugin_has_the_name_by_which_the_engine_performs_its_own(site: Path, name: str) -> None:
    """Its tools would be taken for the engine's, and their policy with them."""
    wheel(site, "bell_wheel", TOOL, f"[{TOOLS}]\n{name} = bell_wheel:PLUGIN")
    errors: Errors = []
    given = {"name": "bell.ring", "verb": "ring", "resource": "bell", "sinks": []}
    ToolFile.check({**given, "settles": "idempotent", name: {"hour": "noon"}}, (), errors)
    (error,) = errors
    assert error["loc"] == (name,)
    assert "has a name that is the engine's own" in str(error)
    assert "uninstall bell-wheel" in str(error)
