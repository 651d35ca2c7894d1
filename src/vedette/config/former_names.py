"""Former names: where an agent's code finds what it imports by a name of before.

An agent's folder is a person's own, and each of its releases is kept in the state folder, to judge
again by: neither can be edited when a module of ours moves. What `vedette init` ever wrote into
agents' code is found by its former name for as long as such code may be there.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Each former module: where it lies, and what is named otherwise there.
FORMER_MODULES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "vedette.adapters.adk.tools": ("vedette.sdk", {}),
    "vedette.adapters.imap_source.address": (
        "vedette.adapters.mail.imap.address",
        {
            "BEGINNING": "PREFIX_BYTES",
            "Address": "MailAddress",
            "read_address": "read_mail_address",
        },
    ),
    "vedette.adapters.imap_source.folder_name": (
        "vedette.adapters.mail.imap.folder_name",
        {"quoted": "quote_name"},
    ),
    "vedette.adapters.imap_source.pool": ("vedette.sdk", {"session_of": "mail_session"}),
    "vedette.adapters.imap_source.session": ("vedette.sdk", {"Session": "MailSession"}),
    "vedette.adapters.smtp": ("vedette.sdk", {"deliver": "send_mail"}),
    "vedette.crashpoint": ("vedette.sdk", {"reach": "failpoint"}),
    "vedette.effect": ("vedette.sdk", {}),
    "vedette.errors": ("vedette.sdk", {}),
    "vedette.judging.alarms": ("vedette.judging.alarm_policy", {}),
    "vedette.judging.binary": ("vedette.judging.binary_classifier", {}),
    "vedette.judging.extra": ("vedette.judging.side_features", {}),
    "vedette.judging.hours": ("vedette.judging.hourly_profile", {}),
    "vedette.judging.lexicon": ("vedette.judging.word_groups", {"find": "find_terms"}),
    "vedette.judging.lookalikes": ("vedette.judging.confusables", {}),
    "vedette.judging.normalise": ("vedette.judging.normaliser", {}),
    "vedette.judging.ranks": ("vedette.judging.rank_anomaly", {}),
    "vedette.judging.ridge": ("vedette.judging.kernel_svm", {}),
    "vedette.judging.tails": ("vedette.judging.extreme_values", {}),
    "vedette.judging.words": ("vedette.judging.common_words", {}),
    "vedette.publish": ("vedette.sdk", {}),
}
_PACKAGES = frozenset(name.rpartition(".")[0] for name in FORMER_MODULES) - {
    "vedette",
    "vedette.adapters",
    "vedette.judging",
}


class _FormerLoader:
    """Makes a module of a former name, which has what lies elsewhere now."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType | None:
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        home, renamed = FORMER_MODULES.get(module.__name__, ("", {}))

        def find_name(name: str) -> Any:
            if not home or name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return getattr(importlib.import_module(home), renamed.get(name, name))

        module.__dict__["__getattr__"] = find_name


class FormerFinder:
    """Finds the modules of FORMER_MODULES, for those who import them by their former names."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in FORMER_MODULES and fullname not in _PACKAGES:
            return None
        return ModuleSpec(fullname, _FormerLoader(), is_package=fullname in _PACKAGES)  # type: ignore[arg-type]
