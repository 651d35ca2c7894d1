"""`make eval-real`: the table of figures, with its conditions; PARTS choose, --quick is a look."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

# One thread each, before numpy is loaded: figures per message are of one core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("intents", "spam", "moderation", "obfuscation", "nab")


def main() -> int:
    """Return 0 when every chosen part ran or was skipped with a line, 3 without data."""
    parser = argparse.ArgumentParser(prog="eval_real")
    parser.add_argument("parts", nargs="*", help=f"default: all of {PARTS}")
    parser.add_argument("--quick", action="store_true", help="few examples and fewer rows")
    parser.add_argument("--encoder", action="store_true", help="intents also with an encoder")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    data = data_folder()
    if data is None:
        print("eval_real: no evaluation data. Mend: set VEDETTE_DATA", file=sys.stderr)
        return 3
    subprocess.run([str(ROOT / "tools" / "eval")], check=True)
    print("\n".join(conditions(options.quick, options.encoder)), flush=True)
    for part in options.parts or PARTS:
        start, used = time.monotonic(), time.process_time()
        print(f"\n== {part}", flush=True)
        for line in _run(part, options.encoder)(data, options.quick):
            print(line, flush=True)
        wall, cpu = time.monotonic() - start, time.process_time() - used
        print(f"  ({wall:.0f} s, {cpu:.0f} s CPU of ours)", flush=True)
    return 0


def _run(part: str, encoder: bool = False) -> Callable[[Path, bool], Iterable[str]]:
    module = import_module(f"tools.eval_real.{part}")
    if encoder and part == "intents":
        return lambda data, quick: module.run(data, quick, encoder=True)
    if part == "nab":
        return lambda data, quick: list(module.run(data))
    run: Callable[[Path, bool], Iterable[str]] = module.run
    return run


def data_folder() -> Path | None:
    """Return the folder of the evaluation data (VEDETTE_DATA), or None."""
    given = os.environ.get("VEDETTE_DATA")
    if given:
        return Path(given)
    shared = ROOT.parent / "shared" / "data"
    return shared if shared.is_dir() else None


def conditions(quick: bool, encoder: bool = False) -> list[str]:
    """Return what a figure has to be read with."""
    import numpy

    return [
        f"eval-real{' --quick' if quick else ''}: Python {platform.python_version()},"
        f" numpy {numpy.__version__}, {os.cpu_count()} CPUs, one BLAS thread,"
        f" load {os.getloadavg()[0]:.1f}",
        f"{'all-MiniLM-L6-v2 in intents' if encoder else 'No encoder'}, no language model."
        " Baselines: scikit-learn on the same rows in this command.",
        "Intervals: 95 %, bootstrap over the scored rows. Anchors are published, on other rows.",
    ]


if __name__ == "__main__":
    sys.exit(main())
