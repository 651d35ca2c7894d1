"""One page, self-contained and inert, that reads without colour."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from vedette.domain.base.clock import iso
from vedette.interfaces.render.explain_html import STYLE, explain_page, inert_html

HOSTILE = '"><script>alert(1)</script><img src=//evil.example/x>\u202egpj\u200b\u2066'


def sample_explanation() -> dict[str, Any]:
    """An explain object in which every text of a stranger is hostile."""
    decision = {
        "seq": 5, "at": 1_700_000_000_000_000, "outcome": "hold", "rule": "impact.high",
        "reasons": [HOSTILE], "revision": 3, "wait": "approval", "until": 1_700_000_100_000_000,
        "would": None, "erased": False,
    }  # fmt: skip
    action = {
        "id": "act_1", "turn": 1, "ordinal": 0, "tool": "mail.send", "digest": "d1",
        "why": HOSTILE, "erased": False, "outcome": "hold", "rule": "impact.high",
        "arguments": [
            {"pointer": "/to", "value": HOSTILE, "origin": "untrusted", "source": HOSTILE,
             "sink": True},
        ],
        "decisions": [decision],
        "hold": {"id": "hold_1", "state": "open", "waits": "approval",
                 "until": 1_700_000_100_000_000,
                 "answers": [{"at": 1_700_000_050_000_000, "answer": "noted", "by": HOSTILE,
                              "reason": HOSTILE, "erased": False}]},
        "effect": {"id": "eff_1", "state": "done", "erased": False, "word": "claimed",
                   "awaits": {"waits": "event", "until": 1_700_000_120_000_000,
                              "for": {"event": HOSTILE, "where": {"/data/at": HOSTILE}}},
                   "outcome": {"error": "", "data": HOSTILE},
                   "states": [{"at": 1_700_000_060_000_000, "state": "done", "revision": 3}]},
    }  # fmt: skip
    judgement = {
        "turn": 1, "seq": 4, "at": 1_700_000_000_000_000, "label": HOSTILE, "confidence_milli": 900,
        "score_milli": None, "threshold_milli": None, "erased": False,
        "detail": {HOSTILE: HOSTILE}, "notes": {HOSTILE: HOSTILE},
        "proposals": [{"tool": HOSTILE, "refused": {"why": HOSTILE}}],
    }  # fmt: skip
    model_call = {
        "seq": 4, "at": 1_700_000_000_000_000, "turn": 1, "model": "fast", "asked": HOSTILE,
        "answered": None, "calls": 1, "input": 1350, "output": 27, "took": 1_250_000,
        "finish": "stop", "error": "superseded",
    }  # fmt: skip
    run = {
        "id": "run_1", "agent": "inbox_triage", "identity": "spiffe://harbour/agent/inbox_triage",
        "state": "waiting", "release": "0" * 64, "waits": "approval", "turns": 1, "key": HOSTILE,
        "memories": [HOSTILE], "model_calls": [model_call], "judgements": [judgement],
        "actions": [action], "cut": False,
        "reads": [{"memory": HOSTILE, "outcome": "permit", "rule": "r", "revision": 3}],
        "dead": {"at": 1_700_000_070_000_000, "why": HOSTILE, "erased": False},
        "timeline": [{"seq": 4, "at": 1_700_000_000_000_000, "kind": "turn.reasoned"}],
    }  # fmt: skip
    event = {
        "id": "evt_1", "seq": 3, "at": 1_700_000_000_000_000, "erased": False, "vouched": ["id"],
        "attributes": {"id": HOSTILE, "type": "mail.received", "extensions": {}},
        "lineage": [HOSTILE], "data": {HOSTILE: HOSTILE},
    }  # fmt: skip
    part = {"value": HOSTILE, "trusted": False, "more": 0}
    event["about"] = {
        "event": "evt_1", "erased": False, "outside": True, "type": HOSTILE, "source": HOSTILE,
        "title": part, "who": part, "when": part, "text": part,
        "fields": [{"name": HOSTILE, **part}],
    }  # fmt: skip
    return {"id": HOSTILE, "kind": "run", "focus": None, "head": 9, "event": event, "runs": [run]}


class Tags(HTMLParser):
    """Every tag of a page with its attributes; raises for what is not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page() -> str:
    return explain_page(sample_explanation(), lambda at: iso(at)[:19], 1_700_000_200_000_000)


def test_nothing_of_a_stranger_becomes_markup() -> None:
    tags = Tags(page())
    assert tags.open == []
    assert not {tag for tag, _ in tags.found} & {"script", "img", "a", "form", "iframe", "link"}
    assert not [name for _, given in tags.found for name in given if name.startswith("on")]


def test_a_page_without_the_escape_would_be_found_out() -> None:
    broken = page().replace("&lt;script&gt;", "<script>", 1)
    assert "script" in {tag for tag, _ in Tags(broken.replace("alert(1)", "</script>", 1)).found}


@pytest.mark.parametrize("hidden", ["\u202e", "\u2066", "\u200b", "\x1b", "\U000e0041"])
def test_what_cannot_be_seen_is_spelled_out(hidden: str) -> None:
    shown = inert_html(f"a{hidden}b")
    assert hidden not in shown
    assert "\\" in shown
    assert hidden not in page()


def test_the_policy_lets_in_this_style_and_nothing_else() -> None:
    text = page()
    policy = next(g["content"] for tag, g in Tags(text).found if g.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert f"<style>{STYLE}</style>" in text
    assert not re.search(r"(?:https?:)?//(?!evil|harbour)", re.sub(r"<bdi.*?</bdi>", "", text))


def test_status_is_a_shape_and_a_word_beside_the_colour() -> None:
    text = page()
    for shape, word in (("‖", "hold"), ("✗", "untrusted"), ("✓", "done"), ("✗", "dead")):
        assert f'<span aria-hidden="true">{shape}</span> <bdi dir="ltr">{word}</bdi>' in text


def test_every_instant_keeps_its_exact_time_in_utc() -> None:
    tags = Tags(page())
    times = [given for tag, given in tags.found if tag == "time"]
    assert len(times) >= 8
    assert all(str(given["datetime"]).endswith("Z") for given in times)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_stands_out_in_light_and_dark() -> None:
    light, dark = (
        dict(re.findall(r"--([a-z-]+):(#[0-9a-f]{3,6})", part))
        for part in STYLE.split("@media (prefers-color-scheme:dark)")
    )
    for given in (light, dark):
        colours = {
            name: f"#{''.join(c * 2 for c in value[1:])}" if len(value) == 4 else value
            for name, value in given.items()
        }
        pairs = [("ink", "panel"), ("ink", "ground"), ("second", "panel"), ("second", "ground")]
        pairs += [(name, f"{name}-t") for name in ("good", "wait", "bad", "odd", "plain")]
        for text, ground in pairs:
            assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


def test_what_is_cut_off_is_said_to_be() -> None:
    many = {"lines": "a\n" * 5_000, "items": list(range(80)), "rows": [{"n": n} for n in range(53)]}
    fits = {"lines": "a\n" * 2_000, "items": list(range(50)), "rows": [{"n": n} for n in range(50)]}
    for detail, signs in (
        (many, ["… (6,000 characters more)", "… (30 more)", "… (3 more)"]),
        (fits, []),
    ):
        value = sample_explanation()
        value["runs"][0]["judgements"][0]["detail"] = detail
        page = explain_page(value, lambda at: iso(at)[:19], 1_700_000_200_000_000)
        assert re.findall(r"… \([^)]*more\)", page) == signs
        assert Tags(page).open == []
