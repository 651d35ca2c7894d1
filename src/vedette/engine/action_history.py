"""What is asked of a run's actions that are over, so that a long run need not be walked each turn.

Of the first actions of a run, up to the first that is still open, nothing changes any more: each is
taken in once, in its order, when it is over or when the run is read. So what is kept here is what
the rows say, and a run that is read again has the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from vedette.domain.hand_off_check import collect_texts
from vedette.domain.readers import Readers
from vedette.domain.row_proof import parse_record
from vedette.domain.run import ActionRow
from vedette.domain.tool import Tool
from vedette.domain.work_tools import (
    ENGINE_TOOLS,
    FINISH_TOOL,
    HAND_OFF_TOOL,
    READ_HISTORY_TOOL,
    WORK_PERFORMER,
)
from vedette.engine.tool_calls import label_answers

# What is done for the next turns alone.
_NO_PROGRESS = frozenset({HAND_OFF_TOOL, READ_HISTORY_TOOL})


# What is answered of a run that has no actions (`ActionHistory.list_answered`).
NOT_ANSWERED: tuple[Sequence[ActionRow], frozenset[str]] = ((), frozenset())


def made_progress(row: ActionRow) -> bool:
    """Say whether an action did something for its task."""
    return row.effect == "done" and row.tool not in _NO_PROGRESS


class ActionHistory(Struct):
    """The actions of a run that are over, before the first that is not.

    `count` is how many they are, and `acted` how many of them count against `actions_per_run`.
    `done` are those that were done, `answered` those with an outcome, in the order in which
    references number them, and `answered_before` how many of these lie before each place; `trusted`
    are the numbers of those whose tool is. `alike` has them by digest and tool, `wrote` those of
    tools that write the agent's row. `last_turn` is the last that made progress, `is_finished` says
    that the task's finish was done. What an agent's `tools` declare stays so for a run's context.
    """

    count: int = 0
    acted: int = 0
    done: list[ActionRow] = field(default_factory=list)
    answered: list[ActionRow] = field(default_factory=list)
    answered_before: list[int] = field(default_factory=list)
    trusted: set[str] = field(default_factory=set)
    alike: dict[tuple[str, str], list[ActionRow]] = field(default_factory=dict)
    wrote: list[ActionRow] = field(default_factory=list)
    last_turn: int = 0
    is_finished: bool = False
    # Who may read the first `answered`, so many, as of a row's and a model's readers; what was done
    # by tools with sinks, as far as its texts are not read yet.
    _labelled: tuple[int, Readers, Readers] = (0, None, None)
    _labels: dict[str, Readers] = field(default_factory=dict)
    _targeted: list[ActionRow] = field(default_factory=list)
    _target_texts: set[str] = field(default_factory=set)

    def add(self, rows: Iterable[ActionRow], tools: Mapping[str, Tool]) -> None:
        """Take in the next actions of the run that are over."""
        for row in rows:
            tool = tools.get(row.tool)
            self.count += 1
            self.acted += row.effect is not None and row.tool not in ENGINE_TOOLS
            self.alike.setdefault((row.digest, row.tool), []).append(row)
            self.answered_before.append(len(self.answered))
            if row.answer is not None:
                if _is_trusted(row, tool):
                    self.trusted.add(str(len(self.answered)))
                self.answered.append(row)
            if row.effect != "done":
                continue
            self.done.append(row)
            if made_progress(row):
                self.last_turn = max(self.last_turn, row.turn)
            self.is_finished = self.is_finished or row.tool == FINISH_TOOL
            if tool is not None and tool.sinks:
                self._targeted.append(row)
            if tool is not None and _writes_row(tool):
                self.wrote.append(row)

    def number_from(self, place: int) -> int:
        """Return how many outcomes the actions before a place have; it is no later than `count`."""
        return self.answered_before[place] if place < self.count else len(self.answered)

    def list_answered(
        self, rest: Iterable[ActionRow], tools: Mapping[str, Tool]
    ) -> tuple[Sequence[ActionRow], frozenset[str]]:
        """Return the run's actions with an outcome, and the numbers of those that are trusted;
        `rest` are its actions after these.
        """
        more = [row for row in rest if row.answer is not None]
        numbered = enumerate(more, len(self.answered))
        trusted = {str(at) for at, row in numbered if _is_trusted(row, tools.get(row.tool))}
        return [*self.answered, *more], frozenset(self.trusted | trusted)

    def label(
        self,
        rest: Sequence[ActionRow],
        tools: Mapping[str, Tool],
        row_readers: Readers,
        told: Readers,
    ) -> dict[str, Readers]:
        """Return who may read what a run's actions answered, as `label_answers` does; `rest` are
        its actions after these.
        """
        done, *before = self._labelled
        if before != [row_readers, told]:
            done = 0
            self._labels.clear()
        new = self.answered[done:]
        self._labels |= label_answers(new, tools, row_readers, told, first=done)
        first = len(self.answered)
        self._labelled = (first, row_readers, told)
        return {**self._labels, **label_answers(rest, tools, row_readers, told, first=first)}

    def target_texts(self) -> set[str]:
        """Return the texts of the arguments of those that were done by tools with sinks."""
        for row in self._targeted:
            self._target_texts.update(collect_texts(parse_record(row.record)["args"]))
        self._targeted.clear()
        return self._target_texts


def _is_trusted(row: ActionRow, tool: Tool | None) -> bool:
    return tool is not None and tool.output == "trusted" and "label_output" not in row.obliges


def _writes_row(tool: Tool) -> bool:
    return tool.settles == "transactional" and tool.performer != WORK_PERFORMER
