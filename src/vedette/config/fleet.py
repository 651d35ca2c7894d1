"""The whole fleet, read and checked: agents, banks, and what they say of one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from vedette.config.agent import FleetContext, read_agent
from vedette.config.agent_folder import agent_folders
from vedette.config.bank import read_bank
from vedette.config.foreign_agent import SOURCE, has_foreign_source
from vedette.config.problem import Problem, did_you_mean, raise_first_error, sort_problems
from vedette.config.settings import Settings
from vedette.config.yaml import read_yaml
from vedette.domain.agent import Agent, Fleet
from vedette.domain.memory import BankPlan

FleetContents = tuple[Mapping[str, Agent], tuple[BankPlan, ...], list[Problem]]


class LoadedFleet(Struct, frozen=True):
    """A fleet whose files passed their checks. `findings` are warnings, worth showing a person."""

    fleet: Fleet
    banks: tuple[BankPlan, ...]
    findings: tuple[Problem, ...] = ()


def load_fleet(root: Path, settings: Settings, *, now_us: int = 0) -> LoadedFleet:
    """Read the fleet's files, or raise BadFleet with the first problem and how many more there are.

    `root` is what file names in messages are relative to. `now_us` is the instant at which
    expiry is looked at (0: not at all); nothing else depends on the time.
    """
    agents, banks, problems = read_fleet(root, settings, now_us=now_us)
    raise_first_error(problems)
    fleet = Fleet(settings.fleet, dict(agents), settings.max_hops)
    return LoadedFleet(fleet, banks, tuple(problems))


def check_fleet(
    root: Path,
    settings: Settings,
    cases: Callable[[Agent, str], tuple[object, list[Problem]]],
    *,
    now_us: int = 0,
    contents: FleetContents | None = None,
) -> list[Problem]:
    """Return everything that is wrong with the fleet, by file and line. Imports no agent code.

    `cases` reads the cases of an agent, by its folder's name in messages, and says what is wrong
    with them (`read_evals`); nothing but `check cases` needs them. `contents` is the fleet as
    `read_fleet` found it; without it, it is read.
    """
    agents, _, warnings = contents or read_fleet(root, settings, now_us=now_us)
    problems = list(warnings)
    for agent in agents.values():
        problems += cases(agent, _relative_path(root, Path(agent.folder)))[1]
    return sort_problems(problems)


def read_fleet(root: Path, settings: Settings, *, now_us: int = 0) -> FleetContents:
    """Return the agents and banks that can be used, and what is wrong with all the others."""
    banks, problems = _read_banks(root, settings.memory, now_us)
    agents: dict[str, Agent] = {}
    context = FleetContext(
        settings.fleet,
        {bank.name: bank for bank in banks},
        {name: str(table.get("kind", "")) for name, table in settings.targets.items()},
        settings.models,
    )
    folders, found = _folders(root, settings.agents, "agent")
    problems += found
    for folder in folders:
        problems += _source_problems(settings, folder, _relative_path(root, folder))
        agent, found = read_agent(folder, _relative_path(root, folder), context)
        problems += found
        if agent is not None:
            agents[agent.name] = agent
    problems += _collection_problems(root, agents)
    names = {folder.name for folder in folders}
    problems += _asks_problems(root, agents, names)
    problems += _reader_problems(root, settings.memory, banks, names)
    problems += _served_problems(settings, agents, names)
    return agents, banks, sort_problems(problems)


def _folders(root: Path, parent: Path, what: str) -> tuple[list[Path], list[Problem]]:
    relative_path = _relative_path(root, parent)
    if not parent.is_dir():
        mend = "create it, or correct [content] in vedette.toml"
        return [], [Problem(relative_path, 0, "", "there is no such folder", mend)]
    folders = agent_folders(parent)
    if not folders and what == "agent":
        return [], [
            Problem(relative_path, 0, "", f"holds no {what}", "add a folder with agent.yaml")
        ]
    return folders, []


def _read_banks(
    root: Path, parent: Path, now_us: int
) -> tuple[tuple[BankPlan, ...], list[Problem]]:
    folders, problems = _folders(root, parent, "bank")
    banks = []
    known: dict[str, str] = {}
    for folder in folders:
        bank, found = read_bank(folder, _relative_path(root, folder), now_us, known)
        problems += found
        if bank is not None:
            banks.append(bank)
    return tuple(banks), problems


def _source_problems(settings: Settings, folder: Path, relative_path: str) -> list[Problem]:
    """Foreign code is what nobody here wrote: the hands run it in a box, or not at all."""
    if settings.isolation.is_boxed or not has_foreign_source(folder):
        return []
    what = "is the code of an imported agent, which would run beside the engine's keys"
    mend = 'write workers = "processes" and box = "kernel" in [isolation], or remove the agent'
    return [Problem(f"{relative_path}/{SOURCE}", 0, "", what, mend, code="not-boxed")]


def _collection_problems(root: Path, agents: Mapping[str, Agent]) -> list[Problem]:
    """A lease is on an agent's key: nothing would keep two agents' writes to one row in order."""
    owners: dict[str, str] = {}
    problems = []
    for agent in agents.values():
        collection = agent.collection
        if collection is None or owners.setdefault(collection, agent.name) == agent.name:
            continue
        folder = Path(agent.folder)
        document, _ = read_yaml(folder / "agent.yaml", f"{_relative_path(root, folder)}/agent.yaml")
        what = f"{collection!r} is the collection of {owners[collection]}: two would write its rows"
        mend = f"name another one, here and in the rows that its tools write: {agent.name}"
        problems.append(document.problem(("collection",), what, mend))
    return problems


def _asks_problems(root: Path, agents: Mapping[str, Agent], names: set[str]) -> list[Problem]:
    """Who is asked must be there and take tasks; what its own folder lacks is said of that."""
    problems = []
    for agent in agents.values():
        asks = () if agent.work is None else agent.work.asks
        for at, name in enumerate(asks):
            asked = agents.get(name)
            if name == agent.name:
                what, mend = f"{name!r} would ask itself", "remove it: its own items do that"
            elif name not in names:
                what = f"{name!r} is no agent of this fleet"
                mend = did_you_mean(name, sorted(names - {agent.name}))
            elif asked is not None and asked.work is None:
                what, mend = f"{name!r} takes no tasks", f"add work: {{}} to {name}/agent.yaml"
            elif name in asks[:at]:
                what, mend = f"{name!r} is named twice", "keep one"
            else:
                continue
            folder = Path(agent.folder)
            relative_path = f"{_relative_path(root, folder)}/agent.yaml"
            document, _ = read_yaml(folder / "agent.yaml", relative_path)
            problems.append(document.problem(("work", "asks", at), what, mend))
    return problems


def _reader_problems(
    root: Path, parent: Path, banks: tuple[BankPlan, ...], agents: set[str]
) -> list[Problem]:
    """A reader or writer that is no agent is a right given to whoever takes the name next."""
    return [
        Problem(
            f"{_relative_path(root, parent / bank.name)}/bank.yaml",
            0,
            f"scopes.{scope}.{right}",
            f"{name!r} is no agent of this fleet",
            "remove it until there is one",
            warning=True,
        )
        for bank in banks
        for right, scopes in (("readers", bank.scopes), ("writers", bank.writers))
        for scope, names in scopes.items()
        for name in names
        if name not in agents
    ]


def _served_problems(
    settings: Settings, agents: Mapping[str, Agent], folders: set[str]
) -> list[Problem]:
    """Whoever is served calls its tools itself, so nothing else may reason for it."""
    problems = []
    for served in settings.served_agents:
        agent = agents.get(served.agent)
        if agent is not None and agent.reasoner != "client":
            what = f"{agent.name!r} is reasoned for by {agent.reasoner!r}, not by its client"
            mend = f"write reasoner: client in {agent.name}/agent.yaml, or remove it here"
        elif served.agent not in folders:
            what = f"{served.agent!r} is no agent of this fleet"
            mend = did_you_mean(served.agent, sorted(folders))
        else:
            continue
        problems.append(Problem("vedette.toml", 0, "serve.agents", what, mend))
    return problems


def _relative_path(root: Path, path: Path) -> str:
    """Name a path relative to the root where it lies inside."""
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return str(path)
