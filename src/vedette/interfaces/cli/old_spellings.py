"""Spellings of the verbs that were there before: taken for one release, with a hint.

`translate` makes of each what it is now, word by word, before anything is read. With the release
after, this module goes, and its two calls in `vedette.interfaces.cli`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

Words = list[str]


def translate(words: Words) -> tuple[Words, str | None]:
    """Return a verb and its arguments as they are spelled now, and how that is written in general.

    The second is None, and the words are the same, where nothing of before is in them.
    """
    for length in (2, 1):
        rule = RULES.get(tuple(words[:length]))
        if rule is not None and (found := rule(words[length:])) is not None:
            return found
    return words, None


Rule = Callable[[Words], tuple[Words, str] | None]


def _moved(now: str, **renamed: str) -> Rule:
    """Return a rule for a verb that has another name; of its options some have, too."""

    def rule(rest: Words) -> tuple[Words, str]:
        for old, new in renamed.items():
            rest = _rename(rest, f"--{old}", new)
        return [*now.split(), *rest], now

    return rule


def _renamed(verb: str, old: str, new: str) -> Rule:
    """Return a rule for a verb of which one option has another name."""

    def rule(rest: Words) -> tuple[Words, str] | None:
        found = _rename(rest, old, new)
        return None if found == rest else ([*verb.split(), *found], f"{verb} {new} …")

    return rule


def _placed(verb: str, now: str, **options: str) -> Rule:
    """Return a rule for a verb that takes by its place what an option gave; `{}` is the value."""

    def rule(rest: Words) -> tuple[Words, str] | None:
        for name, form in options.items():
            value, others = _take(rest, f"--{name.replace('_', '-')}")
            if value is not None:
                # Behind the others, so that an argument that stands before it stays the first.
                return [*verb.split(), *others, form.format(value)], now
        return None

    return rule


def _take(rest: Words, option: str) -> tuple[str | None, Words]:
    """Take an option with its value out of words; None if it is not there."""
    for at, word in enumerate(rest):
        if word == option and at + 1 < len(rest):
            return rest[at + 1], [*rest[:at], *rest[at + 2 :]]
        if word.startswith(f"{option}="):
            return word.partition("=")[2], [*rest[:at], *rest[at + 1 :]]
    return None, rest


def _rename(rest: Words, old: str, new: str) -> Words:
    return [
        new + word.removeprefix(old) if word == old or word.startswith(f"{old}=") else word
        for word in rest
    ]


def _split_options(rest: Words) -> tuple[Words, Words]:
    """Return what stands by its place, and the options, each of which has a value."""
    given: Words = []
    options: Words = []
    left = iter(rest)
    for word in left:
        if not word.startswith("--"):
            given.append(word)
        else:
            options += [word] if "=" in word else [word, *islice(left, 1)]
    return given, options


# --- verbs whose words need more than that -----------------------------------------------------


def _hold_claim(rest: Words) -> tuple[Words, str]:
    return ["hold", *rest, "--claim"], "hold HOLD --claim"


def _hold_note(rest: Words) -> tuple[Words, str]:
    given, options = _split_options(rest)
    return ["hold", *given[:1], "--note", *given[1:], *options], "hold HOLD --note TEXT"


def _memory(state: str, verb: str) -> Rule:
    def rule(rest: Words) -> tuple[Words, str]:
        now = ["memory", "set", f"--as={verb}", *rest]
        if _take(rest, "--from")[0] is not None:
            return [*now, state], f"memory set --from SOURCE {state}"
        # The id stands before the state; options may stand anywhere.
        return [*now, state], f"memory set ID {state}"

    return rule


def _verify(rest: Words) -> tuple[Words, str]:
    if "--deep" in rest:
        return ["verify", "all", *(word for word in rest if word != "--deep")], "verify all"
    return ["verify", "ledger", *rest], "verify"


def _replay(rest: Words) -> tuple[Words, str]:
    part = "judgements" if "--judges" in rest else "decisions"
    return ["verify", part, *(word for word in rest if word != "--judges")], f"verify {part}"


def _ship(rest: Words) -> tuple[Words, str]:
    if "--check" in rest:
        return [
            "verify",
            "shipped",
            *(word for word in rest if word != "--check"),
        ], "verify shipped"
    return ["ledger", "export", "--ship", *rest], "ledger export --ship"


def _rebuild(rest: Words) -> tuple[Words, str]:
    if "--check" in rest:
        return ["verify", "views", *(word for word in rest if word != "--check")], "verify views"
    return ["verify", "views", "--repair", *rest], "verify views --repair"


def _redrive_source(rest: Words) -> tuple[Words, str]:
    given, options = _split_options(_rename(rest, "--most", "--limit"))
    return ["pubsub", "--redrive", *given, *options], "pubsub --redrive SOURCE"


def _copy(rest: Words) -> tuple[Words, str]:
    placed = _placed("migrate", "", to="{}", to_env="env:{}")(rest)
    return placed[0] if placed else ["migrate", *rest], "migrate URL|env:NAME"


def _restore(rest: Words) -> tuple[Words, str] | None:
    folder, others = _take(rest, "--from")
    now = [*("--witness=none" if word == "--no-witness" else word for word in others)]
    if now == rest:
        return None
    folders = [] if folder is None else [folder]
    return ["restore", *folders, *now], "restore FOLDER --witness FILE|none"


def _worker(rest: Words) -> tuple[Words, str] | None:
    audience, others = _take(rest, "--audience")
    identity, others = _take(others, "--identity")
    if audience is None or identity != "google":
        return None
    return ["worker", "--identity", f"google:{audience}", *others], "worker --identity google:NAME"


RULES: dict[tuple[str, ...], Rule] = {
    ("policy", "check"): _moved("check policy"),
    ("eval",): _moved("check cases"),
    ("gateway",): _moved("run --gateway"),
    ("runs",): _renamed("runs", "--before", "--page"),
    ("explain-error",): _moved("explain --error"),
    ("plot", "anomaly"): _moved("plot"),
    ("hold", "list"): _moved("hold", after="--page"),
    ("hold", "show"): _moved("hold"),
    ("hold", "claim"): _hold_claim,
    ("hold", "note"): _hold_note,
    ("approve",): _placed("approve", "approve GROUP", group="{}"),
    ("deny",): _placed("deny", "deny GROUP", group="{}"),
    ("correct",): _placed("correct", "correct RUN LABEL", should="{}"),
    ("memory", "list"): _moved("memory show"),
    ("memory", "approve"): _memory("active", "memory_approve"),
    ("memory", "on"): _memory("active", "memory_on"),
    ("memory", "off"): _memory("off", "memory_off"),
    ("memory", "reject"): _memory("rejected", "memory_reject"),
    ("dead", "list"): _moved("dead", before="--page"),
    ("dead", "show"): _moved("dead"),
    ("dead", "redrive"): _moved("dead --redrive"),
    ("dead", "drop"): _moved("dead --drop"),
    ("clock", "confirm"): _moved("resume --clock"),
    ("budget", "show"): _moved("budget"),
    ("budget", "raise"): _moved("budget", **{"for": "--raise"}),
    ("mode",): _moved("agent mode"),
    ("agent", "list"): _moved("agent show"),
    ("new", "agent"): _moved("agent new"),
    ("policy", "apply"): _moved("policy publish"),
    ("replay",): _replay,
    ("ledger", "verify"): _verify,
    ("ledger", "archive"): _renamed("ledger archive", "--keep", "--before"),
    ("audit", "targets"): _moved("verify targets"),
    ("audit", "ship"): _ship,
    ("keys", "rotate"): _moved("ledger rotate-key"),
    ("erase",): _placed(
        "erase", "erase event:ID|subject:WHO|entry:SEQ", event="event:{}", subject="subject:{}",
        entry="entry:{}",
    ),
    ("store", "check"): _moved("verify rows"),
    ("store", "rebuild"): _rebuild,
    ("store", "copy"): _copy,
    ("pubsub", "plan"): _moved("pubsub"),
    ("pubsub", "apply"): _moved("pubsub --apply"),
    ("pubsub", "redrive"): _redrive_source,
    ("backup",): _placed("backup", "backup FOLDER", to="{}"),
    ("restore",): _restore,
    ("identity", "list"): _moved("identity show"),
    ("identity", "rotate"): _moved("identity issue --rotate"),
    ("worker",): _worker,
    ("schema",): _moved("completion"),
}  # fmt: skip
