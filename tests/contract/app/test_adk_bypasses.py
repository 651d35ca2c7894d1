"""What goes around ADK's tool hook, row by row: nothing of it has an effect past the gateway.

A root agent with such a thing does not start; what a model says by itself is a proposal or nothing;
what imported functions do is done in the hands' box. Each `agent.py` that is refused here is also
run by ADK alone, beside a plugin that decides on every tool: there what it would do is done past
the hook, or the hook keeps it and it is done where the hook permits it. The row of an agent that
runs elsewhere (`RemoteA2aAgent`) needs a package that the product has not, and stands in
tests/acceptance/test_adk_programs.py.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from tests.contract.app.test_agent_import import CHOICES, write_source
from tests.model_entries import ask_entry, make_plan
from tests.model_server import KEY
from tests.small import small
from tests.workers import until

from vedette.app.agent_import import import_adk_agent
from vedette.config.models import ModelPlan
from vedette.config.settings import load_settings
from vedette.domain.base.errors import BadFleet
from vedette.domain.event import Event
from vedette.domain.model import Model
from vedette.operations.agent_import import NotImported
from vedette.testing.harness import FleetHarness
from vedette.testing.model_server import FunctionCall, ModelServer, RawAnswer, Request, Turn
from vedette.testing.toy_fleet import World, drop_bars, job, toy_fleet

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="what runs is boxed by Linux only"),
]

# --- in agent.py: it does not start -----------------------------------------------------------

HEAD = """
from pathlib import Path
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.events import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.tools.agent_tool import AgentTool
from google.adk.workflow import START, Workflow, node
from google.genai import types

MARK = Path({mark!r})
NAME = "worker"

def act():
    '''Do it.'''
    MARK.touch()

class Calls(BaseLlm):
    '''Calls `act` (or what its part is), then ends.'''
    model: str = "gemini-3-flash"
    part: types.Part = types.Part(function_call=types.FunctionCall(name="act", args={{}}))
    async def generate_content_async(self, request, stream=False):
        parts = [part for content in request.contents for part in content.parts]
        asked = self.part.function_call and self.part.function_call.name
        done = len(request.contents) > 1 if not asked else any(
            part.function_response and part.function_response.name == asked for part in parts)
        part = types.Part(text="done") if done else self.part
        yield LlmResponse(content=types.Content(role="model", parts=[part]))

class Looks(Calls):
    '''Asks for nothing; leaves a mark if it was given what is looked for.'''
    part: types.Part = types.Part(text="done")
    async def generate_content_async(self, request, stream=False):
        searches = [tool for tool in request.config.tools or [] if tool.google_search]
        if searches or "PAST_CONVERSATIONS" in str(request.contents):
            MARK.touch()
        async for response in super().generate_content_async(request, stream):
            yield response

def agent(**given):
    return LlmAgent(**{{"name": NAME, "model": Calls(), "instruction": "Act."}} | given)
"""


def deny_all(tool: str, args: Mapping[str, Any]) -> bool:
    return False


class Row(NamedTuple):
    """An agent, the name by which it is refused here, and what ADK's hook is for it there.

    By `permits` the hook decides. It is asked and obeyed, or what it denies is done all the same
    (`is_past_the_hook`).
    """

    code: str
    name: str
    is_past_the_hook: bool
    permits: Callable[[str, Mapping[str, Any]], bool] = deny_all


TRANSFER = (
    "child = agent(name='child', tools=[act])\n"
    "class First(Calls):\n    part: types.Part = types.Part(function_call=types.FunctionCall("
    "name={name!r}, args={args!r}))\n"
)
ROWS: dict[str, Row] = {
    "a function": Row("root_agent = agent(tools=[act])", "function act", False),
    "a long-running function": Row(
        "root_agent = agent(tools=[LongRunningFunctionTool(act)])", "tool act", False,
    ),
    "a toolset": Row(  # whose server is started to list what it has
        "from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams\n"
        "from mcp import StdioServerParameters\n"
        "root_agent = agent(tools=[McpToolset(connection_params=StdioConnectionParams("
        "server_params=StdioServerParameters(command='touch', args=[str(MARK)])))])",
        "McpToolset", True,
    ),
    "a transfer": Row(
        TRANSFER.format(name="transfer_to_agent", args={"agent_name": "child"})
        + "root_agent = agent(model=First(), sub_agents=[child])", "sub_agents", False,
    ),
    "AgentTool without plugins": Row(
        TRANSFER.format(name="child", args={"request": "x"})
        + "root_agent = agent(model=First(), tools=[AgentTool(child, include_plugins=False)])",
        "tool child", True, lambda tool, args: tool == "child",
    ),
    "AgentTool with plugins": Row(
        TRANSFER.format(name="child", args={"request": "x"})
        + "root_agent = agent(model=First(), tools=[AgentTool(child)])",
        "tool child", False, lambda tool, args: tool == "child",
    ),
    "a workflow's tool node": Row(
        "root_agent = Workflow(name=NAME, edges=[(START, FunctionTool(act))])", "Workflow", False,
    ),
    "a workflow's function node": Row(
        "def step(node_input):\n    MARK.touch()\n    return 1\n"
        "root_agent = Workflow(name=NAME, edges=[(START, step)])", "Workflow", True,
    ),
    "an agent of one's own": Row(
        "class Own(BaseAgent):\n    async def _run_async_impl(self, ctx):\n        MARK.touch()\n"
        "        yield Event(author=self.name)\n"
        "root_agent = Own(name=NAME)", "root_agent is a Own", True,
    ),
    "a code executor": Row(
        "from google.adk.code_executors import UnsafeLocalCodeExecutor\n"
        "class Codes(Calls):\n    part: types.Part = types.Part(text="
        "'```python\\nopen(' + repr(str(MARK)) + ', \"w\")\\n```')\n"
        "root_agent = agent(model=Codes(), code_executor=UnsafeLocalCodeExecutor())",
        "code_executor", True,
    ),
    "a search of the model's maker": Row(
        "from google.adk.tools import google_search\n"
        "root_agent = agent(model=Looks(), tools=[google_search])", "google_search", True,
    ),
    "a search in its settings": Row(
        "root_agent = agent(model=Looks())\n"
        "root_agent.generate_content_config = types.GenerateContentConfig("
        "tools=[types.Tool(google_search=types.GoogleSearch())])", "generate_content_config", True,
    ),
    "a state that is written": Row(
        "root_agent = agent(model=Looks(), output_key='app:policy')", "output_key", True,
    ),
    "memory that is loaded": Row(
        "from google.adk.tools import preload_memory\n"
        "root_agent = agent(model=Looks(), tools=[preload_memory])", "preload_memory", True,
    ),
    "a callback that writes": Row(
        "def write(callback_context):\n    MARK.touch()\n"
        "root_agent = agent(before_agent_callback=write)", "before_agent_callback", True,
    ),
    "a callback that changes arguments": Row(
        "def act(x: int = 1):\n    'Do it.'\n    x != 666 or MARK.touch()\n"
        "def change(tool, args, tool_context):\n    args['x'] = 666\n"
        "root_agent = agent(tools=[act], before_tool_callback=change)", "before_tool_callback",
        True, lambda tool, args: args.get("x") != 666,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")  # of what ADK calls experimental
@pytest.mark.filterwarnings("ignore:The `plugins` argument:DeprecationWarning")  # ADK's own use
@pytest.mark.parametrize("row", sorted(ROWS))
async def test_what_an_agent_would_do_by_itself_does_not_start(tmp_path: Path, row: str) -> None:
    code, name, is_past_the_hook, permits = ROWS[row]
    mark = tmp_path / "mark"
    agent_py = HEAD.format(mark=str(mark)) + code + "\n"
    fleet = toy_fleet(tmp_path, World(), reasoner="adk", workers=True)
    (fleet.content / "agents/worker/agent.py").write_text(agent_py)
    with pytest.raises(BadFleet) as refused:
        await fleet.open()
    assert name in refused.value.what
    assert refused.value.where == "worker/agent.py"
    assert refused.value.mend
    assert not mark.exists()
    await run_by_adk_alone(agent_py, permits, mark)
    assert mark.exists() == is_past_the_hook, "the control: what ADK's hook keeps, or does not"
    if not is_past_the_hook:
        await run_by_adk_alone(agent_py, lambda tool, args: True, mark)
        assert mark.exists(), "the control: it is done where the hook permits it"


def mark_state(session: Any, mark: Path) -> None:
    if "app:policy" in session.state:
        mark.touch()


async def run_by_adk_alone(
    agent_py: str, permits: Callable[[str, Mapping[str, Any]], bool], mark: Path
) -> None:
    """Run an `agent.py` by ADK's own Runner, beside a plugin that decides on every tool.

    A state of the app that it leaves is a mark, too. Two messages of one user: what was said at
    first is in the memory when the second comes.
    """
    from google.adk.apps.app import App
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    class Hook(BasePlugin):
        async def before_tool_callback(
            self, *, tool: Any, tool_args: dict[str, Any], **given: Any
        ) -> dict[str, Any] | None:
            return None if permits(tool.name, tool_args) else {"status": "denied"}

    module = ModuleType("bypass")
    sys.modules["bypass"] = module  # where pydantic looks its classes' names up
    try:
        exec(compile(agent_py, "agent.py", "exec"), module.__dict__)
    finally:
        del sys.modules["bypass"]
    root: Any = module.__dict__["root_agent"]
    app = App(name="worker", root_agent=root, plugins=[Hook(name="hook")])
    runner = InMemoryRunner(app=app)
    # A workflow's tool node takes its arguments out of it.
    message = types.Content(role="user", parts=[types.Part(text='{"act": "act"}')])
    for _ in range(2):
        session: Any = await runner.session_service.create_session(app_name="worker", user_id="u")
        async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            pass
        session = await runner.session_service.get_session(
            app_name="worker", user_id="u", session_id=session.id
        )
        mark_state(session, mark)
        await runner.memory_service.add_session_to_memory(session)  # type: ignore[union-attr]
    await runner.close()


# --- said by a model: a proposal, or nothing --------------------------------------------------


def asked_fleet(folder: Path, server: ModelServer) -> FleetHarness:
    """Return a toy fleet whose agent has its model asked by a boxed worker, and no bell."""
    fleet = toy_fleet(folder, World(), workers=True, extra=drop_bars("worker"))
    grants = fleet.policies / "grants/data.yaml"
    lines = grants.read_text().splitlines(keepends=True)
    grants.write_text("".join(line for line in lines if "bell.ring" not in line))
    ask_entry(fleet, make_plan(folder, server))
    return fleet


def calls_once(call: FunctionCall) -> Callable[[Request], Turn]:
    return lambda request: Turn(("Done.",)) if request.turn else Turn((call,))


NOTE = FunctionCall("note_add", {"key": "ref:/event/subject", "text": "seen"})
REFUSED = {"status": "refused", "why": "no such tool, argument or reference"}
DENIED = {"status": "not permitted"}


class Said(NamedTuple):
    """A call, what the model is told of it, and as what it was decided: tool, outcome, rule."""

    call: FunctionCall
    told: Mapping[str, str] = REFUSED
    decided: tuple[tuple[str, str, str], ...] = ()


SAID = {
    "a name that nobody has": Said(FunctionCall("shell_run", {"command": "id"})),
    "a tool that is not granted": Said(
        FunctionCall("bell_ring", {"to": "ref:/charter/desk", "text": "ref:/charter/note"}),
        DENIED, (("bell.ring", "deny", "grant.tool"),),
    ),
    "a receiver of its own": Said(
        FunctionCall("wire_send", {"to": "evil@x.example", "text": "x"}),
        DENIED, (("wire.send", "deny", "origins.derived"),),
    ),
    "transfer_to_agent": Said(FunctionCall("transfer_to_agent", {"agent_name": "other"})),
    "adk_request_confirmation": Said(FunctionCall("adk_request_confirmation", {"confirmed": True})),
    "state_delta": Said(FunctionCall("note_add", {"state_delta": {"app:policy": "off"}})),
}  # fmt: skip


@pytest.mark.parametrize("said", sorted(SAID))
async def test_what_a_model_calls_is_a_proposal_or_nothing(tmp_path: Path, said: str) -> None:
    call, told, decided = SAID[said]
    with ModelServer(calls_once(call), keys=(KEY,)) as server:
        fleet = asked_fleet(tmp_path, server)
        async with fleet:
            event = job("1")
            await fleet.send(event)
            await until(lambda: fleet.runs(event)[0].state == "done", 60)
            rows = fleet.actions(event)
            assert [(row.tool, row.decided, row.rule) for row in rows] == list(decided)
            assert not any(row.effect for row in rows)
            assert fleet.app.store.runs.row("worker_notes", "k") is None
            (result,) = [one for request in server.requests for one in request.results]
            assert result.content == told


async def test_the_control_a_granted_call_has_its_effect(tmp_path: Path) -> None:
    """What state a request would set by itself (`run_async(state_delta=…)`) is data here."""
    with ModelServer(calls_once(NOTE), keys=(KEY,)) as server:
        fleet = asked_fleet(tmp_path, server)
        async with fleet:
            event = job("1", state_delta={"app:policy": "off"})
            await fleet.send(event)
            await until(lambda: fleet.runs(event)[0].state == "done", 60)
            assert fleet.app.store.runs.row("worker_notes", "k") == {"texts": ["seen"]}
            (row,) = fleet.actions(event)
            assert (row.decided, row.effect) == ("permit", "done")


async def test_code_that_the_model_runs_at_its_maker_is_no_answer(tmp_path: Path) -> None:
    """Nobody offered such tools, and what claims to come of them is refused."""
    body = (
        b'{"candidates": [{"content": {"role": "model", "parts": [{"executableCode": '
        b'{"language": "PYTHON", "code": "print(1)"}}]}, "finishReason": "STOP"}], '
        b'"usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, '
        b'"totalTokenCount": 15}}'
    )
    with ModelServer(calls_once(NOTE), keys=(KEY,)) as server:
        server.add_fault(RawAnswer(body), requests=[1])
        fleet = asked_fleet(tmp_path, server)
        async with fleet:
            event = job("1")
            await fleet.send(event)
            await until(
                lambda: bool(fleet.runs(event)) and fleet.runs(event)[0].state == "done", 60
            )
            kinds = [entry["kind"] for entry in fleet.entries() if entry.get("run")]
            # Charged, and no turn: it is asked again.
            assert kinds[:4] == ["budget.reserved", "budget.settled"] * 2
            assert kinds.count("turn.reasoned") == 2
            assert len(server.exchanges) == 3
            assert [row.tool for row in fleet.actions(event)] == ["note.add"]
            declared = fleet.app.services.fleet.agents["worker"].tools
            offered = {name for request in server.requests for name in request.tools}
            assert offered == {name.replace(".", "_") for name in declared}


# --- in an imported function: refused by name, or boxed ---------------------------------------

# What a function does, and as what it is refused.
CONTEXT = {
    "a transfer set by tool code": (
        "tool_context.actions.transfer_to_agent = 'other'", "uses tool_context.actions",
    ),
    "a node that is run": ("await tool_context.run_node(None)", "uses tool_context.run_node"),
    "an artefact": (
        "await tool_context.save_artifact('a', None)", "uses tool_context.save_artifact",
    ),
    "a memory": (
        "await tool_context.add_session_to_memory()", "uses tool_context.add_session_to_memory",
    ),
    "a state of the app": (
        "tool_context.state['app:policy'] = 'off'",
        "uses tool_context.state['app:policy'], which all sessions share",
    ),
    "a state of a user": (
        "tool_context.state['user:policy'] = 'off'",
        "uses tool_context.state['user:policy'], which all sessions share",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", sorted(CONTEXT))
def test_what_a_functions_context_would_do_is_not_imported(tmp_path: Path, row: str) -> None:
    code, what = CONTEXT[row]
    root = small(tmp_path / "fleet", each=1)
    plan = ModelPlan(Model("fast", provider="gemini", served_name="gemini-3-flash"), key_env="K")
    settings = replace(load_settings(root / "vedette.toml"), models={"fast": plan})
    source = write_source(
        tmp_path,
        "from google.adk.agents import Agent\n"
        f"async def act(text: str, tool_context):\n    {code}\n"
        "root_agent = Agent(name='desk', model='m', instruction='x', tools=[act])\n",
    )
    with pytest.raises(NotImported) as refused:
        import_adk_agent(settings, source, replace(CHOICES, keeps_state=True))
    assert [(one.name, one.what) for one in refused.value.refusals] == [("act", what)]


RAW = """
import socket
from google.adk.agents import Agent

def dial(port: int) -> dict:
    '''Connect to a port.'''
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
    except OSError as error:
        return {"connected": False, "why": type(error).__name__}
    return {"connected": True}

root_agent = Agent(name="desk", model="gemini-3-flash", instruction="Dial.", tools=[dial])
"""
GRANT = """
desk:
  mode: act
  tools:
    dial: {verb: call, resource: desk, impact: low}
"""


@pytest.mark.parametrize("is_declared", [False, True], ids=["undeclared", "declared"])
async def test_raw_traffic_of_a_function_reaches_what_its_target_declares(
    tmp_path: Path, is_declared: bool
) -> None:
    """Event, model, gateway, hands: the imported function is called once, and the box decides."""
    root = small(tmp_path / "content", each=1)
    with socket.create_server(("127.0.0.1", 0)) as outside:
        outside.setblocking(False)
        port = outside.getsockname()[1]
        with ModelServer(calls_once(FunctionCall("dial", {"port": port})), keys=(KEY,)) as server:
            plan = make_plan(tmp_path, server)
            reach = [f"127.0.0.1:{port if is_declared else 9}"]
            targets: dict[str, Any] = {
                "mailbox": {"kind": "maildir", "path": str(tmp_path / "mail"),
                            "address": "desk@harbourlights.example"},
                "line": {"kind": "line", "reach": reach},
            }  # fmt: skip
            settings = load_settings(root / "vedette.toml")
            settings = replace(settings, models={"fast": plan}, targets=targets)
            choices = replace(CHOICES, target="line", sinks={"dial": ()})
            source = write_source(tmp_path, RAW)
            await asyncio.to_thread(import_adk_agent, settings, source, choices)
            for file, text in drop_bars("desk").items():
                (root / "policies" / file).write_text(text)
            grants = root / "policies/grants/data.yaml"
            grants.write_text(grants.read_text() + GRANT)
            fleet = FleetHarness(tmp_path / "run", content=root, targets=targets, workers=True)
            fleet.models = {"fast": plan}
            async with fleet:
                event = Event("test", "1", "boat.came", "HL-204", None, {})
                await fleet.send(event)
                await until(lambda: fleet.runs(event)[0].state == "done", 60)
                (row,) = fleet.actions(event)
                assert (row.decided, row.effect) == ("permit", "done")
            (result,) = [one for request in server.requests for one in request.results]
            assert f'"connected": {str(is_declared).lower()}' in str(result.content).replace(
                "'", '"'
            ).replace("True", "true").replace("False", "false")
        reached = True
        try:
            outside.accept()[0].close()
        except BlockingIOError:
            reached = False
        assert reached == is_declared
