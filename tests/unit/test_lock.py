"""The locks pin everything by hash and say nothing of where it comes from.

A lock that names an index would send every user's machine there; one without hashes would take
whatever an index answers.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "tools/uv-requirements.lock")

HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
# A scheme, an installer's option naming a source, or a direct reference.
PLACE = re.compile(r"://|--(?:extra-)?index|--find-links|--trusted-host|--index-url|^-[if]\s| @ ")
HOST = re.compile(r"\b[\w-]+\.(?:org|com|net|io|dev|cloud|internal|local|localhost)\b")


def pins(text: str) -> dict[str, list[Requirement]]:
    """Requirements of a lock by canonical name (several when a marker chooses a version).

    Raises ValueError, naming the line, for anything that is not a pin with hashes.
    """
    found: dict[str, list[Requirement]] = {}
    for logical in text.replace("\\\n", " ").splitlines():
        stated, _, _comment = logical.partition("# ")
        stated = stated.strip()
        if not stated or stated.startswith("#"):
            continue
        hashes = HASH.findall(stated)
        requirement = Requirement(HASH.sub("", stated).strip())
        operators = [clause.operator for clause in requirement.specifier]
        if operators != ["=="] or "*" in str(requirement.specifier):
            raise ValueError(f"not pinned to one version: {stated[:80]}")
        if not hashes:
            raise ValueError(f"no hash: {stated[:80]}")
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def places(text: str) -> list[str]:
    """Lines that say where a package comes from."""
    return [line for line in text.splitlines() if PLACE.search(line) or HOST.search(line)]


def unmet(project: dict[str, object], locked: dict[str, list[Requirement]]) -> list[str]:
    """Dependencies of a pyproject.toml that no pin of the lock satisfies."""
    wanted = _dependencies(project)
    missing = []
    for text in wanted:
        requirement = Requirement(text)
        found = locked.get(canonicalize_name(requirement.name), [])
        versions = [next(iter(pin.specifier)).version for pin in found]
        if not versions or not all(requirement.specifier.contains(v) for v in versions):
            missing.append(text)
    return missing


def _dependencies(project: dict[str, object]) -> list[str]:
    table = project["project"]
    groups = project["dependency-groups"]
    build = project["build-system"]
    assert isinstance(table, dict)
    assert isinstance(groups, dict)
    assert isinstance(build, dict)
    return [*table["dependencies"], *groups["dev"], *build["requires"]]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_pinned_by_hash(lock: str) -> None:
    assert pins((ROOT / lock).read_text("utf-8"))


@pytest.mark.parametrize("lock", LOCKS)
def test_no_index_host_or_address_is_named(lock: str) -> None:
    assert places((ROOT / lock).read_text("utf-8")) == []


def test_the_lock_covers_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert unmet(project, pins((ROOT / "requirements.lock").read_text("utf-8"))) == []


def test_every_runtime_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    questions = [*project["project"]["dependencies"], *(text for extra in extras for text in extra)]
    stated = {canonicalize_name(Requirement(text).name) for text in questions}
    record = (ROOT / "docs/decisions/0002-runtime-dependencies.md").read_text("utf-8")
    rows = {canonicalize_name(name) for name in re.findall(r"^\| ([a-z][\w.-]*) \|", record, re.M)}
    assert rows == stated


@pytest.mark.parametrize(
    "line",
    [
        "orjson==3.13.0",
        "orjson>=3.13.0 --hash=sha256:" + "0" * 64,
        "orjson==3.* --hash=sha256:" + "0" * 64,
        "orjson==3.13.0 --hash=sha256:" + "0" * 63,
        "orjson --hash=sha256:" + "0" * 64,
    ],
)
def test_a_loose_requirement_is_found(line: str) -> None:
    with pytest.raises(ValueError, match=r"pinned|hash|requirement|Expected"):
        pins(line)


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://packages.example.com/simple",
        "--extra-index-url=mirror",
        "-i mirror",
        "--find-links wheels",
        "orjson @ file:///wheels/orjson.whl",
        "    # from packages.example.com",
    ],
)
def test_a_named_place_is_found(line: str) -> None:
    assert places("orjson==3.13.0 \\\n" + line) == [line]


def test_a_dependency_that_is_not_locked_is_found() -> None:
    project: dict[str, object] = {
        "project": {"dependencies": ["orjson>=3.10", "Ruamel.Yaml>=0.18"]},
        "dependency-groups": {"dev": ["pytest>=99"]},
        "build-system": {"requires": ["absent"]},
    }
    digest = " --hash=sha256:" + "0" * 64
    locked = pins("\n".join(p + digest for p in ("orjson==3.13.0", "ruamel-yaml==1", "pytest==9")))
    assert unmet(project, locked) == ["pytest>=99", "absent"]
