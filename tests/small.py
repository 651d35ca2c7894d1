"""A small fleet out of the shipped content: one agent with a few of its examples.

For tests that need a real agent under the real policy, and not what all the others bring along.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from vedette.testing.harness import checkout, copy_policies

AGENT = "inbox_triage"
TOML = """\
fleet = "harbour"
state = ".vedette"

[content]
agents = "agents"
policies = "policies"
memory = "memory"

[targets.mailbox]
kind = "maildir"
path = "@state/mailbox"
address = "desk@harbourlights.example"
"""


def small(root: Path, *, agent: str = AGENT, bank: str = "inbox", each: int = 3) -> Path:
    """Write the fleet; of each label so many examples, and no cases. Returns `root`."""
    agents, memory = root / "agents", root / "memory"
    shutil.copytree(
        checkout() / "agents" / agent, agents / agent,
        ignore=shutil.ignore_patterns("__pycache__", "*.yml", "evals"),
    )  # fmt: skip
    shutil.copytree(checkout() / "memory" / bank, memory / bank)
    for example in (memory / bank).glob("examples/*.md"):
        if int(example.stem.rpartition("-")[2]) > each:
            example.unlink()
    copy_policies(root / "policies")
    (root / "vedette.toml").write_text(TOML, encoding="utf-8")
    return root


def cases(root: Path, number: int, *, agent: str = AGENT) -> None:
    """Give the agent the first so many of its shipped cases."""
    text = (checkout() / "agents" / agent / "evals" / "mails.yaml").read_text(encoding="utf-8")
    kept = text.split("\n- name:")[:number]
    folder = root / "agents" / agent / "evals"
    folder.mkdir()
    (folder / "mails.yaml").write_text("\n- name:".join(kept) + "\n", encoding="utf-8")
