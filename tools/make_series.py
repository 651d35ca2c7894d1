"""Write samples/metrics/*.csv: seeded, so that the files are always the same.

    python tools/make_series.py [FOLDER]

tests/fleet/test_anomaly_detection.py writes them again and compares the bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from vedette.judging.series import generate

START = datetime(2026, 3, 2, tzinfo=UTC)

# name: (minutes between rows, what is in it)
SERIES: dict[str, tuple[int, Mapping[str, float]]] = {
    # Shore power of berth 3, kW, rows every 5 minutes with a daily cycle; two short surges.
    "berth_power": (
        5,
        {
            "n": 2000,
            "seed": 11,
            "base": 140,
            "noise": 4,
            "cycle": 288,
            "cycle_size": 30,
            "digits": 2,
        }
        | {"spike_at": 1450, "spike_rows": 2, "spike": 75},
    ),
    # Booking site, milliseconds, every minute: noise that lasts, then slowly slower.
    "booking_latency": (
        1,
        {"n": 2400, "seed": 5, "base": 180, "noise": 9, "memory": 0.6, "digits": 1}
        | {"drift_at": 1700, "drift": 0.35},
    ),
    # Bilge pump, bar, every minute: the pressure falls for two hours and comes back.
    "pump_pressure": (
        1,
        {"n": 2000, "seed": 3, "base": 3.2, "noise": 0.04, "digits": 3}
        | {"shift_at": 1100, "shift_until": 1220, "shift": -1.3},
    ),
    # Tide gauge, metres, every 10 minutes: the float sticks for ten hours.
    "tide_gauge": (
        10,
        {"n": 1800, "seed": 7, "base": 3.1, "noise": 0.03, "cycle": 74.5, "cycle_size": 1.6}
        | {"flat_at": 1205, "flat_until": 1265},
    ),
}


def text(name: str) -> str:
    """Return one sample series as CSV, `timestamp,value`."""
    minutes, spec = SERIES[name]
    digits = int(spec.get("digits", 3))
    lines = ["timestamp,value"]
    for row, value in enumerate(generate(spec)):
        at = START + timedelta(minutes=minutes * row)
        lines.append(f"{at:%Y-%m-%dT%H:%M:%SZ},{value:.{digits}f}")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write every series into the folder (default: samples/metrics beside this file's folder)."""
    root = Path(__file__).resolve().parent.parent
    folder = Path(arguments[0]) if arguments else root / "samples" / "metrics"
    folder.mkdir(parents=True, exist_ok=True)
    for name in SERIES:
        (folder / f"{name}.csv").write_bytes(text(name).encode("ascii"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
