"""docs/reference/ is what the schemas say; UPDATE=1 with pytest on this file writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tools import reference

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_the_reference_is_what_the_schemas_say(name: str) -> None:
    text = reference.pages()[name]
    if os.environ.get("UPDATE"):
        DOCS.mkdir(exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")
    assert (DOCS / name).read_text(encoding="utf-8") == text, "run it again with UPDATE=1"


def test_no_key_of_the_settings_is_left_out() -> None:
    page = reference.pages()["vedette-toml.md"]
    from vedette.config.settings_file import SettingsFile

    assert all(f"| `{key}` |" in page for key in SettingsFile.fields())
    assert "| `not_a_key` |" not in page
