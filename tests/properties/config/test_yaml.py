"""Our reader of YAML says what ruamel.yaml says of it, or refuses the text with its line."""

from __future__ import annotations

import re
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from vedette.config.yaml import Document, parse_yaml
from vedette.config.yaml_edit import block_yaml
from vedette.domain.base.errors import BadPolicy
from vedette.policy.bundle_data import read_data

ROOT = Path(__file__).resolve().parents[3]
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
    "(x)", "<x>", "_x", "x\ty", "x\u0085y", "x\u2028y", "\ufeff", "\tx", "a #\tb", "'a\tb'",
    "a\t# b", "[a,\tb]", "|\t", "|#x", "x ", "", "# only", ".inf", "-.INF", ".nan", "0b1", "0b_",
    "+_", "-_1", "1__0_", "._", "._5e+3", ".5e3", "1.0e400", "1_.5", "99999999999999999999",
    "2026-3-1", "2026-03-31T10:00:00Z", "2026-03-31T25:00:00", "<<: a", "Y", "n", "null x",
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


def oracle(text: str, first_line: int = 1) -> Document | None:
    """Return what ruamel.yaml reads as YAML 1.2 round trip; None for what it does not."""
    try:
        loaded = YAML(typ="rt", pure=True).load(text)
    except (YAMLError, ValueError, LookupError, TypeError, AssertionError):
        return None  # it also falls over a lone sign, merge keys and versions
    lines: dict[tuple[str | int, ...], int] = {(): first_line}
    return Document("t.yaml", _without_its_types(loaded, (), lines, first_line), lines)


def _without_its_types(value: Any, path: tuple[Any, ...], lines: Any, first_line: int) -> Any:
    if isinstance(value, dict):
        plain = {}
        for key, item in value.items():
            name = _without_its_types(key, (), {}, first_line)
            lines[(*path, name)] = value.lc.key(key)[0] + first_line  # type: ignore[attr-defined]
            plain[name] = _without_its_types(item, (*path, name), lines, first_line)
        return plain
    if isinstance(value, list):
        for index in range(len(value)):
            lines[(*path, index)] = value.lc.item(index)[0] + first_line  # type: ignore[attr-defined]
        return [_without_its_types(v, (*path, i), lines, first_line) for i, v in enumerate(value)]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, datetime | date):
        return _Moment(value.isoformat())
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return str(value)


class _Moment(str):
    """A time of the oracle's, which we leave as it was written."""


def _kinds(value: Any, other: Any = None) -> Any:
    """Return a value in which 1, 1.0 and True differ; where `other` has a time, that time."""
    if isinstance(value, dict):
        named = other if isinstance(other, dict) else {}
        return {key: _kinds(item, named.get(key)) for key, item in value.items()}
    if isinstance(value, list):
        others = (
            other if isinstance(other, list) and len(other) == len(value) else [None] * len(value)
        )
        return [_kinds(*pair) for pair in zip(value, others, strict=True)]
    if isinstance(other, _Moment) and isinstance(value, str):
        day, _, time = value.replace("T", " ").partition(" ")
        value = f"{day}T{time}".removesuffix("T").replace("Z", "+00:00")
    return ("str" if isinstance(value, str) else type(value).__name__, repr(value))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_shipped_files_are_read_alike(path: Path) -> None:
    text = text_of(path)
    if not text:
        pytest.skip("a page for people, without front matter")
    document, problems = parse_yaml(text, "t.yaml", 2)
    assert (problems, document) == ([], oracle(text, 2))


@settings(max_examples=400, deadline=None)
@given(documents())
@example("a: >-\n  one\n  two\nb: |\n  x\n    y\n\n  z\nc:\n- 1\n- d: 2\n  e: 3\n")
@example("a: |\n\n  late\n")
@example("a: >\n  one\n\n  two\n")
@example("a: b\n  c\n")
@example("a: 'b\n  c'\n")
@example("- a\n -b\n")
@example("\ufeffa: 1\n")
@example("a: 2026-03-31 10:00:00\n")
@example("a: |\n  x\ty\nb: 'x\n\ty'\n")
def test_what_it_reads_is_what_the_oracle_reads(text: str) -> None:
    document, problems = parse_yaml(text, "t.yaml")
    if problems:
        assert document.value is None
        return
    full = oracle(text)
    assert full is not None, f"read {document.value!r}, which the oracle refuses"
    assert document.lines == full.lines
    assert _kinds(document.value, full.value) == _kinds(full.value)


@settings(deadline=None)
@given(documents())
def test_policy_data_means_the_same_to_readers_of_both_versions(text: str) -> None:
    try:
        found = read_data("data.yaml", text.encode())
    except BadPolicy:
        return
    assert _kinds(found) == _kinds(yaml.safe_load(text))
    assert _kinds(found) == _kinds(YAML(typ="safe", pure=True).load(text))


def test_it_reads_nearly_all_that_the_oracle_reads() -> None:
    """The control: were it to refuse everything, nothing would be compared."""
    read: list[bool] = []

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(documents())
    def look(text: str) -> None:
        if oracle(text) is not None:
            read.append(not parse_yaml(text, "t.yaml")[1])

    look()
    assert len(read) > 100
    assert sum(read) > len(read) * 0.95


REFUSED = [
    ("a: 1\na: 2\n", 2, 'key "a" is given twice', "keep one"),
    ("a: 1\n1: x\n1.0: y\n", 3, 'key "1.0" is given twice', "keep one"),
    ("a: 1\nb: &x 2\n", 2, "anchors and aliases", "write the value out"),
    ("a: 1\nb: *x\n", 2, "anchors and aliases", "write the value out"),
    ("a: 1\nb: !!str 2\n", 2, "tag tag:yaml.org,2002:str", "plain value"),
    ("a: 1\nb: ! 2\n", 2, "tag !", "plain value"),
    ("a: 1\n<<: {b: 2}\n", 2, "merge keys", "write the keys out"),
    ("a: 1\n[b]: 2\n", 2, "a key is a list", "write a word"),
    ("a: 1\n---\nb: 2\n", 2, "another", "keep one"),
    ("%YAML 1.1\n---\na: no\n", 1, "%YAML 1.1", "remove the line"),
    ("a: 1\nb:\tc\n", 2, "tab", "spaces"),
    ("a: 1\n\tb: c\n", 2, "tab character", "spaces"),
    ("a:\n\tb: c\n", 2, "character '\\t'", "spaces"),
    ("a: 'x\ty'\nb: 1 # x\ty\nc: d\te\n", 3, "tab", "spaces"),
    ("a: 1\nb: x\u2028y\n", 2, "\\u2028", "double quotes"),
    ("a: 1\nb: '\u0416\x07'\n", 2, "control characters", "escape"),
    ("a: 1\nb: |#x\n  c\n", 2, "behind |", "a space before"),
    ("a: 1\nb: 2026-02-30\n", 2, "day is out of range", "quote it"),
    ("a: 1\nb: " + "9" * 5000, 2, "4300 digits", "quote it"),
    ("a: 1\nb: " + "[" * 65 + "]" * 65, 2, "deeper than 64", "flatter"),
    ("a: 1\nb: " + "[" * 100_000, 2, "deeper than 64", "flatter"),
    ("a: 1\nb: [\n", 3, "is not YAML", "check indentation"),
]


@pytest.mark.parametrize(
    ("text", "line", "what", "mend"), REFUSED, ids=[case[2] for case in REFUSED]
)
def test_a_refusal_has_its_line_and_its_mend(text: str, line: int, what: str, mend: str) -> None:
    document, problems = parse_yaml(text, "t.yaml")
    assert document.value is None
    assert [problem.line for problem in problems] == [line]
    assert problems[0].code == "not-yaml"
    assert what in problems[0].what
    assert mend in problems[0].mend


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# only\n", r"data.yaml:1: the file is empty \(write \{\} for no data\)"),
        ("a: 1\na: 2\n", 'data.yaml:2: duplicate key "a"'),
        ("a:\n  - 1: b\n", "data.yaml:2: key 1 is not a text"),
        ("a: 1\nb: " + "[" * 33 + "]" * 33, "data.yaml:2: nested deeper than 32"),
        ("a: 1\nb: x | y: no\n", "data.yaml:2: is not YAML"),
        ("a: 1\nb: no\n", "data.yaml:2: 'no' means different things"),
    ],
)
def test_policy_data_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(BadPolicy) as refused:
        read_data("data.yaml", text.encode())
    assert re.match(words, str(refused.value))


def test_every_refusal_is_told_at_once() -> None:
    _, problems = parse_yaml("a: &x 1\na: !y 2\nb:\tc\n", "t.yaml", 5)
    assert [problem.line for problem in problems] == [5, 6, 6, 7]


def test_a_word_of_yaml_1_1_is_a_word() -> None:
    document, _ = parse_yaml("[yes, no, on, off, y, n, 1:30, 010, =]", "t.yaml")
    assert document.value == ["yes", "no", "on", "off", "y", "n", "1:30", 10, "="]


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(SCALARS)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(_TEXTS, _JSON, max_size=4))
@example({"a": {"enum": ["1e3", "0o7", "x", "\x85", "\u2028", "\x7f", "\ufeff", "\U0001f44d"]}})
@example({"n": [1e16, 1e-7, -0.0, 5e-324], "deep": [[{}], [[]], {"a": [{"b": "- c"}]}]})
def test_what_is_written_is_read_as_the_same(value: Any) -> None:
    document, problems = parse_yaml(block_yaml(value), "t.yaml")
    assert not problems
    assert repr(document.value) == repr(value)


def test_letters_that_can_be_read_stay_as_they_are() -> None:
    value = {"title": 'J\u00fcrgens "Boot" \U0001f44d', "zwei W\u00f6rter": "\u200b\U000e0041"}
    assert block_yaml(value) == (
        'title: "J\u00fcrgens \\"Boot\\" \U0001f44d"\n'
        '"zwei W\u00f6rter": "\\u200b\\U000e0041"\n'
    )  # fmt: skip
