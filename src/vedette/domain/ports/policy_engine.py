"""The port of policy engines: bundles are tried out, loaded, asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from vedette.domain.bundle import Bundle, Finding
from vedette.domain.decision import Decision, DecisionContext, DecisionRecord
from vedette.domain.policy_wasm import PolicyWasm


class PolicyEngine(Protocol):
    """The port that evaluates one bundle: a pure function of (bundle, question), and of no more."""

    digest: str

    @property
    def name(self) -> str:
        """Return which engine it is; where several may answer, the one that answered last."""
        ...

    def decide(self, request: bytes) -> object:
        """Return what the entry point says of a canonical question; None if undefined.

        May raise anything; whatever is not an exact decision becomes a deny in the gateway.
        """
        ...


# Of a longer question the full engine decides, as its steps are bounded: what may be asked of one
# question grows with its length, in loops with a power of it.
MAX_QUESTION_BYTES = 4_096


class Residual(Protocol):
    """The port that permits some of what a full engine permits: of one bundle, for one caller."""

    @property
    def literals(self) -> Sequence[int | str]:
        """Return the numbers and texts that it compares a question with."""
        ...

    def permit(self, request: bytes) -> Decision | None:
        """Return exactly the permit that the full engine gives a canonical question.

        None where it does not permit, or where this is not sure. Raises nothing.
        """
        ...


class ResidualCompiler(Protocol):
    """The port that makes residuals of one bundle."""

    def compile(self, request: Mapping[str, Any]) -> Residual:
        """Return the residual for questions of the same agent, release and tool.

        Takes some ms; may be called on any thread. Raises ValueError for rules that none is made
        of.
        """
        ...


class MemoryAuthorizer(Protocol):
    """The port by which recall asks the gateway."""

    policy_rev: int

    def may_read(self, decision_context: DecisionContext, bank: str, scope: str) -> DecisionRecord:
        """Decide whether an agent may read a memory scope."""
        ...


class PolicyStage(Protocol):
    """The port that tries a bundle apart from the running fleet, where it cannot harm it."""

    async def try_out(self, bundle: Bundle) -> list[Finding]:
        """Return what is wrong with the bundle; an empty list admits it."""
        ...

    def load(self, bundle: Bundle) -> PolicyEngine:
        """Make an engine of an admitted bundle. Raises BadPolicy."""
        ...


@runtime_checkable
class ComparisonStage(Protocol):
    """The port of a PolicyStage that knows what to ask two evaluators to compare them."""

    async def try_rules(self, bundle: Bundle) -> list[Finding]:
        """Try a bundle as `try_out` does, but for that comparison.

        For whoever then compares what `load` makes with the engine that is to decide.
        """
        ...

    def branch_requests(self, bundle: Bundle) -> list[tuple[str, object]]:
        """Return named questions that take each branch of a bundle's rules.

        For that comparison. Raises BadPolicy.
        """
        ...


@runtime_checkable
class CompilationStage(Protocol):
    """The port of a PolicyStage that decides by what was compiled of a bundle's rules."""

    def wasm(self, bundle: Bundle) -> PolicyWasm | None:
        """Return what was compiled, None if nothing was. Raises BadPolicy."""
        ...


@runtime_checkable
class WarmupStage(Protocol):
    """The port of a PolicyStage whose `load` would wait for something: a program, a server."""

    async def warm(self, bundle: Bundle) -> None:
        """Wait for it beside the event loop, so that `load` of this bundle need not.

        Raises BadPolicy.
        """
        ...
