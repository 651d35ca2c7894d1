"""`vedette policy publish | apply | history | diff | rollback | status` without a running fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tools.real_fleet import lay_out

from vedette.domain.base.errors import BadCommand
from vedette.interfaces.cli import cli
from vedette.testing.harness import copy_policies


class Typed:
    """Types verbs of one fleet's folder."""

    def __init__(self, config: Path) -> None:
        self._config = config

    def __call__(self, *words: str) -> Result:
        found = CliRunner().invoke(
            cli, ["--config", str(self._config), "policy", *words], standalone_mode=False
        )
        if found.exception is not None:
            raise found.exception
        return found

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json").output)


@pytest.mark.timeout(120)
def test_a_policy_s_life_as_it_is_typed(tmp_path: Path) -> None:
    ours = copy_policies(tmp_path / "policies")
    laid = lay_out(tmp_path / "fleet", policies=ours)
    repository = tmp_path / "shelf"
    text = laid.config.read_text() + f"[policy]\nbundles = {json.dumps(str(repository))}\n"
    laid.config.write_text(text)
    policy = Typed(laid.config)
    theirs = copy_policies(tmp_path / "theirs")
    (theirs / "denies" / "data.yaml").write_text(
        (theirs / "denies" / "data.yaml").read_text().replace("agents: []", "agents: [nobody]")
    )

    done = policy.json("publish", str(theirs), "--reason", "nobody may", "--commit", "3f9c2ab")
    assert (done["ok"], done["revision"], done["by"]) == (True, 2, "here")
    assert "is live already" in policy("apply", str(theirs), "--reason", "again").output

    rows = policy.json("history")["revisions"]
    assert [(row["revision"], row["commit"], row["reason"]) for row in rows] == [
        (2, "3f9c2ab", "nobody may"),
        (1, None, "found in the policy folder at start"),
    ]
    assert "1 older ones" in policy("history", "--limit", "1").output

    changed = policy.json("diff", "1", "2")
    assert [(one["path"], one["how"]) for one in changed["files"]] == [
        ("denies/data.yaml", "changed")
    ]
    shown = policy("diff").output  # from what is live to the folder
    assert "--- r2/denies/data.yaml\n+++ folder/denies/data.yaml" in shown
    assert "-agents: [nobody]\n+agents: []" in shown
    assert "r1 and folder say the same" in policy("diff", "1").output
    for which in ("9", "nothing"):
        with pytest.raises(BadCommand):
            policy("diff", which)

    back = policy("rollback", "1", "--yes", "--reason", "they may").output
    assert "revision 3" in back
    assert "is live everywhere after" in back
    status = policy.json("status")
    assert (status["revision"], status["reason"]) == (3, "they may")
    assert (status["shelf"]["ok"], status["shelf"]["revision"]) == (True, 3)
    assert status["digest"] == rows[1]["digest"]
    (repository / "harbour.tar.gz").write_bytes(b"something else")
    assert not policy.json("status")["shelf"]["ok"]
