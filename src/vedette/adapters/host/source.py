"""The machine it runs on as a source: live metrics through psutil."""

from __future__ import annotations

from collections.abc import Mapping

from vedette.domain.base.clock import MICROS, Clock, iso
from vedette.domain.event import ENVELOPE, Event
from vedette.domain.ports.sources import Intake


class HostSource:
    """The source of this host's metrics, at every whole multiple of `every_us`; never ends.

    Events are `metric.point` of source `host:NAME`: subjects `host/cpu`, `host/memory` (percent),
    `host/load1`, `host/disk_read`, `host/disk_write`, `host/net_received`, `host/net_sent` (bytes
    per second). The id is metric and second, so a second has one point however often it is
    sampled. What the platform does not tell is left out.
    """

    finite = False

    def __init__(self, name: str, clock: Clock, every_us: int = MICROS) -> None:
        if every_us <= 0:
            raise ValueError(f"every: {every_us} us is not a period")
        self.name = f"host:{name}"
        self._clock = clock
        self._every_us = every_us
        self._previous: tuple[int, Mapping[str, int]] | None = None

    async def deliver(self, intake: Intake) -> None:
        """Hand over one sample a period, until cancelled. Raises what the intake raises."""
        self.sample(self._clock.now_us())  # what is counted from here on needs a first reading
        while True:
            now_us = self._clock.now_us()
            await self._clock.sleep_until(now_us - now_us % self._every_us + self._every_us)
            await intake.accept(self.sample(self._clock.now_us()))

    def sample(self, now_us: int) -> list[Event]:
        """Read the host. Rates are over the time since the last reading; the first has none."""
        import psutil

        values: dict[str, float | int] = {
            "cpu": psutil.cpu_percent(interval=None),
            "memory": psutil.virtual_memory().percent,
            "load1": round(psutil.getloadavg()[0], 4),
        }
        read_us, counters = self._clock.monotonic_us(), _counters()
        if self._previous is not None:
            before_us, before = self._previous
            elapsed_us = max(1, read_us - before_us)
            for name in counters.keys() & before.keys():
                spent = max(0, counters[name] - before[name])
                values[name] = spent * MICROS // elapsed_us
        else:
            del values["cpu"]  # psutil's first answer means nothing
        self._previous = (read_us, counters)
        at = iso(now_us - now_us % self._every_us)
        second = iso(now_us - now_us % MICROS)
        return [
            Event(
                source=self.name,
                id=f"{name}:{second}",
                type="metric.point",
                subject=f"host/{name}",
                time=at,
                data={"value": value},
                vouched=ENVELOPE,
            )
            for name, value in sorted(values.items())
        ]


def _counters() -> dict[str, int]:
    import psutil

    counters: dict[str, int] = {}
    disk = psutil.disk_io_counters()
    if disk is not None:
        counters |= {"disk_read": disk.read_bytes, "disk_write": disk.write_bytes}
    net = psutil.net_io_counters()
    if net is not None:
        counters |= {"net_received": net.bytes_recv, "net_sent": net.bytes_sent}
    return counters
