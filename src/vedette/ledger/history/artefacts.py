"""An artefact as people read it: what it is of, and a range of its content."""

from __future__ import annotations

from typing import Any

from vedette.domain.artefact import MAX_RANGE_CHARS, READERS
from vedette.domain.base.errors import BadCommand, NotFound
from vedette.domain.ports.store import StoreReader


def read_artefact(
    record: StoreReader, id: str, offset: int = 0, length: int = MAX_RANGE_CHARS
) -> dict[str, Any]:
    """Return a range of an artefact, at most what an agent may read at once, and whose it is.

    `next` is where to go on, None at its end. With its content erased, or edited, `text` is None
    and it is said to be `erased`. Raises NotFound for an id that no artefact has, BadCommand for a
    range that is none.
    """
    if offset < 0 or not 0 < length <= MAX_RANGE_CHARS:
        what = f"from {offset} on {length} characters are no range of an artefact"
        raise BadCommand(what, mend=f"begin at 0 or later, and read 1 to {MAX_RANGE_CHARS} at once")
    stored = record.runs.artefact(id)
    if stored is None:
        mend = "`vedette explain RUN` shows the artefacts of a run"
        raise NotFound(f"there is no artefact {id!r}", mend=mend)
    about = {
        "artefact": stored.id, "seq": stored.seq, "run": stored.run, "agent": stored.agent,
        "action": stored.action, "tool": stored.tool,
    }  # fmt: skip
    artefact = stored.artefact
    if artefact is None:
        nothing = dict.fromkeys(("type", "label", READERS, "size", "offset", "text", "next"))
        return {**about, **nothing, "erased": True}
    part = artefact.read_range(stored.id, offset, length)
    return {
        **about,
        "type": artefact.type,
        "label": artefact.label,
        READERS: part.get(READERS),
        "size": part["size"],
        "offset": offset,
        "text": part["text"],
        "next": part.get("next"),
        "erased": False,
    }
