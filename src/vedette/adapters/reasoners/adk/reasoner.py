"""The Reasoner port on ADK: one model turn of a folder's `root_agent` for each briefing.

ADK makes the agent's request (`model_request`) and its models ask the providers, and nothing more.
What the model is told is composed out of our own record (`conversation`), in which its answers
stand to the letter. It is asked once; its calls become proposals and no tool runs. ADK itself is
imported when a reasoner is made, so a fleet of judges never pays for it.
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

from msgspec import Struct, field
from msgspec.structs import replace

from vedette.adapters.reasoners.adk.answer import (
    MAX_NAME,
    MAX_TOKENS,
    Answer,
    check_answer,
    read_answer,
)
from vedette.adapters.reasoners.adk.conversation import Prompt, compose_prompt, has_begun_anew
from vedette.adapters.reasoners.adk.model import AskedModel
from vedette.adapters.reasoners.adk.provider_errors import explain_failure, tell_error
from vedette.adapters.reasoners.adk.wire import Speaker, describe_speaker, name_provider
from vedette.config.agent_loader import isolate_imports, require_release
from vedette.domain.action import Proposal
from vedette.domain.base import machine
from vedette.domain.base.errors import BadFleet, Permanent
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import (
    HAND_OFF,
    NO_METADATA,
    UNCHARGED,
    ModelAway,
    ModelCallMetadata,
    ModelError,
    ModelFailed,
    ModelNotAsked,
    ModelTurn,
    ModelUse,
    RequestRefused,
)
from vedette.domain.ports.reasoner import ReasonerJudgement, StatelessReasoner
from vedette.domain.work_tools import HAND_OFF_TOOL

if TYPE_CHECKING:
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.models.base_llm import BaseLlm
    from google.genai import types

    from vedette.adapters.reasoners.adk.model_request import AgentRequest
    from vedette.adapters.reasoners.adk.tools import DeclaredTool

# Where nobody is asked what a root_agent is. Whatever is told, be it nothing, is not this.
_NOT_DESCRIBED: Any = object()

# A language model has no calibrated confidence. How sure its answer is, is for the engine to say:
# by what people said of it (`vedette.engine.agreements`).
_CONFIDENCE = 0.0

_TEXT = 2000
# Of a request, in bytes as JSON, where the agent's budget sets no limit: a third of them or a
# quarter are tokens, and no model that calls tools reads less at once.
WINDOW = 400_000
# What a provider may add to a request of its own, in tokens; and a model to what it may write.
_BESIDE = 4096


class _LoadedAgent(Struct, frozen=True):
    """An agent's checked copy of its root_agent, and its tools by ADK's name and by ours."""

    agent: LlmAgent
    by_function: Mapping[str, DeclaredTool]
    by_name: Mapping[str, DeclaredTool]
    max_input: int | None = None
    # What ADK asks for it, but for the contents, by the name of the model.
    requests: dict[str, AgentRequest] = field(default_factory=dict)


class Exchange(Struct):
    """One turn as far as it came: what is asked, how many calls were made, what they answered."""

    prompt: Prompt | None = None
    calls: int = 0
    took_us: int = 0
    answers: list[Answer] = field(default_factory=list)

    @property
    def use(self) -> ModelUse:
        """Return what was asked of the model, and what its provider had counted by then."""
        spent = self.answers[0].spent if len(self.answers) == 1 else {}
        return ModelUse(self.calls, spent)

    def metadata(self, provider: str, asked: str, key: str | None) -> ModelCallMetadata:
        """Return what is known of the turn's calls by now, made of a model under these names.

        The name under which it answered is told if the key is known ("": it takes none) and is not
        in it: a provider may repeat that.
        """
        said = self.answers[0].metadata if len(self.answers) == 1 else NO_METADATA
        is_safe = key is not None and not (key and key in said.answered)
        return replace(
            said,
            calls=self.calls,
            provider=provider,
            asked=asked[:MAX_NAME],
            answered=said.answered if is_safe or said.answered == asked else "",
            took_us=self.took_us,
        )


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
        ready = self._agents.get(briefing.agent)
        if ready is None:
            raise BadFleet(f"there is no root_agent of {briefing.agent!r}")
        asked = self._models.get(briefing.model)
        llm = ready.agent.canonical_model if asked is None else await asked.require()
        speaker = describe_speaker(llm, None if asked is None else asked.route)
        provider = name_provider(llm) if asked is None else asked.route["provider"]
        named = (provider, llm.model, None if asked is None else asked.key)
        exchange = Exchange()
        try:
            await self._ask(ready, llm, speaker, briefing, exchange, asked)
            may_be_empty = _has_called(briefing)
            answer = check_answer(
                briefing.agent, exchange.answers, exchange.calls, may_be_empty=may_be_empty
            )
        except ModelError as error:
            error.metadata = exchange.metadata(*named)
            raise
        assert exchange.prompt is not None
        proposals = tuple(
            _to_proposal(ready, function, args, answer.text) for function, args in answer.calls
        )
        return ReasonerJudgement(
            label=_label(ready, proposals),
            confidence=_CONFIDENCE,
            proposals=proposals,
            detail={"text": answer.text[:_TEXT], "tokens": answer.spent},
            final=not proposals,
            model_calls=exchange.calls,
            spent=answer.spent,
            model_turn=_record_turn(speaker, exchange.prompt, answer),
            metadata=exchange.metadata(*named),
        )

    async def _ask(
        self,
        ready: _LoadedAgent,
        llm: BaseLlm,
        speaker: Speaker,
        briefing: Briefing,
        exchange: Exchange,
        asked: AskedModel | None,
    ) -> None:
        """Ask ADK's model once. Raises ModelError if it fails, or its provider refuses."""
        timeout_s = self._timeout_s if asked is None else asked.timeout_s
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                window = None if asked is None else asked.context_tokens
                await _exchange_turn(ready, llm, speaker, briefing, exchange, window)
                if deadline.expired():
                    raise TimeoutError  # its client answered though it was cancelled
        except Exception as error:
            if deadline.expired():
                what = f"the model of {ready.agent.name} did not answer within {timeout_s:g} s"
                raise ModelAway(what, "timeout", exchange.use) from None
            failure = _explain_failure(error, briefing, exchange, asked)
            if asked is not None and failure.code == "model-key":
                asked.forget_key()
            # What a client says may repeat the key.
            raise failure from None


async def _exchange_turn(
    ready: _LoadedAgent,
    llm: BaseLlm,
    speaker: Speaker,
    briefing: Briefing,
    exchange: Exchange,
    window: int | None,
) -> None:
    """Compose what is asked, ask it, and read the answer; `exchange` has how far that came."""
    request = ready.requests.get(llm.model)
    if request is None:
        from vedette.adapters.reasoners.adk.model_request import make_request

        request = await make_request(ready.agent, llm.model, ready.by_function)
        ready.requests[llm.model] = request
    limit = ready.max_input
    room = (WINDOW if limit is None else limit) - request.size
    prompt = exchange.prompt = compose_prompt(briefing, ready.by_name, speaker, room, window)
    size = request.size + prompt.size
    if limit is not None and size > limit:
        raise Permanent(f"what it would be asked may come to {size} tokens, its budget has {limit}")
    most = request.max_output
    most_written = MAX_TOKENS if most is None else 2 * most + _BESIDE
    asking = request.put(prompt.contents, _withheld(ready, prompt))
    exchange.calls, began_s = 1, machine.monotonic_s()
    try:
        async with aclosing(llm.generate_content_async(asking)) as responses:
            async for response in responses:
                if not response.partial:
                    exchange.answers.append(read_answer(response, 2 * size + _BESIDE, most_written))
    finally:
        exchange.took_us = int((machine.monotonic_s() - began_s) * 1_000_000)


def _withheld(ready: _LoadedAgent, prompt: Prompt) -> Callable[[str], bool] | None:
    """Return which functions a turn does not offer: a hand-off but where it is asked for, and there
    all others.
    """
    tool = ready.by_name.get(HAND_OFF_TOOL)
    if tool is None:
        return None
    return lambda name: (name == tool.name) != (prompt.asks == HAND_OFF)


def _explain_failure(
    error: Exception, briefing: Briefing, exchange: Exchange, asked: AskedModel | None
) -> ModelError:
    """Return what the line is told of a failure of ADK, of a provider's client, or of our own."""
    called, key = (f"of {briefing.agent}", "") if asked is None else (asked.name, asked.key)
    if not exchange.calls:
        if isinstance(error, Permanent):
            return ModelNotAsked(f"{briefing.agent}: {error.what}", UNCHARGED)
        what = f"the model {called} could not be asked: {type(error).__name__}"
        return ModelFailed(what, UNCHARGED)
    if exchange.answers:
        what = f"the model {called} failed after it had answered: {type(error).__name__}"
        return ModelFailed(what, exchange.use)
    failure = explain_failure(error, called, exchange.calls, key=key)
    gives_back = exchange.prompt is not None and exchange.prompt.gives_back
    if type(error) in (ValueError, TypeError) and (gives_back or briefing.anew):
        # A client says so before it sends what its provider has no place for.
        what = f"the client of the model {called} refused a request: {tell_error(error, key)}"
        failure = RequestRefused(what, UNCHARGED)
    if isinstance(failure, RequestRefused):
        failure.may_begin_anew = gives_back and not (briefing.anew or has_begun_anew(briefing))
    return failure


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
    # Beside a static instruction ADK has the other said as if by the user, for that may change by
    # session state. There is none: both are the system's, and their contents are our own.
    texts = (checked.static_instruction, checked.instruction)
    given = {
        "instruction": "\n\n".join(str(text) for text in texts if text),
        "global_instruction": checked.global_instruction,
    }
    changes: dict[str, Any] = {"static_instruction": None}
    for key, text in given.items():
        # ADK replaces {words} in a text by session state too; not in a function's answer.
        if text:
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

    Without a2a-sdk, ADK 2.13 imports `remote_a2a_agent` anew on every run of its Runner, always in
    vain (measured: 15 ms of CPU). None in sys.modules is Python's own way to say
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
        asks=prompt.asks,
    )


def _to_proposal(
    ready: _LoadedAgent, function: str, args: Mapping[str, Any], text: str
) -> Proposal:
    """Return a call as a proposal; a made-up tool keeps its name, for the line to refuse."""
    tool = ready.by_function.get(function)
    if tool is None:
        return Proposal(function[:100], dict(args), text[:_TEXT])
    if tool.tool == HAND_OFF_TOOL:
        return Proposal(tool.tool, dict(args), text[:_TEXT])  # places in it are words, not values
    return Proposal(tool.tool, tool.read_args(args), text[:_TEXT])


def _label(ready: _LoadedAgent, proposals: Sequence[Proposal]) -> str:
    """Return which tools were called. Never the model's words: the ledger cannot forget a label."""
    if not proposals:
        return "no action"
    names = (p.tool if p.tool in ready.by_name else "undeclared tool" for p in proposals)
    return ", ".join(dict.fromkeys(names))
