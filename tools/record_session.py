"""Records a session of the real `vedette` in a pseudo-terminal as docs/session.svg.

Usage: python -m tools.record_session [FILE]. The picture is still text: no script, no font to
fetch, light and dark as the reader's screen is. It shows what was printed and nothing else; of a
program's progress lines only the last, as a terminal that scrolled would.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "session.svg"
WIDTH, MOST = 80, 14
RUN = "run_ec889561c372a1530da29537f9cb13af"
HOLD = "hold_f6196d575a2bb0d953f91f5dd2f9d640"


@dataclass(frozen=True)
class Step:
    """A command, and which of its lines are shown: from the first that has one of `parts` on.

    Each of `parts` is a beginning of lines; what follows it, further in, is shown with it.
    `typed` answers the question that the command asks.
    """

    command: str
    parts: Sequence[str] = ()
    typed: str = ""


STEPS = (
    Step("vedette init harbour && cd harbour"),
    Step("vedette run --until-idle --only sample", ("agent ", "inbox_triage ", "events: acc")),
    Step(f"vedette explain {RUN}", ("PROPOSAL mail.forward", "DECISION DENY")),
    Step("vedette hold --limit 1", ("hold_",)),
    Step(
        f"vedette approve {HOLD} \\\n    --reason 'spam indeed'",
        ("approve?", "hold_", "no fleet"),
        typed="y\n",
    ),
)

_ASKS = b"[y/N]: "
_UP = "\x1b[1A"
_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
_OTHER = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07]*\x07")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_BEGAN = datetime(2026, 5, 10, 9, 0, tzinfo=UTC)
# Where an entry stands in the ledger hangs on how the machine was busy.
_PLACED = re.compile(r"^ +\d{4}-\S+ {2}entry \d+$")
_CLASSES = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y", "34": "u", "36": "c"}


def environment(home: Path) -> dict[str, str]:
    """Return what the session sees: nothing of this machine but the programs."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        "PATH": programs, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm-256color",
        "TZ": "UTC", "USER": "you", "LOGNAME": "you",
    }  # fmt: skip


def at_a_terminal(
    command: str, folder: Path, environ: Mapping[str, str], typed: str = ""
) -> tuple[str, Path]:
    """Return what a shell prints for a command at a terminal of 80 columns, and where it ends.

    Raises RuntimeError if the command fails.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, WIDTH, 0, 0))
    where = folder / ".where"
    script = f"{command}\ncode=$?\npwd > {where}\nexit $code"
    process = subprocess.Popen(
        ["bash", "-c", script], cwd=folder, env=dict(environ), stdin=theirs, stdout=theirs,
        stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    read = b""
    with suppress(OSError):  # the other end is closed: it has ended
        while part := os.read(ours, 65536):
            read += part
            if typed and read.endswith(_ASKS):
                os.write(ours, typed.encode())
                typed = ""
    os.close(ours)
    code = process.wait()
    if code:
        raise RuntimeError(f"`{command}` ended with {code}: {read.decode()}")
    ended = Path(where.read_text("utf-8").strip())
    where.unlink()
    return read.decode(), ended


def shown(step: Step, said: str) -> list[str]:
    """Return the lines of a step that the picture shows, each with its colours."""
    lines: list[str] = []
    for line in said.replace("\r\n", "\n").split("\n"):
        # What is drawn again in place takes the place of what was drawn.
        if drawn := min(line.count(_UP), len(lines)):
            del lines[-drawn:]
        lines.append(_OTHER.sub("", line).rpartition("\r")[2])
    while lines and not lines[-1].strip():
        lines.pop()
    if not step.parts:
        return lines[:MOST]
    chosen: list[str] = []
    taking, skipped = False, False
    for line in lines:
        bare = _COLOUR.sub("", line)
        if bare.strip() and not bare.startswith(" "):
            taking = bare.startswith(tuple(step.parts))
        if taking and bare.strip() and not _PLACED.match(bare):
            if skipped:
                chosen.append("\x1b[2m…\x1b[0m")
            chosen.append(line)
        skipped = not taking and bool(bare.strip())
    return chosen


def steady(line: str, home: str, began: datetime) -> str:
    """Return a line with what hangs on the machine and the moment made the same every time.

    Instants of the session are moved to that of its samples, to the minute.
    """

    def shift(found: re.Match[str]) -> str:
        at = datetime.fromisoformat(found[0])
        if at < began:
            return found[0]
        minute = timedelta(minutes=(at - began) // timedelta(minutes=1))
        return f"{_BEGAN + minute:%Y-%m-%dT%H:%M:%SZ}"

    line = re.sub(r"\bshown as  [0-9a-f]{16}", "shown as  5c0ffee15900d5ea", line)
    line = re.sub(r"\bopen for \d+ s\b", "open for 3 s", line.replace(home, "~"))
    return _TIME.sub(shift, line)


def session() -> Iterator[tuple[str, list[str]]]:
    """Yield each command of the session with the lines that it printed. Takes ten seconds."""
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        folder, began = home, datetime.now(UTC).replace(microsecond=0)
        for step in STEPS:
            said, folder = at_a_terminal(step.command, folder, environment(home), step.typed)
            lines = [steady(line, str(home), began) for line in shown(step, said)]
            yield step.command, lines


# --- the picture ------------------------------------------------------------------------------

_ROW, _CHAR, _PAD = 19, 8.43, 18
_STYLE = """\
  .page { fill: #fbfaf7; stroke: #d8d4ca } .bar { fill: #ece8df }
  text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace;
    fill: #26221c; white-space: pre }
  .p { fill: #1c6b46; font-weight: 700 } .k, .b { font-weight: 700 } .d { fill: #6d675c }
  .r { fill: #a3261b } .g { fill: #1c6b46 } .y { fill: #7a5600 } .u { fill: #1d4f91 }
  .c { fill: #0f6272 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #1b1d21; stroke: #363a42 } .bar { fill: #25282e } text { fill: #e4e1da }
    .p, .g { fill: #7fd1a4 } .d { fill: #a09b90 } .r { fill: #ff8f84 } .y { fill: #e8bd5a }
    .u { fill: #8fb8f6 } .c { fill: #7fcfdd }
  }
"""
_TITLE = "Five commands of vedette, as a terminal shows them"
_DESCRIPTION = (
    "A terminal. A fleet is made and works through eighty mails. One of them gives the agent"
    " orders: it wants all invoices forwarded; the policy denies it, because an address that"
    " stands in a mail is not one that a mail may choose. Another waits for a person, who sees"
    " exactly what is asked and approves it."
)


def picture(steps: Sequence[tuple[str, Sequence[str]]], title: str, told: str) -> str:
    """Return a session as one SVG: text that can be selected, with a title and a description."""
    rows: list[str] = []
    for command, lines in steps:
        if rows:
            rows.append("")
        first, *rest = command.split("\n")
        rows.append(f'<tspan class="p">$</tspan> <tspan class="k">{escape(first)}</tspan>')
        rows += [f'<tspan class="k">{escape(line)}</tspan>' for line in rest]
        rows += [_styled(line) for line in lines]
    width, top = round(WIDTH * _CHAR + 2 * _PAD), 34
    height = top + len(rows) * _ROW + _PAD + 6
    texts = [
        f'<text x="{_PAD}" y="{top + _ROW * (at + 1)}" xml:space="preserve">{row}</text>'
        for at, row in enumerate(rows)
        if row
    ]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img" aria-labelledby="title told">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="told">{escape(told)}</desc>',
        f"<style>\n{_STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        f'<path class="bar" d="M1 28V9a8 8 0 0 1 8-8h{width - 18}a8 8 0 0 1 8 8v19z"/>',
        f'<text class="d" x="{_PAD}" y="20">{escape(title)}</text>',
        *texts,
        "</svg>\n",
    ])  # fmt: skip


def _styled(line: str) -> str:
    """Return a line with its colours as spans; a colour never stands without a word."""
    parts: list[str] = []
    classes: list[str] = []
    at = 0
    for code in [*_COLOUR.finditer(line), None]:
        end = len(line) if code is None else code.start()
        if text := escape(line[at:end]):
            parts.append(f'<tspan class="{" ".join(classes)}">{text}</tspan>' if classes else text)
        if code is None:
            break
        at = code.end()
        for number in (code[1] or "0").split(";"):
            classes = [] if number == "0" else [*classes, *filter(None, [_CLASSES.get(number)])]
    return "".join(parts)


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    if shutil.which("vedette", path=str(Path(sys.executable).parent)) is None:
        raise SystemExit("there is no vedette beside this Python. Mend: make setup")
    out.write_text(picture(list(session()), _TITLE, _DESCRIPTION), encoding="utf-8")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
