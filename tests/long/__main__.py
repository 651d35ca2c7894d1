"""The tests that the gate has no time for, file by file: `make long`.

Which they are says catalogue.toml beside this; a smaller form of each is in the gate. What a file
came to is kept in .tools/faults, under the commit and what was changed since, so a run that was
broken off goes on where it was, and plays again what failed; `--fresh` begins anew. A file that
fails ends nothing: which failed is said at the end. Exits with 1 if anything failed, and with 130
after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from xml.etree import ElementTree

from tests.faults.crash import SHOWN, Report, cpu_spent, finish
from tests.faults.every import Progress, Runner, Suite
from tests.long.catalogue import ROOT, load


def play(path: Path) -> Report:
    """Run the long tests of one file, in a process of its own; what it says goes to our stderr."""
    report, began = Report(), time.monotonic()
    with NamedTemporaryFile(suffix=".xml") as written:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "long", "-p", "no:cacheprovider",
                   f"--junitxml={written.name}", str(path)]  # fmt: skip
        code = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode
        text = Path(written.name).read_text(encoding="utf-8")
    for case in ElementTree.fromstring(text).iter("testcase") if text else ():
        report.singles += 1
        said = [one.get("message", "") for kind in ("failure", "error") for one in case.iter(kind)]
        report.note(str(case.get("name")), [one.strip().partition("\n")[0] for one in said])
    if not report.wrong and (code or not report.singles):
        report.note(path.name, [f"pytest ended with {code} after {report.singles} tests"])
    report.seconds, report.cpu_s = round(time.monotonic() - began, 1), cpu_spent()
    return report


def show(suite: Suite, report: Report) -> bool:
    """Print what one file came to; say whether all is right."""
    spent = f"{report.seconds:.0f} s, {report.cpu_s:.0f} s of CPU"
    word = "ok " if not report.wrong else "BAD"
    print(f"{word} {suite.name}: {report.singles} tests, {report.wrong} failed; {spent}")
    for finding in report.findings[:SHOWN]:
        print(f"    {finding}")
    return not report.wrong


def play_all(paths: list[Path], jobs: int, *, fresh: bool) -> int:
    """Play the files that are left; return the exit code."""
    names = [str(path.relative_to(ROOT)) for path in paths]
    what = [Suite(name, "tests.long", (name,), 1, 60, unit="tests") for name in names]
    progress = Progress.of(what, 0, fresh=fresh)
    progress.forget_wrong()
    print(
        f"{len(what)} files, {jobs} at a time; {len(progress.done)} were right before", flush=True
    )
    began = time.monotonic()
    try:
        with TemporaryFile("w+") as said:
            Runner(what, progress, jobs, said).run()
    except KeyboardInterrupt:
        print("broken off; the same command goes on from here")
        return 130
    good = [show(suite, progress.report(suite)) for suite in what]
    word = "all as it must be" if all(good) else f"{good.count(False)} files FAILED"
    print(f"{word}: {len(what)} files, {time.monotonic() - began:.0f} s of this run")
    return 0 if all(good) else 1


def main() -> int:
    """Play what the command line says."""
    parser = argparse.ArgumentParser(prog="make long", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="these alone")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="at a time")
    parser.add_argument("--fresh", action="store_true", help="forget what was found before")
    for name in ("shard", "shards", "seed"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    paths = [path.resolve() for path in given.files] or sorted(
        {one.file for one in load().values()}
    )
    if given.shard is None:
        return play_all(paths, given.jobs, fresh=given.fresh)
    return finish(play(*paths), whole=False)


if __name__ == "__main__":
    sys.exit(main())
