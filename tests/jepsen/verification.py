"""What the product's own verbs find wrong with a fleet that has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.jepsen.engines import vedette

VERBS = (["verify"], ["verify", "rows"], ["verify", "decisions"], ["verify", "judgements"])
_TAKES_S = 1800.0


def verify(
    config: Path, environment: Mapping[str, str], verbs: Sequence[Sequence[str]] = VERBS
) -> list[str]:
    """Return what they find: the ledger, its rows, each decision and each judgement made again.

    Nothing of a trial is archived, erased or changed, so whatever a verb leaves out is a finding.
    """
    found = []
    for verb in verbs:
        name = f"vedette {' '.join(verb)}"
        done = vedette(config, environment, *verb, "--json", timeout_s=_TAKES_S)
        if done.returncode:
            found.append(
                f"{name} ends with {done.returncode}: {(done.stdout + done.stderr)[:1500]}"
            )
            continue
        document = json.loads(done.stdout)
        left_out = document.get("unreplayable") or document.get("unrecomputable")
        if left_out or document.get("judgements") == 0 or document.get("decisions") == 0:
            found.append(f"{name} leaves out {left_out}: {done.stdout[:1500]}")
    return found
