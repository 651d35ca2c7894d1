"""docs/glossary.md holds: each term is defined, each word of a module's name is listed."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import vedette

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(vedette.__file__).parent
TERMS, WORDS = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").split("\n## Words\n")
# Where a term stands: vedette.module, vedette.module:Name or vedette.module:Class.field.
_PLACE = re.compile(r"`vedette\.([\w.]+)(?::(\w+)(?:\.(\w+))?)?`")


def rows(text: str, columns: int) -> list[tuple[str, ...]]:
    """Return the cells of each row of the tables in `text`, heads left out."""
    lines = (line for line in text.splitlines() if line.startswith("| "))
    cells = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]
    assert all(len(row) == columns for row in cells), [row for row in cells if len(row) != columns]
    return [row for row in cells if row[0] not in ("Term", "Word", "---")]


def singular(word: str) -> str:
    """Return a word without the ending of its plural."""
    if word.endswith("ies") and word != "series":
        return word[:-3] + "y"
    if re.search(r"(ss|x|ch|sh)es$", word):
        return word[:-2]
    return re.sub(r"(?<![sui])s$", "", word) if word != "series" else word


def spoken(name: str) -> str:
    """Return a name as one says it: words in lower case, in the singular."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_", " ", name).split()
    return " ".join(singular(part.lower()) for part in parts)


def find(body: list[ast.stmt], name: str) -> ast.AST | None:
    """Return the definition of a name in the body of a module or a class."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign):
            names = [ast.unparse(node.target)]
        else:
            names = []
        if name in names:
            return node
    return None


def fault(term: str, place: str) -> str | None:
    """Return what is wrong with where a term is said to be defined, or None."""
    found = _PLACE.fullmatch(place)
    if found is None:
        return "not of the form `vedette.module:Name`"
    module, name, field = found.groups()
    path = PACKAGE.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.exists():
        return "no such module"
    if name is None:
        return None if spoken(module.rpartition(".")[2]) == spoken(term) else "another name"
    node = find(ast.parse(path.read_text(encoding="utf-8")).body, name)
    if node is None:
        return "no such name"
    if field is None:
        return None if spoken(name) == spoken(term) else "another name"
    if not isinstance(node, ast.ClassDef) or (member := find(node.body, field)) is None:
        return "no such field"
    about = ast.get_docstring(node) or ""
    if isinstance(member, ast.FunctionDef):
        about += ast.get_docstring(member) or ""
    # The name itself, the object of a verb (`wait_for_barrier`), or what the docstring calls it.
    named = f" {spoken(field)}".endswith(f" {spoken(term)}")
    if named or re.search(rf"\b{term}\b", about, re.IGNORECASE):
        return None
    return "a field of another name, not documented as this"


def words_of_modules() -> Iterator[str]:
    """Yield the words of the names of all modules and packages."""
    for path in PACKAGE.rglob("*.py"):
        for part in path.relative_to(PACKAGE).with_suffix("").parts:
            if not part.startswith("__"):
                yield from part.split("_")


def differences(listed: set[str], used: set[str]) -> tuple[set[str], set[str]]:
    """Return the words that are used and not listed, and those that are listed and not used."""
    unlisted = {word for word in used if not {word, singular(word)} & listed}
    return unlisted, listed - used - {singular(word) for word in used}


def test_every_term_is_defined_where_the_glossary_says() -> None:
    terms = rows(TERMS, 4)
    assert len(terms) > 80
    assert {term: wrong for term, _, place, _ in terms if (wrong := fault(term, place))} == {}


def test_every_term_has_a_meaning_and_a_source_and_stands_once() -> None:
    terms = rows(TERMS, 4)
    assert [row for row in terms if not all(row)] == []
    assert [term for term, n in Counter(spoken(row[0]) for row in terms).items() if n > 1] == []


def test_the_words_of_module_names_are_those_listed() -> None:
    listed = [word for word, meaning in rows(WORDS, 2) if meaning]
    assert [word for word, n in Counter(listed).items() if n > 1] == []
    assert differences(set(listed), set(words_of_modules())) == (set(), set())


def test_what_is_wrong_is_found() -> None:
    """Negative control."""
    assert fault("Event", "`vedette.domain.event:Event`") is None
    assert fault("Event", "vedette.domain.event") == "not of the form `vedette.module:Name`"
    assert fault("Event", "`vedette.domain.nothing`") == "no such module"
    assert fault("Event", "`vedette.domain.event:Nothing`") == "no such name"
    assert fault("Run", "`vedette.domain.event:Event`") == "another name"
    assert fault("Run", "`vedette.domain.event`") == "another name"
    assert fault("Hops", "`vedette.domain.event:Event.nothing`") == "no such field"
    assert fault("Idempotency key", "`vedette.domain.event:Event.id`") == (
        "a field of another name, not documented as this"
    )
    assert differences({"policy", "seat"}, {"policies", "berth"}) == ({"berth"}, {"seat"})
