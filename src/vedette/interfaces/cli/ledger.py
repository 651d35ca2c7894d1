"""`vedette ledger`: verify, export and prove what happened."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli.archive import archive
from vedette.interfaces.cli.common import (
    as_json_option,
    print_result,
    program,
    sanitize_text,
    settings_of,
    store_reader,
)
from vedette.interfaces.cli.reconstruct import reconstruct

if TYPE_CHECKING:
    from vedette.adapters.ledger_export import VerifiableLedger
    from vedette.config.settings import Settings
    from vedette.ledger.verify import Report

_MAX_SHOWN = 20

archive_option = click.option(
    "--archive",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where `ledger archive` put what came before.",
)


@click.group()
def ledger() -> None:
    """Verify, export, prove, archive and reconstruct the ledger."""


ledger.add_command(archive)
ledger.add_command(reconstruct)


@ledger.command("verify")
@click.argument("export", required=False, type=click.Path(path_type=Path))
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
@click.option("--deep", is_flag=True, help="Also rows, decisions and judgements, made again.")
@archive_option
@as_json_option
@click.pass_context
def ledger_verify(
    ctx: click.Context,
    export: Path | None,
    key: Path | None,
    witness: Path | None,
    no_bodies: bool,
    deep: bool,
    archive: Path | None,
    as_json: bool,
) -> int:
    """Verify the fleet's ledger, or an EXPORT of one, or one entry's proof; offline.

    Finds changed, missing and reordered entries, a tail cut before the last witnessed checkpoint,
    and a fork. Content that was erased is said to be so and is no finding; so is what a restore
    lost, as far as the ledger records it. With --deep it also does what `store check`, `replay` and
    `replay --judges` do: not offline from an EXPORT, since it runs the agents' judges. Exits with 1
    on any.
    """
    if deep and export is not None:
        mend = "leave EXPORT away, where the fleet's store and its agents are"
        raise BadCommand("--deep needs the store and the judges", where=str(export), mend=mend)
    if export is not None and not export.exists():
        mend = "name the folder of an export, or the file of a proof"
        raise BadCommand("there is no such export or proof", where=str(export), mend=mend)
    if export is not None and export.is_file():
        return _verify_proof(export, key, as_json)
    report = _build_report(ctx, export, key, witness, not no_bodies, archive)
    value = report.to_json()
    lines = [_text(value)]
    if deep:
        value["deep"], told = _verify_deep(settings_of(ctx))
        value["ok"] = value["ok"] and value["deep"]["ok"]
        lines += told
    print_result(as_json, value, "\n".join(lines))
    return 0 if value["ok"] else 1


def _verify_deep(settings: Settings) -> tuple[dict[str, Any], list[str]]:
    """Hold rows, decisions and judgements against the entries; return what is said of them."""
    from vedette.app.judge_releases import rejudge_store
    from vedette.domain.base.clock import SystemClock
    from vedette.interfaces.cli.replay import judge_lines, replay_decisions

    with store_reader(settings) as store, store.snapshot():
        odd = [sanitize_text(str(one)) for one in store.audit()]
        decisions = replay_decisions(settings, store)
        judgements = rejudge_store(settings, store, SystemClock()).to_json()
    lines = [f"FOUND {one}" for one in odd[:_MAX_SHOWN]] or ["every row is what the ledger says"]
    if len(odd) > _MAX_SHOWN:
        lines.append(f"… and {len(odd) - _MAX_SHOWN:,} more rows")
    unlike = sum(decisions["unreplayable"].values())
    lines.append(
        f"{decisions['decisions']:,} decisions: {decisions['agreed']:,} agreed, "
        f"{decisions['differed']:,} differed, {unlike:,} unreplayable"
    )
    ok = not odd and decisions["ok"] and judgements["ok"]
    told = {"ok": ok, "rows": odd, "decisions": decisions, "judgements": judgements}
    return told, [*lines, *judge_lines(judgements)]


def _build_report(
    ctx: click.Context,
    export: Path | None,
    key: Path | None,
    witness: Path | None,
    bodies: bool,
    archive: Path | None,
) -> Report:
    from vedette.adapters.ledger_export import LedgerExport, verify_store
    from vedette.ledger.merkle import ProofError

    try:
        if export is not None:
            read = LedgerExport(export)
            line = read.key if key is None else _read_key(key)
            seen = witness or read.witness
            return verify_store(
                _join_archive(archive, read),
                line,
                _require_witness(seen, witness),
                bodies=bodies and read.has_bodies,
            )
        state = settings_of(ctx).state
        with store_reader(settings_of(ctx)) as store:
            line = _read_key(key or state / "ledger.pub")
            seen = witness or state / "witness.log"
            record = _join_archive(archive, store)
            return verify_store(
                record, line, _require_witness(seen, witness), bodies=bodies,
                one_witness=settings_of(ctx).store.kind == "sqlite",
            )  # fmt: skip
    except ProofError as error:
        raise BadCommand(f"the key cannot be used: {error}", mend="give --key FILE") from error


def _join_archive(archive: Path | None, record: VerifiableLedger) -> VerifiableLedger:
    """Put an archive before a record, if one is named."""
    from vedette.adapters.ledger_export import Archive, JoinedLedger

    return record if archive is None else JoinedLedger(Archive(archive), record)


def _require_witness(path: Path, named: Path | None) -> Path:
    """A witness that was named must be there: without it less is verified than was asked for."""
    if named is not None and not path.is_file():
        raise BadCommand("there is no such witness file", where=str(path))
    return path


def _read_key(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        mend = "give --key FILE, a copy of the fleet's ledger.pub"
        raise BadCommand("the verifier key cannot be read", where=str(path), mend=mend) from error


def _text(value: dict[str, Any]) -> str:
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
    for finding in value["findings"][:_MAX_SHOWN]:
        lines.append(f"FOUND {finding['code']}: {sanitize_text(finding['sentence'])}")
    total = sum(value["counts"].values())
    if total > _MAX_SHOWN:
        lines.append(f"… and {total - _MAX_SHOWN:,} more")
    lines.append("the ledger stands" if value["ok"] else f"{total:,} findings")
    return "\n".join(lines)


def _verify_proof(file: Path, key: Path | None, as_json: bool) -> int:
    from vedette.adapters.ledger_export import (
        CONSISTENCY,
        verify_consistency_proof,
        verify_inclusion_proof,
    )
    from vedette.ledger.merkle import ProofError

    if key is None:
        raise BadCommand("a proof is worth what its key is", mend="give --key FILE")
    line = _read_key(key)
    try:
        proof = json.loads(file.read_bytes())
        if isinstance(proof, dict) and proof.get("schema") == CONSISTENCY:
            before, after = verify_consistency_proof(proof, line)
            grown: dict[str, Any] = {"ok": True, "from": before.size, "to": after.size}
            print_result(
                as_json, grown, f"the ledger of {before.size:,} entries grew to {after.size:,}"
            )
            return 0
        point = verify_inclusion_proof(proof, line)
    except (ValueError, ProofError) as error:
        print_result(
            as_json, {"ok": False, "why": str(error)}, f"FOUND: {sanitize_text(str(error))}"
        )
        return 1
    value = {"ok": True, "seq": proof["seq"], "entry": proof["entry"], "size": point.size}
    print_result(
        as_json, value, f"entry {proof['seq']} stands in the ledger of {point.size:,} entries"
    )
    return 0


@ledger.command("export")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--bodies", is_flag=True, help="With content: whoever gets it can read it.")
@as_json_option
@click.pass_context
def ledger_export(ctx: click.Context, folder: Path, bodies: bool, as_json: bool) -> None:
    """Write the ledger into FOLDER, for anybody to verify."""
    from vedette.adapters.ledger_export import export

    settings = settings_of(ctx)
    with store_reader(settings) as store:
        told = export(
            store,
            folder.absolute(),
            verifier_key=_read_key(settings.state / "ledger.pub"),
            witness=settings.state / "witness.log",
            bodies=bodies,
        )
    with_bodies = f", {told['bodies']:,} bodies" if told["bodies"] is not None else ""
    text = f"{told['entries']:,} entries{with_bodies} in {folder}"
    text += f"\n{program()} ledger verify {shlex.quote(str(folder))}"
    print_result(as_json, told, text)


@ledger.command("prove")
@click.argument("seq", type=int, required=False)
@click.option(
    "--since",
    metavar="SIZE",
    type=int,
    help="Instead: that the checkpoint of SIZE entries is a beginning of the newest one.",
)
@archive_option
@as_json_option
@click.pass_context
def ledger_prove(
    ctx: click.Context, seq: int | None, since: int | None, archive: Path | None, as_json: bool
) -> None:
    """Print the proof that entry SEQ stands in the ledger; it is JSON either way.

    Checked anywhere by `vedette ledger verify FILE --key ledger.pub`.
    """
    from vedette.adapters.ledger_export import prove_consistency, prove_inclusion

    if (seq is None) is (since is None):
        raise BadCommand("say what to prove", mend="give the SEQ of an entry, or --since SIZE")
    with store_reader(settings_of(ctx)) as store:
        record = _join_archive(archive, store)
        proof = (
            prove_inclusion(record, seq)
            if seq is not None
            else prove_consistency(record, since or 0)
        )
        click.echo(json.dumps(proof, indent=2))
