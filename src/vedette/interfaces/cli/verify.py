"""`vedette verify`: whether the record is what it should be, afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.app.policy_engines import REPLAY_ENGINES
from vedette.app.stores import store_reader
from vedette.domain.base.clock import SystemClock
from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.fleet import current_settings, parse_since, refuse_options
from vedette.interfaces.cli.output import (
    format_table,
    format_time,
    limit_lines,
    print_result,
    sanitize_text,
)

if TYPE_CHECKING:
    from vedette.adapters.ledger_export import VerifiableLedger
    from vedette.config.settings import Settings
    from vedette.ledger.verify import Report
    from vedette.store.reader import StoreReader

_MAX_FINDINGS, _MAX_TARGET_FINDINGS = 20, 50
_ALL_WELL = "every row is what the ledger says"

archive_option = click.option(
    "--archive",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where `ledger archive` put what came before.",
)


@click.command()
@click.argument("words", metavar="[PART] [EXPORT|TARGET]…", nargs=-1)
@click.option(
    "--key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The verifier key, kept where the fleet cannot write. Default: ledger.pub beside it.",
)
@click.option(
    "--witness",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Checkpoints kept elsewhere; finds a cut and a fork. Default: witness.log beside it.",
)
@click.option("--no-bodies", is_flag=True, help="Leave content aside; entries only.")
@archive_option
@click.option(
    "--engine", type=click.Choice(REPLAY_ENGINES), default=REPLAY_ENGINES[0], show_default=True,
    help="Of decisions: who decides again. regorus, OPA's Wasm, or the program opa itself.",
)  # fmt: skip
@click.option("--since", metavar="TIME", help="Of targets: from an instant (UTC), or 24h, 7d ago.")
@click.option("--repair", is_flag=True, help="Of views: make them anew; the fleet may run.")
def verify(words: tuple[str, ...], **options: Any) -> int:
    """Verify the ledger, offline: the fleet's, an EXPORT of one, or the file of one entry's proof.

    Finds changed, missing and reordered entries, a tail cut before the last witnessed checkpoint,
    and a fork. Content that was erased is said to be so and is no finding; so is what a restore
    lost, as far as the ledger records it. Or PART of what the ledger is the measure of:

    \b
    rows        every row of the store: what it says and what it should say
    views       the tables that lists and counts are read from
    decisions   every decision, made again of the recorded question and bundle
    judgements  every judgement, made again in order by the judge that made it
    targets     the own record of each target, or TARGETs, against the intents
    shipped     the tables in BigQuery that [audit] names
    all         ledger, rows, decisions and judgements

    Works beside a running fleet. Exits with 1 on any finding. What is not at hand any more (erased,
    archived, of another release) is counted and said, and is no finding. To judge again runs the
    agents' judges, boxed as the fleet's are.
    """
    part, names = (
        ("ledger", words) if not words or words[0] not in _PARTS else (words[0], words[1:])
    )
    check, accepted = _PARTS[part]
    refuse_options(options.keys() - set(accepted), f"is for another part than {part}")
    if len(names) > (1 if part == "ledger" else 0) and part != "targets":
        what = f"{names[-1]!r} is too much: what is verified is {part}"
        raise click.UsageError(what, click.get_current_context())
    return check(names, {name: options[name] for name in accepted})


# --- the ledger ------------------------------------------------------------------------------


def _verify_ledger(names: tuple[str, ...], options: Mapping[str, Any]) -> int:
    export = Path(names[0]) if names else None
    if export is not None and not export.exists():
        mend = "name the folder of an export, or the file of a proof"
        raise BadCommand("there is no such export or proof", where=str(export), mend=mend)
    if export is not None and export.is_file():
        return _verify_proof(export, options["key"])
    value = _build_report(export, **options).to_json()
    print_result(value, "\n".join(_report_lines(value)))
    return 0 if value["ok"] else 1


def _verify_all(_names: tuple[str, ...], options: Mapping[str, Any]) -> int:
    """Verify the ledger, then hold rows, decisions and judgements against its entries."""
    from vedette.app.judge_releases import rejudge_store
    from vedette.interfaces.render.replay_text import decision_line, judge_lines

    value = _build_report(None, **options).to_json()
    lines, settings = _report_lines(value), current_settings()
    with store_reader(settings) as store, store.snapshot():
        rows = [sanitize_text(str(one)) for one in store.ledger.row_mismatches()]
        decisions = _replay_decisions(settings, store, REPLAY_ENGINES[0])
        judgements = rejudge_store(settings, store, SystemClock()).to_json()
    ok = not rows and decisions["ok"] and judgements["ok"]
    value["deep"] = {"ok": ok, "rows": rows, "decisions": decisions, "judgements": judgements}
    value["ok"] = value["ok"] and ok
    lines += limit_lines([f"FOUND {one}" for one in rows], _MAX_FINDINGS, "more rows")
    lines += [] if rows else [_ALL_WELL]
    lines += [decision_line(decisions), *judge_lines(judgements)]
    print_result(value, "\n".join(lines))
    return 0 if value["ok"] else 1


def _build_report(
    export: Path | None, key: Path | None, witness: Path | None, no_bodies: bool,
    archive: Path | None,
) -> Report:  # fmt: skip
    from vedette.adapters.ledger_export import LedgerExport, verify_store
    from vedette.ledger.merkle import ProofError

    try:
        if export is not None:
            record = LedgerExport(export)
            return verify_store(
                join_archive(archive, record),
                record.key if key is None else read_key(key),
                _find_witness(witness, record.witness),
                bodies=not no_bodies and record.has_bodies,
            )
        settings = current_settings()
        with store_reader(settings) as store:
            return verify_store(
                join_archive(archive, store.ledger),
                read_key(key or settings.state / "ledger.pub"),
                _find_witness(witness, settings.state / "witness.log"),
                bodies=not no_bodies,
                one_witness=settings.store.kind == "sqlite",
            )
    except ProofError as error:
        raise BadCommand(f"the key cannot be used: {error}", mend="give --key FILE") from error


def join_archive(archive: Path | None, record: VerifiableLedger) -> VerifiableLedger:
    """Put the archive of a verb's --archive before a record, if one is named."""
    from vedette.adapters.ledger_export import Archive, JoinedLedger

    return record if archive is None else JoinedLedger(Archive(archive), record)


def read_key(path: Path) -> str:
    """Read the verifier key of a verb's --key. Raises BadCommand."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        mend = "give --key FILE, a copy of the fleet's ledger.pub"
        raise BadCommand("the verifier key cannot be read", where=str(path), mend=mend) from error


def _find_witness(named: Path | None, default: Path) -> Path:
    """A witness that was named must be there: without it less is verified than was asked for."""
    if named is not None and not named.is_file():
        raise BadCommand("there is no such witness file", where=str(named))
    return named or default


def _report_lines(value: dict[str, Any]) -> list[str]:
    lines = [
        f"{value['size']:,} entries, {value['runs']:,} runs, root {value['root'][:16]}",
        f"signed checkpoints: {value['checkpoints']:,}, good up to entry {value['signed']:,}",
        f"witnessed: {value['witness_checkpoints']:,}, good up to entry {value['witnessed']:,}",
    ]
    if value["archived"]:
        lines.append(f"archived: entries 1 to {value['archived']:,}, not at hand")
    if value["keys"] > 1:
        lines.append(f"keys: {value['keys']}, each handed over by the one before")
    for one in value["restored"]:
        lost = f"entries {one['first']:,} to {one['last']:,} were lost" if one["last"] else ""
        lines.append(f"restored at entry {one['seq']:,}: {lost or 'nothing known was lost'}")
    if value["bodies"] is not None:
        lines.append(f"bodies: {value['bodies']:,} right, {value['erased']:,} erased")
    for finding in value["findings"][:_MAX_FINDINGS]:
        lines.append(f"FOUND {finding['code']}: {sanitize_text(finding['sentence'])}")
    # Of each code only the first findings are kept: the counts have all.
    total = sum(value["counts"].values())
    if total > _MAX_FINDINGS:
        lines.append(f"… and {total - _MAX_FINDINGS:,} more")
    return [*lines, "the ledger stands" if value["ok"] else f"{total:,} findings"]


def _verify_proof(file: Path, key: Path | None) -> int:
    from vedette.adapters.ledger_export import (
        CONSISTENCY,
        verify_consistency_proof,
        verify_inclusion_proof,
    )
    from vedette.ledger.merkle import ProofError

    if key is None:
        raise BadCommand("a proof is worth what its key is", mend="give --key FILE")
    verifier = read_key(key)
    try:
        proof = json.loads(file.read_bytes())
        if isinstance(proof, dict) and proof.get("schema") == CONSISTENCY:
            before, after = verify_consistency_proof(proof, verifier)
            text = f"the ledger of {before.size:,} entries grew to {after.size:,}"
            print_result({"ok": True, "from": before.size, "to": after.size}, text)
            return 0
        point = verify_inclusion_proof(proof, verifier)
    except (ValueError, ProofError) as error:
        print_result({"ok": False, "why": str(error)}, f"FOUND: {sanitize_text(str(error))}")
        return 1
    value = {"ok": True, "seq": proof["seq"], "entry": proof["entry"], "size": point.size}
    print_result(value, f"entry {proof['seq']} stands in the ledger of {point.size:,} entries")
    return 0


# --- rows and views --------------------------------------------------------------------------


def _verify_rows(_names: tuple[str, ...], _options: Mapping[str, Any]) -> int:
    with store_reader(current_settings()) as store, store.snapshot():
        found = list(store.ledger.row_mismatches())
    rows = [
        {"table": odd.table, "row": odd.row, "column": odd.column, "says": _column_json(odd.actual),
         "should": _column_json(odd.expected)}
        for odd in found
    ]  # fmt: skip
    text = "\n".join(sanitize_text(str(odd)) for odd in found) or _ALL_WELL
    print_result({"ok": not rows, "rows": rows}, text)
    return 1 if rows else 0


def _column_json(value: Any) -> Any:
    """Return a value of a column as JSON can tell it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return [_column_json(one) for one in value] if isinstance(value, tuple) else value


def _verify_views(_names: tuple[str, ...], options: Mapping[str, Any]) -> int:
    settings = current_settings()
    if options["repair"]:
        with store_reader(settings) as store:
            number = store.view.rebuild()
        print_result({"rows": number}, f"made {number:,} rows anew from the ledger")
        return 0
    with store_reader(settings) as store:
        rows = [f"{name} {id}".strip() for name, id in store.tables.find_wrong_rows()]
    print_result({"spoilt": rows}, "\n".join(rows) or _ALL_WELL)
    return 1 if rows else 0


# --- decisions and judgements ----------------------------------------------------------------


def _verify_decisions(_names: tuple[str, ...], options: Mapping[str, Any]) -> int:
    from vedette.interfaces.render.replay_text import decision_lines

    settings = current_settings()
    with store_reader(settings) as store:
        value = _replay_decisions(settings, store, options["engine"])
    outcomes = ("permit", "hold", "deny")
    rows = [
        [str(revision), *(f"{found.get(outcome, 0):,}" for outcome in outcomes)]
        for revision, found in value["revisions"].items()
    ]
    table = [format_table(["revision", *outcomes], rows), ""] if rows else []
    print_result(value, "\n".join([*table, *decision_lines(value)]))
    return 0 if value["ok"] else 1


def _replay_decisions(settings: Settings, store: StoreReader, engine: str) -> dict[str, Any]:
    from vedette.app.policy_engines import replay_engine
    from vedette.policy.replay import replay

    with replay_engine(settings, store, engine) as load:
        return replay(store, load).to_json()


def _verify_judgements(_names: tuple[str, ...], _options: Mapping[str, Any]) -> int:
    from vedette.app.judge_releases import rejudge_store
    from vedette.interfaces.render.replay_text import judge_lines

    settings = current_settings()
    with store_reader(settings) as store, store.snapshot():
        value = rejudge_store(settings, store, SystemClock()).to_json()
    print_result(value, "\n".join(judge_lines(value)))
    return 0 if value["ok"] else 1


# --- what others have ------------------------------------------------------------------------


def _verify_targets(names: tuple[str, ...], options: Mapping[str, Any]) -> int:
    from vedette.app.audit_targets import audit_targets

    now_us, since = SystemClock().now_us(), options["since"]
    since_us = 0 if since is None else parse_since(since, now_us, "--since")
    report = audit_targets(current_settings(), names, since_us, now_us)
    lines = []
    if report["archived_before"]:
        lines.append(f"entries before {format_time(report['archived_before'])} are archived")
    for target in report["targets"]:
        lines += _target_lines(target)
    lines += [f"{one['target']}: not audited: {one['why']}" for one in report["skipped"]]
    print_result(
        report, "\n".join([*lines, *([] if report["targets"] else ["nothing was audited"])])
    )
    return 0 if report["ok"] else 1


def _target_lines(target: Mapping[str, Any]) -> list[str]:
    found = [f"FOUND {one['code']}: {sanitize_text(one['what'])}" for one in target["findings"]]
    lines = [
        f"{target['target']}: {target['recorded']:,} in its record, {target['done']:,} of "
        f"{target['intents']:,} intents done, {target['open']:,} open: "
        + (f"{len(found):,} findings" if found else "as the ledger says")
    ]
    if target["erased"]:
        lines.append(f"  of {target['erased']:,} intents the content is erased")
    if target["kept_since"]:
        lines.append(f"  its record begins at {format_time(target['kept_since'])}")
    shown = limit_lines(found, _MAX_TARGET_FINDINGS, "more (--json has all)")
    return lines + [f"  {line}" for line in shown]


def _verify_shipped(_names: tuple[str, ...], _options: Mapping[str, Any]) -> int:
    from vedette.app.ledger_followers import check_shipped

    found = check_shipped(current_settings())
    lines = [f"{name}: {one['rows']:,} rows" for name, one in found["tables"].items()]
    lines += [
        f"FOUND in {name}: {what}" for name, one in found["tables"].items() for what in one["wrong"]
    ]
    lines.append(f"compared up to entry {found['last']:,} of {found['head']:,}")
    print_result(found, "\n".join(lines))
    return 0 if found["ok"] else 1


_Check = Callable[[tuple[str, ...], Mapping[str, Any]], int]
_LEDGER_OPTIONS = ("key", "witness", "no_bodies", "archive")
# What is verified: by which function, and with which of the options.
_PARTS: Mapping[str, tuple[_Check, tuple[str, ...]]] = {
    "ledger": (_verify_ledger, _LEDGER_OPTIONS),
    "all": (_verify_all, _LEDGER_OPTIONS),
    "rows": (_verify_rows, ()),
    "views": (_verify_views, ("repair",)),
    "decisions": (_verify_decisions, ("engine",)),
    "judgements": (_verify_judgements, ()),
    "targets": (_verify_targets, ("since",)),
    "shipped": (_verify_shipped, ()),
}
