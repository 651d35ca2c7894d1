"""Loads once, in the parent, what every child of the crash tests would load again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace
from tests.faults.scenario import Stage, dump, play


def warm(stage: Stage) -> None:
    """Read the content once for all the children to come, in the parent that they are forked from.

    What is kept is said at `keep_content`.
    """
    keep_content()
    # Hundreds of folders lie in memory at a time, each with its spare space.
    spare: Any = import_module("vedette.store.spare_space")
    spare.SPARE_BYTES = 1 << 16
    app: Any = import_module("vedette.app.composition_root")
    # A fleet this small needs no 256 handlers, and making them would be most of a child's work.
    app.Dispatcher = partial(app.Dispatcher, handlers=8)
    if stage.store == "postgresql":
        import_module("vedette.store.postgres")
    with TemporaryDirectory(dir=stage.content) as folder:
        play(dataclasses.replace(stage, store="sqlite"), Path(folder), 0)
        dump(stage, Path(folder))


def keep_content() -> None:
    """Keep pure functions of content that no child changes.

    These are: the loaded fleet, the policy folders, the data that a bundle carries, and where two
    engines differ on the questions that its rules make.
    """
    keep("vedette.config.fleet", "load_fleet", lambda root, settings, **_: root, reload)
    keep("vedette.policy.bundle_data", "mount", lambda files: frozenset(files.items()))
    keep("vedette.adapters.policy_engines.regorus.stage", "read_bundle", lambda folder: folder)
    stage = import_module("vedette.adapters.policy_engines.opa_wasm.stage").WasmStage
    keep(stage, "_compare_engines", lambda _, bundle: bundle.digest)


def reload(loaded: Any) -> Any:
    """Return a loaded fleet for one more life: each has its agents run out of its own snapshots."""
    fleet = loaded.fleet
    return replace(loaded, fleet=replace(fleet, agents=dict(fleet.agents), _match_cache={}))


def keep(
    holder: Any,
    name: str,
    key: Callable[..., object],
    give: Callable[[Any], Any] = lambda found: found,
) -> None:
    """Let a function of a module or a class be done once for each `key` that its arguments have.

    A module may be named. `give` makes what is returned of what is kept.
    """
    place: Any = import_module(holder) if isinstance(holder, str) else holder
    work: Callable[..., Any] = getattr(place, name)
    kept: dict[object, Any] = {}

    def kept_or_done(*args: Any, **named: Any) -> Any:
        its = key(*args, **named)
        if its not in kept:
            kept[its] = work(*args, **named)
        return give(kept[its])

    setattr(place, name, kept_or_done)
