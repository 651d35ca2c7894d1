"""Spellings of the verbs that were there before: taken for one release, with a hint.

`translate` makes of each what it is now, word by word, before anything is read. With the release
after, this module goes, and its two calls in `vedette.interfaces.cli`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

Words = list[str]


def translate(words: Words) -> tuple[Words, str | None]:
    """Return a verb and its arguments as spelled now, and how that is written in general.

    The second is None, and the words are the same, where nothing of before is in them.
    """
    for length in (2, 1):
        rule = RULES.get(tuple(words[:length]))
        if rule is not None and (found := rule(words[length:])) is not None:
            return found
    return words, None


Rule = Callable[[Words], tuple[Words, str] | None]


def _verb_rule(now: str, **renamed: str) -> Rule:
    """Return a rule for a verb that has another name; of its options some have, too."""

    def rule(rest: Words) -> tuple[Words, str]:
        for old, new in renamed.items():
            rest = _rename(rest, f"--{old}", new)
        return [*now.split(), *rest], now

    return rule


def _option_rule(verb: str, old: str, new: str) -> Rule:
    """Return a rule for a verb of which one option has another name.

    Both at once were refused, or unknown: so is the old one then.
    """

    def rule(rest: Words) -> tuple[Words, str] | None:
        found = _rename(rest, old, new) if _take(rest, new)[0] is None else rest
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


def _drop(rest: Words, option: str) -> Words:
    """Return words without an option and its value, which did nothing."""
    while (found := _take(rest, option))[0] is not None:
        rest = found[1]
    return rest


def _wants_help(rest: Words) -> bool:
    return not {"-h", "--help"}.isdisjoint(rest)


def _split_options(rest: Words) -> tuple[Words, Words]:
    """Return what stands by its place, and the options, each of which has a value or is help."""
    given: Words = []
    options: Words = []
    left = iter(rest)
    for word in left:
        if word == "--":
            given += left
        elif not word.startswith("-"):
            given.append(word)
        elif "=" in word or _wants_help([word]):
            options.append(word)
        else:
            options += [word, *islice(left, 1)]
    return given, options


# --- verbs whose words need more than that -----------------------------------------------------


def _hold_claim(rest: Words) -> tuple[Words, str]:
    return ["hold", *rest, "--claim"], "hold HOLD --claim"


def _hold_note(rest: Words) -> tuple[Words, str]:
    given, options = _split_options(rest)
    # Without a text the option stands last, and it is said that it needs one.
    note = [f"--note={given[1]}"] if len(given) > 1 else [] if _wants_help(rest) else ["--note"]
    return ["hold", *given[:1], *given[2:], *options, *note], "hold HOLD --note TEXT"


def _shown(verb: str) -> Rule:
    """Return a rule for a `show` that needed a name; its verb without one is a list now."""

    def rule(rest: Words) -> tuple[Words, str] | None:
        named = any(not word.startswith("-") for word in rest)
        return ([verb, *rest], verb) if named or _wants_help(rest) else None

    return rule


def _group(verb: str) -> Rule:
    """Return a rule for an answer to a group; what is no group's id is no hold's either."""
    placed = _placed(verb, f"{verb} GROUP", group="{}")

    def rule(rest: Words) -> tuple[Words, str] | None:
        is_group = (_take(rest, "--group")[0] or "").startswith("grp_")
        return placed(rest) if is_group else None

    return rule


def _budget_raise(rest: Words) -> tuple[Words, str]:
    now, then = "budget AGENT --raise TIME", _rename(rest, "--for", "--raise")
    # Without a time the option stands last, and it is said that it needs one: nothing is shown.
    return ["budget", *then, *(["--raise"] if then == rest and not _wants_help(rest) else [])], now


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
    if "--judges" in rest:
        left = [word for word in rest if word != "--judges"]
        return ["verify", "judgements", *_drop(left, "--engine")], "verify judgements"
    return ["verify", "decisions", *rest], "verify decisions"


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
    # Without a source the option stands last, and it is said that it needs one.
    source = [f"--redrive={given[0]}"] if given else [] if _wants_help(rest) else ["--redrive"]
    return ["pubsub", *given[1:], *options, *source], "pubsub --redrive SOURCE"


def _copy(rest: Words) -> tuple[Words, str]:
    left = _drop(rest, "--command-id")
    placed = _placed("migrate", "", to="{}", to_env="env:{}")(left)
    return placed[0] if placed else ["migrate", *left], "migrate URL|env:NAME"


def _restore(rest: Words) -> tuple[Words, str] | None:
    folder, now = _take(rest, "--from")
    if _take(rest, "--witness")[0] is None:  # both were refused
        now = [*("--witness=none" if word == "--no-witness" else word for word in now)]
    if folder is not None and "--settled" not in rest:
        now = _drop(now, "--command-id")  # it did nothing
    if now == rest:
        return None
    folders = [] if folder is None else [folder]
    return ["restore", *folders, *now], "restore FOLDER --witness FILE|none"


def _worker(rest: Words) -> tuple[Words, str] | None:
    audience, others = _take(rest, "--audience")
    if audience is None:
        return None
    identity, others = _take(others, "--identity")
    if identity != "google":  # no file needed it
        return ["worker", *_drop(rest, "--audience")], "worker --identity FILE"
    return ["worker", "--identity", f"google:{audience}", *others], "worker --identity google:NAME"


RULES: dict[tuple[str, ...], Rule] = {
    ("policy", "check"): _verb_rule("check policy"),
    ("eval",): _verb_rule("check cases"),
    ("gateway",): _verb_rule("run --gateway"),
    ("runs",): _option_rule("runs", "--before", "--page"),
    ("explain-error",): _verb_rule("explain --error"),
    ("plot", "anomaly"): _verb_rule("plot"),
    ("hold", "list"): _verb_rule("hold", after="--page"),
    ("hold", "show"): _shown("hold"),
    ("hold", "claim"): _hold_claim,
    ("hold", "note"): _hold_note,
    ("approve",): _group("approve"),
    ("deny",): _group("deny"),
    ("correct",): _placed("correct", "correct RUN LABEL", should="{}"),
    ("memory", "list"): _verb_rule("memory show"),
    ("memory", "approve"): _memory("active", "memory_approve"),
    ("memory", "on"): _memory("active", "memory_on"),
    ("memory", "off"): _memory("off", "memory_off"),
    ("memory", "reject"): _memory("rejected", "memory_reject"),
    ("dead", "list"): _verb_rule("dead", before="--page"),
    ("dead", "show"): _shown("dead"),
    ("dead", "redrive"): _verb_rule("dead --redrive"),
    ("dead", "drop"): _verb_rule("dead --drop"),
    ("clock", "confirm"): _verb_rule("resume --clock"),
    ("budget", "show"): _verb_rule("budget"),
    ("budget", "raise"): _budget_raise,
    ("mode",): _verb_rule("agent mode"),
    ("agent", "list"): _verb_rule("agent show"),
    ("new", "agent"): _verb_rule("agent new"),
    ("policy", "apply"): _verb_rule("policy publish"),
    ("replay",): _replay,
    ("ledger", "verify"): _verify,
    ("ledger", "archive"): _option_rule("ledger archive", "--keep", "--before"),
    ("audit", "targets"): _verb_rule("verify targets"),
    ("audit", "ship"): _ship,
    ("keys", "rotate"): _verb_rule("ledger rotate-key"),
    ("erase",): _placed(
        "erase", "erase event:ID|subject:WHO|entry:SEQ", event="event:{}", subject="subject:{}",
        entry="entry:{}",
    ),
    ("store", "check"): _verb_rule("verify rows"),
    ("store", "rebuild"): _rebuild,
    ("store", "copy"): _copy,
    ("pubsub", "plan"): _verb_rule("pubsub"),
    ("pubsub", "apply"): _verb_rule("pubsub --apply"),
    ("pubsub", "redrive"): _redrive_source,
    ("backup",): _placed("backup", "backup FOLDER", to="{}"),
    ("restore",): _restore,
    ("identity", "list"): _verb_rule("identity show"),
    ("identity", "rotate"): _verb_rule("identity issue --rotate"),
    ("worker",): _worker,
    ("schema",): _verb_rule("completion"),
}  # fmt: skip
