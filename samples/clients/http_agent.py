"""An agent that is a plain script: it writes into the log book and asks to publish a page.

VEDETTE_URL=http://127.0.0.1:8088 VEDETTE_TOKEN=… python http_agent.py
"""

from __future__ import annotations

import json
import os

from vedette_client import Fleet

ARRIVALS = "ref:/charter/pages/arrivals"


def main() -> None:
    """Write, then publish once a person has agreed; print what came of each."""
    fleet = Fleet(os.environ["VEDETTE_URL"], os.environ["VEDETTE_TOKEN"])
    print("tools:", ", ".join(tool["name"] for tool in fleet.tools()), flush=True)
    note = fleet.call("book.write", {"page": ARRIVALS, "text": "the Petrel, 06:30"})
    print(json.dumps(fleet.wait(note, within_s=60)), flush=True)
    page = fleet.call("book.publish", {"page": ARRIVALS})
    print(json.dumps(page), flush=True)
    print(json.dumps(fleet.wait(page, within_s=600)), flush=True)


if __name__ == "__main__":
    main()
