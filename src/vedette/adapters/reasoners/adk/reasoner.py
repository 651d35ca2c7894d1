"""The Reasoner port on ADK: one model turn of a folder's `root_agent` for each briefing.

ADK is the turn engine and nothing more. Its session is built anew from the briefing for every
turn, so that all there is to a run stands in our own record: the event and what else the run
knows, fenced as data; then, for each recorded turn, the model's calls and what came of them. The
model is asked once; its calls become proposals and no tool runs. ADK itself is imported when a
reasoner is made, so a fleet of judges never pays for it.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from vedette.adapters.reasoners.adk.briefing import briefing_text
from vedette.config.agent_loader import isolate_imports, require_release
from vedette.domain.action import Proposal
from vedette.domain.base.errors import BadFleet, Permanent, Temporary
from vedette.domain.budget import INPUT_TOKENS, OUTPUT_TOKENS
from vedette.domain.memory import Briefing
from vedette.domain.ports.reasoner import ReasonerJudgement, StatelessReasoner

if TYPE_CHECKING:
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.events.event import Event as AdkEvent
    from google.adk.models.base_llm import BaseLlm
    from google.genai import types

    from vedette.adapters.reasoners.adk.tools import Capture, DeclaredTool

# Where nobody is asked what a root_agent is. Whatever is told, be it nothing, is not this.
_NOT_DESCRIBED: Any = object()

# A language model has no calibrated confidence: it is a constant, per agent in its charter, that
# somebody measured. Until then a model is sure of nothing, and a person decides.
CONFIDENCE_KEY = "model_confidence"
CONFIDENCE = 0.0
MAX_CALLS = 32

_TEXT = 2000
_USER = "engine"
_CONTINUE = "Nothing was proposed in that turn. Go on."


class _LoadedAgent(Struct, frozen=True):
    """An agent's checked copy of its root_agent, and its tools by ADK's name and by ours."""

    agent: LlmAgent
    by_function: Mapping[str, DeclaredTool]
    by_name: Mapping[str, DeclaredTool]
    max_input: int | None = None


class _TurnOutput(Struct):
    """What came out of one turn."""

    texts: list[str] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    trouble: str = ""
    tokens: dict[str, int] = field(default_factory=dict)


class AdkReasoner(StatelessReasoner):
    """The reasoner that asks each agent's root_agent by ADK. Holds no state between turns.

    `folders` maps agents to their folders, `releases` to the digests that these must have (who is
    not among them is tried as it lies there). `model_for` gives the model of an agent in place of
    the one that its root_agent names (tests, rehearsals). `timeout_s` bounds one turn, `bounds` the
    tokens that a call of an agent may read and write: what may be more is not asked. Who is in
    `descriptions` is made of what a worker told of its root_agent (`read_root_agent`), and none of
    its code runs here; of the others `agent.py` is imported. Raises BadFleet at construction if a
    root_agent could do more than propose (`check_root_agent`).
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        *,
        model_for: Callable[[str], BaseLlm] | None = None,
        timeout_s: float = 60.0,
        bounds: Mapping[str, tuple[int | None, int | None]] | None = None,
        releases: Mapping[str, str] | None = None,
        descriptions: Mapping[str, Any] | None = None,
    ) -> None:
        import_adk()
        bounds, releases, descriptions = bounds or {}, releases or {}, descriptions or {}
        self._timeout_s = timeout_s
        self._model_for = model_for
        self._agents = {
            name: self._load(
                name,
                Path(folder),
                releases.get(name),
                bounds.get(name),
                descriptions.get(name, _NOT_DESCRIBED),
            )
            for name, folder in folders.items()
        }

    def _load(
        self,
        name: str,
        folder: Path,
        release: str | None,
        bounds: tuple[int | None, int | None] | None,
        description: Any,
    ) -> _LoadedAgent:
        return _load(name, folder, release, description, self._model_for, *(bounds or (None, None)))

    async def prepare(
        self, name: str, folder: Path, release: str, bounds: tuple[int | None, int | None]
    ) -> Callable[[], None]:
        """Load another release of an agent's root_agent; return what puts it in place.

        Raises BadFleet as the construction does; then the present one stays.
        """
        ready, imported = isolate_imports(
            name, lambda: self._load(name, folder, release, bounds, _NOT_DESCRIBED)
        )

        def place() -> None:
            imported()
            self._agents[name] = ready

        return place

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Ask the model for one turn. Raises Temporary if it fails, is cut short or is late."""
        from vedette.adapters.reasoners.adk.tools import Capture

        ready = self._agents.get(briefing.agent)
        if ready is None:
            raise BadFleet(f"there is no root_agent of {briefing.agent!r}")
        confidence = _confidence(briefing)
        capture = Capture(frozenset(ready.by_function), ready.max_input)
        output = await self._run_turn(ready, briefing, capture)
        if [(request.id, request.function) for request in capture.requests] != output.calls:
            raise Permanent("the model's calls and those that the plugin saw are not the same")
        if output.trouble:
            raise Temporary(f"the model of {briefing.agent} {output.trouble}")
        text = "\n".join(output.texts).strip()
        if not output.calls and not text:
            raise Temporary(f"the model of {briefing.agent} answered nothing")
        if len(output.calls) > MAX_CALLS:
            what = f"made {len(output.calls)} calls in one turn, at most {MAX_CALLS} are taken"
            raise Temporary(f"the model of {briefing.agent} {what}")
        proposals = tuple(
            _to_proposal(ready, request.function, request.args, text, confidence)
            for request in capture.requests
        )
        return ReasonerJudgement(
            label=_label(ready, proposals),
            confidence=confidence,
            proposals=proposals,
            detail={"text": text[:_TEXT], "tokens": output.tokens},
            final=not proposals,
            model_calls=capture.model_calls,
            spent=output.tokens,
        )

    async def _run_turn(
        self, ready: _LoadedAgent, briefing: Briefing, capture: Capture
    ) -> _TurnOutput:
        """Run one turn on ADK's Runner, from a session that holds this briefing and no more."""
        from google.adk.agents.run_config import RunConfig
        from google.adk.apps import App
        from google.adk.runners import Runner
        from google.adk.sessions.in_memory_session_service import InMemorySessionService

        name = ready.agent.name
        past, message = _history(ready, briefing)
        sessions = InMemorySessionService()
        session = await sessions.create_session(
            app_name=name, user_id=_USER, session_id=briefing.run
        )
        for event in past:
            await sessions.append_event(session, event)
        app = App(name=name, root_agent=ready.agent, plugins=[capture])
        output = _TurnOutput()
        # The signal, not a cancellation: ADK then ends its own tasks and closes the model's call.
        timeout = asyncio.Event()
        timer = asyncio.get_running_loop().call_later(self._timeout_s, timeout.set)
        try:
            async with Runner(app=app, session_service=sessions) as runner:
                events = runner.run_async(
                    user_id=_USER,
                    session_id=briefing.run,
                    new_message=message,
                    run_config=RunConfig(max_llm_calls=1),
                    abort_signal=timeout,
                )
                async with aclosing(events):
                    async for event in events:
                        _record_event(output, event, name)
        except Exception as error:
            if capture.refusal:
                raise Permanent(f"{name}: {capture.refusal}") from error
            what = f"{type(error).__name__}: {error}"[:_TEXT]
            raise Temporary(f"the model of {name} failed: {what}") from error
        finally:
            timer.cancel()
        if timeout.is_set():
            raise Temporary(f"the model of {name} did not answer within {self._timeout_s:g} s")
        return output


# --- loading ----------------------------------------------------------------------------------


def _load(
    name: str,
    folder: Path,
    release: str | None,
    description: Any,
    model_for: Callable[[str], BaseLlm] | None,
    max_input: int | None,
    max_output: int | None,
) -> _LoadedAgent:
    """Make and check a root_agent; return a copy that takes its instruction literally."""
    from vedette.adapters.reasoners.adk.root_agent import load_root_agent, read_root_agent
    from vedette.adapters.reasoners.adk.tools import read_declared_tools

    tools = read_declared_tools(folder)
    by_function = {tool.name: tool for tool in tools}
    if description is _NOT_DESCRIBED:
        checked = load_root_agent(folder, release, by_function)
    else:
        if release is not None:
            require_release(folder, release)  # what was read just now is of these files
        checked = read_root_agent(description, folder, by_function)
    changes: dict[str, Any] = {}
    for key in ("instruction", "global_instruction"):
        # ADK replaces {words} in a text by session state, of which there is none; not in a
        # function's answer.
        if text := getattr(checked, key):
            changes[key] = lambda _context, text=text: text
    if model_for is not None:
        changes["model"] = model_for(name)
    elif isinstance(checked.model, str) and checked.model:
        _require_model(checked.model, folder)
    if max_output is not None:
        changes["generate_content_config"] = _limit_output(
            checked.generate_content_config, max_output
        )
    agent = checked.clone(update=changes)
    return _LoadedAgent(agent, by_function, {tool.tool: tool for tool in tools}, max_input)


def _require_model(model: str, folder: Path) -> None:
    """Raise BadFleet if ADK would find nobody to ask, which it says at the first turn only."""
    from google.adk.models.registry import LLMRegistry

    try:
        LLMRegistry.resolve(model)
    except (ValueError, ImportError) as error:
        what = f"root_agent's model {model[:100]!r} is none that is known here"
        mend = 'name one that ADK serves as it is installed (model="gemini-2.5-flash")'
        raise BadFleet(what, where=f"{folder.name}/agent.py", mend=mend) from error


def _limit_output(
    config: types.GenerateContentConfig | None, max_output: int
) -> types.GenerateContentConfig:
    """Return the agent's settings for its model, writing no more than its budget has."""
    from google.genai import types

    config = config or types.GenerateContentConfig()
    own = config.max_output_tokens
    most = max_output if own is None else min(own, max_output)
    return config.model_copy(update={"max_output_tokens": most})


def import_adk() -> None:
    """Import what a turn needs, so that no event waits for it, and spare ADK a vain search.

    Without a2a-sdk, ADK 2.13 imports `remote_a2a_agent` anew on every turn, always in vain
    (measured: 22 ms of a turn's CPU against 5). None in sys.modules is Python's own way to say
    that a module is not there. Where a2a-sdk is installed, nothing is done.
    """
    for module in ("apps", "runners", "sessions.in_memory_session_service", "models.google_llm"):
        importlib.import_module(f"google.adk.{module}")
    # Every agent runs on this engine; ADK finds it by attribute, on first use.
    _ = importlib.import_module("google.adk.workflow").Workflow
    if importlib.util.find_spec("a2a") is None:
        sys.modules.setdefault("google.adk.agents.remote_a2a_agent", None)  # type: ignore[arg-type]


# --- the session, from the briefing -----------------------------------------------------------


def _history(ready: _LoadedAgent, briefing: Briefing) -> tuple[list[AdkEvent], types.Content]:
    """Return the events of the session so far, and the message that asks for the next turn."""
    from google.adk.events.event import Event as AdkEvent
    from google.genai import types

    from vedette.adapters.reasoners.adk.tools import write_args

    name = ready.agent.name
    past: list[AdkEvent] = []
    message = types.Content(role="user", parts=[types.Part(text=briefing_text(briefing))])
    done = 0
    certain = True
    for number, turn in enumerate(briefing.turns, start=1):
        past.append(AdkEvent(author="user", invocation_id=f"turn-{number}", content=message))
        answers = {answer["ordinal"]: answer for answer in turn["answers"]}
        calls, responses = [], []
        for ordinal, proposal in enumerate(turn["proposals"]):
            tool = ready.by_name.get(proposal["tool"])
            # ADK keeps ids with this prefix to itself, as it does those it makes up.
            same, function = f"adk-{number}-{ordinal}", _function_name(tool, proposal["tool"])
            args = write_args(proposal["args"], {} if tool is None else tool.kinds)
            call = types.FunctionCall(id=same, name=function, args=args)
            calls.append(types.Part(function_call=call))
            result = _answer(answers.get(ordinal))
            if result["status"] == "done" and certain:
                result["ref"] = f"ref:/outcome/{done}"
                done += 1
            # An answer that is not told may still have a number: what follows cannot be counted.
            certain = certain and result["status"] != "failed"
            response = types.FunctionResponse(id=same, name=function, response=result)
            responses.append(types.Part(function_response=response))
        if not calls:
            calls, responses = [types.Part(text=turn["label"] or "-")], [types.Part(text=_CONTINUE)]
        spoken = types.Content(role="model", parts=calls)
        past.append(AdkEvent(author=name, invocation_id=f"turn-{number}", content=spoken))
        message = types.Content(role="user", parts=responses)
    return past, message


def _function_name(tool: DeclaredTool | None, name: str) -> str:
    """Return what ADK called a tool; a made-up name is cut to what every model's wire takes."""
    return tool.name if tool else re.sub(r"[^A-Za-z0-9_]", "_", name)[:64] or "unnamed"


def _answer(answer: Mapping[str, Any] | None) -> dict[str, Any]:
    if answer is None:
        return {"status": "refused", "why": "no such tool, argument or reference"}
    return {key: answer[key] for key in ("status", "data") if key in answer}


# --- the thought, from the events -------------------------------------------------------------


def _record_event(output: _TurnOutput, event: AdkEvent, name: str) -> None:
    """Note what an event of the run says; the engine's own answers to calls are passed over."""
    if event.error_code or event.error_message:
        output.trouble = f"failed: {event.error_code} {event.error_message or ''}".strip()[:_TEXT]
    elif event.finish_reason is not None and event.finish_reason.name != "STOP":
        output.trouble = f"was cut short: {event.finish_reason.name}"
    if event.usage_metadata is not None:
        output.tokens = _tokens(event.usage_metadata)
    if event.author != name or event.content is None or event.partial:
        return
    output.calls += [
        (call.id or "", call.name or "<unnamed>") for call in event.get_function_calls()
    ]
    for part in event.content.parts or []:
        if part.text and not part.thought:
            output.texts.append(part.text)


def _tokens(usage: types.GenerateContentResponseUsageMetadata) -> dict[str, int]:
    """Return what a call read and wrote; what it thought and never said was written, too."""
    read, written = usage.prompt_token_count, usage.candidates_token_count
    if read is None:
        return {}
    read += usage.tool_use_prompt_token_count or 0
    if usage.total_token_count is not None:
        return {INPUT_TOKENS: read, OUTPUT_TOKENS: max(0, usage.total_token_count - read)}
    if written is None:
        return {}
    return {INPUT_TOKENS: read, OUTPUT_TOKENS: written + (usage.thoughts_token_count or 0)}


def _to_proposal(
    ready: _LoadedAgent, function: str, args: Mapping[str, Any], text: str, confidence: float
) -> Proposal:
    """Return a call as a proposal; a made-up tool keeps its name, for the line to refuse."""
    tool = ready.by_function.get(function)
    if tool is None:
        return Proposal(function[:100], dict(args), text[:_TEXT], confidence)
    return Proposal(tool.tool, tool.read_args(args), text[:_TEXT], confidence)


def _label(ready: _LoadedAgent, proposals: Sequence[Proposal]) -> str:
    """Return which tools were called. Never the model's words: the ledger cannot forget a label."""
    if not proposals:
        return "no action"
    names = (p.tool if p.tool in ready.by_name else "undeclared tool" for p in proposals)
    return ", ".join(dict.fromkeys(names))


def _confidence(briefing: Briefing) -> float:
    """Return what the charter says of its model. Raises BadFleet if that is no probability."""
    given = briefing.charter.get(CONFIDENCE_KEY, CONFIDENCE)
    try:
        value = -1.0 if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value <= 1:
        where = f"{briefing.agent}/agent.yaml: charter.{CONFIDENCE_KEY}"
        raise BadFleet(f"{given!r} is no probability", where=where, mend="write 0 to 1")
    return value
