"""Mail goes to junk only where the folder bank and the spam bank agree, above the bar."""

from __future__ import annotations

from typing import Any

from tests.fleet.test_inbox_triage import LABELS, agent, decide, lessons, mail, outcomes

from vedette.config.agent_loader import build_judge


def test_no_reviewed_kind_of_mail_is_lost_to_junk() -> None:
    judged = {unique: outcome.judgement for unique, outcome in outcomes().items()}
    junk = {unique for unique, one in judged.items() if one.label == "spam"}
    assert all(
        LABELS[unique]["label"] == "spam" for unique in junk if judged[unique].confidence >= 0.8
    )
    for unique in junk:
        share = judged[unique].detail["spam"]
        assert judged[unique].confidence <= max(share["chance"] + 1e-3, 0.0)
        if share["chance"] < share["bar"]:
            assert judged[unique].confidence <= 0.5


def test_the_bar_decides() -> None:
    """Control: with a bar that nothing reaches, no spam is filed without a person."""
    surest = max(
        (unique for unique in LABELS if outcomes()[unique].judgement.label == "spam"),
        key=lambda unique: outcomes()[unique].judgement.confidence,
    )
    assert "mail.file" in outcomes()[surest].tools("permit")
    strict: Any = build_judge(agent()[0], lessons())
    strict._spam.bar = 1.1
    outcome = decide(mail(surest), strict)
    assert outcome.judgement.label == "spam"
    assert outcome.judgement.confidence <= 0.5
    assert "mail.file" in outcome.tools("hold")
