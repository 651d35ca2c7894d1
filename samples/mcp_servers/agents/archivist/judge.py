"""Says what is to be done with a note by the type of its event."""

from __future__ import annotations

from typing import Any

from vedette.judging import Briefing, Judgement, Proposal, Ref
from vedette.judging import Judge as BaseJudge

_TEXT = Ref("/event/data/text")
_REPOSITORY = Ref("/charter/repository")


class Judge(BaseJudge):
    """Names files by reference to the charter, unless the event asks for another one."""

    def judge(self, seen: Any, briefing: Briefing) -> Judgement:
        """Propose the one action that the event asks for."""
        event = briefing.event
        asked = event.data.get("path")
        proposals = {
            "note.written": Proposal(
                "files.write_file",
                {"path": asked or Ref("/charter/files/note"), "content": _TEXT},
                why="a note came",
            ),
            "note.staged": Proposal(
                "repo.git_add",
                {"repo_path": _REPOSITORY, "files": Ref("/charter/staged")},
                why="the note is to be kept",
            ),
            "note.committed": Proposal(
                "repo.git_commit", {"repo_path": _REPOSITORY, "message": _TEXT}, why="it is kept"
            ),
        }
        return Judgement(label=event.type, confidence=1.0, proposals=(proposals[event.type],))
