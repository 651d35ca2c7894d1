"""`vedette try` of a judge with several turns: on the engine's line, told what came of its calls.

What came of them is what the ledger says of the same actions of the same event; where it says
nothing (another action, a file, a hold that nobody answered), the trial ends there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vedette.app.dry_run import PriorState, describe_memory, describe_trial
from vedette.app.model_dry_run import PriorJudge, describe_turn, end_of_row
from vedette.app.model_trial import open_trials
from vedette.app.policy_state import live_bundle
from vedette.domain.action import Action
from vedette.domain.agent import Agent
from vedette.domain.event import Event
from vedette.domain.run import run_id
from vedette.operations.model_trial import KnownEnd
from vedette.operations.recordings import RecordedReasoner

if TYPE_CHECKING:
    from vedette.config.fleet import LoadedFleet
    from vedette.config.settings import Settings
    from vedette.store.reader import StoreReader

SCHEMA = "vedette.try-turns/1"


async def try_judge_event(
    settings: Settings,
    loaded: LoadedFleet,
    agent: Agent,
    event: Event,
    prior: PriorState,
    store: StoreReader | None,
    *,
    end_reading: Callable[[], None],
) -> dict[str, Any]:
    """Put an event to a judge, turn by turn, as far as it is known what came of its calls.

    `end_reading` is called once the store was read. Returns what came of it as one JSON object.
    Raises BadEvent.
    """
    number, bundle = live_bundle(settings, store)
    run = run_id(event.source, event.id, agent.name)
    rows = {} if store is None else {row.id: row for row in store.runs.actions(run)}

    def find_end(action: Action) -> KnownEnd:
        row = rows.get(action.id)
        return KnownEnd() if row is None or row.digest != action.digest else end_of_row(row)

    async with (
        open_trials(settings, loaded, agent, bundle, store=store) as trials,
        trials.open_trial(find_end, RecordedReasoner(agent, ())) as trial,
    ):
        end_reading()
        assert trial.judge is not None  # the agent has one
        trial.judge = PriorJudge(trial.judge, prior)
        found = await trial.run(event, prior.row)
    memories = found.turns[0].briefing.memories if found.turns else ()
    return {
        "schema": SCHEMA,
        **describe_trial(loaded.fleet, agent, found.event, number),
        "state": prior.description,
        "memories": [describe_memory(one) for one in memories],
        "turns": [describe_turn(settings, agent, turn) for turn in found.turns],
        "state_at_end": found.state,
        "ended": found.ended,
    }
