"""The Reasoner port on ADK: one model turn of a folder's `root_agent` for each briefing.

ADK is the turn engine and nothing more. Its session is empty; what the model is asked is composed
out of our own record (`conversation`), in which the model's answers stand to the letter. The model
is asked once; its calls become proposals and no tool runs. ADK itself is imported when a reasoner
is made, so a fleet of judges never pays for it.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from vedette.adapters.reasoners.adk.answer import Answer, check_answer
from vedette.adapters.reasoners.adk.conversation import Prompt, compose_prompt, has_begun_anew
from vedette.adapters.reasoners.adk.model import AskedModel
from vedette.adapters.reasoners.adk.provider_errors import explain_failure, tell_error
from vedette.adapters.reasoners.adk.wire import Speaker, describe_speaker
from vedette.config.agent_loader import isolate_imports, require_release
from vedette.domain.action import Proposal
from vedette.domain.base.errors import BadFleet, Permanent
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import (
    UNCHARGED,
    ModelAway,
    ModelError,
    ModelFailed,
    ModelNotAsked,
    ModelTurn,
    ModelUse,
    RequestRefused,
)
from vedette.domain.ports.reasoner import ReasonerJudgement, StatelessReasoner

if TYPE_CHECKING:
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.models.base_llm import BaseLlm
    from google.genai import types

    from vedette.adapters.reasoners.adk.capture import Capture
    from vedette.adapters.reasoners.adk.tools import DeclaredTool

# Where nobody is asked what a root_agent is. Whatever is told, be it nothing, is not this.
_NOT_DESCRIBED: Any = object()

# A language model has no calibrated confidence: it is a constant, per agent in its charter, that
# somebody measured. Until then a model is sure of nothing, and a person decides.
CONFIDENCE_KEY = "model_confidence"
CONFIDENCE = 0.0

_TEXT = 2000
_USER = "engine"


class _LoadedAgent(Struct, frozen=True):
    """An agent's checked copy of its root_agent, and its tools by ADK's name and by ours."""

    agent: LlmAgent
    by_function: Mapping[str, DeclaredTool]
    by_name: Mapping[str, DeclaredTool]
    max_input: int | None = None


class AdkReasoner(StatelessReasoner):
    """The reasoner that asks each agent's root_agent by ADK. Holds no state between turns.

    `folders` maps agents to their folders, `releases` to the digests that these must have (who is
    not among them is tried as it lies there). `models` are asked by the name that a briefing gives.
    `model_for` gives the model of an agent in place of the one that its root_agent names (tests,
    rehearsals). `timeout_s` bounds one turn, `bounds` the tokens that a call of an agent may read
    and write: what may be more is not asked. Who is in `descriptions` is made of what a worker told
    of its root_agent (`read_root_agent`), and none of its code runs here (None of one that has
    no agent.py); of the others `agent.py` is imported. Raises BadFleet at construction if a
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
        models: Mapping[str, AskedModel] | None = None,
    ) -> None:
        import_adk()
        bounds, releases, descriptions = bounds or {}, releases or {}, descriptions or {}
        self._timeout_s = timeout_s
        self._models = models or {}
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

    def require_model(self, name: str | None) -> None:
        """Raise BadFleet if a model, or a fallback of it, lacks its key or its packages."""
        while name is not None:
            _ = self._models[name].llm
            name = self._models[name].fallback

    def forget_key(self, name: str) -> None:
        """Have a model asked with its key as it is read anew."""
        self._models[name].forget_key()

    async def close_models(self) -> None:
        """Let go of the connections to the models."""
        for asked in self._models.values():
            await asked.close()

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Ask the model for one turn. Raises ModelError if there is no turn, with what it cost."""
        from vedette.adapters.reasoners.adk.capture import Capture, ReadModel

        ready = self._agents.get(briefing.agent)
        if ready is None:
            raise BadFleet(f"there is no root_agent of {briefing.agent!r}")
        confidence = _confidence(briefing)
        asked = self._models.get(briefing.model)
        llm = ready.agent.canonical_model if asked is None else await asked.require()
        speaker = describe_speaker(llm, None if asked is None else asked.route)
        capture = Capture(
            frozenset(ready.by_function),
            lambda room: compose_prompt(briefing, ready.by_name, speaker, room),
            ready.max_input,
        )
        read = ReadModel(model=llm.model, asked=llm, capture=capture)
        await self._run_turn(ready.agent.clone(update={"model": read}), briefing, capture, asked)
        answer = check_answer(
            briefing.agent, capture.answers, capture.model_calls, may_be_empty=_has_called(briefing)
        )
        if [(request.function, request.args) for request in capture.requests] != answer.calls:
            raise Permanent("the model's calls and those that the plugin saw are not the same")
        assert capture.prompt is not None
        proposals = tuple(
            _to_proposal(ready, function, args, answer.text, confidence)
            for function, args in answer.calls
        )
        return ReasonerJudgement(
            label=_label(ready, proposals),
            confidence=confidence,
            proposals=proposals,
            detail={"text": answer.text[:_TEXT], "tokens": answer.spent},
            final=not proposals,
            model_calls=capture.model_calls,
            spent=answer.spent,
            model_turn=_record_turn(speaker, capture.prompt, answer),
        )

    async def _run_turn(
        self, agent: LlmAgent, briefing: Briefing, capture: Capture, asked: AskedModel | None
    ) -> None:
        """Run one turn on ADK's Runner, whose session holds nothing: `capture` says what is asked.

        Raises ModelError if the model fails, or its provider refuses the request.
        """
        from google.adk.agents.run_config import RunConfig
        from google.adk.apps import App
        from google.adk.runners import Runner
        from google.adk.sessions.in_memory_session_service import InMemorySessionService
        from google.genai import types

        sessions = InMemorySessionService()
        await sessions.create_session(app_name=agent.name, user_id=_USER, session_id=briefing.run)
        app = App(name=agent.name, root_agent=agent, plugins=[capture])
        # The signal, not a cancellation: ADK then ends its own tasks and closes the model's call.
        timeout = asyncio.Event()
        timeout_s = self._timeout_s if asked is None else asked.timeout_s
        timer = asyncio.get_running_loop().call_later(timeout_s, timeout.set)
        try:
            async with Runner(app=app, session_service=sessions) as runner:
                events = runner.run_async(
                    user_id=_USER,
                    session_id=briefing.run,
                    new_message=types.Content(role="user", parts=[types.Part(text=briefing.run)]),
                    run_config=RunConfig(max_llm_calls=1),
                    abort_signal=timeout,
                )
                async with aclosing(events):
                    async for _ in events:
                        pass
        except Exception as error:
            failure = _explain_failure(error, briefing, capture, asked)
            if asked is not None and failure.code == "model-key":
                asked.forget_key()
            # What a client says may repeat the key.
            raise failure from None
        finally:
            timer.cancel()
        if timeout.is_set():
            what = f"the model of {agent.name} did not answer within {timeout_s:g} s"
            raise ModelAway(what, "timeout", _cost(capture))


def _explain_failure(
    error: Exception, briefing: Briefing, capture: Capture, asked: AskedModel | None
) -> ModelError:
    """Return what the line is told of a failure of ADK, of a provider's client, or of our own."""
    called, key = (f"of {briefing.agent}", "") if asked is None else (asked.name, asked.key)
    if capture.refusal:
        return ModelNotAsked(f"{briefing.agent}: {capture.refusal}", UNCHARGED)
    if not capture.model_calls:
        what = f"the model {called} could not be asked: {type(error).__name__}"
        return ModelFailed(what, UNCHARGED)
    if capture.answers:
        what = f"the model {called} failed after it had answered: {type(error).__name__}"
        return ModelFailed(what, _cost(capture))
    failure = explain_failure(error, called, capture.model_calls, key=key)
    gives_back = capture.prompt is not None and capture.prompt.gives_back
    if type(error) in (ValueError, TypeError) and (gives_back or briefing.anew):
        # A client says so before it sends what its provider has no place for.
        what = f"the client of the model {called} refused a request: {tell_error(error, key)}"
        failure = RequestRefused(what, UNCHARGED)
    if isinstance(failure, RequestRefused):
        failure.may_begin_anew = gives_back and not (briefing.anew or has_begun_anew(briefing))
    return failure


def _cost(capture: Capture) -> ModelUse:
    """Return what was asked of the model, and what its provider had counted by then."""
    spent = capture.answers[0].spent if len(capture.answers) == 1 else {}
    return ModelUse(capture.model_calls, spent)


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
    from vedette.adapters.reasoners.adk.root_agent import (
        load_root_agent,
        make_plain_agent,
        read_root_agent,
    )
    from vedette.adapters.reasoners.adk.tools import read_declared_tools

    tools = read_declared_tools(folder)
    by_function = {tool.name: tool for tool in tools}
    if not (folder / "agent.py").exists():
        checked = make_plain_agent(folder, release, by_function)
    elif description is _NOT_DESCRIBED:
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
    # It logs each failure with its whole trace and the provider's words, which may repeat a key.
    # What we make of it is told once, by whoever asked.
    logging.getLogger("google_adk").setLevel(logging.CRITICAL + 1)
    for module in ("apps", "runners", "sessions.in_memory_session_service", "models.google_llm"):
        importlib.import_module(f"google.adk.{module}")
    # Every agent runs on this engine; ADK finds it by attribute, on first use.
    _ = importlib.import_module("google.adk.workflow").Workflow
    if importlib.util.find_spec("a2a") is None:
        sys.modules.setdefault("google.adk.agents.remote_a2a_agent", None)  # type: ignore[arg-type]


# --- the judgement, from the answer -----------------------------------------------------------


def _has_called(briefing: Briefing) -> bool:
    """Say whether the model has proposed something in this run: then an empty answer ends it."""
    return any(turn["proposals"] for turn in briefing.turns)


def _record_turn(speaker: Speaker, prompt: Prompt, answer: Answer) -> ModelTurn:
    return ModelTurn(
        model=speaker.model,
        route=speaker.route,
        opens=prompt.opens,
        told=prompt.told,
        shown=prompt.shown,
        outcomes=prompt.outcomes,
        content=answer.content,
    )


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
