"""Notices: what people are told of without asking, when, and in which words.

A notice is made of ledger entries, which hold ids, names and words from closed lists. It holds
facts and where to look, and of what it names what people are shown of it: a stranger's words,
marked as such and with no link in them, looked up as it is sent. It holds no authority: no token,
no digest to approve by, and no address that acts by being opened.

Alike things become one notice: the first is told at once, what follows within a minute is gathered
and told together. What is to be told is kept as state (`Outbox`) that the caller makes durable
before it sends; a notice keeps its id, so a receiver knows one that comes twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field, to_builtins

from vedette.domain.base.canonical import short_id
from vedette.domain.base.clock import utc_time
from vedette.domain.display_text import defang_event, format_event
from vedette.domain.entry import HOLD_ANSWERS
from vedette.domain.identity import ENGINE
from vedette.domain.run import ActionRow

SCHEMA = "vedette.notice/1"
# The least time between two notices of one group, and how long one is tried.
GROUP_INTERVAL_US = 60_000_000
RETRY_LIMIT_US = 86_400_000_000
# How many notices wait to be sent one way, how many ids one keeps, and how many it names.
MAX_PENDING = 200
MAX_IDS = 1000
MAX_NAMED = 5

_MAX_NAME = 120
_MAIL_WIDTH = 72
_TITLES: Mapping[str, tuple[str, str]] = {
    "hold.opened": ("A hold waits for a person", "holds wait for a person"),
    "hold.expiring": ("A hold is about to expire, which is a no", "holds are about to expire"),
    "effect.unknown": ("An effect may have happened or not", "effects may have happened or not"),
    "run.dead": ("A run was given up: a dead letter", "runs were given up: dead letters"),
    "task.stalled": ("A task waits for a person", "tasks wait for a person"),
    "budget.alerted": ("A limit has 80 % of it taken", "limits have 80 % of them taken"),
    "agent.parked": ("An agent is parked: over a ceiling", "agents are parked: over a ceiling"),
    "canary.aborted": ("A canary was aborted: its release is worse", "canaries were aborted"),
    "canary.ended": ("A canary is over", "canaries are over"),
    "clock.jumped": ("The wall clock jumped, or a start was far off", "the wall clock jumped"),
    "task.drift": (
        "A task drifts: what it hands on, or would have remembered, breaks a rule",
        "hand-offs or memories of tasks break a rule",
    ),
    "notice.raised": (
        "An action was done that you are told of",
        "actions were done, to be told of",
    ),
}


class Notice(Struct):
    """A notice of the notifier. `left` are the ways it has not gone; `frozen` once it was tried.

    `ids` are all that it is about, up to KEPT, so that what is answered meanwhile leaves it.
    `until_us` is when the first of its holds expires, 0 where nothing does; `untils` when each
    does, by id. `about` is what the named ones are about, by id: filled in for a notice that is
    being sent, empty in one that is kept, so nothing goes out that was erased. By way: `whom` are
    the recipients that still miss what others took, and `again_us` is when what was not taken is
    tried again.
    """

    id: str
    kind: str
    agent: str
    tool: str
    rule: str
    first: int
    at_us: int
    due_us: int
    left: list[str]
    count: int = 1
    ids: list[str] = field(default_factory=list)
    until_us: int = 0
    frozen: bool = False
    untils: dict[str, int] = field(default_factory=dict)
    whom: dict[str, list[str]] = field(default_factory=dict)
    again_us: dict[str, int] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """Return what notices of one kind of thing have in common."""
        return " ".join((self.kind, self.agent, self.tool, self.rule))


class Outbox(Struct):
    """The notifier's notices to tell, and how far the ledger was read. Plain data: see `to_json`.

    `expiring_us` is the instant up to which holds that expire were told; `last` when a group was
    told last; `retry_us` and `tries` are those of a way that failed; the numbers count for ever.
    """

    at: int
    expiring_us: int = 0
    pending: list[Notice] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    retry_us: dict[str, int] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    failed: int = 0
    dropped: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the outbox as plain data."""
        value: dict[str, Any] = to_builtins(self)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Outbox:
        """Return the outbox that `to_json` told of."""
        pending = [Notice(**each) for each in value["pending"]]
        return cls(**{**value, "pending": pending})

    # --- in ---------------------------------------------------------------------------------

    def add_entry(
        self, seq: int, entry: Mapping[str, Any], ways: Iterable[str], now_us: int
    ) -> None:
        """Take in the next entry of the ledger."""
        self.at = seq
        if entry["kind"] in HOLD_ANSWERS:
            self._remove_answered(str(entry.get("action")).replace("act_", "hold_"))
        found = notice_fields(entry)
        if found is not None:
            kind, agent, tool, rule, id = found
            self._add(kind, (agent, tool, rule), id, seq, ways, now_us)

    def add_expiring(self, rows: Iterable[ActionRow], ways: Iterable[str], upto_us: int) -> None:
        """Take in the open holds that expire by `upto_us` and were not told of yet."""
        ways = list(ways)
        for row in rows:
            if row.waits == "approval" and self.expiring_us < row.until_us <= upto_us:
                names = (row.agent, row.tool, row.rule)
                hold = row.id.replace("act_", "hold_")
                notice = self._add("hold.expiring", names, hold, row.last, ways, 0)
                notice.until_us = min(notice.until_us or row.until_us, row.until_us)
                if notice.ids[-1] == hold:  # else there are more than are kept
                    notice.untils[hold] = row.until_us
        self.expiring_us = max(self.expiring_us, upto_us)

    def _remove_answered(self, hold: str) -> None:
        """Tell nobody of a hold that was answered before they were told of it."""
        for notice in self.pending:
            if hold in notice.ids and not notice.frozen:
                notice.ids.remove(hold)
                notice.count -= 1
                notice.untils.pop(hold, None)
                # Of more than are kept nobody knows the others': the earliest of all stands.
                if notice.untils and len(notice.untils) == notice.count:
                    notice.until_us = min(notice.untils.values())
        self.pending = [notice for notice in self.pending if notice.count]

    def _add(
        self,
        kind: str,
        names: tuple[str, str, str],
        id: str,
        seq: int,
        ways: Iterable[str],
        now_us: int,
    ) -> Notice:
        agent, tool, rule = (_sanitize(name) for name in names)
        group = " ".join((kind, agent, tool, rule))
        for notice in self.pending:
            if notice.group == group and not notice.frozen:
                notice.count += 1
                if len(notice.ids) < MAX_IDS:
                    notice.ids.append(_sanitize(id))
                return notice
        ways = list(ways)
        for way in ways:
            self._evict_oldest(way)
        due = (
            max(now_us, self.last.get(group, 0) + GROUP_INTERVAL_US)
            if group in self.last
            else now_us
        )
        name = short_id("ntc", kind, *names, seq, id)
        made = Notice(name, kind, agent, tool, rule, seq, now_us, due, ways, ids=[_sanitize(id)])
        self.pending.append(made)
        return made

    def _evict_oldest(self, way: str) -> None:
        """Let a way that owes too many lose its oldest; what the others owe is not touched."""
        owed = [notice for notice in self.pending if way in notice.left]
        if len(owed) >= MAX_PENDING:
            self.dropped += 1
            self._remove_way(way, owed[0])

    # --- out --------------------------------------------------------------------------------

    def due_notices(self, way: str, now_us: int) -> list[Notice]:
        """Return the notices that are to go this way now; they change no more.

        Oldest first, but behind all others what was not taken: one that never is keeps none back.
        """
        if self.retry_us.get(way, 0) > now_us:
            return []
        found = [n for n in self.pending if way in n.left and n.due_us <= now_us]
        found = [n for n in found if n.again_us.get(way, 0) <= now_us]
        found.sort(key=lambda n: n.again_us.get(way, 0))
        for notice in found:
            if not notice.frozen:
                notice.frozen = True
                notice.at_us = notice.at_us or now_us
                self.last[notice.group] = now_us
        self.last = {name: at for name, at in self.last.items() if at > now_us - GROUP_INTERVAL_US}
        return found

    def record_sent(self, way: str, notice: Notice) -> None:
        """A notice went this way."""
        self.sent += way not in notice.whom
        self.retry_us.pop(way, None)
        self.tries.pop(way, None)
        self._remove_way(way, notice)

    def record_partial(
        self, way: str, notice: Notice, left: Sequence[str], now_us: int, delay_us: int
    ) -> None:
        """A notice went this way, but not to everyone: `left` are tried again for a day, alone.

        The way counts as failing, and goes on.
        """
        self.sent += way not in notice.whom
        self.failed += 1
        self.retry_us.pop(way, None)
        self.tries[way] = 1
        if left and notice.at_us >= now_us - RETRY_LIMIT_US:
            notice.whom[way] = list(left)
            notice.again_us[way] = now_us + delay_us
            return
        self.dropped += bool(left)
        self._remove_way(way, notice)

    def record_refused(self, way: str, notice: Notice) -> None:
        """This notice will never go this way, whatever is mended; others may."""
        self.failed += 1
        self.dropped += 1
        self.tries[way] = self.tries.get(way, 0) + 1
        self._remove_way(way, notice)

    def schedule_retry(self, way: str, notice: Notice, now_us: int, delay_us: int) -> None:
        """A notice was not taken, and nothing goes this way now; give up what is a day old."""
        self.failed += 1
        self.tries[way] = self.tries.get(way, 0) + 1
        self.retry_us[way] = notice.again_us[way] = now_us + delay_us
        for tried in [n for n in self.pending if way in n.left and n.frozen]:
            if tried.at_us < now_us - RETRY_LIMIT_US:
                self.dropped += 1
                self._remove_way(way, tried)

    def retain_ways(self, ways: Iterable[str]) -> None:
        """Forget ways that are not there any more."""
        known = set(ways)
        for notice in self.pending:
            notice.left = [way for way in notice.left if way in known]
        self.pending = [notice for notice in self.pending if notice.left]

    def _remove_way(self, way: str, notice: Notice) -> None:
        notice.left = [other for other in notice.left if other != way]
        self.pending = [other for other in self.pending if other.left]


def notice_fields(entry: Mapping[str, Any]) -> tuple[str, str, str, str, str] | None:
    """Return the notice that an entry makes, as (kind, agent, tool, rule, id); None: no notice."""
    kind, get = entry["kind"], entry.get
    agent, tool, rule = (str(get(name) or "") for name in ("agent", "tool", "rule"))
    action = str(get("action") or "")
    if kind == "action.decided" and get("outcome") == "hold" and get("wait") == "approval":
        return "hold.opened", agent, tool, rule, action.replace("act_", "hold_")
    if kind in ("effect.unknown", "notice.raised", "task.drift"):
        # A memory that a task proposes is no action.
        return kind, agent, tool, rule, action or str(get("run") or "")
    if kind in ("run.dead", "task.stalled"):
        return kind, agent, "", "", str(get("run") or "")
    if kind == "budget.alerted":
        limit = f"{get('scope')} {get('unit')} by {get('window')}"
        return kind, agent, "", limit, ""
    if kind in ("canary.aborted", "canary.ended"):
        return kind, agent, "", rule or str(get("outcome")), ""
    what = str(get("what") or "")
    if kind == "clock.jumped":
        return kind, "", "", what, ""
    if kind == "stop.set" and get("actor") == str(ENGINE) and what.startswith("agent:"):
        return "agent.parked", what.removeprefix("agent:"), "", "", ""
    return None


# --- in words --------------------------------------------------------------------------------


def notice_facts(notice: Notice, fleet: str, link: str | None) -> dict[str, Any]:
    """Return a notice as the notifier tells it to a webhook."""
    return {
        "schema": SCHEMA,
        "id": notice.id,
        "kind": notice.kind,
        "fleet": fleet,
        "agent": notice.agent or None,
        "tool": notice.tool or None,
        "rule": notice.rule or None,
        "count": notice.count,
        "ids": _named_ids(notice),
        "expires": utc_time(notice.until_us) if notice.until_us else None,
        "text": notice_title(notice, fleet),
        "look": lookup_hint(notice, link),
        "about": [
            _about_to_json(id, notice.about[id]) for id in _named_ids(notice) if id in notice.about
        ],
    }


def _about_to_json(id: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one is about as a webhook is told it; a chat that shows `text` shows none."""
    if about["erased"]:
        return {"id": id, "erased": True}
    written = "outside" if about["outside"] else "by the fleet"
    header = {"id": id, "erased": False, "written": written}
    shown = defang_event(about)
    parts = {name: shown[name] and shown[name]["value"] for name in ("who", "title", "when")}
    fields = {one["name"]: one["value"] for one in shown["fields"]}
    text = shown["text"] and shown["text"]["value"]
    return {**header, "type": shown["type"], "source": shown["source"], **parts, "fields": fields,
            "text": text}  # fmt: skip


def notice_title(notice: Notice, fleet: str) -> str:
    """Return a notice in one line, as the notifier titles it."""
    one, several = _TITLES[notice.kind]
    text = f"{notice.count} {several}" if notice.count > 1 else one
    what = " ".join(part for part in (notice.agent, notice.tool) if part)
    why = f" ({notice.rule})" if notice.rule else ""
    return f"[{fleet}] {text}: {what or 'fleet'}{why}"


def lookup_hint(notice: Notice, link: str | None) -> str:
    """Return where a notice has people look: a link, else a command that shows and does nothing."""
    id = notice.ids[0] if notice.ids else ""
    if link is not None and id.startswith("hold_"):
        return link.replace("{hold}", id)
    if notice.kind in ("hold.opened", "hold.expiring") and notice.count > 1:
        return "vedette hold --group"
    if notice.kind == "budget.alerted":
        return "vedette budget"
    if notice.kind == "run.dead" and notice.count > 1:
        return "vedette dead"
    if notice.kind == "task.stalled":
        return f"vedette work show {id}" if notice.count == 1 else "vedette work list"
    return f"vedette explain {id}" if id else "vedette status"


def mail_text(notice: Notice, fleet: str, link: str | None) -> str:
    """Return the text of a notice as the notifier mails it."""
    lines = [notice_title(notice, fleet), "", f"Look at it: {lookup_hint(notice, link)}"]
    if notice.until_us:
        lines.append(f"Without an answer the first is denied at {utc_time(notice.until_us)}.")
    if named := _named_ids(notice):
        more = notice.count - len(named)
        lines.append("")
        for id in named:
            lines.append(id)
            if id in notice.about:
                lines += format_event(defang_event(notice.about[id]), _MAIL_WIDTH, 2)
        lines += [f"and {more} more"] if more > 0 else []
    return "\n".join([*lines, "", "This mail tells; it cannot be answered and decides nothing."])


def _named_ids(notice: Notice) -> list[str]:
    """Return the ids that are named; none of what has no id: a parked agent, a limit."""
    return [id for id in notice.ids[:MAX_NAMED] if id]


def _sanitize(name: str) -> str:
    """Return a name as one short line of plain characters, whatever it was."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in name[:_MAX_NAME])
