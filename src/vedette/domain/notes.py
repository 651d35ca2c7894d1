"""Notes: what a turn of a run leaves for the next one, as the JSON text that the turn's body keeps.

As text, so that fractions stay numbers and keys may be in any language: a body has neither.
"""

from __future__ import annotations

from typing import Any

import orjson

from vedette.domain.base.canonical import canonical_json, normalize_numbers
from vedette.domain.base.errors import BadNotes

MAX_NOTES = 65_536  # bytes of JSON with sorted keys, in UTF-8


def encode_notes(notes: Any) -> str:
    """Return notes as JSON with sorted keys. Raises BadNotes for what is none, or too long."""
    try:
        data = canonical_json(normalize_numbers(notes))
    except (ValueError, TypeError, RecursionError) as error:
        mend = "return objects, lists, texts, numbers, booleans and None"
        raise BadNotes(f"the notes of a judgement are no JSON: {error}", mend=mend) from error
    if len(data) > MAX_NOTES:
        what = f"the notes of a judgement have {len(data)} bytes of JSON, at most {MAX_NOTES}"
        raise BadNotes(what, mend="keep sums and references in notes, and what was read in rows")
    return data.decode()


def decode_notes(text: str) -> Any:
    """Return the notes that `encode_notes` wrote."""
    return orjson.loads(text)
