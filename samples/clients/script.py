"""What the models of these samples say: a script stands in for a provider's model.

It writes into the log book, asks to publish the page, and asks for the outcome until it is over.
"""

from __future__ import annotations

import json
from typing import Any

ARRIVALS = "ref:/charter/pages/arrivals"
WRITE = ("book_write", {"page": ARRIVALS, "text": "the Petrel, 06:30"})
PUBLISH = ("book_publish", {"page": ARRIVALS})


def next_call(answers: list[str]) -> tuple[str, dict[str, Any]] | None:
    """Return the next call (tool, arguments) after these answers of tools; None at the end."""
    if not answers:
        return WRITE
    last = json.loads(answers[-1])
    if last.get("status") in ("held", "pending"):
        return "outcome", {"call": last["call"], "wait_s": 10}
    return PUBLISH if len(answers) == 1 else None
