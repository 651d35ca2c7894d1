"""The fleet that is tried: three agents whose judges keep state for each key, and eight tools.

A judge's state is the list of all values that it saw of a key, so order and staleness show in what
it says. The tools are of every class, half of them requests that the engine makes, half functions
in worker processes of their own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from vedette.testing.harness import copy_policies
from vedette.testing.toy_fleet import JUDGE_PY

AGENTS = ("ant", "bee", "cat")
TIMEOUT_S = 2.0  # of every call
TOKEN = "jepsen-sends-events-with-this-token"
DENIED = "fax.send"  # by the strict policy
ROW = "note.add"
HELD = "big.send"
# How often each tool is wanted, in parts.
TOOLS = {
    ROW: 4, "lamp.set": 3, "order.place": 4, "wire.send": 2, "parcel.send": 4, DENIED: 1,
    "bell.ring": 1, HELD: 1,
}  # fmt: skip

AGENT_YAML = """\
version: 1
name: {name}
title: Does what the event says, at targets that fail
owner: desk@example.org
mode: act
order_by: subject
collection: {name}_notes
triggers: [{{on: [{name}.job, all.job]}}]
charter: {{desk: desk@example.org}}
ceilings: {{errors_per_hour: null}}
tools:
  - {{name: note.add, verb: add, resource: note, args: {{key: string, text: string}},
     sinks: [], settles: transactional, function: add_note}}
  - {{name: lamp.set, {wire}, settles: idempotent, target: shop,
     http: {{url: /{name}/lamp.set, body: {{text: "{{text}}"}},
     idempotency_header: Idempotency-Key}}}}
  - {{name: order.place, {wire}, settles: queryable, target: shop,
     http: {{url: /{name}/order.place, body: {{text: "{{text}}"}},
     idempotency_header: Idempotency-Key,
     query: {{url: "/outcome?key={{@key}}", where: {{/key: "{{@key}}"}}}}}}}}
  - {{name: big.send, {wire}, settles: idempotent, target: shop, high_impact: true,
     http: {{url: /{name}/big.send, body: {{text: "{{text}}"}},
     idempotency_header: Idempotency-Key}}}}
  - {{name: wire.send, {wire}, settles: idempotent, function: act, target: desk}}
  - {{name: fax.send, {wire}, settles: idempotent, function: act, target: desk}}
  - {{name: parcel.send, {wire}, settles: queryable, function: act, query: ask, target: desk}}
  - {{name: bell.ring, {wire}, settles: none, function: act, target: desk}}
"""
WIRE = (
    "verb: send, resource: wire, args: {to: string, text: string}, sinks: [/to],\n"
    "     timeout: 2s, attempts: 100"
)

TOOLS_PY = '''\
import http.client
import json
from urllib.parse import urlsplit

from vedette.domain.effect import Outcome, RowWrite


def add_note(call, row):
    texts = [*(row or {}).get("texts", []), call.args["text"]]
    return [RowWrite(f"{call.agent}_notes", call.args["key"], {"texts": texts})]


def act(call):
    """Ask the target to do it; a server error or a lost answer says nothing about the effect."""
    body = json.dumps({"text": call.args["text"]})
    path = f"/{call.agent}/{call.tool}"
    try:
        status, _ = _ask(call, "POST", path, body)
    except (OSError, http.client.HTTPException) as error:
        status = str(error)
    if status == 200:
        return Outcome("done", {"key": call.key})
    lost = "retry" if call.tool in ("wire.send", "fax.send") else "unknown"
    return Outcome(lost, error=f"the target answers {status}")


def ask(call):
    """Ask the target for what came of a key."""
    try:
        status, body = _ask(call, "GET", f"/outcome?key={call.key}", None)
        if status == 404:
            return None
        if status == 200 and json.loads(body)["key"] == call.key:
            return Outcome("done", {"key": call.key})
    except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
        status = str(error)
    return Outcome("unknown", error=f"the target answers {status}")


def _ask(call, method, path, body):
    address = urlsplit(call.target["url"])
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
    try:
        connection.request(method, path, body, {"Idempotency-Key": call.key})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
'''

GRANTS = """\
{name}:
  mode: act
  tools:
    note.add: {{verb: add, resource: note, impact: low}}
    lamp.set: {{verb: send, resource: wire, impact: low}}
    order.place: {{verb: send, resource: wire, impact: low}}
    wire.send: {{verb: send, resource: wire, impact: low}}
    fax.send: {{verb: send, resource: wire, impact: low}}
    parcel.send: {{verb: send, resource: wire, impact: low}}
    bell.ring: {{verb: send, resource: wire, impact: low}}
    big.send: {{verb: send, resource: wire, impact: high}}
"""
LIMITS = """\
hops: 8
actions:
  default: {minute: 1000000, hour: 1000000, day: 1000000}
  agents: {}
confidence_milli: {default: 800, agents: {}}
complete: true
"""
DENIES = f"agents: []\ntools: [{DENIED}]\ncomplete: true\n"
SETTINGS = """\
fleet = "harbour"
state = "state"
[content]
agents = "content/agents"
policies = "base"
memory = "content/memory"
[[serve.senders]]
name = "jepsen"
token_env = "JEPSEN_TOKEN"
[targets.shop]
kind = "http"
base_url = "{url}"
private = true
[targets.desk]
kind = "webhook"
url = "{url}"
"""
DATABASE = """\
[store]
kind = "postgresql"
url_env = "JEPSEN_STORE"
lease = "2s"
"""


@dataclass(frozen=True, slots=True)
class Laid:
    """A fleet on disk: its settings file, and the two policies that people publish by turns."""

    folder: Path

    @property
    def config(self) -> Path:
        """Return the settings file."""
        return self.folder / "vedette.toml"

    @property
    def base(self) -> Path:
        """Return the policy that the fleet begins with."""
        return self.folder / "base"

    @property
    def strict(self) -> Path:
        """Return the policy that denies one tool more."""
        return self.folder / "strict"


def lay_fleet(folder: Path, url: str, *, database: bool) -> Laid:
    """Write agents, policies and settings below `folder`; `url` is where the targets listen."""
    for name in AGENTS:
        agent = folder / "content" / "agents" / name
        agent.mkdir(parents=True)
        (agent / "__init__.py").touch()
        (agent / "agent.yaml").write_text(AGENT_YAML.format(name=name, wire=WIRE))
        (agent / "instruction.md").write_text("Do what the event says.\n")
        (agent / "judge.py").write_text(JUDGE_PY)
        (agent / "tools.py").write_text(TOOLS_PY)
    (folder / "content" / "memory").mkdir()
    grants = "".join(GRANTS.format(name=name) for name in AGENTS)
    files = {"grants/data.yaml": grants, "limits/data.yaml": LIMITS}
    copy_policies(folder / "base", files)
    copy_policies(folder / "strict", files | {"denies/data.yaml": DENIES})
    laid = Laid(folder)
    laid.config.write_text(SETTINGS.format(url=url) + (DATABASE if database else ""))
    return laid


def cloud_event(
    number: int, agents: tuple[str, ...], key: str, wants: list[tuple[str, str]]
) -> str:
    """Return an event as JSON that wakes those agents and makes each propose what is wanted."""
    proposals = [
        {
            "tool": tool,
            "args": {"key": {"ref": "/event/subject"}, "text": text}
            if tool == ROW
            else {"to": {"ref": "/charter/desk"}, "text": text},
        }
        for tool, text in wants
    ]
    kind = "all.job" if len(agents) > 1 else f"{agents[0]}.job"
    event = {
        "specversion": "1.0", "source": "jepsen", "id": str(number), "type": kind, "subject": key,
        "data": {"value": number, "do": proposals},
    }  # fmt: skip
    return json.dumps(event)
