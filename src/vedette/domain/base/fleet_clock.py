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

from msgspec import Struct

from vedette.domain.base.clock import MachineClock
from vedette.domain.base.fsync import sync
from vedette.domain.base.state_folder import open_file

# How far the wall clock may be off before that is a jump, and how fast it is followed below that:
# one part in a thousand, twice what a clock that is slewed by NTP gains or loses.
JUMP_US = 10_000_000
_SLEW = 1000
# How long after the ledger's last entry a start is taken to be one, where nothing else tells.
MAX_ABSENCE_US = 86_400_000_000
# How often the file is written anew: a clock that is slewed leaves it by half a second then.
_SAVE_INTERVAL_US = 600_000_000

CLOCK_FILE = "clock.json"


class Jump(Struct, frozen=True):
    """A jump of the wall clock to confirm: it is `by_us` ahead of fleet time, or expiries wait.

    `frozen_expiry_us` is the instant at which expiries stand where it is not known how long the
    fleet was away, else 0. `seen_us` is fleet time when it was seen.
    """

    by_us: int
    seen_us: int
    frozen_expiry_us: int = 0


class FleetClock:
    """A Clock over the machine's. Instants and durations are integer microseconds.

    `shift_us` is by how much confirmations have moved it in all: what waits in
    memory until an instant is moved along by whoever holds it.
    """

    def __init__(self, machine: MachineClock, file: Path | None = None) -> None:
        self._machine = machine
        self._file = file
        self._boot_id = machine.boot
        self._anchor_monotonic_us = self._last_check_us = self._last_save_us = (
            machine.monotonic_us()
        )
        self._anchor_us = machine.now_us()
        self.jump: Jump | None = None
        self.shift_us = 0
        # Where expiries stood before a reboot, if a jump had not been confirmed; else 0.
        self._frozen_expiry_us = 0
        self._is_resumed = self._resume()

    # --- Clock ------------------------------------------------------------------------------

    def now_us(self) -> int:
        """Return fleet time."""
        return self._anchor_us + self._machine.monotonic_us() - self._anchor_monotonic_us

    def monotonic_us(self) -> int:
        """Return the machine's clock since its boot; only differences mean anything."""
        return self._machine.monotonic_us()

    async def sleep_until(self, at_us: int) -> None:
        """Return when as much time has passed as lies between now and an instant."""
        await self._machine.sleep_until(self._machine.now_us() + at_us - self.now_us())

    def expiry_us(self) -> int:
        """Return the instant that ends of holds, approvals and stops are compared with."""
        jump = self.jump
        if jump is None or not jump.frozen_expiry_us:
            return self.now_us()
        return jump.frozen_expiry_us + self.now_us() - jump.seen_us

    # --- jumps ------------------------------------------------------------------------------

    def begin(self, last_us: int, expires: Callable[[int, int], bool]) -> Jump | None:
        """Begin after the ledger's last entry (its instant, 0 for none); return what is a jump.

        `expires` says whether something that waits would be over between two instants.
        """
        now, wall = self.now_us(), self._machine.now_us()
        if self._is_resumed:
            return self.check_wall_clock() or self.jump
        behind = last_us > wall + JUMP_US
        if behind:
            self._anchor_us += last_us - now
        certain = self._frozen_expiry_us or (wall if behind else last_us)
        unsure = self._frozen_expiry_us or behind or (last_us and wall - last_us > MAX_ABSENCE_US)
        if unsure and expires(certain, max(last_us, wall)):
            self.jump = Jump(0, self.now_us(), certain)
        found = self.check_wall_clock() or self.jump
        self._save()
        return found

    def check_wall_clock(self) -> Jump | None:
        """Compare with the wall clock; return a jump that was not seen before."""
        passed = self._machine.monotonic_us() - self._last_check_us
        self._last_check_us += passed
        off = self._machine.now_us() - self.now_us()
        known = 0 if self.jump is None else self.jump.by_us
        found = None
        if abs(off - known) > JUMP_US:
            held = self.expiry_us() if self.jump is not None and self.jump.frozen_expiry_us else 0
            back = abs(off) <= JUMP_US and not held
            self.jump = None if back else Jump(off, self.now_us(), held)
            found = self.jump
            self._save()
        elif known == 0:
            self._anchor_us += max(-passed // _SLEW, min(passed // _SLEW, off))
        if self._machine.monotonic_us() - self._last_save_us >= _SAVE_INTERVAL_US:
            self._save()
        return found

    def confirm(self, jump: Jump) -> None:
        """Take the wall clock for right as it was at a jump, once: fleet time moves by that.

        Where it is by now is not asked. If that is off again, it is another jump for
        `check_wall_clock`.
        """
        self._anchor_us += jump.by_us
        self.shift_us += jump.by_us
        self.jump = None
        self._save()

    # --- over a restart ----------------------------------------------------------------------

    def _resume(self) -> bool:
        """Go on where the last process was, if the machine was not booted since."""
        if self._file is None or self._boot_id is None:
            return False
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._file.read_text(encoding="ascii"))
            passed = self._anchor_monotonic_us - int(found["monotonic_us"])
            if found["boot"] != self._boot_id:
                self._frozen_expiry_us = (
                    int(found["held_us"]) or int(found["at_us"]) * found["jumped"]
                )
            elif passed >= 0:
                at = int(found["at_us"]) + passed
                slewed = abs(self._anchor_us - at) <= JUMP_US + passed // _SLEW
                self._anchor_us = self._anchor_us if slewed else at
                if held := int(found["held_us"]):
                    self.jump = Jump(0, self._anchor_us, held + passed)
                return True
        return False

    def _save(self) -> None:
        """Keep where fleet time stands. Without it (a full disk) the ledger's last entry tells."""
        self._last_save_us = mono = self._machine.monotonic_us()
        if self._file is None or self._boot_id is None:
            return
        held = self.expiry_us() if self.jump is not None and self.jump.frozen_expiry_us else 0
        now = self.now_us()
        jumped = self.jump is not None
        document = {
            "at_us": now, "boot": self._boot_id, "held_us": held, "jumped": jumped,
            "monotonic_us": mono,
        }  # fmt: skip
        new = self._file.with_name(f"{self._file.name}.new")
        with suppress(OSError):
            raw = json.dumps(document).encode("ascii")
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


def describe_jump(jump: Jump) -> str:
    """Say in words which jump of the clock is to be confirmed."""
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
