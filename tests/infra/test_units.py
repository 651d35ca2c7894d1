"""The units of one host: they start what there is, and shut in what they start."""

from __future__ import annotations

import re
import shlex
from configparser import ConfigParser
from pathlib import Path

import click
import pytest

from vedette.interfaces.cli import cli

UNITS = Path(__file__).parents[2] / "infra/systemd"


def unit(name: str) -> ConfigParser:
    """Read a unit. (Of a key that is given twice the last counts; ours give none twice.)"""
    parser = ConfigParser(interpolation=None, comment_prefixes=("#",), delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name, "utf-8")
    return parser


def words(name: str) -> list[str]:
    """Return what a unit gives to `vedette`, without a shell around it."""
    found = shlex.split(unit(name)["Service"]["ExecStart"])
    if found[0].endswith("/sh"):
        found = shlex.split(found[2])[1:]
    assert found[0].endswith("/venv/bin/vedette")
    return found[1:]


@pytest.mark.parametrize(
    ("name", "verb"), [("vedette.service", "run"), ("vedette-backup.service", "backup")]
)
def test_it_starts_a_verb_with_options_that_there_are(name: str, verb: str) -> None:
    option, _, found, *rest = words(name)
    assert (option, found) == ("--config", verb)
    context = click.Context(cli)
    command = cli.get_command(context, verb)
    assert command is not None
    assert command.make_parser(context).parse_args(list(rest))[0]
    with pytest.raises(click.UsageError):
        command.make_parser(context).parse_args(["--no-such-thing"])


@pytest.mark.parametrize("name", ["vedette.service", "vedette-backup.service"])
def test_it_is_not_root_and_writes_state_only(name: str) -> None:
    service = unit(name)["Service"]
    assert service["User"] == "vedette"
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["UMask"] == "0077"


def test_the_backup_has_a_timer() -> None:
    assert unit("vedette-backup.timer")["Timer"]["Persistent"] == "true"
    assert unit("vedette-backup.timer")["Install"]["WantedBy"] == "timers.target"


def test_a_stop_is_the_one_that_loses_nothing() -> None:
    service = unit("vedette.service")["Service"]
    assert service["KillSignal"] == "SIGINT"
    assert service["Restart"] == "always"


def test_the_backup_has_the_fleet_s_secrets_and_is_not_for_postgresql() -> None:
    """A setting may name a secret; and with PostgreSQL the timer would fail every night."""
    of_fleet = unit("vedette.service")["Service"]["EnvironmentFile"]
    assert unit("vedette-backup.service")["Service"]["EnvironmentFile"] == of_fleet
    text = (UNITS.parents[1] / "docs/deploy.md").read_text("utf-8")
    host = text[text.index("## One host") : text.index("## Google Cloud")]
    (line,) = re.findall(r"(?ms)^- \*\*PostgreSQL\*\*.*?(?=^- |^\n)", host)
    assert "systemctl disable --now vedette-backup.timer" in line
    assert "pg_dump" in line
