"""Audit: what targets say themselves, held against what the ledger intended.

A target's record is read first and the ledger afterwards: an intent is durable before its effect,
so whatever the record holds by then has its intent in the ledger, unless something went around us.
What the ledger says was done must be in the record, except what was done only while it was read.
Pure: what reads a record is the target's plugin (`vedette.domain.ports.plugin`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from vedette.domain.effect import OPEN_STATES
from vedette.domain.entry import EFFECT_KINDS
from vedette.domain.ports.ledger_reader import EntryLog
from vedette.domain.target_record import INBOX, Mail, TargetEffect
from vedette.ledger.history.entry_view import DecisionEntry, EffectEntry, view_entry
from vedette.ledger.history.time_window import parse_fields

AUDIT = "vedette.audit/1"

# What tools call a flag, and the letter a Maildir has for it (https://cr.yp.to/proto/maildir.html).
_FLAGS = {
    "passed": "P", "replied": "R", "seen": "S", "trashed": "T", "draft": "D", "flagged": "F",
    "important": "F",
}  # fmt: skip


class RecordedEffect(Struct):
    """What the ledger says of one effect at a target. `at_us` is when its last entry was written.

    `began_us` is when its first was. `args` are those that were decided and `data` what the tool
    answered; both None once erased.
    """

    key: str
    action: str
    agent: str
    run: str
    tool: str
    target: str | None = None
    state: str = ""
    seq: int = 0
    at_us: int = 0
    began_us: int = 0
    args: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    erased: bool = False

    @property
    def is_open(self) -> bool:
        """Say whether it is not known yet whether it happened."""
        return self.state in OPEN_STATES

    def is_at(self, names: Collection[str]) -> bool:
        """Say whether it was meant for a target of one of these names, as far as is known."""
        return self.target in names or (self.target is None and self.erased)

    def read_value(self, name: str) -> Any:
        """Return what it says of the target: as answered, else as asked for."""
        for part in (self.data, self.args):
            if part is not None and part.get(name) is not None:
                return part[name]
        return None


class RecordedEffects(Struct):
    """Every effect the ledger knows, by key, in the order of their last entries.

    `first_us` is the instant of the oldest entry that is here; `is_truncated` says that older ones
    are archived, so what is older cannot be held against anything.
    """

    effects: dict[str, RecordedEffect] = field(default_factory=dict)
    first_us: int = 0
    is_truncated: bool = False

    def at_target(self, *names: str) -> list[RecordedEffect]:
        """Return the effects at one target, in the order in which they came to where they are."""
        found = [claim for claim in self.effects.values() if claim.target in names]
        return sorted(found, key=lambda claim: claim.seq)


def read_effects(record: EntryLog, target_of: Callable[[str, str], str | None]) -> RecordedEffects:
    """Read every effect out of the ledger.

    `target_of` names the target that an agent's tool has today: asked where the decision that
    recorded it is erased.
    """
    effects = RecordedEffects()
    requests: dict[str, _Request] = {}
    for seq, raw, _, data in record.walk():
        fields = parse_fields(raw)
        if not effects.first_us:
            effects.first_us, effects.is_truncated = int(fields.get("at") or 0), seq > 1
        kind, action = fields.get("kind"), str(fields.get("action") or "")
        if kind == "action.decided" and fields.get("outcome") != "permit":
            continue
        if kind != "action.decided" and kind not in EFFECT_KINDS:
            continue
        entry = view_entry(seq, fields, data)
        if isinstance(entry, DecisionEntry):
            requests[action] = _read_request(entry)
        elif isinstance(entry, EffectEntry):
            claim = effects.effects.get(action.removeprefix("act_"))
            if claim is None:
                claim = _build_effect(entry, action, requests.pop(action, (None, None)), target_of)
                effects.effects[claim.key] = claim
            _apply_change(claim, entry)
    return effects


_Request = tuple["Mapping[str, Any] | None", "str | None"]


def _read_request(entry: DecisionEntry) -> _Request:
    """Return the arguments and the target of the question that was permitted."""
    if entry.body is None:
        return None, None
    # What a transactional tool writes is a row of the fleet's own: no target knows of it.
    own = entry.requested_action.get("settles") == "transactional"
    resource = entry.request.get("resource") or {}
    return entry.requested_action.get("args") or {}, None if own else resource.get("id")


def _build_effect(
    entry: EffectEntry, action: str, request: _Request, target_of: Callable[[str, str], str | None]
) -> RecordedEffect:
    agent, tool = str(entry.agent), str(entry.tool)
    args, target = request
    claim = RecordedEffect(action.removeprefix("act_"), action, agent, str(entry.run), tool)
    claim.began_us = int(entry.at or 0)
    claim.args, claim.erased = args, args is None
    claim.target = target_of(agent, tool) if claim.erased else target
    return claim


def _apply_change(claim: RecordedEffect, entry: EffectEntry) -> None:
    claim.state, claim.seq, claim.at_us = entry.state, entry.seq, int(entry.at or 0)
    if claim.state == "done":
        claim.data = entry.data
        claim.erased = claim.erased or entry.erased


# --- records that name the key of each effect ----------------------------------------------------


def audit_keys(
    items: Iterable[TargetEffect],
    ledger: RecordedEffects,
    target: str,
    *,
    since_us: int,
    read_us: int,
    names: Collection[str] = (),
    retained_since_us: int = 0,
) -> list[dict[str, Any]]:
    """Hold a target's record of keys against the ledger; `read_us` is when its reading began.

    Both from `since_us` on; what carries no time in the record counts as being in it. An effect
    that was meant for another target is no intent here; `names` are other names of this one. What
    began before `retained_since_us` the record may have forgotten, so it is not missed.
    """
    found: list[dict[str, Any]] = []
    here = {target, *names}
    times: dict[str, int] = {}
    for item in items:
        times[item.key] = times.get(item.key, 0) + 1
        if times[item.key] > 1 or (item.at_us and item.at_us < since_us):
            continue
        claim = ledger.effects.get(item.key)
        shown = f"{item.key!r}" + (f" ({item.what})" if item.what else "")
        if claim is None:
            found.append(finding("no-intent", target, f"{shown} has no intent", key=item.key))
        elif not claim.is_at(here):
            what = f"{shown} has no intent here: {_format_owner(claim)}"
            found.append(finding("no-intent", target, what, claim=claim))
        elif claim.state in ("failed", "cancelled"):
            what = f"{shown} is there, and the ledger says that it {_format_state(claim.state)}"
            found.append(finding("despite", target, what, claim=claim))
    for key, number in times.items():
        if number > 1:
            what = f"{key!r} took effect {number} times"
            found.append(finding("twice", target, what, key=key, claim=ledger.effects.get(key)))
    for claim in ledger.at_target(target):
        is_retained = claim.began_us >= retained_since_us
        if claim.key not in times and is_retained and _is_due(claim, since_us, read_us):
            what = f"{claim.tool} of {claim.agent} was done; the target does not know it"
            found.append(finding("not-there", target, what, claim=claim))
    return found


def _format_state(state: str) -> str:
    return "failed" if state == "failed" else "was cancelled"


def _format_owner(claim: RecordedEffect) -> str:
    to = f" at {claim.target}" if claim.target is not None else ""
    return f"it is the key of {claim.tool} of {claim.agent}{to}"


def _is_due(claim: RecordedEffect, since_us: int, read_us: int) -> bool:
    """Say whether a record that was read from `read_us` on must have an effect."""
    return claim.state == "done" and since_us <= claim.at_us < read_us


# --- a mailbox: what it is, not what was done to it ----------------------------------------------


def audit_mailbox(
    mails: Sequence[Mail],
    ledger: RecordedEffects,
    target: str,
    *,
    since_us: int,
    read_us: int,
    names: Collection[str] = (),
    emptied: frozenset[str] = frozenset({"Outbox"}),
) -> list[dict[str, Any]]:
    """Hold where mails lie and how they are flagged against what the ledger did to them.

    A mail comes into the INBOX without a flag; from there on each move and flag has an intent:
    one whose answer names `message` and `folder`, or `message`, `flag` and `set`. What others
    take out of the folders `emptied` is not missed. `names` are other names of this mailbox.
    """
    found: list[dict[str, Any]] = []
    here = {target, *names}
    of: dict[str, list[RecordedEffect]] = {}
    for claim in ledger.at_target(*here):
        message = claim.read_value("message")
        # A mail that we wrote ourselves goes by its key, even once all else is erased.
        writes = _written_mail(claim)
        of.setdefault(str(message) if message and not writes else writes or "", []).append(claim)
    seen: dict[str, Mail] = {}
    for mail in mails:
        if mail.name in seen:
            what = f"{mail.name} lies in {seen[mail.name].folder} and in {mail.folder}"
            found.append(finding("twice", target, what, message=mail.name))
        seen[mail.name] = mail
        if not mail.at_us or mail.at_us >= since_us:
            found += _mail(mail, _effects_on(mail, of, ledger, here), target, read_us)
    for name, claims in of.items():
        last = next((c for c in reversed(claims) if _is_due(c, since_us, read_us)), None)
        if not name or name in seen or last is None or last.target != target:
            continue
        moving = any(claim.is_open or claim.at_us >= read_us for claim in claims)
        if moving or last.read_value("folder") in emptied:
            continue
        what = f"{name} is nowhere; {last.tool} of {last.agent} was done to it"
        found.append(finding("not-there", target, what, claim=last, message=name))
    return found


def _written_mail(claim: RecordedEffect) -> str | None:
    """Return the unique name of the mail that a claim wrote, if it wrote one."""
    named = claim.data.get("message") if claim.data is not None else None
    name = f"{claim.key}.vedette"
    return name if named == name or (claim.data is None and claim.read_value("to")) else None


def _effects_on(
    mail: Mail,
    of: Mapping[str, list[RecordedEffect]],
    ledger: RecordedEffects,
    here: Collection[str],
) -> list[RecordedEffect]:
    claims = of.get(mail.name, [])
    if claims or not mail.name.endswith(".vedette"):
        return claims
    ours = ledger.effects.get(mail.name.removesuffix(".vedette"))
    return [ours] if ours is not None and ours.is_at(here) else []


def _mail(
    mail: Mail, claims: list[RecordedEffect], target: str, read_us: int
) -> list[dict[str, Any]]:
    """Return what is wrong with where one mail lies and how it is flagged."""
    ours = any(mail.name == f"{claim.key}.vedette" for claim in claims)
    folders, on, maybe = {INBOX}, set[str](), set[str]()
    last: RecordedEffect | None = None
    for claim in claims:
        sure = claim.state == "done" and claim.at_us < read_us
        if not sure and not (claim.is_open or claim.state == "done"):
            continue
        folder, flag = claim.read_value("folder"), claim.read_value("flag")
        if folder is not None:
            folders = {str(folder)} if sure else folders | {str(folder)}
            last = claim
        if flag is not None:
            letter = _FLAGS.get(str(flag), str(flag)[:1].upper())
            (on if sure else maybe).add(letter)
            if sure and claim.read_value("set") is False:
                on.discard(letter)
    if ours:
        # Whoever sends it moves and flags it: that there is such a mail is what we answer for.
        dead = all(claim.state in ("failed", "cancelled") for claim in claims)
        what = f"{mail.name} lies in {mail.folder}, and the ledger says that it was not written"
        return [finding("despite", target, what, claim=claims[-1])] if dead else []
    found = []
    if mail.folder not in folders:
        record_text = f"the ledger says {' or '.join(sorted(folders))}"
        why = record_text if last is not None else "nothing in the ledger put it there"
        code = "elsewhere" if last is not None else "no-intent"
        what = f"{mail.name} lies in {mail.folder}; {why}"
        found.append(finding(code, target, what, claim=last, message=mail.name))
        if not claims:
            # One finding for one mail that is not ours; its flags came along with it.
            return found
    for letter in sorted(set(mail.flags) - on - maybe):
        what = f"{mail.name} has the flag {letter}; nothing in the ledger set it"
        found.append(finding("no-intent", target, what, message=mail.name))
    for letter in sorted(on - set(mail.flags) - maybe):
        what = f"{mail.name} lacks the flag {letter}, which the ledger says was set"
        found.append(finding("not-there", target, what, message=mail.name))
    return found


def finding(
    code: str, target: str, what: str, *, claim: RecordedEffect | None = None, **more: Any
) -> dict[str, Any]:
    """Return one finding of a target's audit against the ledger, as `--json` prints it."""
    document: dict[str, Any] = {"code": code, "target": target, "what": what, **more}
    if claim is not None:
        document |= {"key": claim.key, "action": claim.action, "run": claim.run, "seq": claim.seq}
    return document
