"""The fleet's clock: it goes on as the machine does, and no jump of the wall clock moves it.

Fleet time is the wall clock of a start and what has passed since by the clock that counts from the
machine's boot, a suspension included. Small corrections of the wall clock are followed slowly; one
that is further off is a *jump*: it is told, and fleet time goes on as before until a person
confirms it. So retries, backoffs, approvals and stops that end wait as long as they should, and an
approval is not over because somebody set a clock.

A file of the state folder says where fleet time stands against the boot clock, so a restart goes
on with it. After a reboot there is only the wall clock, and the ledger's last entry: fleet time
never begins before that; and where the wall clock is a day or more after it the fleet was away or
the clock is wrong, so nothing expires by that day until a person confirms. A jump that nobody has
confirmed outlasts the reboot, and nothing expires by an entry that is later than the wall clock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from vedette.domain.base.clock import MachineClock
from vedette.domain.base.dataclass import dataclass
from vedette.domain.base.fsync import sync
from vedette.domain.base.state_folder import open_file

# How far the wall clock may be off before that is a jump, and how fast it is followed below that:
# one part in a thousand, twice what a clock that is slewed by NTP gains or loses.
JUMP_US = 10_000_000
_SLEW = 1000
# How long after the ledger's last entry a start is taken to be one, where nothing else tells.
AWAY_US = 86_400_000_000
# How often the file is written anew: a clock that is slewed leaves it by half a second then.
_WRITE_US = 600_000_000

FILE = "clock.json"


@dataclass(frozen=True, slots=True)
class Jump:
    """What is to be confirmed: the wall clock is `by_us` ahead of fleet time, or expiries wait.

    `held_us` is the instant at which expiries stand where it is not known how long the fleet was
    away, else 0. `seen_us` is fleet time when it was seen.
    """

    by_us: int
    seen_us: int
    held_us: int = 0


class FleetClock:
    """A Clock over the machine's. Instants and durations are integer microseconds.

    `moved` counts confirmations that moved it, `moved_us` is by how much in all: what waits in
    memory until an instant is moved along by whoever holds it.
    """

    def __init__(self, machine: MachineClock, file: Path | None = None) -> None:
        self._machine = machine
        self._file = file
        self._boot = machine.boot
        self._since = self._looked = self._written = machine.monotonic_us()
        self._at = machine.now_us()
        self.jump: Jump | None = None
        self.moved_us = 0
        # Where expiries stood before a reboot, if a jump had not been confirmed; else 0.
        self._stood_us = 0
        self._known = self._take_up()

    # --- Clock ------------------------------------------------------------------------------

    def now_us(self) -> int:
        """Return fleet time."""
        return self._at + self._machine.monotonic_us() - self._since

    def monotonic_us(self) -> int:
        """Return the machine's clock since its boot; only differences mean anything."""
        return self._machine.monotonic_us()

    async def sleep_until(self, at_us: int) -> None:
        """Return when as much time has passed as lies between now and an instant."""
        await self._machine.sleep_until(self._machine.now_us() + at_us - self.now_us())

    def expiry_us(self) -> int:
        """Return the instant that ends of holds, approvals and stops are compared with."""
        jump = self.jump
        if jump is None or not jump.held_us:
            return self.now_us()
        return jump.held_us + self.now_us() - jump.seen_us

    # --- jumps ------------------------------------------------------------------------------

    def begin(self, last_us: int, expires: Callable[[int, int], bool]) -> Jump | None:
        """Begin after the ledger's last entry (its instant, 0 for none); return what is a jump.

        `expires` says whether something that waits would be over between two instants.
        """
        now, wall = self.now_us(), self._machine.now_us()
        if self._known:
            return self.look() or self.jump
        behind = last_us > wall + JUMP_US
        if behind:
            self._at += last_us - now
        certain = self._stood_us or (wall if behind else last_us)
        unsure = self._stood_us or behind or (last_us and wall - last_us > AWAY_US)
        if unsure and expires(certain, max(last_us, wall)):
            self.jump = Jump(0, self.now_us(), certain)
        found = self.look() or self.jump
        self._write()
        return found

    def look(self) -> Jump | None:
        """Compare with the wall clock; return a jump that was not seen before."""
        passed = self._machine.monotonic_us() - self._looked
        self._looked += passed
        off = self._machine.now_us() - self.now_us()
        known = 0 if self.jump is None else self.jump.by_us
        found = None
        if abs(off - known) > JUMP_US:
            held = self.expiry_us() if self.jump is not None and self.jump.held_us else 0
            back = abs(off) <= JUMP_US and not held
            self.jump = None if back else Jump(off, self.now_us(), held)
            found = self.jump
            self._write()
        elif known == 0:
            self._at += max(-passed // _SLEW, min(passed // _SLEW, off))
        if self._machine.monotonic_us() - self._written >= _WRITE_US:
            self._write()
        return found

    def confirm(self, jump: Jump) -> None:
        """Take the wall clock for right as it was at a jump, once: fleet time moves by that.

        Where it is by now is not asked. If that is off again, it is another jump for `look`.
        """
        self._at += jump.by_us
        self.moved_us += jump.by_us
        self.jump = None
        self._write()

    # --- over a restart ----------------------------------------------------------------------

    def _take_up(self) -> bool:
        """Go on where the last process was, if the machine was not booted since."""
        if self._file is None or self._boot is None:
            return False
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._file.read_text(encoding="ascii"))
            passed = self._since - int(found["monotonic_us"])
            if found["boot"] != self._boot:
                self._stood_us = int(found["held_us"]) or int(found["at_us"]) * found["jumped"]
            elif passed >= 0:
                at = int(found["at_us"]) + passed
                slewed = abs(self._at - at) <= JUMP_US + passed // _SLEW
                self._at = self._at if slewed else at
                if held := int(found["held_us"]):
                    self.jump = Jump(0, self._at, held + passed)
                return True
        return False

    def _write(self) -> None:
        """Keep where fleet time stands. Without it (a full disk) the ledger's last entry tells."""
        self._written = mono = self._machine.monotonic_us()
        if self._file is None or self._boot is None:
            return
        held = self.expiry_us() if self.jump is not None and self.jump.held_us else 0
        now = self.now_us()
        jumped = self.jump is not None
        kept = {
            "at_us": now, "boot": self._boot, "held_us": held, "jumped": jumped,
            "monotonic_us": mono,
        }  # fmt: skip
        new = self._file.with_name(f"{self._file.name}.new")
        with suppress(OSError):
            raw = json.dumps(kept).encode("ascii")
            file = open_file(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                whole = os.write(file, raw) == len(raw)
                if jumped:
                    os.fsync(file)
            finally:
                os.close(file)
            if whole:
                new.replace(self._file)
                if jumped:
                    sync(self._file.parent)


def told_jump(jump: Jump) -> str:
    """Say in words what is to be confirmed."""
    if not jump.by_us:
        return (
            "the fleet's last entry is more than a day before this machine's time, so either it "
            "was away that long or the clock is wrong; nothing expires by that time"
        )
    way = "ahead of" if jump.by_us > 0 else "behind"
    off = timedelta(seconds=abs(jump.by_us) // 1_000_000)
    return (
        f"the wall clock is {off} {way} the time that has passed; the fleet goes on by the time "
        "that has passed"
    )
