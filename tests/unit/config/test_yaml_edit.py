"""Edits by lines: what people wrote around them stays, and what is not plain is refused."""

from __future__ import annotations

import pytest

from vedette.config.yaml_edit import NotEditable, add_list_item, copy_block, set_line, set_value

TEXT = """\
# Who may do what.
clerk:
  mode: act   # since spring
  tools:
    letter.file: {verb: move}
    # It cannot be taken back.
    letter.send: {verb: send}
  memory: [desk/letters]

# The guard of the night.
guard:
    tools: {}
"""


def test_a_value_is_set_and_its_comment_stays() -> None:
    assert set_value(TEXT, ["clerk", "mode"], "ask") == TEXT.replace(
        "mode: act   # since spring", "mode: ask   # since spring"
    )


def test_a_value_that_is_missing_is_added_first_with_the_indent_of_its_block() -> None:
    assert set_value(TEXT, ["guard", "mode"], "observe") == TEXT.replace(
        "guard:\n", "guard:\n    mode: observe\n"
    )


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("clerk: {mode: act}\n", ["clerk", "mode"]),
        ("clerk:\n  mode: [act]\n", ["clerk", "mode"]),
        ("clerk:\n  mode:\n    act\n", ["clerk", "mode"]),
        ('clerk:\n  mode: "act"\n', ["clerk", "mode"]),
        ("# clerk:\n", ["clerk", "mode"]),
        ("other:\n  clerk:\n    mode: act\n", ["clerk", "mode"]),
    ],
)
def test_what_is_not_a_plain_word_in_its_own_line_is_refused(text: str, path: list[str]) -> None:
    with pytest.raises(NotEditable):
        set_value(text, path, "ask")


def test_a_key_deeper_down_is_not_taken_for_one_above() -> None:
    text = "clerk:\n  tools:\n    mode: move\n  mode: act\n"
    assert set_value(text, ["clerk", "mode"], "ask") == text.replace("mode: act", "mode: ask")


def test_a_block_is_copied_behind_itself_with_its_comments_and_not_the_next_ones() -> None:
    copied = copy_block(TEXT, ["clerk"], "porter")
    block = TEXT[TEXT.index("clerk:") : TEXT.index("\n\n# The guard") + 1]
    assert copied == TEXT.replace(block, block + block.replace("clerk:", "porter:", 1))


def test_a_line_is_replaced_whatever_it_says() -> None:
    assert set_line("a: b\ntitle: Sorts: mail\n", ["title"], '"x: y"') == 'a: b\ntitle: "x: y"\n'
    with pytest.raises(NotEditable):
        set_line("title:\n  Sorts\n", ["title"], "x")


def test_an_item_is_added_where_the_other_is_named_and_nowhere_else() -> None:
    text = (
        "scopes:\n  - name: a\n    readers: [clerk, guard]   # two\n    writers: []\n"
        "  - readers:\n      - guard\n      - clerk # the first\n    topics: [clerk]\n"
    )
    assert add_list_item(text, "porter", "clerk", ("readers", "writers")) == (
        "scopes:\n  - name: a\n    readers: [clerk, porter, guard]   # two\n    writers: []\n"
        "  - readers:\n      - guard\n      - clerk # the first\n      - porter\n"
        "    topics: [clerk]\n"
    )


def test_an_item_that_is_there_is_not_added_again() -> None:
    once = add_list_item("readers: [clerk]\n", "porter", "clerk", ("readers",))
    assert add_list_item(once, "porter", "clerk", ("readers",)) == once
