"""What the text of somebody's agent says, without being run."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from vedette.config.foreign_agent import (
    ForeignTool,
    SourceText,
    make_imports_relative,
    read_foreign_agent,
)
from vedette.domain.base.errors import BadFleet


@pytest.mark.parametrize(
    ("path", "code", "made"),
    [
        ("agent.py", "from desk.tools import f", "from .tools import f"),
        ("agent.py", "from desk import tools", "from . import tools"),
        ("a/b.py", "from desk.a.c import f", "from ..a.c import f"),
        ("a/b.py", "from desk import a", "from .. import a"),
        ("a/__init__.py", "if True:\n    from desk.a.b import (\n        f)",
         "if True:\n    from ..a.b import (\n        f)"),
        ("agent.py", "'é'; from  desk.tools import f", "'é'; from .tools import f"),
        ("agent.py", "from desks.tools import f", "from desks.tools import f"),
        ("agent.py", "from .desk import f", "from .desk import f"),
        ("agent.py", "x = 'from desk.tools import f'", "x = 'from desk.tools import f'"),
        ("data.txt", "from desk.tools import f", "from desk.tools import f"),
    ],
)  # fmt: skip
def test_imports_of_its_own_are_made_relative(path: str, code: str, made: str) -> None:
    assert make_imports_relative(code.encode(), path, "desk").decode() == made


def test_hosts_and_variables_are_found_in_texts() -> None:
    code = """
import os
# https://comment.example
URL = f"https://user:word@API.Example.com:8443/{os.environ['TOKEN']}"
OTHER = os.getenv("OTHER", "wss://events.example.org/x") or os.environ.get("THIRD")
PLACES = "http://localhost:80/", "ftp://[2001:db8::1]/x", "http://10.0.0.7:8080", "192.0.2.1", "::1"
NONE = os.environ, os.environ.get(URL), "mail@of.example", "{}".get("X"), "1.2.3", "example.net"
"""
    text = SourceText({"a.py": code.encode(), "b.txt": b"https://text.example"})
    assert text.hosts() == [
        "10.0.0.7", "192.0.2.1", "::1", "[2001:db8::1]", "api.example.com", "events.example.org",
        "localhost",
    ]  # fmt: skip
    assert text.variables() == ["OTHER", "THIRD", "TOKEN"]


def test_what_is_no_python_is_refused_by_its_line() -> None:
    with pytest.raises(BadFleet) as refused:
        SourceText({"a/b.py": b"\n(\n"})
    assert refused.value.where == "a/b.py:2"


def faults(
    code: str,
    module: str = "agent",
    *,
    keeps_state: bool = False,
    schema: dict[str, Any] | None = None,
) -> list[str]:
    text = SourceText({"agent.py": code.encode(), "tools/__init__.py": code.encode()})
    tool = ForeignTool("f", module, "", schema, "context")
    return [what for what, _ in text.tool_faults(tool, keeps_state=keeps_state)]


def test_a_function_is_looked_at_where_it_stands() -> None:
    assert faults("def f(context): return 1") == []
    assert faults("async def f(context): return 1", "tools") == []
    assert len(faults("def f(context): return 1", "elsewhere")) == 1
    assert len(faults("f = print")) == 1
    assert faults("def f(context):\n    def g():\n        yield 1\n    return list(g())") == []
    assert len(faults("def f(context):\n    yield 1")) == 1


def test_a_state_is_known_by_any_use_of_it() -> None:
    code = "def f(context):\n    s = context.state\n    s['a'] = 1"
    assert len(faults(code)) == 1
    assert faults(code, keeps_state=True) == []
    shared = "def f(context):\n    context.state['app:a'] = 1"
    assert len(faults(shared, keeps_state=True)) == 1
    assert len(faults("def f(context):\n    g(context)", keeps_state=True)) == 1
    assert faults("def f(context): return 'user: x'") == []


@pytest.mark.parametrize(
    ("parameters", "declared"),
    [
        ("context, boat, amount=1", ["boat"]),
        ("context, boat", ["boat", "amount"]),
        ("context, boat", ["boat", "context"]),
        ("boat", ["boat"]),
        ("context, boat, /", ["boat"]),
    ],
)
def test_what_is_declared_is_what_the_text_has(parameters: str, declared: list[str]) -> None:
    schema = {"properties": {name: {"type": "string"} for name in declared}}
    assert faults(f"def f({parameters}): return 1", schema=schema) != []
    assert faults("def f(boat, context, *, amount=1): return 1", schema={
        "properties": {"boat": {}, "amount": {}}}) == []  # fmt: skip


def test_a_package_is_looked_at_before_a_module_of_its_name() -> None:
    """As Python finds them, so that the text is of what is called."""
    files = {"a.py": b"def f(): return 1", "a/__init__.py": b"def f(*args): return 1"}
    tool = ForeignTool("f", "a", "", None)
    assert [*SourceText(files).tool_faults(tool, keeps_state=False)] != []


DEEP = {
    "minus": "x = " + "-" * 20_000 + "1",
    "attributes": "x = " + "a." * 20_000 + "b",
    "calls": "x = a" + "()" * 20_000,
    "subscripts": "x = a" + "[0]" * 20_000,
}


@pytest.mark.parametrize("kind", sorted(DEEP))
@pytest.mark.timeout(20)
def test_python_that_is_nested_deeply_is_read_or_refused(kind: str) -> None:
    data = DEEP[kind].encode()
    for read in (
        lambda: SourceText({"a.py": data}).variables(),
        lambda: make_imports_relative(data, "a.py", "desk"),
    ):
        with suppress(BadFleet):
            read()


def test_what_a_worker_tells_is_read_by_what_may_become_code() -> None:
    told: dict[str, Any] = {"name": "x", "description": "", "model": "m", "instruction": "i"}
    tool: dict[str, Any] = {"name": "f", "module": "a.b", "summary": "", "schema": None}
    assert read_foreign_agent({**told, "tools": [tool]}, "source").tools[0].module == "a.b"
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(3000):
        inner["items"] = {}
        inner = inner["items"]
    for changes in (
        {"module": "a import f\nimport os"}, {"module": "a.class"}, {"module": "a."},
        {"module": "a\u00b5"}, {"module": ".a"}, {"context": "x)"}, {"context": "None"},
        {"schema": {"properties": [1]}}, {"schema": {"properties": {"a": deep}}},
        {"summary": "\ud800"}, {"schema": {"default": float("nan")}},
    ):  # fmt: skip
        with pytest.raises(BadFleet) as refused:
            read_foreign_agent({**told, "tools": [{**tool, **changes}]}, "source")
        assert refused.value.mend, changes
    more: dict[str, Any]
    for more in ({"settings": {"http_options": {}}}, {"description": "x" * (1 << 20)}):
        with pytest.raises(BadFleet):
            read_foreign_agent({**told, **more}, "source")
