"""`vedette replay`: every recorded decision, made again from the record alone."""

from __future__ import annotations

import click

from vedette.cli.common import as_json_option, dumps, reading, say, settings_of, table


@click.command()
@as_json_option
@click.pass_context
def replay(ctx: click.Context, as_json: bool) -> int:
    """Decide every recorded decision again and compare.

    Needs nothing but the record: the exact questions and the bundles are in it. Exits with 1 if
    one came out otherwise or cannot be made again though nobody erased it.
    """
    from vedette.adapters.rego.stage import SubprocessStage
    from vedette.replay import replay as again

    with reading(settings_of(ctx)) as store:
        report = again(store, SubprocessStage().load)
    value = report.to_json()
    words = ("permit", "hold", "deny")
    rows = [
        [str(revision), *(f"{found.get(word, 0):,}" for word in words)]
        for revision, found in value["revisions"].items()
    ]
    lines = []
    if rows:
        lines = [table(["revision", "permit", "hold", "deny"], rows), ""]
    lost = sum(value["unreplayable"].values())
    why = ", ".join(f"{number:,} {reason}" for reason, number in value["unreplayable"].items())
    lines.append(
        f"{value['decisions']:,} decisions: {value['agreed']:,} agreed, "
        f"{value['differed']:,} differed, {lost:,} unreplayable" + (f" ({why})" if why else "")
    )
    for difference in value["differences"][:10]:
        lines.append(
            f"entry {difference['seq']}: recorded {dumps(difference['recorded'])}, "
            f"again {dumps(difference['again'])}"
        )
    say(as_json, value, "\n".join(lines))
    return 0 if value["ok"] else 1
