"""What a model said in one turn, as it is kept; and the errors of asking one, with what they cost.

A turn that a model reasoned is recorded with its answer to the letter, since its provider takes
signatures, ids and order back unchanged or not at all. Contents are JSON texts: what the ledger
keeps knows no fractions and sorts its keys, and either would change what was said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins

from vedette.domain.base.errors import Permanent, Temporary, VedetteError
from vedette.domain.budget import INPUT_TOKENS, OUTPUT_TOKENS
from vedette.domain.model import FailureKind

# What a turn asks for at the end of a context of a task.
HAND_OFF = "hand-off"


class ModelTurn(Struct, frozen=True):
    """A turn's exchange with a model. All of it is content, and lies in the turn's body;
    of `route` its entry has a copy.

    `content` is the model's answer as the JSON text of its provider's client. `model` is the name
    it was asked by, `route` a digest of whom one speaks to (`adk.wire.Speaker`): to others the
    answer goes back without what only its author can read. `opens` says why the turn began a
    context ("": it went on in the one before). Of what the engine told there are digests only,
    since much of it is other events' content: `told` is one of what it said by itself, the opening
    of a context, later what had changed ("": nothing), `shown` has one of each thing that the model
    had before it by then, by place (`/row`), in the order in which it was told, `outcomes` one of
    what it was told of its calls of the turn before. `asks` is what the turn was for, where it was
    not to propose whatever is due: HAND_OFF.
    """

    model: str
    route: str
    opens: str
    told: str
    shown: tuple[tuple[str, str], ...]
    outcomes: str
    content: str
    asks: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the record as a turn's body has it: texts, and lists of texts."""
        made: dict[str, Any] = to_builtins(self)
        if not self.asks:
            del made["asks"]  # as it was recorded before there was any
        return made


def read_model_turn(turn: Mapping[str, Any]) -> ModelTurn | None:
    """Return the record of a recorded turn; None if it has none, or none that can be read here."""
    try:
        return convert(turn["model"], ModelTurn) if "model" in turn else None
    except ValidationError:
        return None


class ModelUse(Struct, frozen=True):
    """What a turn used of its model: calls, and tokens as the provider counted them.

    Tokens that are not in `spent` were counted by nobody: they cost what was reserved for them.
    """

    calls: int = 0
    spent: Mapping[str, int] = field(default_factory=dict)


UNCHARGED = ModelUse(0, {INPUT_TOKENS: 0, OUTPUT_TOKENS: 0})

# Parts of the tokens that were read and written, which some providers count by themselves.
CACHE_READ, CACHE_CREATION, REASONING = "cache_read", "cache_creation", "reasoning"
# Why a model's answer ended: the words that ADK has for all providers
# (`google.genai.types.FinishReason`), in lower case.
FINISH_REASONS = frozenset(
    {"finish_reason_unspecified", "stop", "max_tokens", "safety", "recitation", "language", "other",
     "blocklist", "prohibited_content", "spii", "malformed_function_call", "image_safety",
     "unexpected_tool_call", "too_many_tool_calls", "image_prohibited_content", "no_image",
     "image_recitation", "image_other", "continuation"}
)  # fmt: skip


_Name = Annotated[str, Meta(max_length=256)]
_Part = Annotated[str, Meta(pattern=f"^({CACHE_READ}|{CACHE_CREATION}|{REASONING})$")]


class ModelCallMetadata(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of the calls of a turn beside what they cost, as far as anybody told.

    `calls` were made, charged or not. `provider` is whose interface was asked, `asked` the model's
    name there, `answered` the name under which it answered, `finish_reason` one of FINISH_REASONS,
    `tokens` are such parts of what the calls used; `took_us` is how long the client waited for
    them in all. A worker, or a provider, may make up any of it in these bounds: the engine keeps
    what can be so (`engine.model_telemetry.check_metadata`).
    """

    calls: Annotated[int, Meta(ge=0, le=1024)] = 0
    provider: _Name = ""
    asked: _Name = ""
    answered: _Name = ""
    finish_reason: _Name = ""
    tokens: Mapping[_Part, Annotated[int, Meta(ge=0, le=1 << 27)]] = field(default_factory=dict)
    took_us: Annotated[int, Meta(ge=0, le=86_400_000_000)] = 0


NO_METADATA = ModelCallMetadata()


class ModelError(VedetteError):
    """The base of errors of asking a model: `use` is charged, though there is no turn."""

    # Not so where a call was lost on its way: that tells nothing of its provider.
    is_answered = True
    # Of the calls that were made, where who asked says so.
    metadata = NO_METADATA

    def __init__(
        self, what: str, use: ModelUse, *, mend: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(what, mend=mend, code=code)
        self.use = use


class ModelAway(ModelError, Temporary):
    """The error of a model that gave no answer: its provider is away, or refuses the fleet.

    `retry_after_us` is for how long the provider asked to be left alone (0: it did not say). A call
    that may have been answered, and paid, though no answer came, is in `use`; another is not.
    """

    def __init__(
        self,
        what: str,
        kind: FailureKind,
        use: ModelUse | None = None,
        *,
        mend: str | None = None,
        retry_after_us: int = 0,
    ) -> None:
        super().__init__(what, use or UNCHARGED, mend=mend, code=f"model-{kind}")
        self.kind = kind
        self.retry_after_us = retry_after_us


class RequestRefused(ModelError, Permanent):
    """The error of a request that its provider, or its client, does not take as it is.

    `may_begin_anew` says that it gave back answers of a model, which may be why, and that the run
    has not yet begun its context anew for that.
    """

    code = "model-request"
    may_begin_anew = False


class ModelFailed(ModelError, Temporary):
    """The error of a model that broke off in its answer, or failed as nobody knows."""

    code = "model-failed"


class BadModelAnswer(ModelError, Temporary):
    """The error of an answer that is not taken: malformed, huge, or impossibly counted."""

    code = "bad-model-answer"


class ModelNotAsked(ModelError, Permanent):
    """The error of a request that was not made: too long for its budget, or offering too much."""

    code = "model-not-asked"
