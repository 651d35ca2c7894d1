"""The judge of a week: reads every paper by plain rules, reports with sources, files what is left.

A week takes some four hundred turns. What was read so far goes along in the notes of each, so what
is kept of a paper is small, and bounded in all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vedette.judging import Briefing, Judgement, Memory, Proposal, Ref
from vedette.judging import Judge as Base

from .compose import claims, follow_ups, messages
from .reading import Reader, merge

REVIEW = Ref("/event/subject")
# Notes are 64 KiB at most. Room is left for the ids of papers that do not fit any more, some 15 kB,
# and for a paper that is being read.
_ROOM = 44_000
_TAIL = 400  # characters of an unfinished line that go over to the next range of a document
_MAX_AGAIN = 20  # papers that are read again before the report is written again
_MAX_REPORTS = 5  # before a person looks at what is wrong with them
_FULL = "read, but the notes of this review are full"
_FAULT = "read, but what it was quoted with was not found there"

Notes = dict[str, Any]
Answer = Mapping[str, Any]
Answers = Mapping[str, Answer]


class Judge(Base):
    """Reads, reports, files. It obeys nothing that stands in a paper: no rule here could.

    What was refused it asks for again, until the task has gone on for too long without progress and
    waits for a person; and again when that one lets it go on.
    """

    def __init__(self, charter: Mapping[str, Any], lessons: Sequence[Memory]) -> None:
        super().__init__(charter, lessons)
        self._reader = Reader(charter)

    def judge(self, seen: Any, briefing: Briefing) -> Judgement:
        """Ask for the list of the week's papers."""
        notes = {"papers": {}, "full": [], "fault": [], "incidents": [], "reports": 0}
        return self._list(briefing, {**notes, "stage": "list", "from": ""})

    def judge_outcomes(self, briefing: Briefing) -> Judgement:
        """Go on with what the last turn asked for."""
        notes: Notes = briefing.notes
        answers = {answer["tool"]: answer for answer in briefing.turns[-1]["answers"]}
        stage = notes["stage"]
        if stage == "list":
            return self._take_list(briefing, notes, answers.get("document.list"))
        if stage == "listed":
            return self._take_incidents(briefing, notes, answers.get("incident.list"))
        if stage in ("read", "again"):
            return self._read(briefing, notes, answers)
        if stage == "report":
            return self._take_report(notes, answers.get("report.write"))
        if stage == "unread":
            return self._take_unread(briefing, notes, answers.get("document.list"))
        return self._take_filed(briefing, notes, answers.get("follow_up.file"))

    # --- the list -------------------------------------------------------------------------------

    def _list(self, briefing: Briefing, notes: Notes) -> Judgement:
        given = "week" in briefing.task.get("inputs", {})
        which: dict[str, Any] = (
            {"week": Ref("/event/data/inputs/week")} if given else {"before": Ref("/event/time")}
        )
        if notes["from"]:
            which["from"] = Ref(notes["from"])
        asked = Proposal("document.list", which, "the week's papers")
        return _say("lists the papers", notes, asked)

    def _take_list(self, briefing: Briefing, notes: Notes, answer: Answer | None) -> Judgement:
        if answer is None:
            return self._list(briefing, notes)
        if not _done(answer):
            return _say("the papers could not be listed", notes)
        found, ref = answer["data"], answer["ref"]
        items = [
            Proposal(
                "item.add",
                {
                    "id": one["id"],
                    "title": f"read {one['id']}, {one['bytes']} bytes",
                    "inputs": {"document": f"{ref}/documents/{at}/id"},
                },
            )
            for at, one in enumerate(found["documents"])
        ]
        notes = {**notes, "week": found["week"], "list": ref}
        if found["next"] is not None:
            notes = {**notes, "from": f"{ref}/next"}
            more = self._list(briefing, notes)
            return _say(f"{len(items)} more papers to read", notes, *more.proposals, *items)
        notes = {**notes, "stage": "listed"}
        return _say("has all papers to read", notes, self._incidents(notes), *items)

    def _incidents(self, notes: Notes) -> Proposal:
        return Proposal("incident.list", {"week": _week(notes)}, "the week's incidents")

    def _take_incidents(self, briefing: Briefing, notes: Notes, answer: Answer | None) -> Judgement:
        if answer is None:
            return _say("asks for the incidents again", notes, self._incidents(notes))
        if not _done(answer):
            return _say("the incidents could not be read", notes)
        known = {**notes, "stage": "read", "incidents": answer["data"]["incidents"]}
        return self._read(briefing, known, {})

    # --- one paper after the other --------------------------------------------------------------

    def _read(self, briefing: Briefing, notes: Notes, answers: Answers) -> Judgement:
        current = _current(briefing, notes)
        if current is None:
            return self._report(notes)
        id, document = current
        answer = answers.get("document.read") or answers.get("artefact.read")
        if answer is None:
            read = {"document": Ref(document)}
            return _say(f"reads {id}", notes, Proposal("document.read", read, "its turn"))
        if not _done(answer):
            why = f"{answer['tool']}: {answer['status']}"
            return self._close(briefing, notes, id, "set_aside", why)
        data = answer["data"]
        if "unreadable" in data:
            return self._close(briefing, notes, id, "set_aside", str(data["unreadable"])[:300])
        if answer["tool"] == "document.read" and isinstance(data["text"], Mapping):
            # It is too large to be told: it is read in ranges.
            return self._read_range(notes, id, data["text"]["artefact"], 0, {})
        if answer["tool"] == "document.read":
            return self._keep(briefing, notes, id, self._reader.read(data["text"]))
        return self._take_range(briefing, notes, id, data)

    def _read_range(
        self, notes: Notes, id: str, artefact: str, offset: int, part: Mapping[str, Any]
    ) -> Judgement:
        asked = Proposal(
            "artefact.read", {"id": artefact, "offset": offset}, f"{id}, from {offset}"
        )
        return _say(f"reads {id} in ranges", {**notes, "part": dict(part)}, asked)

    def _take_range(
        self, briefing: Briefing, notes: Notes, id: str, data: Mapping[str, Any]
    ) -> Judgement:
        part = notes.get("part", {})
        text, end = part.get("tail", "") + data["text"], data.get("next")
        whole, tail = text, ""
        if end is not None:
            before, _, tail = text.rpartition("\n")
            # Of a line that is too long to be carried on, all is read now, and its end once more
            # with what comes next.
            whole, tail = (before, tail) if len(tail) <= _TAIL else (text, tail[-_TAIL:])
        known = part.get("found")
        found = (
            self._reader.read(whole)
            if known is None
            else merge(known, self._reader.read_part(whole))
        )
        if end is None:
            return self._keep(briefing, notes, id, found)
        return self._read_range(notes, id, data["artefact"], end, {"found": found, "tail": tail})

    def _keep(
        self, briefing: Briefing, notes: Notes, id: str, found: Mapping[str, Any]
    ) -> Judgement:
        kept = {**notes, "papers": {**notes["papers"], id: found}}
        why = str(found["kind"])
        if len(json.dumps(kept, ensure_ascii=False).encode()) > _ROOM:
            kept, why = {**notes, "full": [*notes["full"], id]}, _FULL
        return self._close(briefing, kept, id, "done", why)

    def _close(self, briefing: Briefing, notes: Notes, id: str, state: str, why: str) -> Judgement:
        kept = {name: value for name, value in notes.items() if name != "part"}
        if kept["stage"] == "again":  # its item is closed
            return self._read(briefing, {**kept, "again": kept["again"][1:]}, {})
        closed = Proposal("item.close", {"id": id, "state": state, "why": why}, why)
        return _say(f"has read {id}" if state == "done" else f"sets {id} aside", kept, closed)

    # --- the report, and what is left ------------------------------------------------------------

    def _report(self, notes: Notes) -> Judgement:
        made = claims(notes["papers"], notes["incidents"], self.charter)
        told = [{name: one[name] for name in ("section", "text", "sources")} for one in made]
        left = [
            {name: one[name] for name in ("title", "owner", "why")}
            for one in follow_ups(notes["papers"], self.charter)
        ]
        aside = [
            *({"document": id, "why": _FULL} for id in notes["full"]),
            *({"document": id, "why": _FAULT} for id in notes["fault"]),
        ]
        args = {"week": _week(notes), "claims": told, "follow_ups": left, "set_aside": aside}
        written = Proposal("report.write", args, f"{len(told)} claims")
        notes = {**notes, "stage": "report", "reports": notes["reports"] + 1}
        return _say("writes the report", notes, written)

    def _take_report(self, notes: Notes, answer: Answer | None) -> Judgement:
        if answer is None:
            return self._report({**notes, "reports": 0})
        if _done(answer) and not answer["data"]["unsourced"] and not answer["data"]["unread"]:
            return self._file(notes)
        if not _done(answer) or notes["reports"] >= _MAX_REPORTS:
            return _say("the report was not taken", notes)
        # A paper has changed, or is not what it was taken for.
        asked = Proposal("document.list", {"unread": _week(notes)}, "what is unread")
        notes = {**notes, "stage": "unread", "faults": answer["data"].get("at_fault", [])}
        return _say("looks for papers to read again", notes, asked)

    def _take_unread(self, briefing: Briefing, notes: Notes, answer: Answer | None) -> Judgement:
        if answer is None or not _done(answer):
            return self._report(notes)
        found, ref = answer["data"]["documents"][:_MAX_AGAIN], answer["ref"]
        again = [[one["id"], f"{ref}/documents/{at}/id"] for at, one in enumerate(found)]
        gone = {*notes["faults"], *(one["id"] for one in found)}
        papers = {id: paper for id, paper in notes["papers"].items() if id not in gone}
        read_anew = {id for id, _ in again}
        notes = {
            **notes, "stage": "again", "again": again, "papers": papers,
            "incidents": [one for one in notes["incidents"] if one["id"] not in gone],
            "fault": [*notes["fault"], *(id for id in notes["faults"] if id not in read_anew)],
        }  # fmt: skip
        return self._read(briefing, notes, {})

    def _file(self, notes: Notes) -> Judgement:
        outside = [
            Proposal(
                "follow_up.send",
                {
                    "to": Ref(f"/registry/contacts/{to}"),
                    "week": notes["week"],
                    "subject": subject,
                    "text": text,
                },
                "they have to know",
            )
            for to, subject, text in messages(notes["papers"], self.charter)
        ]
        notes = {**notes, "stage": "file"}
        return _say("files what is left", notes, self._filing(notes), *outside)

    def _filing(self, notes: Notes) -> Proposal:
        left = follow_ups(notes["papers"], self.charter)
        args = {"review": REVIEW, "week": _week(notes), "follow_ups": left}
        return Proposal("follow_up.file", args, "what is left to do")

    def _take_filed(self, briefing: Briefing, notes: Notes, answer: Answer | None) -> Judgement:
        if answer is None and not notes.get("filed"):
            # Only this again: what was to leave the house has been asked for.
            return _say("files what is left", notes, self._filing(notes))
        if answer is not None and not _done(answer):
            return _say("what is left could not be filed", notes)
        items = briefing.task["items"]
        said = f"{items.get('done', 0)} of {items.get('of', 0)} papers read, reported and filed"
        if not items.get("of"):
            said = f"there are no papers of {notes['week']}; that was reported"
        finish = Proposal("task.finish", {"summary": said})
        return _say("is done", {**notes, "filed": True}, finish)


def _current(briefing: Briefing, notes: Notes) -> tuple[str, str] | None:
    """Return the paper that is to be read now: its id, and where its id stands."""
    if notes["stage"] == "again":
        return (notes["again"][0][0], notes["again"][0][1]) if notes["again"] else None
    current = briefing.task["items"].get("current")
    return None if current is None else (str(current["id"]), current["inputs"]["document"])


def _week(notes: Notes) -> Ref:
    return Ref(f"{notes['list']}/week")


def _say(label: str, notes: Notes, *proposals: Proposal) -> Judgement:
    return Judgement(label, 1.0, proposals, final=False, notes=notes)


def _done(answer: Answer | None) -> bool:
    return answer is not None and answer["status"] == "done"
