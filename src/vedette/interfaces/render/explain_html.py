"""The explain object as one self-contained HTML page: no script, no link out, nothing loaded.

Everything of a stranger goes through `inert_html`: escaped, set apart from the direction of the
text around it, and with what cannot be seen (control, zero-width and bidirectional characters)
spelled out. Status is a shape and a word; colour only repeats it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from typing import Any

from vedette.domain.display_text import INSIDE_HEADING, OUTSIDE_HEADING
from vedette.domain.effect import OPEN_STATES
from vedette.domain.event import DATA
from vedette.interfaces.render.explain_text import model_call_text, safe_text
from vedette.ledger.history.action import format_awaited, format_quiet_time, format_tries

TimeFormat = Callable[[int], str]

# Characters of a text and items of a list; of longer ones the page says how much more there is.
_MAX_CHARS = 4_000
_MAX_ITEMS = 50
# Status: (class, shape). The word always stands beside it.
_STATUS_STYLES = {
    "permit": ("good", "✓"), "done": ("good", "✓"), "used": ("good", "✓"), "trusted": ("good", "✓"),
    "approved": ("good", "✓"), "verified": ("good", "✓"),
    "hold": ("wait", "‖"), "open": ("wait", "‖"), "waiting": ("wait", "‖"), "ready": ("wait", "‖"),
    "intended": ("wait", "‖"), "started": ("wait", "‖"), "registered": ("wait", "‖"),
    "absent": ("wait", "‖"),
    "deny": ("bad", "✗"), "denied": ("bad", "✗"), "failed": ("bad", "✗"), "dead": ("bad", "✗"),
    "expired": ("bad", "✗"), "untrusted": ("bad", "✗"), "cancelled": ("bad", "✗"),
    "unknown": ("odd", "?"), "derived": ("odd", "?"),
}  # fmt: skip

STYLE = """
:root{color-scheme:light dark;--panel:#fff;--ground:#f4f6f5;--ink:#13201b;--second:#43514b;
--rule:#cbd2ce;--good:#17683a;--good-t:#dff1e5;--wait:#7f5200;--wait-t:#fbebc8;--bad:#a8221b;
--bad-t:#fbe3e0;--odd:#643a99;--odd-t:#eee5f8;--plain:#4e5b55;--plain-t:#e6eae8}
@media (prefers-color-scheme:dark){:root{--panel:#141d1a;--ground:#0d1412;--ink:#e7edea;
--second:#b3bfb9;--rule:#2c3833;--good:#74c896;--good-t:#12301f;--wait:#e8bc62;--wait-t:#352809;
--bad:#ff958a;--bad-t:#3b1714;--odd:#c9acf4;--odd-t:#2a1d3d;--plain:#aebab4;--plain-t:#222c28}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:14px/20px system-ui,sans-serif}
header,main{max-width:72rem;margin:0 auto;padding:16px}
h1{font-size:20px;line-height:28px;margin:0;overflow-wrap:anywhere}
h2{font-size:16px;line-height:24px;margin:0 0 8px;overflow-wrap:anywhere}
h3{font-size:14px;margin:16px 0 4px}h4{font-size:14px;margin:12px 0 4px;font-weight:560}
section{background:var(--panel);border:1px solid var(--rule);border-radius:6px;padding:16px;
margin:0 0 16px}
blockquote{margin:0;padding-left:12px;border-left:4px solid var(--odd)}
article{border-top:1px solid var(--rule);margin-top:16px}
small,caption,dt,header p{color:var(--second)}
dl{display:grid;grid-template-columns:minmax(8rem,max-content) 1fr;gap:2px 16px;margin:4px 0}
dd{margin:0;overflow-wrap:anywhere}
code,pre,td bdi{font-family:ui-monospace,monospace;font-size:13px}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--ground);padding:8px;margin:4px 0}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;margin:8px 0;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:4px 0}
th,td{text-align:left;vertical-align:top;padding:4px 12px 4px 0;border-bottom:1px solid var(--rule)}
td{overflow-wrap:anywhere;max-width:32rem}
.tag{display:inline-block;padding:0 6px;border-radius:4px;font-size:12px;line-height:18px;
font-weight:560;border:1px solid transparent;white-space:nowrap}
.good{color:var(--good);background:var(--good-t)}.wait{color:var(--wait);background:var(--wait-t)}
.bad{color:var(--bad);background:var(--bad-t)}.odd{color:var(--odd);background:var(--odd-t)}
.plain{color:var(--plain);background:var(--plain-t)}
@media (forced-colors:active){.tag{border-color:CanvasText}}
@media (max-width:40rem){dl{grid-template-columns:1fr}dt{margin-top:4px}
dd dl{grid-template-columns:minmax(5rem,max-content) 1fr;gap:2px 8px;padding-left:8px;
border-left:2px solid var(--rule)}dd dt{margin-top:0}}
@media print{body{background:#fff}section{break-inside:auto;border:0}}
"""


def explain_page(explanation: Mapping[str, Any], format_time: TimeFormat, now_us: int) -> str:
    """Return an explain object as an HTML document; `format_time` writes its instants."""
    title = safe_text(str(explanation["id"]))
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    body = [*_summary(explanation), *_event(explanation["event"], format_time)]
    for run in explanation["runs"]:
        body += _run(run, explanation["focus"], format_time)
    if not explanation["runs"]:
        body.append("<p>It woke no agent.</p>")
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            f"<header><h1>{escape(title)}</h1>",
            f"<p>As of entry {explanation['head']}, {_time(now_us, format_time)}</p></header>",
            "<main>",
            *body,
            "</main>",
            "</body>",
            "</html>",
            "",
        )
    )


def inert_html(value: Any, max_chars: int = _MAX_CHARS) -> str:
    """Return a value as HTML that does nothing and shows what it hides."""
    return f'<bdi dir="ltr">{escape(safe_text(value, max_chars))}</bdi>'


def _content(value: Any, depth: int = 0) -> str:
    """Return content as HTML that keeps its form: a mapping, rows of mappings, lines of text."""
    if isinstance(value, Mapping) and value and depth < 3:
        return _list((str(name), _content(item, depth + 1)) for name, item in value.items())
    if isinstance(value, list) and value and depth < 3:
        if all(isinstance(item, Mapping) for item in value):
            heads = list(dict.fromkeys(name for item in value for name in item))
            rows = (
                (inert_html(item.get(name, "")) for name in heads) for item in value[:_MAX_ITEMS]
            )
            return _table("", heads, rows) + _cut_sign(len(value) - _MAX_ITEMS)
        return ", ".join(inert_html(item) for item in value[:_MAX_ITEMS]) + _cut_sign(
            len(value) - _MAX_ITEMS
        )
    if isinstance(value, str) and "\n" in value:
        lines = value[:_MAX_CHARS].split("\n")
        shown = "\n".join(inert_html(line.rstrip("\r")) for line in lines)
        return f"<pre>{shown}</pre>" + _cut_sign(len(value) - _MAX_CHARS, " characters")
    return inert_html(value)


def _cut_sign(remaining: int, what: str = "") -> str:
    """Return the sign that something was cut off; nothing if nothing was."""
    return f" <small>… ({remaining:,}{what} more)</small>" if remaining > 0 else ""


def _time(at: Any, format_time: TimeFormat) -> str:
    if not isinstance(at, int):
        return "?"
    from vedette.domain.base.clock import iso

    exact = iso(at)
    return f'<time datetime="{exact}" title="{exact}">{escape(format_time(at))}</time>'


def _tag(word: Any) -> str:
    look, shape = _STATUS_STYLES.get(str(word), ("plain", "–"))
    sign = f'<span aria-hidden="true">{shape}</span>'
    return f'<span class="tag {look}">{sign} {inert_html(word)}</span>'


def _list(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and values that are HTML already as a description list."""
    found = "".join(f"<dt>{escape(safe_text(name))}</dt><dd>{value}</dd>" for name, value in rows)
    return f"<dl>{found}</dl>" if found else ""


def _table(caption: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(safe_text(name))}</th>' for name in heads)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    named = f' tabindex="0" role="region" aria-label="{escape(caption)}"' if caption else ""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="wide"{named}><table>{title}'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


# --- in short --------------------------------------------------------------------------------


def _summary(explanation: Mapping[str, Any]) -> Iterator[str]:
    """Yield what came of it, then what it is about."""
    yield "<section><h2>Decision</h2>"
    for run in explanation["runs"]:
        actions = [one for one in run["actions"] if explanation["focus"] in (None, one["id"])]
        for one in actions:
            waits = one["hold"]["waits"] if one["hold"] else None
            rows = [("by", inert_html(one["rule"]))] if one["rule"] else []
            rows += [("waits for", inert_html(waits))] if waits else []
            rows += [("effect", _tag(one["effect"]["state"]))] if one["effect"] else []
            what = f"{inert_html(run['agent'])}: {inert_html(one['tool'])}"
            head = f"<p>{_tag(one['outcome'])} {what}</p>"
            yield head + _list(rows)
        if not actions:
            yield f"<p>{inert_html(run['agent'])} proposed no action.</p>"
    yield from _about(explanation["event"]["about"])
    yield "</section>"


def _about(about: Mapping[str, Any]) -> Iterator[str]:
    if about["erased"]:
        yield "<p>What it is about was erased.</p>"
        return
    whose = OUTSIDE_HEADING if about["outside"] else INSIDE_HEADING
    yield f"<h3>About <small>{whose.removesuffix(':')}</small></h3>"
    named = [("from", about["who"]), ("about", about["title"]), ("when", about["when"])]
    named += [(each["name"], each) for each in about["fields"]]
    rows = [("what", f"{inert_html(about['type'])} from {inert_html(about['source'])}")]
    for name, part in named:
        if part is not None:
            rows.append((name, inert_html(part["value"]) + _cut_sign(part["more"], " characters")))
    yield f"<blockquote>{_list(rows)}"
    if (text := about["text"]) is not None:
        lines = "\n".join(inert_html(line) for line in text["value"].split("\n"))
        yield f"<pre>{lines}</pre>" + _cut_sign(text["more"], " characters")
    yield "</blockquote>"


# --- event -----------------------------------------------------------------------------------


def _event(event: Mapping[str, Any], format_time: TimeFormat) -> Iterator[str]:
    yield f"<section><h2>Event <code>{inert_html(event['id'])}</code></h2>"
    if event["seq"] is None:
        yield "<p>The record holds no such event.</p></section>"
        return
    rows = [("accepted", f"{_time(event['at'], format_time)}, entry {event['seq']}")]
    if event["erased"]:
        rows.append(("content", "erased; the entries still prove that it was there"))
        yield _list(rows) + "</section>"
        return
    vouched = set(event["vouched"])
    for name, value in event["attributes"].items():
        if value not in (None, {}):
            sure = "vouched for by its source" if name in vouched else "not vouched for"
            rows.append((name, f"{inert_html(value)} <small>{sure}</small>"))
    if event["lineage"]:
        rows.append(("came through", inert_html(", ".join(event["lineage"]))))
    yield _list(rows)
    made = "" if DATA in vouched else " <small>untrusted content</small>"
    yield f"<h3>Data{made}</h3>{_content(event['data'])}</section>"


# --- run -------------------------------------------------------------------------------------


def _run(run: Mapping[str, Any], focus: str | None, format_time: TimeFormat) -> Iterator[str]:
    yield f"<section><h2>Run <code>{inert_html(run['id'])}</code> {_tag(run['state'])}</h2>"
    rows = [
        ("agent", f"{inert_html(run['agent'])} <small>{inert_html(run['identity'] or '')}</small>")
    ]
    if run["release"]:
        rows.append(("release", f"<code>{inert_html(run['release'][:16])}</code>"))
    if run["waits"]:
        rows.append(("waits for", inert_html(run["waits"])))
    rows += [("turns", str(run["turns"])), ("key", inert_html(run["key"] or "–", 200))]
    cites = ", ".join(inert_html(cite) for cite in run["memories"])
    rows.append(("memories", cites or "none cited"))
    yield _list(rows)
    if run["reads"]:
        cells = (
            (inert_html(r["memory"]), _tag(r["outcome"]), inert_html(r["rule"]), str(r["revision"]))
            for r in run["reads"]
        )
        yield _table("Memory that it asked to read", ("scope", "", "rule", "revision"), cells)
    if run["model_calls"]:
        calls = (
            (str(call["turn"]), inert_html(model_call_text(call))) for call in run["model_calls"]
        )
        yield _table("Model", ("turn", ""), calls)
    for judgement in run["judgements"]:
        yield from _judgement(judgement, format_time)
    for action in run["actions"]:
        if focus in (None, action["id"]):
            yield from _action(action, format_time)
        else:
            yield f"<p>{inert_html(action['tool'])} {_tag(action['outcome'])}</p>"
    if run["dead"] is not None:
        why = "(erased)" if run["dead"]["erased"] else inert_html(run["dead"]["why"])
        yield f"<p>{_tag('dead')} {_time(run['dead']['at'], format_time)}: {why}</p>"
    yield _timeline(run, format_time) + "</section>"


def _timeline(run: Mapping[str, Any], format_time: TimeFormat) -> str:
    rows = (
        (str(item["seq"]), _time(item.get("at"), format_time), inert_html(item["kind"]))
        for item in run["timeline"]
    )
    cut = " (the first thousand entries)" if run["cut"] else ""
    return _table(f"Everything recorded{cut}", ("entry", "when", "what"), rows)


def _judgement(judgement: Mapping[str, Any], format_time: TimeFormat) -> Iterator[str]:
    yield f"<h3>Judgement, turn {judgement['turn']}</h3>"
    rows = [("said", f"<strong>{inert_html(judgement['label'])}</strong>")]
    for name in ("confidence", "score", "threshold"):
        value = judgement[f"{name}_milli"]
        if value is not None:
            rows.append((name, f"{value / 1000:g}"))
    rows.append(("when", f"{_time(judgement['at'], format_time)}, entry {judgement['seq']}"))
    if judgement["erased"]:
        rows.append(("detail", "erased"))
    for name, value in [*(judgement["detail"] or {}).items(), ("notes", judgement["notes"])]:
        if value not in (None, "", [], {}):
            rows.append((str(name), _content(value)))
    yield _list(rows)
    for proposal in judgement["proposals"]:
        if proposal["refused"] is not None:
            why = inert_html(proposal["refused"]["why"])
            yield f"<p>{_tag('deny')} no action: {inert_html(proposal['tool'])}: {why}</p>"


# --- action ----------------------------------------------------------------------------------


def _action(action: Mapping[str, Any], format_time: TimeFormat) -> Iterator[str]:
    at = f"{action['turn']}.{action['ordinal']}"
    yield f"<article><h3>{inert_html(action['tool'])} <small>turn {at}</small></h3>"
    rows = [("action", f"<code>{inert_html(action['id'])}</code>")]
    rows.append(("digest", f"<code>{inert_html(action['digest'])}</code>"))
    if action["why"]:
        rows.append(("why", inert_html(action["why"])))
    yield _list(rows)
    if action["erased"]:
        yield "<p>Its arguments were erased.</p>"
    else:
        cells = (
            (
                f"<code>{inert_html(given['pointer'])}</code>",
                inert_html(given["value"]),
                _tag(given["origin"]),
                inert_html(given["source"] or "given by value"),
                "decides who, where or which" if given["sink"] else "",
            )
            for given in action["arguments"] or ()
        )
        heads = ("argument", "value", "origin", "drawn from", "sink")
        yield _table(f"Arguments of {action['tool']}", heads, cells)
    for decision in action["decisions"]:
        yield _decision(decision, format_time)
    if action["hold"]:
        yield _hold(action["hold"], format_time)
    if action["effect"]:
        yield _effect(action["effect"], format_time)
    yield "</article>"


def _decision(decision: Mapping[str, Any], format_time: TimeFormat) -> str:
    rows = [("rule", f"{inert_html(decision['rule'])}, revision {decision['revision']}")]
    if decision["reasons"]:
        rows.append(("reasons", inert_html(", ".join(decision["reasons"]))))
    if decision["wait"]:
        until = f" until {_time(decision['until'], format_time)}" if decision["until"] else ""
        rows.append(("waits for", inert_html(decision["wait"]) + until))
    if decision["would"]:
        rows.append(("in mode act it would be", _tag(decision["would"])))
    rows.append(("when", f"{_time(decision['at'], format_time)}, entry {decision['seq']}"))
    if decision["erased"]:
        rows.append(("question", "erased: this decision cannot be replayed"))
    return f"<h4>Decision {_tag(decision['outcome'])}</h4>{_list(rows)}"


def _hold(hold: Mapping[str, Any], format_time: TimeFormat) -> str:
    rows = []
    if hold["waits"]:
        until = f" until {_time(hold['until'], format_time)}" if hold["until"] else ""
        rows.append(("waits for", inert_html(hold["waits"]) + until))
    for answer in hold["answers"]:
        reason = "(erased)" if answer["erased"] else inert_html(answer["reason"] or "")
        who = inert_html(answer["by"] or "nobody")
        rows.append((answer["answer"], f"{_time(answer['at'], format_time)} by {who}: {reason}"))
    return f"<h4>Hold <code>{inert_html(hold['id'])}</code> {_tag(hold['state'])}</h4>{_list(rows)}"


def _effect(effect: Mapping[str, Any], format_time: TimeFormat) -> str:
    rows = [
        (state["state"], f"{_time(state['at'], format_time)}, revision {state['revision']}")
        for state in effect["states"]
    ]
    if awaits := effect["awaits"]:
        until = f", until {_time(awaits['until'], format_time)} at most"
        rows.append(("waits for", inert_html(format_awaited(awaits)) + until))
    if quiet_time := format_quiet_time(effect):
        rows.append(("outcome", quiet_time.format(at=_time(effect["next_try_at"], format_time))))
    if tries := format_tries(effect):
        next_at = effect["next_try_at"] if effect["state"] in OPEN_STATES else None
        rows.append(
            ("tries", tries + (f", next try {_time(next_at, format_time)}" if next_at else ""))
        )
    outcome = effect["outcome"]
    if effect["erased"]:
        rows.append(("outcome", "erased"))
    elif outcome:
        rows.append(("outcome", _content(outcome["error"] or outcome["data"])))
    if effect["word"]:
        whose = {"verified": "verified at its target", "claimed": "claimed by the tool"}
        rows.append(("on whose word", whose[effect["word"]]))
    head = f"<h4>Effect <code>{inert_html(effect['id'])}</code> {_tag(effect['state'])}</h4>"
    return head + _list(rows)
