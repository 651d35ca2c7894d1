"""Which rules a policy has: the names that it may give as a rule or a reason.

A name is text with a dot in it (`limits.hour`), as the fleet's policies name what decides
(docs/design/policy.md). It is read off the Rego text: a name that is only compared with something,
and what stands in a comment or in a test, is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_COMMENT = re.compile(r"#[^\n]*")
_COMPARED = re.compile(r'(?:==|!=)\s*"[^"\n]*"|"[^"\n]*"\s*(?:==|!=)|\bin\s*[\[{][^\]}]*[\]}]')
_INDEX = re.compile(r'\[\s*"[^"\n]*"\s*\]')
_NAME = re.compile(r'"([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+)(?::[^"\n]*)?"')


def rules_of(files: Mapping[str, bytes]) -> frozenset[str]:
    """Return the names of the rules in a bundle's Rego files, tests aside."""
    found: set[str] = set()
    for path, raw in files.items():
        if path.endswith(".rego") and not path.endswith("_test.rego"):
            text = _COMMENT.sub("", raw.decode("utf-8", "replace"))
            text = _INDEX.sub("", _COMPARED.sub("", text))
            found.update(_NAME.findall(text))
    return frozenset(found)
