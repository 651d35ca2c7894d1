"""Reads and checks the fleet: every error has file, line and the mend.

Files are read here and nowhere else. Agents' code is parsed for the checks and imported only by
`load_module`, under a private parent package.

Names are imported when they are first used: a start needs few of them, and the trial of a policy
needs the YAML reader alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vedette.config.agent_file import agent_schema
    from vedette.config.agent_loader import build_judge, load_module
    from vedette.config.bank import bank_schema
    from vedette.config.fleet import LoadedFleet, check_fleet, load_fleet, read_fleet
    from vedette.config.problem import Problem
    from vedette.config.secret_reference import read_secret
    from vedette.config.settings import (
        CsvPlan,
        HostPlan,
        Isolation,
        JsonlPlan,
        MaildirPlan,
        Sender,
        Settings,
        load_settings,
        read_settings,
    )
    from vedette.config.settings_file import settings_schema
    from vedette.config.yaml import Document, parse_yaml, read_yaml

_FROM = {
    "agent_file": ("agent_schema",),
    "bank": ("bank_schema",),
    "fleet": ("Loaded", "check_fleet", "load_fleet", "read_fleet"),
    "agent_loader": ("build_judge", "load_module"),
    "problem": ("Problem",),
    "secret_reference": ("read_secret",),
    "settings": (
        "CsvPlan",
        "HostPlan",
        "Isolation",
        "JsonlPlan",
        "MaildirPlan",
        "Sender",
        "Settings",
        "load_settings",
        "read_settings",
    ),
    "settings_file": ("settings_schema",),
    "yaml": ("Document", "parse_yaml", "read_yaml"),
}
_HOME = {name: module for module, names in _FROM.items() for name in names}

__all__ = [
    "CsvPlan",
    "Document",
    "HostPlan",
    "Isolation",
    "JsonlPlan",
    "LoadedFleet",
    "MaildirPlan",
    "Problem",
    "Sender",
    "Settings",
    "agent_schema",
    "bank_schema",
    "build_judge",
    "check_fleet",
    "load_fleet",
    "load_module",
    "load_settings",
    "parse_yaml",
    "read_fleet",
    "read_secret",
    "read_settings",
    "read_yaml",
    "settings_schema",
]


if not TYPE_CHECKING:  # to a type checker a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = found
        return found
