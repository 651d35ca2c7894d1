"""Reads and checks the fleet: every error has file, line and the mend.

Files are read here and nowhere else. Agents' code is parsed for the checks and imported only by
`load_module`, under a private parent package.
"""

from vedette.load.agent_file import agent_schema
from vedette.load.bank_file import bank_schema
from vedette.load.fleet import Loaded, check_fleet, load_fleet, read_fleet
from vedette.load.modules import build_judge, load_module
from vedette.load.problem import Problem
from vedette.load.settings import (
    CsvPlan,
    HostPlan,
    JsonlPlan,
    MaildirPlan,
    Sender,
    Settings,
    SourcePlan,
    load_settings,
    read_secret,
    read_settings,
)
from vedette.load.yaml_file import Document, parse_yaml, read_yaml

__all__ = [
    "CsvPlan",
    "Document",
    "HostPlan",
    "JsonlPlan",
    "Loaded",
    "MaildirPlan",
    "Problem",
    "Sender",
    "Settings",
    "SourcePlan",
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
]
