"""`vedette replay`: every recorded decision, or judgement, made again and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.common import (
    as_json_option,
    dumps,
    format_table,
    print_result,
    sanitize_text,
    settings_of,
    store_reader,
)

if TYPE_CHECKING:
    from vedette.config.settings import Settings
    from vedette.domain.bundle import Bundle
    from vedette.domain.ports.policy_engine import PolicyEngine
    from vedette.store.read_runs import StoreReader

_ENGINES = ("regorus", "wasm", "opa")


@click.command()
@click.option(
    "--engine",
    type=click.Choice(_ENGINES),
    default="regorus",
    show_default=True,
    help="Who decides again: regorus, OPA's Wasm, or the program opa itself.",
)
@click.option("--judges", is_flag=True, help="Make the judgements again instead, in order.")
@as_json_option
@click.pass_context
def replay(ctx: click.Context, engine: str, judges: bool, as_json: bool) -> int:
    """Decide every recorded decision again and compare.

    Needs nothing but the record: the exact questions and the bundles are in it. Exits with 1 if
    one came out otherwise or cannot be made again though nobody erased it. With --engine opa it
    asks a server of the program opa, started for this and ended after it: an engine that shares
    no code with the one that decided finds what that one got wrong.

    With --judges it puts the events of each key to their judges again, in the order accepted: of
    the release and the lessons that judged them, boxed as the fleet's are. It names what was judged
    out of order, on another state than the events come to, or otherwise, and a judge that does not
    answer twice alike. What is not at hand any more is counted and said, and is no difference.
    """
    settings = settings_of(ctx)
    if judges:
        from vedette.app.judge_releases import rejudge_store
        from vedette.domain.base.clock import SystemClock

        with store_reader(settings) as store, store.snapshot():
            value = rejudge_store(settings, store, SystemClock()).to_json()
        print_result(as_json, value, "\n".join(judge_lines(value)))
        return 0 if value["ok"] else 1
    with store_reader(settings) as store:
        value = replay_decisions(settings, store, engine)
    words = ("permit", "hold", "deny")
    rows = [
        [str(revision), *(f"{found.get(word, 0):,}" for word in words)]
        for revision, found in value["revisions"].items()
    ]
    lines = []
    if rows:
        lines = [format_table(["revision", "permit", "hold", "deny"], rows), ""]
    lost = sum(value["unreplayable"].values())
    why = ", ".join(f"{number:,} {reason}" for reason, number in value["unreplayable"].items())
    lines.append(
        f"{value['decisions']:,} decisions: {value['agreed']:,} agreed, "
        f"{value['differed']:,} differed, {lost:,} unreplayable" + (f" ({why})" if why else "")
    )
    lines.append(f"decided by {', '.join(value['engine']) or 'nobody'}")
    if value["disputed"]:
        lines.append(
            f"{value['disputed']:,} of them were denied because two engines differed then: "
            "see the entries engine.differed"
        )
    for difference in value["differences"][:10]:
        lines.append(
            f"entry {difference['seq']}: recorded {dumps(difference['recorded'])}, "
            f"again {dumps(difference['again'])}"
        )
    print_result(as_json, value, "\n".join(lines))
    return 0 if value["ok"] else 1


def replay_decisions(
    settings: Settings, store: StoreReader, engine: str = _ENGINES[0]
) -> dict[str, Any]:
    """Return the report of a replay of all decisions."""
    from vedette.policy.replay import replay as again

    with _engine_loader(settings, store, engine) as load:
        return again(store, load).to_json()


def judge_lines(value: Mapping[str, Any]) -> list[str]:
    """Say what came of judging again: `value` is a JudgeReport as JSON."""
    lost = sum(value["unrecomputable"].values())
    why = ", ".join(f"{number:,} {reason}" for reason, number in value["unrecomputable"].items())
    lines = [
        f"{value['judgements']:,} judgements: {value['equal']:,} equal, {value['different']:,} "
        f"different, {lost:,} not made again" + (f" ({why})" if why else ""),
        f"{value['states']:,} kept states compared; "
        f"{value['answers']:,} turns answered by models, or by the engine, as recorded",
    ]
    for one in value["differences"][:10]:
        place = (
            f"entry {one['seq']}, run {one['run']}, event {one['event']}, " if one["seq"] else ""
        )
        lines.append(
            f"FOUND {one['what']}: {place}{one['agent']} key {sanitize_text(one['key'])} at "
            f"{one['position']}: recorded {sanitize_text(dumps(one['recorded']))}, "
            f"again {sanitize_text(dumps(one['again']))}"
        )
    return lines


@contextmanager
def _engine_loader(
    settings: Settings, store: StoreReader, name: str
) -> Iterator[Callable[[Bundle], PolicyEngine]]:
    """Yield what makes an engine of a recorded bundle. Raises BadCommand without opa."""
    if name == "regorus":
        from vedette.adapters.policy_engines.regorus.stage import SubprocessStage

        yield SubprocessStage().load
        return
    if name == "wasm":
        from vedette.app.policy_engines import wasm_maker

        yield wasm_maker(settings, store)
        return
    from vedette.adapters.policy_engines.opa_wasm import find_opa

    opa = find_opa(settings.root)
    if opa is None:
        mend = "put opa on PATH or name it in VEDETTE_OPA"
        raise BadCommand("--engine opa needs the program opa", mend=mend)
    from vedette.adapters.policy_engines.opa import LocalOpaServer

    with LocalOpaServer(opa) as server:
        yield server.load
