"""Starts bqemulator without what it would download; run by the Python of .tools/bqemulator.

At its start the emulator installs DuckDB's spatial extension from the internet and fails without
it. Nothing here is geography, so the step is left out, and nothing else of the emulator is changed.
Usage: python bqemulator_launcher.py start --rest-port N --grpc-port N
"""

from __future__ import annotations

import importlib
import os
import sys


def main(arguments: list[str]) -> None:
    """Run the emulator's own command line with `arguments`."""
    os.environ["BQEMU_ENABLE_FORMAT_EXTENSIONS"] = "false"
    engine = importlib.import_module("bqemulator.storage.engine")
    engine.DuckDBEngine._load_spatial = lambda self: None
    cli = importlib.import_module("bqemulator.cli")
    sys.argv = ["bqemulator", *arguments]
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
