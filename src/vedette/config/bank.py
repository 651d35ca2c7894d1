"""A memory bank, read: bank.yaml and one reviewed memory per Markdown file with front matter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from vedette.config.field import AfterValidator, Field, Shape, json_schema
from vedette.config.problem import Problem, did_you_mean
from vedette.config.shape import check_document
from vedette.config.yaml import Document, parse_yaml, read_text, read_yaml
from vedette.domain.base.canonical import canonical_json, sha256_hex
from vedette.domain.base.clock import from_iso
from vedette.domain.memory import BankPlan, Memory
from vedette.domain.readers import check_reader

MAX_TEXT = 20_000  # characters; a memory that is longer belongs into a document it points to

_NAME = r"^[a-z][a-z0-9_-]*$"
_ID = r"^[a-z0-9][a-z0-9._-]*$"


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise ValueError(f"{text!r} is no date | write it as 2026-03-31") from error


def _check_text(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty | write it out")
    return text.strip()


Day = Annotated[str, AfterValidator(_day)]
NonBlankText = Annotated[str, AfterValidator(_check_text)]
Reader = Annotated[str, AfterValidator(check_reader)]


class BankScopeFile(Shape):
    """A part of a bank with readers of its own. Nobody else reads it, whatever policy says."""

    name: str = Field(description="names the scope", pattern=_NAME)
    readers: list[NonBlankText] = Field(description="agents that may ask to read it")
    writers: list[NonBlankText] = Field(
        default_factory=list, description="agents whose candidates are taken for it"
    )
    permitted_readers: list[Reader] | None = Field(
        default=None, description="to whom what is remembered may be told; left out: to everybody"
    )


class RetentionFile(Shape):
    """How long what was proposed is kept, and recalled once it was promoted."""

    days: int = Field(default=365, ge=1, description="days from its promotion")


class BankFile(Shape):
    """bank.yaml: what a bank is for, its scopes with their readers, its topics."""

    version: Literal[1] = 1
    bank: str = Field(description="the name of the folder", pattern=_NAME)
    purpose: NonBlankText = Field(description="say what the bank is for")
    scopes: list[BankScopeFile] = Field(min_length=1, description="name a scope and its readers")
    topics: list[NonBlankText] = Field(description="the topics a memory may have; [] if none")
    retention: RetentionFile = Field(default_factory=RetentionFile)


class MemoryFile(Shape):
    """The front matter of one memory."""

    id: str = Field(description="unique in all banks, for example house-rules", pattern=_ID)
    scope: str = Field(description="a scope of bank.yaml")
    topics: list[str] = Field(default_factory=list, description="topics of bank.yaml")
    kind: Literal["fact", "procedure", "example"] = Field(
        description="write fact, procedure or example"
    )
    label: NonBlankText | None = Field(default=None, description="what an example is an example of")
    reviewed_by: NonBlankText = Field(description="who reviewed it")
    reviewed_on: Day = Field(description="the date of the review, for example 2026-03-31")
    expires_on: Day | None = Field(
        default=None, description="the last day on which it is recalled, UTC"
    )


def bank_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of bank.yaml, for editors."""
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, **json_schema(BankFile)}


def read_bank(
    folder: Path, relative_path: str, now_us: int, known_ids: dict[str, str]
) -> tuple[BankPlan | None, list[Problem]]:
    """Return the bank of a folder and every problem of it; None if bank.yaml itself is wrong.

    `known_ids` maps the ids of all memories read so far to their files and is added to: a briefing
    cites memories of several banks by id. With `now_us` 0 expiry is not looked at.
    """
    file = f"{relative_path}/bank.yaml"
    if not (folder / "bank.yaml").is_file():
        return None, [Problem(relative_path, 0, "", "has no bank.yaml", "add one, or move it away")]
    document, problems = read_yaml(folder / "bank.yaml", file)
    shape, found = (None, []) if problems else check_document(BankFile, document)
    problems = [*problems, *found]
    if shape is None:
        return None, problems
    problems += _bank_problems(shape, document, folder.name)
    memories = []
    for path in sorted(folder.rglob("*.md")):
        if path.name == "README.md":
            continue
        name = f"{relative_path}/{path.relative_to(folder).as_posix()}"
        memory, found = read_memory(path, name, shape, known_ids)
        problems += found
        if memory is None:
            continue
        memories.append(memory)
        if now_us and memory.expires_us and memory.expires_us <= now_us:
            what = f"memory {memory.id!r} expired and is no longer recalled"
            problems.append(Problem(name, 1, "expires_on", what, "review or remove it", True))
    memories.sort(key=lambda memory: memory.id)
    return _plan(shape, tuple(memories)), problems


def _plan(shape: BankFile, memories: tuple[Memory, ...]) -> BankPlan:
    bank = shape.model_dump()
    for scope in bank["scopes"]:
        # Only where it is declared, so that the digests of all other banks stay what they were.
        if scope["permitted_readers"] is None:
            del scope["permitted_readers"]
    facts = {"bank": bank, "memories": {m.id: m.digest for m in memories}}
    return BankPlan(
        name=shape.bank,
        purpose=shape.purpose,
        scopes={scope.name: tuple(scope.readers) for scope in shape.scopes},
        topics=tuple(shape.topics),
        retention_days=shape.retention.days,
        memories=memories,
        digest=sha256_hex(canonical_json(facts)),
        writers={scope.name: tuple(scope.writers) for scope in shape.scopes},
        permitted_readers={
            scope.name: None
            if scope.permitted_readers is None
            else frozenset(scope.permitted_readers)
            for scope in shape.scopes
        },
    )


def _bank_problems(shape: BankFile, document: Document, folder: str) -> list[Problem]:
    problems = []
    if shape.bank != folder:
        what = f"is {shape.bank!r}, but the folder is {folder!r}"
        problems.append(document.problem(("bank",), what, f"write bank: {folder}"))
    seen: set[str] = set()
    for index, scope in enumerate(shape.scopes):
        if scope.name in seen:
            what = f"scope {scope.name!r} is declared twice"
            problems.append(document.problem(("scopes", index), what, "keep one of the two"))
        seen.add(scope.name)
    for index, topic in enumerate(shape.topics):
        if topic in shape.topics[:index]:
            what = f"topic {topic!r} is declared twice"
            problems.append(document.problem(("topics", index), what, "keep one of the two"))
    return problems


def read_memory(
    path: Path, file: str, bank: BankFile, known_ids: dict[str, str]
) -> tuple[Memory | None, list[Problem]]:
    """Return one memory at revision 0 (the bank store numbers revisions), or every problem."""
    text, problems = read_text(path, file)
    if problems:
        return None, problems
    parts = re.match(r"---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", text, re.S | re.M)
    if parts is None:
        mend = "begin with ---, then id, scope, kind and so on, then ---"
        return None, [Problem(file, 1, "", "has no front matter", mend)]
    document, problems = parse_yaml(parts[1], file, first_line=2)
    shape, found = (None, []) if problems else check_document(MemoryFile, document)
    problems = [*problems, *found]
    if shape is None:
        return None, problems
    body = text[parts.end() :].strip()
    line = text[: parts.end()].count("\n") + 1
    if not body:
        problems.append(Problem(file, line, "", "has no text", "write it under the front matter"))
    elif len(body) > MAX_TEXT:
        what = f"is {len(body)} characters long, the limit is {MAX_TEXT}"
        problems.append(Problem(file, line, "", what, "keep what matters"))
    problems += _memory_problems(shape, document, bank, known_ids)
    known_ids.setdefault(shape.id, file)
    return (None, problems) if problems else (_memory(shape, body, bank.bank), [])


def _memory_problems(
    shape: MemoryFile, document: Document, bank: BankFile, known_ids: Mapping[str, str]
) -> list[Problem]:
    problems = []
    if shape.id in known_ids:
        what = f"{shape.id!r} is the id of {known_ids[shape.id]} already"
        problems.append(document.problem(("id",), what, "give it an id of its own"))
    scopes = [scope.name for scope in bank.scopes]
    if shape.scope not in scopes:
        what = f"bank.yaml has no scope {shape.scope!r}"
        problems.append(document.problem(("scope",), what, did_you_mean(shape.scope, scopes)))
    for place, topic in enumerate(shape.topics):
        if topic not in bank.topics:
            what = f"bank.yaml has no topic {topic!r}"
            mend = did_you_mean(topic, bank.topics)
            problems.append(document.problem(("topics", place), what, mend))
    if shape.kind == "example" and shape.label is None:
        mend = "add label: with what it is an example of"
        problems.append(document.problem(("kind",), "an example needs a label", mend))
    if shape.expires_on is not None and shape.expires_on < shape.reviewed_on:
        what = "lies before the review"
        problems.append(document.problem(("expires_on",), what, "correct one of the two dates"))
    return problems


def _memory(shape: MemoryFile, text: str, bank: str) -> Memory:
    expires_us = 0
    if shape.expires_on is not None:
        expires_us = from_iso((date.fromisoformat(shape.expires_on) + timedelta(1)).isoformat())
    facts = {
        "expires_us": expires_us,
        "kind": shape.kind,
        "label": shape.label,
        "reviewed_by": shape.reviewed_by,
        "reviewed_on": shape.reviewed_on,
        "scope": shape.scope,
        "text": text,
        "topics": shape.topics,
    }
    return Memory(
        id=shape.id,
        bank=bank,
        revision=0,
        scope=shape.scope,
        kind=shape.kind,
        topics=tuple(shape.topics),
        text=text,
        digest=sha256_hex(canonical_json(facts)),
        reviewed_by=shape.reviewed_by,
        reviewed_on=shape.reviewed_on,
        expires_us=expires_us,
        label=shape.label,
    )
