"""`python -m tests.acceptance.show_outage`: a provider that is away for five minutes of real time.

A daemon as it is shipped. Events come, and while some of them are done and others are not, its
provider begins to answer 503 to all, for `--seconds`; events come all the while. Then it is well,
and nobody does anything. Held against the promise: nothing dead, parked or lost, all done within a
minute, and never more calls in flight than the entry says. Before its end the outage must have been
met: events that it came upon before their effects, calls that were refused, and runs that wait.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.bench.machine import described
from tests.bench.verdict import Verdict, print_verdicts
from tests.model_daemon import DaemonAgent, ModelDaemon, ModelEntry, mark_once
from tests.model_server import KEY

from vedette.testing.model_server import ErrorAnswer, ModelServer, Request, Turn

IN_FLIGHT = 4
AT_ONCE = 80  # events at the beginning
EVERY_S = 2.0  # between the others
DONE_WITHIN_S = 60.0


def answer_slowly(request: Request) -> Turn:
    """Answer as one that behaves, slowly enough for calls to meet."""
    time.sleep(0.2)
    return mark_once(request)


def show(folder: Path, seconds: float) -> list[Verdict]:
    """Have the outage; return what came of it, held against the promise."""
    with ModelServer(answer_slowly, keys=(KEY,)) as server:
        entries = {"m": ModelEntry(server.url, in_flight=IN_FLIGHT)}
        with ModelDaemon(folder, entries, [DaemonAgent("worker", "m")]) as daemon:
            ids = [f"e{number}" for number in range(AT_ONCE)]
            daemon.send("worker", ids)
            ready_by = time.monotonic() + DONE_WITHIN_S
            while len(daemon.effects) < 2 * IN_FLIGHT:
                assert time.monotonic() < ready_by, (
                    f"{len(daemon.effects)} effects\n{daemon.output}"
                )
                time.sleep(0.05)
            server.add_fault(ErrorAnswer("unavailable"))
            open_then = AT_ONCE - len(daemon.effects)
            end = time.monotonic() + seconds
            while (rest := end - time.monotonic()) > 0:
                time.sleep(min(EVERY_S, rest))
                ids.append(f"e{len(ids)}")
                daemon.send("worker", ids[-1:])
            refused = Counter(exchange.status for exchange in server.exchanges)
            during = daemon.states()["worker"]
            print(f"{open_then} of {AT_ONCE} events had no effect when it began")
            print(f"after {seconds:.0f} s: calls answered with {dict(refused)}, runs {during}")
            server.end_faults()
            began, took = time.monotonic(), float("inf")
            with suppress(AssertionError):
                daemon.wait_for_ends(2 * DONE_WITHIN_S)
                took = time.monotonic() - began
            states = daemon.states()["worker"]
            parked = daemon.verb("status", "--json").json["stops"]
            print(f"{took:.1f} s after that: runs {states}; {len(server.exchanges)} calls in all, "
                  f"{server.max_calls_in_flight} in flight at most")  # fmt: skip
            lost = set(ids) - daemon.effects.keys()
            return [
                Verdict("events of before it that had no effect yet", open_then, 1, least=True),
                Verdict("calls refused in the outage", refused[503], 1, least=True),
                Verdict("runs that waited at its end", during.get("waiting", 0), 1, least=True),
                Verdict("runs dead", states.get("dead", 0), 0),
                Verdict("agents parked", len(parked), 0),
                Verdict("events without their effect", len(lost), 0),
                Verdict("all done after it", took, DONE_WITHIN_S, "s"),
                Verdict("calls in flight at most", server.max_calls_in_flight, IN_FLIGHT),
                Verdict("calls in flight met", server.max_calls_in_flight, 2, least=True),
            ]


def main(argv: list[str] | None = None) -> int:
    """Show it; 1 if a promise is not met."""
    parser = argparse.ArgumentParser(prog="tests.acceptance.show_outage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="of the outage")
    options = parser.parse_args(argv)
    print(described(), flush=True)
    with tempfile.TemporaryDirectory(prefix="vedette-show-") as made:
        return print_verdicts(show(Path(made), options.seconds))


if __name__ == "__main__":
    sys.exit(main())
