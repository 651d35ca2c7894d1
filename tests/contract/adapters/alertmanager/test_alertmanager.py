"""The door for alerts: what a real Alertmanager posts, and what anybody else may try."""

from __future__ import annotations

import asyncio
import copy
import json
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from tests.prometheus import Alertmanager

from vedette.adapters.alertmanager.config import AlertmanagerFile
from vedette.config.settings import load_settings
from vedette.domain.base.errors import BadFleet, StoreFailed
from vedette.domain.event import ENVELOPE
from vedette.interfaces.http.alertmanager_receiver import AlertEndpoint, AlertLimits, routes
from vedette.testing.intake import ListIntake

TOKEN = "token-of-the-harbour-light"
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}
DOORS = (AlertEndpoint.of("harbour", TOKEN), AlertEndpoint.of("other", "another", "none"))

# As its documentation has it: https://prometheus.io/docs/alerting/latest/configuration/
ALERT: dict[str, Any] = {
    "status": "firing",
    "labels": {"alertname": "Flooding", "berth": "7"},
    "annotations": {"summary": "water in berth 7"},
    "startsAt": "2026-03-01T08:00:00.123456789+02:00",
    "endsAt": "0001-01-01T00:00:00Z",
    "generatorURL": "http://prometheus.example/graph",
    "fingerprint": "c0ffee0123456789",
}
PAYLOAD: dict[str, Any] = {
    "version": "4",
    "groupKey": '{}:{alertname="Flooding"}',
    "truncatedAlerts": 0,
    "status": "firing",
    "receiver": "fleet",
    "groupLabels": {"alertname": "Flooding"},
    "commonLabels": {},
    "commonAnnotations": {},
    "externalURL": "http://alertmanager.example",
    "alerts": [ALERT],
}


@asynccontextmanager
async def serving(
    intake: ListIntake, limits: AlertLimits | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    app = Starlette(routes=routes(intake, DOORS, limits))
    config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        task = asyncio.create_task(server.serve(sockets=[listening]))
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=10, trust_env=False) as client:
            try:
                yield client
            finally:
                intake.gate.set()
                server.should_exit = server.force_exit = True
                await task


async def post(
    client: httpx.AsyncClient,
    body: Any,
    headers: dict[str, str] | None = None,
    name: str = "harbour",
) -> httpx.Response:
    sent = AUTHORISED if headers is None else headers
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await client.post(f"/v1/alertmanager/{name}", content=raw, headers=sent)


def with_alert(**more: Any) -> dict[str, Any]:
    """Return the payload with its alert changed."""
    payload = copy.deepcopy(PAYLOAD)
    payload["alerts"][0] |= more
    return payload


# --- one event for each state --------------------------------------------------------------------


async def test_an_alert_is_one_event_for_each_state() -> None:
    intake = ListIntake()
    async with serving(intake) as client:
        answer = await post(client, PAYLOAD)
        assert (answer.status_code, answer.json()["accepted"]) == (200, 1)
        # Alertmanager repeats it each `repeat_interval`, and whenever another of the group changes.
        assert (await post(client, PAYLOAD)).json() == {
            "accepted": 0, "duplicate": 1, "refused": 0,
        }  # fmt: skip
        over = {"status": "resolved", "endsAt": "2026-03-01T06:05:00Z"}
        assert (await post(client, with_alert(**over))).json()["accepted"] == 1
        repeat = {"startsAt": "2026-03-01T07:00:00Z"}
        assert (await post(client, with_alert(**repeat))).json()["accepted"] == 1
    first, second, third = intake.events
    assert [event.type for event in intake.events] == [
        "alert.firing", "alert.resolved", "alert.firing",
    ]  # fmt: skip
    assert {event.subject for event in intake.events} == {"c0ffee0123456789/Flooding"}
    assert first.source == "alertmanager:harbour"
    assert first.time == "2026-03-01T06:00:00.123456Z"
    assert second.time == "2026-03-01T06:05:00.000000Z"
    assert third.time == "2026-03-01T07:00:00.000000Z"
    assert first.data["labels"]["berth"] == "7"
    assert first.data["receiver"] == "fleet"
    assert first.vouched == ENVELOPE


async def test_what_a_real_alertmanager_sends() -> None:
    """Fired and resolved over its own API; it shows the token, and each state comes once."""
    intake = ListIntake()
    async with serving(intake) as client:
        hook = f"{client.base_url}/v1/alertmanager/harbour"
        server = await asyncio.to_thread(Alertmanager, hook, TOKEN)
        try:
            alert = {"labels": {"alertname": "Flooding", "berth": "7"}, "annotations": {"a": "b"}}
            await asyncio.to_thread(_fire, server, alert)
            async with asyncio.timeout(20):
                while len(intake.events) < 1:  # noqa: ASYNC110 (a real server is waited for)
                    await asyncio.sleep(0.02)
                over = {"startsAt": "2026-02-01T00:00:00Z", "endsAt": "2026-03-01T00:00:00Z"}
                await asyncio.to_thread(_fire, server, alert | over)
                while len(intake.events) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            server.close()
    fired, resolved = intake.events
    assert (fired.type, resolved.type) == ("alert.firing", "alert.resolved")
    assert fired.subject == resolved.subject
    assert (fired.subject or "").endswith("/Flooding")
    assert fired.data["labels"] == {"alertname": "Flooding", "berth": "7"}


def _fire(server: Alertmanager, alert: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"{server.url}/api/v2/alerts", json.dumps([alert]).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


# --- who may -------------------------------------------------------------------------------------


async def test_only_the_token_of_the_source_opens_it() -> None:
    """Without one not even which names there are is told."""
    intake = ListIntake()
    async with serving(intake) as client:
        for headers, name, status in (
            ({}, "harbour", 401),
            ({"Authorization": "Bearer wrong"}, "harbour", 401),
            ({"Authorization": f"Basic {TOKEN}"}, "harbour", 401),
            ({"Authorization": "Bearer another"}, "harbour", 404),
            (AUTHORISED, "nowhere", 404),
            ({}, "nowhere", 401),
        ):
            answer = await post(client, PAYLOAD, headers, name)
            assert answer.status_code == status, (headers, name)
            assert answer.json()["error"]["mend"]
        assert not intake.events
        # The control.
        assert (await post(client, PAYLOAD)).status_code == 200


async def test_a_source_may_vouch_for_nothing() -> None:
    intake = ListIntake()
    async with serving(intake) as client:
        await post(client, PAYLOAD, {"Authorization": "Bearer another"}, "other")
    assert intake.events[0].vouched == frozenset()


# --- shape and pressure --------------------------------------------------------------------------


WRONG: list[tuple[Any, str]] = [
    (b"{", "not JSON"),
    (b'{"version": "4", "version": "4"}', "twice"),
    ([], "has version 'None'"),
    ({**PAYLOAD, "version": "3"}, "has version '3'"),
    ({**PAYLOAD, "alerts": "none"}, "no list of alerts"),
    ({**PAYLOAD, "alerts": ["none"]}, "alerts[0] is no object"),
    (with_alert(status="maybe"), "alerts[0].status"),
    (with_alert(fingerprint="../x"), "alerts[0].fingerprint"),
    (with_alert(fingerprint=None), "alerts[0].fingerprint"),
    (with_alert(labels={"a": 1}), "alerts[0].labels"),
    (with_alert(startsAt="soon"), "alerts[0].startsAt"),
    (with_alert(startsAt="0001-01-01T00:00:00Z"), "alerts[0].startsAt"),
    (with_alert(startsAt="9999-12-31T23:59:59-14:00"), "alerts[0].startsAt"),
    (with_alert(status="resolved"), "alerts[0].endsAt"),
]


async def test_another_shape_is_told() -> None:
    intake = ListIntake()
    async with serving(intake) as client:
        for body, message in WRONG:
            answer = await post(client, body)
            assert answer.status_code == 400
            assert message in answer.json()["error"]["what"]
    assert not intake.batches


async def test_a_sound_alert_beside_a_broken_one_waits_for_it() -> None:
    intake = ListIntake()
    async with serving(intake) as client:
        broken = {**PAYLOAD, "alerts": [ALERT, {**ALERT, "status": "maybe"}]}
        assert (await post(client, broken)).status_code == 400
        assert not intake.batches
        assert (await post(client, PAYLOAD)).status_code == 200


async def test_it_is_sent_again_while_the_fleet_cannot_take_it() -> None:
    """5xx is the only answer after which it sends again; nothing is said before the commit."""
    intake = ListIntake()
    async with serving(intake, AlertLimits(wait_seconds=0.05, max_waiting=1)) as client:
        intake.gate.clear()
        first, second = await asyncio.gather(post(client, PAYLOAD), post(client, PAYLOAD))
        assert {first.status_code, second.status_code} == {503}
        assert first.headers["retry-after"] == "5"
        assert not intake.events
        intake.gate.set()
        intake.failure = StoreFailed("no space")
        assert (await post(client, PAYLOAD)).status_code == 503
        intake.failure = None
        assert (await post(client, PAYLOAD)).json()["accepted"] == 1


async def test_too_much_is_too_much() -> None:
    intake = ListIntake()
    async with serving(intake, AlertLimits(max_body_bytes=2000, max_alerts=2)) as client:
        assert (await post(client, with_alert(annotations={"a": "x" * 3000}))).status_code == 413
        three = {**PAYLOAD, "alerts": [{}, {}, {}]}
        assert (await post(client, three)).status_code == 413


# --- settings ------------------------------------------------------------------------------------

TOML = """
fleet = "harbour"
[serve]
http = "{http}"
[[sources]]
kind = "alertmanager"
name = "harbour"
{token}
"""


def test_the_settings_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "vedette.toml"
    file.write_text(TOML.format(http="127.0.0.1:0", token='token_env = "ALERTS"'))
    (plan,) = load_settings(file).sources
    assert isinstance(plan, AlertmanagerFile)
    with pytest.raises(BadFleet, match="ALERTS"):
        plan.token()
    monkeypatch.setenv("ALERTS", TOKEN)
    assert plan.token() == TOKEN


@pytest.mark.parametrize(
    ("http", "token", "expected"),
    [
        ("127.0.0.1:0", "", "needs a token"),
        ("", 'token_env = "ALERTS"', "set http of"),
        ("127.0.0.1:0", 'token_env = "A"\ntoken_file = "b"', "needs a token"),
        ("127.0.0.1:0", 'token = "A"', "unknown key"),
    ],
)
def test_wrong_settings_are_told(tmp_path: Path, http: str, token: str, expected: str) -> None:
    file = tmp_path / "vedette.toml"
    file.write_text(TOML.format(http=http, token=token))
    with pytest.raises(BadFleet, match=expected):
        load_settings(file)
