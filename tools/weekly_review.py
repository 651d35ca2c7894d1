"""The weekly review of the sample week, from the order to the report, by the real `vedette`.

    python -m tools.weekly_review [FOLDER]    its progress and its report; the fleet is kept in
                                              FOLDER (.tools/weekly-review)
    python -m tools.weekly_review --picture   three moments of it, as docs/weekly-review.svg

What has to leave the house waits for you: it says how to look at it, and how to let it go.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.real_fleet import ROOT, lay_out
from tools.record_session import at_a_terminal, environment, picture, steady

OUT = ROOT / "docs" / "weekly-review.svg"
VEDETTE = Path(sys.executable).with_name("vedette")
WEEK = "2026-W19"
ORDER = (
    "work", "start", "weekly_review", "--goal", "Review the harbour's week", "--input",
    f"week={WEEK}", "--reason", "it is Monday", "--command-id", "monday",
)  # fmt: skip
# At the first moment of the picture so many papers were read.
_MOMENT = 60
_LINES = 14
_TITLE = "Three moments of a weekly review, as `vedette work show` tells them"
_TOLD = (
    "A terminal, three times: in the middle of the reading, when what has to leave the house waits"
    " for a person, and at the end. Each time the goal, the done conditions, and how many of two"
    " hundred papers were read; one could not be, and is told."
)


def vedette(config: Path, *words: str) -> Any:
    """Return what a verb answers. Raises RuntimeError with what it said if it failed."""
    verb = [str(VEDETTE), "--config", str(config), *words, "--json"]
    done = subprocess.run(verb, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def run(config: Path, look: Callable[[Any], bool]) -> None:
    """Run the fleet until it is idle, or until `look` has seen enough of the task."""
    words = [str(VEDETTE), "--config", str(config), "run", "--until-idle", "--plain"]
    fleet = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        while fleet.poll() is None:
            tasks = vedette(config, "work", "list", "--all")["items"]
            if tasks and look(tasks[0]):
                fleet.terminate()
                fleet.wait()
                return
            time.sleep(0.5)
        if fleet.returncode:
            raise RuntimeError(f"vedette run ended with {fleet.returncode}")
    finally:
        fleet.kill()
        fleet.wait()


def told(task: Any) -> str:
    """Return how far a task is, in one line."""
    items = task["items"]
    waits = f", waits: {task['waits']}" if task["waits"] else ""
    aside = f", {items['set_aside']} set aside" if items.get("set_aside") else ""
    return (
        f"{items.get('done', 0)} of {items['of']} papers read{aside}, turn {task['turns']}{waits}"
    )


def show(folder: Path) -> None:
    """Give the task, print how far it is, and then its report."""
    if folder.exists():
        shutil.rmtree(folder)
    config = lay_out(folder).config
    print(f"vedette {' '.join(ORDER[:3])} … --input week={WEEK}, in {folder}")
    vedette(config, *ORDER)

    def look(task: Any) -> bool:
        print(f"\r{told(task)}", end="", flush=True)
        return False

    run(config, look)
    (task,) = vedette(config, "work", "list", "--all")["items"]
    print(f"\r{told(task)}\n")
    (report,) = (folder / "state" / "week" / "reports" / WEEK).iterdir()
    print(report.read_text("utf-8"))
    print(f"the report: {report}\nwhat has to leave the house waits for you:")
    for held in vedette(config, "hold")["items"]:
        print(f"  {VEDETTE} --config {config} hold {held['hold']}")
        print(f"  {VEDETTE} --config {config} approve {held['hold']} --reason '…'")
    print(f"and then: {VEDETTE} --config {config} run --until-idle")


def record(out: Path) -> None:
    """Record three moments of the task as one picture."""
    with tempfile.TemporaryDirectory() as made:
        home, began = Path(made), datetime.now(UTC).replace(microsecond=0)
        config = lay_out(home / "harbour").config
        task = vedette(config, *ORDER)["run"]
        command = f"vedette work show {task}"
        steps = []

        def look() -> None:
            shown = f"cd harbour && {command} | head -n {_LINES}"
            said, _ = at_a_terminal(shown, home, environment(home))
            lines = [steady(line, str(home), began) for line in said.replace("\r", "").split("\n")]
            kept = [line for line in lines if line.strip()]
            steps.append((f"{command} | head -n {_LINES}", kept))

        run(config, lambda one: one["items"].get("done", 0) >= _MOMENT)
        look()
        run(config, lambda one: False)
        look()
        (held,) = vedette(config, "hold")["items"]
        shown = ("--digest", held["shown_digest"])
        vedette(config, "approve", held["hold"], *shown, "--reason", "they must know")
        run(config, lambda one: False)
        look()
    out.write_text(picture(steps, _TITLE, _TOLD), encoding="utf-8")
    print(f"wrote {out}")


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["--picture"]:
        record(Path(words[1]) if words[1:] else OUT)
    else:
        show(Path(words[0]).absolute() if words else ROOT / ".tools" / "weekly-review")


if __name__ == "__main__":
    main()
