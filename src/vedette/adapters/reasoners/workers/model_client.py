"""The Reasoner port on models that are asked in worker processes, one for each agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.async_handle import AsyncHandle
from vedette.adapters.reasoners.workers.frames import BadFrame, Frame, pack_frame
from vedette.adapters.reasoners.workers.pending_call import PendingCall, WorkerLost
from vedette.adapters.reasoners.workers.remote_error import read_error, read_own_error
from vedette.adapters.reasoners.workers.worker_handle import WorkerHandle
from vedette.adapters.reasoners.workers.worker_start import Pool
from vedette.config.agent_loader import require_release
from vedette.config.models import ModelPlan
from vedette.config.reach import Reach
from vedette.domain.agent import ResourceLimits
from vedette.domain.base.errors import VedetteError
from vedette.domain.memory import Briefing
from vedette.domain.model_turn import (
    UNCHARGED,
    BadModelAnswer,
    ModelAway,
    ModelCallMetadata,
    ModelError,
    ModelFailed,
    ModelUse,
)
from vedette.domain.ports.reasoner import ReasonerJudgement, StatelessReasoner
from vedette.domain.run import Superseded

if TYPE_CHECKING:
    from vedette.adapters.reasoners.workers.supervisor import WorkerPool

# How long one turn may take, if nothing else is said.
TURN_S = 60.0
# What a turn gets beyond its time, in which its worker is to say itself that it is over; and then
# again, to end it.
GRACE_S = 5.0
# How many workers of an agent may be at runs that ended one, beside its main worker.
_MAX_SECONDARY = 4
_SUSPECTS = 1024
# What of an agent's folder a worker may read: declarations, docstrings of what it never runs, and
# what an agent without code says.
_FILES = ("agent.yaml", "tools.py", "instruction.md")
# How the variables of an environment end that hold a key.
_SECRETS = ("_KEY", "_TOKEN")
_MEND = "see `limits` in agent.yaml"


class ModelWorkerSpec(Struct, frozen=True):
    """What asks an agent's model in a worker is made of. It shows its environment to nobody.

    `folder` holds the files of `release`; of them the worker reads the declarations, the docstrings
    of tools and the instruction. `description` is what was told of its root_agent, None if it has
    none. `models` are the entries of [models] that it may ask, without their keys; `environment`
    holds what else asking takes, the credential of a model without an entry too, `reach` where a
    connection may go and which further files that takes. `bounds` are the tokens that one call may
    read and write, `timeout_s` is for a model without an entry.
    """

    folder: str
    release: str | None
    description: Mapping[str, Any] | None
    environment: Mapping[str, str] = field(default_factory=dict)
    reach: Reach = Reach()
    bounds: tuple[int | None, int | None] = (None, None)
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    timeout_s: float = TURN_S
    models: tuple[ModelPlan, ...] = ()

    def __repr__(self) -> str:
        return f"ModelWorkerSpec({self.folder!r})"

    def turn_s(self, model: str) -> float:
        """Return how long a turn of a model may take (seconds)."""
        given = {plan.model.name: plan.model.timeout_us / 1e6 for plan in self.models}
        return given.get(model, self.timeout_s)


class ModelWorkerLost(ModelError, WorkerLost):
    """The error of a turn that lost its worker; one that had begun may have been answered."""

    is_answered = False


class ModelTurnSuperseded(ModelError, Superseded):
    """The error of a turn whose worker ended by another's: it may have been answered, and paid."""

    is_answered = False

    def __init__(self, what: str) -> None:
        Superseded.__init__(self, what)
        self.use = _LOST


# What a call costs whose answer was lost: its tokens were counted by nobody.
_LOST = ModelUse(1)


class WorkerModels(StatelessReasoner):
    """The reasoner that has each agent's model asked in a worker process of its own.

    `prepare` says what that of an agent is made of; `models` are the entries of [models] that it
    may name. Keys are read here: before a worker is made, and when a provider does not take one. A
    run whose turn ended a worker is asked for in a worker apart, until that has answered.
    """

    def __init__(self, pool: WorkerPool, models: Mapping[str, ModelPlan] | None = None) -> None:
        self.pool = pool
        self.models = models or {}
        self._keys: dict[str, str] = {}
        self._specs: dict[str, ModelWorkerSpec] = {}
        self._handles: dict[str, _ModelHandle] = {}
        self._secondary: dict[str, list[_ModelHandle]] = {}
        self._suspects: dict[tuple[str, str], None] = {}

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        """Ask for one turn.

        Raises what asking raised in the worker; ModelWorkerLost if the worker died of this turn, or
        there was none; ModelTurnSuperseded if it died of another one, after this one was begun: the
        model may have answered it already, so it is charged, reserved for and asked anew.
        """
        agent, suspect = briefing.agent, (briefing.agent, briefing.run)
        main = self._handles.get(agent)
        if suspect in self._suspects or main is None or not main.worker_number:
            await self._read_keys(self._specs[agent].models)
        handle = self._secondary_handle(agent) if suspect in self._suspects else self._handle(agent)
        try:
            judgement = await handle.reason(briefing)
        except ModelAway as error:
            if error.kind == "key" and briefing.model in self.models:
                # Told again even if it is the same: this worker may have been left the one before.
                await self._read_keys((self.models[briefing.model],))
                handle.tell_key(briefing.model)
            raise
        except WorkerLost as error:
            if error.is_culprit:
                self._suspects[suspect] = None
                if len(self._suspects) > _SUSPECTS:
                    del self._suspects[next(iter(self._suspects))]
            raise
        else:
            self._suspects.pop(suspect, None)
        finally:
            if handle.is_secondary:
                self._release_idle(agent)
        return judgement

    async def prepare(self, agent: str, spec: ModelWorkerSpec) -> Callable[[], None]:
        """Make what asks an agent's model, and let it go; return what puts it in place.

        Raises what making it raises; then the present one stays.
        """
        await self._read_keys(spec.models, required=True)
        handle = self._new_handle(agent, spec)
        try:
            await handle.try_make()
        finally:
            handle.kill("was only tried", charge=False, quiet=True)

        def place() -> None:
            self._specs[agent] = spec
            self.renew(agent)

        return place

    def renew(self, agent: str) -> None:
        """Let an agent's workers go: the next one is made anew. Nothing may be under way."""
        main = self._handles.get(agent)
        for handle in [*self._secondary.get(agent, ()), *([main] if main is not None else [])]:
            handle.kill("was to be made anew", charge=False, quiet=True)

    def _handle(self, agent: str) -> _ModelHandle:
        handle = self._handles.get(agent)
        if handle is None:
            handle = self._handles[agent] = self._new_handle(agent)
        return handle

    def _new_handle(self, agent: str, spec: ModelWorkerSpec | None = None) -> _ModelHandle:
        spec_of = self._specs.__getitem__ if spec is None else lambda _: spec
        return _ModelHandle(self.pool, agent, spec_of, self._keys)

    async def _read_keys(self, plans: Sequence[ModelPlan], *, required: bool = False) -> None:
        """Read the keys of some models, beside the loop: Secret Manager is asked over the network.

        One that is another now is told to all workers that ask its model; one that cannot be read
        stays as it was. Raises what reading one raises if `required`.
        """
        for plan in plans:
            try:
                key = await asyncio.to_thread(plan.key)
            except VedetteError:
                if required:
                    raise
                continue
            name = plan.model.name
            if self._keys.get(name) != key:
                self._keys[name] = key
                apart = (one for handles in self._secondary.values() for one in handles)
                for handle in [*self._handles.values(), *apart]:
                    handle.tell_key(name)

    def _secondary_handle(self, agent: str) -> _ModelHandle:
        handles = self._secondary.setdefault(agent, [])
        if len(handles) >= _MAX_SECONDARY:
            return min(handles, key=lambda one: len(one.pending))
        handle = self._new_handle(agent)
        handle.is_secondary = True
        handles.append(handle)
        return handle

    def _release_idle(self, agent: str) -> None:
        """End the secondary workers that have no pending turn any more."""
        handles = self._secondary.get(agent, [])
        for handle in [one for one in handles if not one.pending]:
            handles.remove(handle)
            handle.kill("is needed no more", charge=False, quiet=True)
        if not handles:
            self._secondary.pop(agent, None)


class _PendingTurn(PendingCall):
    """A turn that was sent to a worker at `sent_at`; `given_up_at` is when nobody waited more."""

    __slots__ = ("given_up_at", "model", "sent_at")

    def __init__(self, number: int, briefing: Briefing) -> None:
        self.model = briefing.model
        payload = protocol.pack(protocol.whole_briefing_to_dict(briefing))
        super().__init__(number, protocol.REASON, briefing.run, lambda: self._build(payload))
        self.sent_at = self.given_up_at = 0.0

    def _build(self, payload: bytes) -> bytes:
        self.sent_at = time.monotonic()
        return pack_frame(self.number, protocol.REASON, payload)


class _ModelHandle(AsyncHandle):
    kind = "model"

    def __init__(
        self,
        pool: Pool[WorkerHandle],
        agent: str,
        spec_of: Callable[[str], ModelWorkerSpec],
        keys: Mapping[str, str],
    ) -> None:
        """Ask by what `spec_of` says; `keys` are those of all models, by their entries' names."""
        limits = spec_of(agent).limits
        super().__init__(pool, agent, limits.time_us / 1e6, limits.memory)
        self._spec_of = spec_of
        self._spec = spec_of(agent)
        self._keys = keys

    # --- calls ------------------------------------------------------------------------------

    async def reason(self, briefing: Briefing) -> ReasonerJudgement:
        call = _PendingTurn(self.next_number(), briefing)
        self.submit(call)
        try:
            judgement: ReasonerJudgement = await call.future
        finally:
            if call.future.cancelled():
                self._give_up(call)
        return judgement

    async def try_make(self) -> None:
        number = self.next_number()
        call = PendingCall(number, protocol.TRY, "", lambda: pack_frame(number, protocol.TRY))
        self.submit(call)
        await call.future

    def tell_key(self, model: str) -> None:
        """Tell the worker a model's key that was read anew, if it asks that model."""
        if model in self._own_keys():
            self.send(pack_frame(0, protocol.KEYS, protocol.pack({model: self._keys[model]})))

    def _own_keys(self) -> dict[str, str]:
        names = (plan.model.name for plan in self._spec.models)
        return {name: self._keys[name] for name in names if name in self._keys}

    def _give_up(self, call: _PendingTurn) -> None:
        """Have the worker end a turn that nobody waits for."""
        call.given_up_at = time.monotonic()
        self.send(pack_frame(call.number, protocol.CANCEL))

    # --- as a worker handle -----------------------------------------------------------------

    def make_message(self) -> bytes:
        spec = self._spec = self._spec_of(self.agent)
        self.seconds, self.memory, self.reach = (
            spec.limits.time_us / 1e6,
            spec.limits.memory,
            spec.reach,
        )
        if spec.release is not None:
            require_release(Path(spec.folder), spec.release)
        parts = {
            "folder": spec.folder,
            "description": protocol.to_builtin(spec.description),
            "timeout_s": spec.timeout_s,
            "bounds": spec.bounds,
            "models": [to_builtins(plan) for plan in spec.models],
            "keys": self._own_keys(),
        }
        payload = (parts, dict(spec.environment))
        return pack_frame(0, protocol.MAKE, protocol.pack(payload))

    def sandbox_reach(self) -> dict[str, Any]:
        folder = Path(self._spec.folder).resolve()
        read = (*(str(folder / name) for name in _FILES), *self.reach.files)
        return {"read": read, "ports": self.reach.ports}

    def on_answer(self, frame: Frame, call: PendingCall) -> None:
        if self._kill_reason:
            return  # an answer before this one had it killed
        self.remove(call)
        try:
            if frame.kind == protocol.OWN_ERROR:
                call.fail(self._without_keys(read_own_error(frame.plain)))
            elif frame.kind == protocol.FAILED:
                self._on_failure(frame, call)
            elif frame.kind != protocol.DONE:
                raise BadFrame("of another kind than was asked for")
            elif call.kind == protocol.REASON:
                judgement = protocol.read_model_judgement(frame.plain, frame.blob)
                told = self._cut_keys_told(judgement.metadata)
                call.resolve(replace(judgement, metadata=told))
            else:
                call.resolve(None)
        except BadFrame as error:
            what = f"what came of the model of {self.agent} is no answer: {error}"
            call.fail(BadModelAnswer(what, _LOST))

    def _without_keys(self, error: VedetteError) -> VedetteError:
        """Cut the keys out of what a worker says went wrong: providers repeat them."""
        for name in ("what", "where", "mend"):
            setattr(error, name, self._cut_keys(getattr(error, name)))
        error.args = tuple(self._cut_keys(text) for text in error.args)
        if isinstance(error, ModelError):
            error.metadata = self._cut_keys_told(error.metadata)
        return error

    def _cut_keys_told(self, told: ModelCallMetadata) -> ModelCallMetadata:
        names = ("provider", "asked", "answered", "finish_reason")
        return replace(told, **{name: self._cut_keys(getattr(told, name)) for name in names})

    def _cut_keys(self, text: Any) -> Any:
        given = self._spec.environment.items()
        told = [value for name, value in given if name.endswith(_SECRETS)]
        for key in filter(None, (*self._own_keys().values(), *told)):
            text = text.replace(key, "***") if isinstance(text, str) else text
        return text

    def _on_failure(self, frame: Frame, call: PendingCall) -> None:
        error, kind = read_error(frame.plain)
        if kind == "memory":
            # What is left of the worker is not to be trusted.
            why = "went over its memory limit"
            call.fail(self._worker_lost(why))
            self.kill(why, charge=False)
        elif call.kind == protocol.REASON:
            what = f"{type(error).__name__}: {error}"
            call.fail(ModelFailed(self._cut_keys(what), _LOST))
        else:
            call.fail(error)

    def _worker_lost(self, why: str) -> ModelWorkerLost:
        what = f"the worker of {self.agent} {why} at this turn"
        lost = ModelWorkerLost(what, _LOST, mend=_MEND)
        lost.is_culprit = True
        return lost

    def fail_calls(self, error: Exception) -> None:
        """Raise in all that wait that there is no worker for them: none of it was asked."""
        what = error.what if isinstance(error, VedetteError) else str(error)
        super().fail_calls(ModelWorkerLost(what, UNCHARGED))

    def on_loss(self, culprit: PendingCall | None, why: str) -> None:
        if culprit is not None:
            self.pending.pop(culprit.number, None)
            culprit.fail(self._worker_lost(why))
        for call in list(self.pending.values()):
            if call.future.done():
                del self.pending[call.number]
            elif call.kind == protocol.REASON and self._has_begun(call.number):
                del self.pending[call.number]
                what = f"the worker of {self.agent} {why} beside this turn"
                call.fail(ModelTurnSuperseded(what))

    def overdue_reason(self, now: float) -> str:
        """Give up turns that took too long; say why the worker is to be killed."""
        for call in list(self.pending.values()):
            if not isinstance(call, _PendingTurn):
                continue
            most = self._spec.turn_s(call.model) + GRACE_S
            if call.given_up_at and now - call.given_up_at > GRACE_S:
                # Whoever is at work now is not at fault.
                self.kill(f"did not end a turn that took longer than {most:g} s", charge=False)
                return ""
            if not call.given_up_at and now - call.sent_at > most:
                what = f"the model of {self.agent} did not answer within {most:g} s"
                call.fail(ModelAway(what, "timeout", _LOST))
                self._give_up(call)
        return self.silence_reason(now)
