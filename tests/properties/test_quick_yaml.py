"""The quick reader of YAML says what the full readers say, or leaves the text to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vedette.errors import BadPolicy
from vedette.load import policy_data as data
from vedette.load.quick_yaml import quick_yaml
from vedette.load.yaml_file import parse_fully, parse_yaml

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = sorted(
    path
    for folder in ("agents", "memory", "policies")
    for path in (ROOT / folder).rglob("*")
    if path.suffix == ".yaml" or (path.suffix == ".md" and "memory" in path.parts)
)
FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.S | re.M)

# What stands in files by hand, and what differs between readers of YAML.
SCALARS = [
    "a", "word", "two words", "null", "true", "false", "True", "NULL", "~", "yes", "no", "on",
    "0", "7", "-3", "007", "0x1f", "0o17", "1_000", "1e3", "1.5", "-0.25", ".5", "5.", "+1", "-0",
    "2026-03-31", "2026-13-31", "2026-03-31 10:00", "12:30", "1:30:00", "10s", "5m", "1h", "1d",
    '"quoted"', "'single'", "'it''s'", '"a\\n"', '"\\u0456d\\u200b"', '"\\U0001f44d x" # y',
    '"\\ud800"', '"a \\"b\\" c"', '"\\x41"', '"\\u12"', '"\\\\"',
    '"a # b"', "'x: y'", "a#b", "a # b", "a: b", "a:",
    "[a, b]", "[]", "{}", "{a: b}", "{a: [b, {c: 1}]}", "[a, ]", "[a,b]", "[ a , b ]", "{a: }",
    "[1, -2, 0.5, true, null]", '["x, y", \'z\']', "[two words, x]", "{a b: c}", "[a: b]", "[a]]",
    "/event/data", "a/b*", "mail.*", "@state/x", "*alias", "&anchor a", "!tag a", "%x", "`x", "? a",
    "- a", "-a", "-", "|", ">", "|-", ">-", "|+", "|2", ">- # why", "<<", "=", "\u00e9t\u00e9",
    "(x)", "<x>", "_x", "x\ty", "x\u0085y", "x ", "", "# only", ".inf", ".nan", "Y", "n", "null x",
]  # fmt: skip
PLAIN = ["a", "word", "two words", "7", "0", "-3", "1.5", "true", "null", '"quoted"', "'s'", "10s",
         "2026-03-31", "/event/data", "[a, b]", "[]", "{a: b, c: [1]}", "a # said"]  # fmt: skip
NAMES = ["a", "b", "key", "a.b", "/path", '"quoted"', "two words", "long_name"]


@st.composite
def blocks(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """Return the lines of a mapping or a list, right but for a scalar now and then."""
    mapping = depth == 0 or draw(st.booleans())
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    lines: list[str] = []
    for name in names:
        head = f"{name}:" if mapping else "-"
        kind = draw(st.sampled_from(["plain", "plain", "odd", "block", "text", "nothing"]))
        if kind == "block" and depth < 3:
            inner = draw(blocks(depth + 1))
            if not mapping and draw(st.booleans()):
                lines += [f"- {inner[0]}", *(f"  {line}" for line in inner[1:])]
            else:
                pad = " " * draw(st.sampled_from([2, 2, 4]))
                if mapping and inner[0].startswith("-"):
                    pad = draw(st.sampled_from(["", pad]))
                lines += [head, *(pad + line for line in inner)]
        elif kind == "text":
            style = draw(st.sampled_from(["|", ">", "|-", ">-"]))
            rows = draw(st.lists(st.sampled_from(["one", "two: 2", "# three"]), min_size=1))
            lines += [f"{head} {style}", *(f"  {row}" for row in rows)]
        else:
            odd = kind == "odd" and draw(st.integers(0, 3)) == 0
            value = draw(st.sampled_from(SCALARS if odd else PLAIN))
            lines.append(head if kind == "nothing" else f"{head} {value}")
        if draw(st.integers(0, 9)) == 0:
            lines.append(draw(st.sampled_from(["", "# said", "   ", "  # said"])))
    return lines


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Return text that is YAML or nearly so; one line of some is not where it was."""
    lines = draw(blocks())
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(lines) - 1))
        change = draw(st.sampled_from(["indent", "outdent", "drop", "twice", "odd"]))
        line = lines[at]
        lines[at : at + 1] = {
            "indent": [" " + line],
            "outdent": [line.removeprefix(" ")],
            "drop": [],
            "twice": [line, line],
            "odd": [line + draw(st.sampled_from([" #c", ":", " ", ",", " x", '"', "]"]))],
        }[change]
    return "\n".join(lines) + draw(st.sampled_from(["\n", "", "\n\n"]))


def text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        return text
    front = FRONT.match(text)
    return front[1] if front else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_shipped_files_are_read_quickly_and_alike(path: Path) -> None:
    text = text_of(path)
    if not text:
        pytest.skip("a page for people, without front matter")
    quick = quick_yaml(text, 2)
    assert quick is not None
    full, problems = parse_fully(text, path.name, 2)
    assert (problems, quick) == ([], (full.value, full.lines))


@settings(max_examples=400, deadline=None)
@given(documents())
@example("a: >-\n  one\n  two\nb: |\n  x\n    y\n\n  z\nc:\n- 1\n- d: 2\n  e: 3\n")
@example("a: |\n\n  late\n")
@example("a: >\n  one\n\n  two\n")
@example("a: b\n  c\n")
@example("a: 'b\n  c'\n")
@example("- a\n -b\n")
def test_what_it_reads_is_what_the_full_reader_reads(text: str) -> None:
    quick = quick_yaml(text)
    if quick is None:
        return
    full, problems = parse_fully(text, "t.yaml")
    assert (problems, full.value, full.lines) == ([], *quick)
    assert _kinds(full.value) == _kinds(quick[0])


@settings(deadline=None)
@given(documents())
def test_what_it_reads_of_policy_data_is_what_the_strict_reader_reads(text: str) -> None:
    quick = quick_yaml(text, scalar=data._quick_scalar)
    if quick is None:
        return
    try:
        full = data._fully("data.yaml", text)
    except BadPolicy as error:
        raise AssertionError(f"read {quick[0]!r}, which is refused: {error}") from error
    assert _kinds(full) == _kinds(quick[0])


def test_it_reads_a_good_part_of_them() -> None:
    """The control: were it to leave everything to the full reader, nothing would be compared."""
    read: list[bool] = []

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(documents())
    def look(text: str) -> None:
        read.append(quick_yaml(text) is not None)

    look()
    assert len(read) / 4 < sum(read) < len(read)


def test_an_error_keeps_its_line() -> None:
    assert quick_yaml("a: 1\nb: [\n") is None
    _, problems = parse_yaml("a: 1\na: 2\n", "t.yaml")
    assert [(problem.line, problem.what) for problem in problems] == [(2, 'key "a" is given twice')]


def _kinds(value: object) -> object:
    """Return a value in which 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {key: _kinds(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_kinds(item) for item in value]
    return (type(value).__name__, value)
