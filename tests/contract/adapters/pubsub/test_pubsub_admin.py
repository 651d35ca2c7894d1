"""`vedette pubsub`, `--apply` and `--redrive` against the real emulator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.letters import pull_plan
from tests.pubsub import Emulator

from vedette.adapters.pubsub import admin
from vedette.adapters.pubsub.admin import declaration_exit_code
from vedette.adapters.pubsub.client import Connection, connect
from vedette.adapters.pubsub.declaration import Change, build_declaration, compare_declaration
from vedette.config.settings import read_settings
from vedette.domain.base.errors import BadFleet
from vedette.interfaces.cli import main

SOURCES = """
[[sources]]
kind = "pubsub"
name = "metrics"
project = "{project}"
subscription = "metrics"
topic = "metrics"
dead_letter_topic = "metrics-dead"
ack_deadline = "30s"
ordered = true
exactly_once = true
filter = 'attributes.kind = "point"'
type = "point"

[[sources]]
kind = "pubsub-push"
name = "mails"
project = "{project}"
subscription = "mails-push"
topic = "mails"
endpoint = "https://fleet.example/v1/pubsub/mails"
audience = "https://fleet.example"
service_account = "pusher@harbour.example"

[[sources]]
kind = "pubsub"
name = "others"
project = "{project}"
subscription = "somebody-elses"

[targets.notices]
kind = "pubsub"
project = "{project}"
topic = "notices"
"""

Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def project(pubsub_emulator: Emulator, tmp_path: Path) -> str:
    """Make a fleet's settings with a project of its own."""
    project = pubsub_emulator.project()
    text = 'fleet = "harbour"\n' + SOURCES.format(project=project)
    (tmp_path / "vedette.toml").write_text(text)
    return project


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def go(*words: str) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as ended:
            main(["--config", str(tmp_path), "pubsub", *words, "--json"])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, json.loads(said.out or said.err)

    return go


def actions(answer: Any) -> dict[str, str]:
    """Return what becomes of what, by the short names."""
    return {
        f"{one['resource']} {one['name'].rpartition('/')[2]}": one["action"]
        for one in answer["changes"]
    }


def differences(answer: Any, name: str) -> dict[str, tuple[Any, Any, bool]]:
    (found,) = [one for one in answer["changes"] if one["name"].endswith(f"subscriptions/{name}")]
    return {
        field["name"]: (field["found"], field["declared"], field["in_place"])
        for field in found["fields"]
    }


async def do(work: Callable[[Connection], Any]) -> Any:
    connection = await connect()
    try:
        return await work(connection)
    finally:
        await connection.close()


def edit(folder: Path, *pairs: tuple[str, str]) -> None:
    path = folder / "vedette.toml"
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_plan_and_apply_from_nothing_to_as_declared(project: str, run: Run, tmp_path: Path) -> None:
    code, answer = run("plan")
    assert code == 1
    assert actions(answer) == {
        "topic metrics": "create", "topic mails": "create", "topic metrics-dead": "create",
        "topic notices": "create", "subscription metrics": "create",
        "subscription mails-push": "create", "subscription metrics-dead": "create",
        "subscription somebody-elses": "missing",
    }  # fmt: skip
    assert run("plan")[1] == answer, "a plan changes nothing"
    code, answer = run("apply")
    assert (code, answer["applied"]) == (1, True), "one subscription cannot be made"
    code, answer = run("plan")
    assert code == 1
    assert set(actions(answer).values()) == {"same", "missing"}
    (why,) = [one["why"] for one in answer["changes"] if one["why"]]
    assert why == "source others names no topic"
    assert "metrics-dead" in answer["notes"][0]
    edit(tmp_path, ('subscription = "somebody-elses"', 'subscription = "own"\ntopic = "mails"'))
    assert run("apply")[0] == 0
    assert run("plan")[0] == 0
    # What the broker has is what was declared, not only what we asked it for.
    found = asyncio.run(do(lambda c: c.subscriber.get_subscription(
        request={"subscription": f"projects/{project}/subscriptions/metrics"})))  # fmt: skip
    raw = type(found).pb(found)
    assert (raw.ack_deadline_seconds, raw.enable_message_ordering) == (30, True)
    assert (raw.enable_exactly_once_delivery, raw.filter) == (True, 'attributes.kind = "point"')
    assert raw.dead_letter_policy.dead_letter_topic == f"projects/{project}/topics/metrics-dead"
    assert raw.dead_letter_policy.max_delivery_attempts == 5
    assert raw.HasField("expiration_policy")
    assert not raw.expiration_policy.ttl.seconds


def test_what_differs_is_changed_where_that_can_be_and_said_where_not(
    project: str, run: Run, tmp_path: Path
) -> None:
    assert run("apply")[0] == 1
    edit(
        tmp_path,
        ('ack_deadline = "30s"', 'ack_deadline = "40s"\nmax_delivery_attempts = 9'),
        ("exactly_once = true\n", ""),
        ("ordered = true\n", ""),
        ("https://fleet.example/v1", "https://new.example/v1"),
        ("subscription = \"somebody-elses\"", "subscription = \"own\"\ntopic = \"mails\""),
    )  # fmt: skip
    code, answer = run("plan")
    assert code == 1
    assert differences(answer, "metrics") == {
        "ack_deadline_s": (30, 40, True),
        "exactly_once": (True, False, True),
        "max_delivery_attempts": (5, 9, True),
        "ordered": (True, False, False),
    }
    assert set(differences(answer, "mails-push")) == {"push_endpoint"}
    code, answer = run("apply")
    assert code == 1, "ordering stays as it is"
    code, answer = run("plan")
    assert code == 1
    assert actions(answer)["subscription metrics"] == "fixed"
    assert differences(answer, "metrics") == {"ordered": (True, False, False)}
    assert actions(answer)["subscription mails-push"] == "same"


def test_what_nobody_declared_is_shown_and_never_deleted(project: str, run: Run) -> None:
    assert run("apply")[0] == 1
    name = f"projects/{project}/subscriptions/a-strangers"
    made = {"name": name, "topic": f"projects/{project}/topics/mails"}
    asyncio.run(do(lambda c: c.subscriber.create_subscription(request=made)))
    assert actions(run("plan")[1])["subscription a-strangers"] == "extra"
    assert run("apply")[0] == 1
    assert asyncio.run(do(lambda c: c.subscriber.get_subscription(request={"subscription": name})))


def test_an_emulator_that_does_not_answer_is_unavailable(
    project: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:9")
    monkeypatch.setattr(admin, "_RETRY_TIMEOUT_S", 0.2)
    code, answer = run("plan")
    assert code == 3
    assert answer["error"]["code"] == "unavailable"


def test_what_is_missing_in_the_settings_is_named(project: str, run: Run, tmp_path: Path) -> None:
    edit(
        tmp_path,
        ('topic = "notices"\n', ""),
        ('"pubsub-push"', '"pubsub-push"\nack_deadline = "9s"'),
    )
    with (tmp_path / "vedette.toml").open("a") as settings:
        settings.write('[serve]\nhttp = ""\n')
    text = (tmp_path / "vedette.toml").read_text()
    _, problems = read_settings(tmp_path / "vedette.toml")
    assert {(problem.what, text.splitlines()[problem.line - 1]) for problem in problems} == {
        ("a pubsub needs a topic", "[targets.notices]"),
        ("nothing is served here that could be pushed to", "[[sources]]"),
        ("Pub/Sub takes ack deadlines from 10s to 10m", 'ack_deadline = "9s"'),
    }
    assert run("plan")[0] == 2


# --- the comparison, without a broker ------------------------------------------------------------


def test_a_subscription_declared_twice_must_be_declared_alike() -> None:
    one = pull_plan()
    assert len(build_declaration([one, one.replace(name="again")], {}).subscriptions) == 2
    with pytest.raises(BadFleet, match="twice"):
        build_declaration([one, one.replace(name="again", ordered=True)], {})


def test_exit_codes() -> None:
    create, same = Change("topic", "t", "create"), Change("topic", "t", "same")
    fixed, extra = Change("subscription", "s", "fixed"), Change("subscription", "s", "extra")
    cases: list[tuple[list[Change], int, int]] = [
        ([], 0, 0), ([same, extra], 0, 0), ([create, same], 1, 0), ([create, fixed], 1, 1),
        ([fixed], 1, 1),
    ]  # fmt: skip
    for changes, planned, applied in cases:
        assert declaration_exit_code(changes, applied=False) == planned
        assert declaration_exit_code(changes, applied=True) == applied


def test_an_existing_subscription_without_a_declared_topic_is_compared_in_the_rest() -> None:
    wanted = build_declaration([pull_plan(topic=None, dead_letter_topic=None)], {})
    ((name, fields),) = wanted.subscriptions.items()
    found = {**fields, "topic": "projects/p/topics/whatever"}
    assert [change.action for change in compare_declaration(wanted, [], {name: found})] == ["same"]
    (change,) = compare_declaration(wanted, [], {name: {**found, "ack_deadline_s": 11}})
    assert change.action == "update"
