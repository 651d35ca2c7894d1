"""Performs the tools of a review on the files of one target. All are idempotent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vedette.sdk import Call, Outcome, RowWrite

from .archive import MAX_PAPERS, Archive, Refused, Unreadable, week_before
from .sources import find_wrong, render

COLLECTION = "weekly_reviews"


def list_documents(call: Call) -> Outcome:
    """List the papers of a week: those that one review reads, and the ids of those beyond."""

    def act(archive: Archive) -> dict[str, Any]:
        week = call.args.get("week") or week_before(call.args.get("before", ""))
        papers = [{"id": id, "bytes": size} for id, size in archive.papers(week).items()]
        left_out = [one["id"] for one in papers[MAX_PAPERS : 2 * MAX_PAPERS]]
        return {
            "week": week, "documents": papers[:MAX_PAPERS], "left_out": left_out,
            "of": len(papers),
        }  # fmt: skip

    return _guarded(act, call)


def read_document(call: Call) -> Outcome:
    """Read a paper, and note that this run has read it; of one that is no text, say why."""

    def act(archive: Archive) -> dict[str, Any]:
        id = call.args["document"]
        try:
            text = archive.text(id)
        except Unreadable as unreadable:
            return {"document": id, "unreadable": str(unreadable)}
        archive.note_read(id, text)
        return {"document": id, "text": text}

    return _guarded(act, call)


def list_incidents(call: Call) -> Outcome:
    """List the incidents of a week, and note that this run has read them."""

    def act(archive: Archive) -> dict[str, Any]:
        found = archive.incidents(call.args["week"])
        for one in found:
            archive.note_read(f"incidents/{one['id']}", one["summary"])
        return {"week": call.args["week"], "incidents": found}

    return _guarded(act, call)


def write_report(call: Call) -> Outcome:
    """Write the report if each of its claims has its sources; else say what is wrong."""

    def act(archive: Archive) -> dict[str, Any]:
        week, claims = call.args["week"], call.args["claims"]
        wrong, unsourced = find_wrong(archive, week, claims)
        told = {"week": week, "claims": len(claims), "unsourced": unsourced, "wrong": wrong}
        if unsourced or not claims:
            return {**told, "unsourced": unsourced or 1, "wrong": wrong or ["it claims nothing"]}
        text = render(archive, week, claims, call.args["set_aside"], f"{call.agent}, {call.run}")
        return {**told, "path": archive.write_report(week, text), "report": text}

    return _guarded(act, call)


def file_follow_ups(call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
    """File what is to be followed up in the row of the review; a schedule's row is its last one."""
    follow_ups = [{**one, "state": "open"} for one in call.args["follow_ups"]]
    filed = {"week": call.args["week"], "run": call.run, "follow_ups": follow_ups}
    return [RowWrite(COLLECTION, call.args["review"], filed)]


def send_follow_up(call: Call) -> Outcome:
    """Put a message into the outbox, whence a mail transfer agent takes it."""
    if not call.person:
        # Policy holds these for a person; should it ever not, nothing leaves either.
        return Outcome(
            "failed", error="what leaves the house is decided by a person, and nobody did"
        )

    def act(archive: Archive) -> dict[str, Any]:
        names = ("to", "week", "subject", "text")
        message = {**{name: call.args[name] for name in names}, "run": call.run, "key": call.key}
        return {"path": archive.write_message(call.key, message), "to": call.args["to"]}

    return _guarded(act, call)


def _guarded(act: Callable[[Archive], dict[str, Any]], call: Call) -> Outcome:
    try:
        return Outcome("done", act(Archive(call.target, call.run)))
    except Refused as refused:
        return Outcome("failed", error=str(refused))
    except OSError as error:
        # A full disk or a missing mount passes; every tool may be repeated.
        return Outcome("retry", error=f"{error.strerror or error}")
