"""The public surface: `vedette.sdk`, `vedette.judging`, `vedette.testing`, and nothing else.

What stands in `agents/`, `samples/` and the docs is what people copy, so it may import no more.
Agents are loaded by path, where import-linter does not see them: their imports are read here.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTENT = ("vedette.sdk", "vedette.judging")
LAZY = ("vedette.sdk", "vedette.testing")
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def imported(code: str) -> Iterator[tuple[int, str]]:
    """Line and module of every import of the engine; `from vedette import x` is `vedette.x`."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
            if node.module == "vedette":
                names = [f"vedette.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "vedette")


def private(code: str, allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{line}: {name}"
        for line, name in imported(code)
        if not any(name == each or name.startswith(f"{each}.") for each in allowed)
    ]


def content() -> list[Path]:
    return [path for top in ("agents", "samples") for path in sorted((ROOT / top).rglob("*.py"))]


@pytest.mark.parametrize("path", content(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_content_imports_the_public_surface_alone(path: Path) -> None:
    allowed = (*CONTENT, "vedette.testing") if "tests" in path.parts else CONTENT
    assert private(path.read_text(), allowed) == []


def test_the_docs_show_the_public_surface_alone() -> None:
    shown = [
        (page, code)
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        for code in _PYTHON.findall(page.read_text())
    ]
    assert shown
    assert [(page.name, *private(code, (*CONTENT, "vedette.testing"))) for page, code in shown] == [
        (page.name,) for page, _ in shown
    ]


def test_a_private_import_would_be_seen() -> None:
    code = "import vedette.app\nfrom vedette import domain\nfrom vedette.sdkx import y\n"
    assert private(code, CONTENT) == [
        "1: vedette.app",
        "2: vedette.domain",
        "3: vedette.sdkx",
    ]
    assert private("from vedette.sdk import Call\nfrom . import effect\n", CONTENT) == []


@pytest.mark.parametrize("name", LAZY)
def test_every_name_is_there_and_known_to_the_type_checker(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(module.__all__) == sorted(set(module.__all__)) == sorted(dir(module))
    assert all(getattr(module, each) is not None for each in module.__all__)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (alias.asname or alias.name): (node.module, alias.name)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for public, (home, private) in seen.items():
        assert getattr(module, public) is getattr(importlib.import_module(str(home)), private)
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(module.__all__) == set(seen) | own
    with pytest.raises(AttributeError, match="no attribute 'gone'"):
        module.gone  # noqa: B018 (asked for what is not there)


@pytest.mark.parametrize("name", LAZY)
def test_the_reference_names_all_of_it(name: str) -> None:
    text = (ROOT / "docs" / "reference" / "sdk.md").read_text()
    page = text.split(f"## `{name}`")[1].split("\n## ")[0]
    named = {word for cell in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
             for word in re.findall(r"`(\w+)", cell)}  # fmt: skip
    assert named == set(importlib.import_module(name).__all__)


def test_a_tool_loads_no_client_that_it_does_not_name() -> None:
    code = "import sys\nfrom vedette.sdk import Call, Outcome, RowWrite, Permanent, failpoint\n"
    code += "print(*(m for m in sys.modules if m.startswith('vedette.adapters')))\n"
    code += "from vedette.sdk import send_mail\n"
    code += "print(*(m for m in sys.modules if m.startswith('vedette.adapters')))\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "",
        "vedette.adapters vedette.adapters.mail vedette.adapters.mail.smtp",
    ]
