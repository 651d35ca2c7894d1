"""A call whose arguments are declared by a schema, over the whole line: numbers, places, undo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.contract.app.test_judge_replay import replay_all

from vedette.adapters.policy_engines.regorus.stage import SubprocessStage, read_bundle
from vedette.adapters.schedule.source import cron_walls
from vedette.domain.event import Event
from vedette.interfaces.http.command_dispatch import dispatch
from vedette.interfaces.render.explain_text import explain_text
from vedette.ledger.history.explain import explain
from vedette.operations.permissions import PermissionQuery, effective_permissions
from vedette.policy.bundle_data import mount
from vedette.policy.replay import replay
from vedette.testing.harness import FleetHarness
from vedette.testing.toy_fleet import JUDGE_PY, World, job, propose, toy_fleet

PAY = """\
  - name: {name}
    verb: {verb}
    resource: wire
    schema:
      type: object
      properties:
        amount: {{type: number, minimum: 0, maximum: 1000, multipleOf: 0.01}}
        to:
          type: array
          maxItems: 3
          items:
            type: object
            properties:
              address: {{type: string, format: email}}
              share: {{type: number}}
            required: [address]
            additionalProperties: false
        copy: {{type: object, properties: {{to: {{type: string}}, note: {{type: string}}}}}}
        cc:
          type: array
          items:
            anyOf:
            - {{type: string}}
            - {{type: object, properties: {{address: {{type: string}}, note: {{type: string}}}}}}
        who: {{type: object, additionalProperties: {{type: string}}}}
      required: [amount]
    sinks: [/to/*/address, /copy/to, /cc/*/address]
    settles: idempotent
    function: act
    target: world
"""
GRANTS = """\
worker:
  mode: act
  tools:
    pay.send: {verb: pay, resource: wire, impact: low}
    pay.back: {verb: unpay, resource: wire, impact: low}
"""
LIMIT = """\
package vedette.denies

deny contains "denies.amount" if {
	is_number(input.action.args.amount)
	input.action.args.amount >= 500
}
"""
VALUE = '''

def _value(given):
    """A text that names a number is one: the data of an event keep fractions as texts."""
    if isinstance(given, dict):
        if set(given) == {"ref"}:
            return Ref(given["ref"])
        if set(given) == {"number"}:
            return float(given["number"])
        return {name: _value(each) for name, each in given.items()}
    return [_value(each) for each in given] if isinstance(given, list) else given
'''
DESK = {"address": {"ref": "/charter/desk"}}


ASKS = """\
complete: true
tools:
  pay.send:
    /to/*/address: {accepts: [trusted], otherwise: hold}
    /copy/to: {accepts: [trusted, registered], otherwise: deny}
"""
EACH = """\
complete: true
tools:
  pay.send:
    /who/*: {accepts: [trusted], otherwise: deny}
"""


def fleet_that_pays(folder: Path, world: World, **more: str) -> FleetHarness:
    files = {"grants/data.yaml": GRANTS, "vedette/denies/amount.rego": LIMIT, **more}
    fleet = toy_fleet(folder, world, extra=files)
    agent = folder / "content" / "agents" / "worker"
    with (agent / "agent.yaml").open("a") as file:
        file.write(PAY.format(name="pay.send", verb="pay") + "    inverse: pay.back\n")
        file.write(PAY.format(name="pay.back", verb="unpay"))
    (agent / "judge.py").write_text(JUDGE_PY.partition("\n\ndef _value")[0] + VALUE)
    return fleet


def pay(name: str, **data: Any) -> Event:
    args = data.pop("args")
    return job(name, propose("pay.send", **args), **data)


def number(value: float) -> Mapping[str, str]:
    return {"number": repr(value)}


async def decided(fleet: FleetHarness, event: Event) -> tuple[str | None, str]:
    await fleet.send(event)
    await fleet.wait_until_idle()
    rows = fleet.app.store.runs.actions(fleet.runs(event)[0].id)
    return (rows[0].decided, rows[0].rule) if rows else (None, "")


async def test_a_number_reaches_policy_the_record_and_the_tool_as_it_was_decided(
    tmp_path: Path,
) -> None:
    world = World()
    async with fleet_that_pays(tmp_path, world) as fleet:
        to = [{**DESK, "share": number(0.25)}, DESK]
        event = pay("1", args={"amount": number(499.99), "to": to})
        assert await decided(fleet, event) == ("permit", "permit.tool")
        (call,) = world.calls
        assert call.args == {
            "amount": 499.99,
            "to": [{"address": "desk@example.org", "share": 0.25}, {"address": "desk@example.org"}],
        }
        assert type(call.args["amount"]) is float
        # Policy compares it, whichever way it was given.
        drawn = pay("2", args={"amount": {"ref": "/event/data/sum"}, "to": [DESK]}, sum=500.25)
        assert await decided(fleet, drawn) == ("deny", "denies.amount")
        fits = pay("3", args={"amount": {"ref": "/event/data/sum"}, "to": [DESK]}, sum=12.5)
        assert await decided(fleet, fits) == ("permit", "permit.tool")
        assert world.calls[1].args["amount"] == 12.5
        whole = pay("4", args={"amount": number(3.0)})
        assert (await decided(fleet, whole))[0] == "permit"
        assert type(world.calls[2].args["amount"]) is int


@pytest.mark.parametrize(
    "args",
    [
        {"amount": "12.5"}, {"amount": number(1e300)}, {"amount": number(0.001)}, {"to": [DESK]},
        {"amount": number(1.5), "to": [{**DESK, "more": 1}]},
        {"amount": number(1.5), "to": [{"address": "no address"}]},
    ],
)  # fmt: skip
async def test_what_does_not_fit_is_no_action(tmp_path: Path, args: dict[str, Any]) -> None:
    world = World()
    async with fleet_that_pays(tmp_path, world) as fleet:
        assert await decided(fleet, pay("1", args=args)) == (None, "")
        assert world.calls == []


@pytest.mark.parametrize(
    ("more", "outcome"),
    [
        ({"to": [DESK, DESK]}, "permit"),
        ({"to": [DESK, {"address": "x@evil.example"}]}, "deny"),
        ({"to": [{"address": {"ref": "/event/data/who"}}, DESK]}, "deny"),
        ({"to": []}, "permit"),
        ({"copy": {"note": "any words"}}, "permit"),
        ({"copy": {"note": "any words", "to": "x@evil.example"}}, "deny"),
        ({"copy": {"note": "any words", "to": {"ref": "/charter/desk"}}}, "permit"),
        ({"to": {"ref": "/event/data/all"}}, "deny"),
        ({"cc": ["x@evil.example"]}, "deny"),
        ({"cc": ["x@evil.example", DESK]}, "deny"),
        ({"cc": [DESK, "x@evil.example"]}, "deny"),
        ({"cc": [{"note": "x"}]}, "deny"),
        ({"cc": [{"note": "x"}, DESK]}, "deny"),
        ({"cc": [DESK, {"ref": "/charter/desk"}]}, "permit"),
        ({"cc": []}, "permit"),
    ],
)  # fmt: skip
async def test_sinks_within_arguments_are_judged_place_by_place(
    tmp_path: Path, more: dict[str, Any], outcome: str
) -> None:
    async with fleet_that_pays(tmp_path, World()) as fleet:
        who = "x@evil.example"
        event = pay("1", args={"amount": number(1.5), **more}, who=who, all=[{"address": who}])
        assert (await decided(fleet, event))[0] == outcome


@pytest.mark.parametrize(
    ("who", "outcome"),
    [
        ({"to": "x@evil.example"}, "deny"),
        ({"*": {"ref": "/charter/desk"}, "to": "x@evil.example"}, "deny"),
        ({"*": {"ref": "/charter/desk"}}, "deny"),
        (None, "permit"),
    ],
)
async def test_a_sink_for_each_that_policy_alone_names_counts_with_its_argument(
    tmp_path: Path, who: Any, outcome: str
) -> None:
    """A call cannot speak for it by a member that is named as it is spelled."""
    async with fleet_that_pays(tmp_path, World(), **{"sinks/data.yaml": EACH}) as fleet:
        more = {} if who is None else {"who": who}
        event = pay("1", args={"amount": number(1.5), **more})
        assert (await decided(fleet, event))[0] == outcome


async def test_what_it_did_is_shown_verified_after_a_restart_and_undone_exactly(
    tmp_path: Path,
) -> None:
    world = World()
    fleet = fleet_that_pays(tmp_path, world)
    async with fleet:
        args = {"amount": {"ref": "/event/data/sum"}, "to": [{**DESK, "share": number(0.25)}]}
        event = pay("1", args=args, sum=12.5)
        assert (await decided(fleet, event))[0] == "permit"
    async with fleet:
        run = fleet.runs(event)[0]
        (row,) = fleet.app.store.runs.actions(run.id)
        shown = explain(fleet.app.store, row.id)
        (action,) = shown["runs"][0]["actions"]
        given = {each["pointer"]: each for each in action["arguments"]}
        assert given["/amount"]["value"] == 12.5
        assert given["/to/0/address"]["sink"]
        assert given["/to/0/address"]["origin"] == "trusted"
        text = "\n".join(line for _, line in explain_text(shown, width=200))
        assert "/amount = 12.5  [untrusted, from /event/data/sum]" in text
        order, effect = fleet.order("wrong sum"), {"effect": "eff_" + row.id.removeprefix("act_")}
        await dispatch(fleet.app.commands, "undo", order, effect)
        await fleet.wait_until_idle()
        assert list(fleet.app.store.ledger.row_mismatches()) == []
        report = replay(fleet.app.store, SubprocessStage().load)
        assert (report.ok, report.agreed) == (True, report.decisions)
        judged = await replay_all(fleet.app)
        assert judged.to_json()["differences"] == []
    assert [call.tool for call in world.calls] == ["pay.send", "pay.back"]
    assert world.calls[1].args == world.calls[0].args
    assert orjson.dumps(world.calls[1].args) == orjson.dumps(world.calls[0].args)


async def test_a_person_approves_exactly_the_numbers_that_were_shown(tmp_path: Path) -> None:
    world = World()
    fleet = fleet_that_pays(tmp_path, world, **{"sinks/data.yaml": ASKS})
    to = [{"address": "x@evil.example", "share": number(0.1)}, {**DESK, "share": number(0.000003)}]
    event = pay("1", args={"amount": number(12.34), "to": to, "copy": {"note": "n\u00e4her"}})
    async with fleet:
        assert await decided(fleet, event) == ("hold", "origins.derived")
        assert world.calls == []
    async with fleet:
        (row,) = fleet.actions(event)
        await fleet.approve(row)
        await fleet.wait_until_idle()
        assert list(fleet.app.store.ledger.row_mismatches()) == []
    (call,) = world.calls
    assert call.args == {
        "amount": 12.34,
        "to": [
            {"address": "x@evil.example", "share": 0.1},
            {"address": "desk@example.org", "share": 0.000003},
        ],
        "copy": {"note": "n\u00e4her"},
    }


async def test_what_an_agent_may_do_is_shown_for_sinks_within_arguments(tmp_path: Path) -> None:
    async with fleet_that_pays(tmp_path, World(), **{"sinks/data.yaml": ASKS}) as fleet:
        services = fleet.app.services
        files = read_bundle(tmp_path / "policies").files
        query = PermissionQuery(
            services.fleet.agents["worker"], services.gateway.engine, 1, files, mount(files),
            services.clock.now_us(), cron_walls,
        )  # fmt: skip
        shown = effective_permissions(query, services.fleet, [])
    (tool,) = (each for each in shown["tools"] if each["tool"] == "pay.send")
    outcomes = {
        sink: {origin: answer["outcome"] for origin, answer in answers.items()}
        for sink, answers in tool["sinks"].items()
    }
    assert outcomes == {
        "/to/*/address": {
            "trusted": "permit", "registered": "hold", "derived": "hold", "untrusted": "hold",
        },
        "/cc/*/address": {
            "trusted": "permit", "registered": "deny", "derived": "deny", "untrusted": "deny",
        },
        "/copy/to": {
            "trusted": "permit", "registered": "permit", "derived": "deny", "untrusted": "deny",
        },
    }  # fmt: skip
