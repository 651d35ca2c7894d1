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
# Notes are 64 KiB at most; room is left for a paper that is being read.
_ROOM = 56_000
_TAIL = 400  # characters of an unfinished line that go over to the next range of a document
_FULL = "read, but the notes of this review are full"

Notes = dict[str, Any]
Answer = Mapping[str, Any]


class Judge(Base):
    """Reads, reports, files. It obeys nothing that stands in a paper: no rule here could."""

    def __init__(self, charter: Mapping[str, Any], lessons: Sequence[Memory]) -> None:
        super().__init__(charter, lessons)
        self._reader = Reader(charter)

    def judge(self, seen: Any, briefing: Briefing) -> Judgement:
        """Ask for the list of the week's papers."""
        return self._list(briefing, {"stage": "list", "papers": {}, "aside": []})

    def judge_outcomes(self, briefing: Briefing) -> Judgement:
        """Go on with what the last turn asked for."""
        notes: Notes = briefing.notes
        answers = {answer["tool"]: answer for answer in briefing.turns[-1]["answers"]}
        stage = notes["stage"]
        if stage == "list":
            return self._take_list(notes, answers.get("document.list"))
        if stage == "listed":
            return self._take_incidents(briefing, notes, answers.get("incident.list"))
        if stage == "read":
            return self._read(briefing, notes, answers)
        if stage == "report":
            return self._file(notes, answers)
        return self._finish(briefing, notes)

    # --- the list -------------------------------------------------------------------------------

    def _list(self, briefing: Briefing, notes: Notes) -> Judgement:
        given = "week" in briefing.task.get("inputs", {})
        which = (
            {"week": Ref("/event/data/inputs/week")} if given else {"before": Ref("/event/time")}
        )
        return _say(
            "lists the papers", notes, Proposal("document.list", which, "the week's papers")
        )

    def _take_list(self, notes: Notes, answer: Answer | None) -> Judgement:
        if not _done(answer) or not answer["data"]["documents"]:
            # Asked for again it would be the same: a person starts another review.
            return _say("there are no papers", notes)
        found, ref = answer["data"], answer["ref"]
        aside = [
            {"document": id, "why": "beyond what one review reads"} for id in found["left_out"]
        ]
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
        incidents = Proposal("incident.list", {"week": Ref(f"{ref}/week")}, "the week's incidents")
        notes = {**notes, "stage": "listed", "week": found["week"], "list": ref, "aside": aside}
        return _say(f"has {len(items)} papers to read", notes, incidents, *items)

    def _take_incidents(self, briefing: Briefing, notes: Notes, answer: Answer | None) -> Judgement:
        if not _done(answer):
            return _say("the incidents could not be read", notes)
        known = {**notes, "stage": "read", "incidents": answer["data"]["incidents"]}
        return self._read(briefing, known, {})

    # --- one paper after the other --------------------------------------------------------------

    def _read(self, briefing: Briefing, notes: Notes, answers: Mapping[str, Answer]) -> Judgement:
        current = briefing.task["items"].get("current")
        if current is None:
            return self._report(notes)
        id = str(current["id"])
        answer = answers.get("document.read") or answers.get("artefact.read")
        if answer is None:
            read = {"document": Ref(current["inputs"]["document"])}
            return _say(f"reads {id}", notes, Proposal("document.read", read, "its turn"))
        if not _done(answer):
            return self._set_aside(notes, id, f"{answer['tool']}: {answer['status']}")
        data = answer["data"]
        if "unreadable" in data:
            return self._set_aside(notes, id, str(data["unreadable"]))
        if answer["tool"] == "document.read" and isinstance(data["text"], Mapping):
            # It is too large to be told: it is read in ranges.
            return self._read_range(notes, id, data["text"]["artefact"], 0, {})
        if answer["tool"] == "document.read":
            return self._close(notes, id, self._reader.read(data["text"]))
        return self._take_range(notes, id, data)

    def _read_range(
        self, notes: Notes, id: str, artefact: str, offset: int, part: Mapping[str, Any]
    ) -> Judgement:
        asked = Proposal(
            "artefact.read", {"id": artefact, "offset": offset}, f"{id}, from {offset}"
        )
        return _say(f"reads {id} in ranges", {**notes, "part": dict(part)}, asked)

    def _take_range(self, notes: Notes, id: str, data: Mapping[str, Any]) -> Judgement:
        part = notes.get("part", {})
        text, end = part.get("tail", "") + data["text"], data.get("next")
        whole, tail = text, ""
        if end is not None and "\n" in text:
            whole, _, tail = text.rpartition("\n")
        known = part.get("found")
        found = (
            self._reader.read(whole)
            if known is None
            else merge(known, self._reader.read_part(whole))
        )
        if end is None:
            return self._close(notes, id, found)
        return self._read_range(
            notes, id, data["artefact"], end, {"found": found, "tail": tail[-_TAIL:]}
        )

    def _close(self, notes: Notes, id: str, found: Mapping[str, Any]) -> Judgement:
        papers = {**notes["papers"], id: found}
        kept = {name: value for name, value in notes.items() if name != "part"} | {"papers": papers}
        why = found["kind"]
        if len(json.dumps(kept, ensure_ascii=False).encode()) > _ROOM:
            aside = [*notes["aside"], {"document": id, "why": _FULL}]
            kept, why = {**notes, "aside": aside}, _FULL
        closed = Proposal("item.close", {"id": id, "state": "done", "why": why}, "it was read")
        return _say(f"has read {id}", kept, closed)

    def _set_aside(self, notes: Notes, id: str, why: str) -> Judgement:
        aside = [*notes["aside"], {"document": id, "why": why[:300]}]
        closed = Proposal(
            "item.close", {"id": id, "state": "set_aside", "why": why[:300]}, why[:300]
        )
        return _say(f"sets {id} aside", {**notes, "aside": aside}, closed)

    # --- the report, and what is left ------------------------------------------------------------

    def _report(self, notes: Notes) -> Judgement:
        made = claims(notes["papers"], notes["incidents"], self.charter)
        told = [{name: one[name] for name in ("section", "text", "sources")} for one in made]
        args = {"week": Ref(f"{notes['list']}/week"), "claims": told, "set_aside": notes["aside"]}
        written = Proposal("report.write", args, f"{len(told)} claims")
        return _say("writes the report", {**notes, "stage": "report"}, written)

    def _file(self, notes: Notes, answers: Mapping[str, Answer]) -> Judgement:
        report = answers.get("report.write")
        if not _done(report) or report["data"]["unsourced"]:
            # Asked for again it would be the same: a person looks at what is wrong with it.
            return _say("the report was not taken", notes)
        papers, week = notes["papers"], notes["week"]
        inside = {"review": REVIEW, "week": week, "follow_ups": follow_ups(papers, self.charter)}
        outside = [
            Proposal(
                "follow_up.send",
                {
                    "to": Ref(f"/registry/contacts/{to}"),
                    "week": week,
                    "subject": subject,
                    "text": text,
                },
                "they have to know",
            )
            for to, subject, text in messages(papers, self.charter)
        ]
        filed = Proposal("follow_up.file", inside, "what is left to do")
        return _say("files what is left", {**notes, "stage": "file"}, filed, *outside)

    def _finish(self, briefing: Briefing, notes: Notes) -> Judgement:
        items = briefing.task["items"]
        said = f"{items['done']} of {items['of']} papers read, reported and filed"
        return _say("is done", notes, Proposal("task.finish", {"summary": said}))


def _say(label: str, notes: Notes, *proposals: Proposal) -> Judgement:
    return Judgement(label, 1.0, proposals, final=False, notes=notes)


def _done(answer: Answer | None) -> bool:
    return answer is not None and answer["status"] == "done"
