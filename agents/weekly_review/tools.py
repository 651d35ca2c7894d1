"""Performs the tools of a review on the files of one target. All are idempotent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vedette.sdk import Call, Outcome, RowWrite

from .archive import MAX_PAPERS, Archive, Refused, Unreadable, week_before
from .sources import Week, render

COLLECTION = "weekly_reviews"
# An outcome of more than 16 KiB is told by reference: a list ends before that.
_MAX_LIST_BYTES = 12_000
# So many weeks of follow-ups stay in the row of a review.
_MAX_WEEKS = 12


def list_documents(call: Call) -> Outcome:
    """List the papers of a week that one review reads, as many as one answer holds.

    `next` is where the list goes on. Of the week that is named as `unread`, those are listed that
    this run has not read as they are now.
    """

    def act(archive: Archive) -> dict[str, Any]:
        unread = call.args.get("unread") or ""
        week = unread or call.args.get("week") or week_before(call.args.get("before") or "")
        papers = archive.papers(week)
        listed = [{"id": id, "bytes": size} for id, size in list(papers.items())[:MAX_PAPERS]]
        if unread:
            listed = [one for one in listed if _is_unread(archive, one["id"])]
        start = max(0, call.args.get("from") or 0)
        page = _page(listed[start:])
        end = start + len(page)
        return {
            "week": week, "documents": page, "next": end if end < len(listed) else None,
            "of": len(papers), "left_out": max(0, len(papers) - MAX_PAPERS),
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
    """List the incidents of a week that one answer holds, and note that this run has read them."""

    def act(archive: Archive) -> dict[str, Any]:
        found = archive.incidents(call.args["week"])
        told = _page(found)
        for one in told:
            archive.note_read(f"incidents/{one['id']}", one["summary"])
        left_out = len(found) - len(told)
        return {"week": call.args["week"], "incidents": told, "left_out": left_out}

    return _guarded(act, call)


def write_report(call: Call) -> Outcome:
    """Write the report if each of its claims has its sources; else say what is wrong.

    `unread` is how many papers this run could read and has not; only a report that was written has
    a number there.
    """

    def act(archive: Archive) -> dict[str, Any]:
        if (answer := archive.answered(call.key)) is not None:
            return answer
        args = call.args
        week, claims = Week(archive, args["week"]), args["claims"]
        wrong, at_fault, unsourced = week.find_wrong(claims)
        if not claims and not week.says_nothing():
            wrong, unsourced = ["it claims nothing"], 1
        told = {"week": week.week, "claims": len(claims), "unsourced": unsourced, "wrong": wrong}
        if unsourced:
            return {**told, "at_fault": at_fault, "unread": None}
        by = f"{call.agent}, {call.run}"
        text = render(week, claims, args.get("follow_ups") or (), args["set_aside"], by)
        told = {**told, "unread": len(week.unread), "report": text}
        return archive.write_report(week.week, call.key, told)

    return _guarded(act, call)


def file_follow_ups(call: Call, row: Mapping[str, Any] | None) -> list[RowWrite]:
    """File what is to be followed up in the row of the review, by week: a schedule has one row."""
    week = call.args["week"]
    follow_ups = [{**one, "state": "open"} for one in call.args["follow_ups"]]
    filed = {**(row or {}).get("weeks", {}), week: {"run": call.run, "follow_ups": follow_ups}}
    kept = dict(sorted(filed.items())[-_MAX_WEEKS:])
    return [RowWrite(COLLECTION, call.args["review"], {"weeks": kept})]


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


def _page(listed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first ones of a list that an answer holds."""
    page: list[dict[str, Any]] = []
    room = _MAX_LIST_BYTES
    for one in listed:
        room -= len(json.dumps(one, ensure_ascii=False).encode()) + 1
        if room < 0 and page:
            break
        page.append(one)
    return page


def _is_unread(archive: Archive, id: str) -> bool:
    try:
        return bool(archive.why_unread(id))
    except Unreadable:
        return False


def _guarded(act: Callable[[Archive], dict[str, Any]], call: Call) -> Outcome:
    try:
        return Outcome("done", act(Archive(call.target, call.run)))
    except Refused as refused:
        return Outcome("failed", error=str(refused))
    except OSError as error:
        # A full disk or a missing mount passes; every tool may be repeated.
        return Outcome("retry", error=f"{error.strerror or error}")
