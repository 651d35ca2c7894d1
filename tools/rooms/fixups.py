# ruff: noqa
# mypy: ignore-errors
import re, pathlib, sys

root = pathlib.Path(sys.argv[1]) / "src/vedette"


def edit(path, pairs):
    p = root / path
    if not p.exists():
        return
    s = p.read_text()
    o = s
    for a, b in pairs:
        s = s.replace(a, b)
    if s != o:
        p.write_text(s)


edit(
    "config/__init__.py",
    [
        ('"bank_file": (', '"bank": ('),
        ('"modules": (', '"agent_loader": ('),
        ('"secrets": (', '"secret_reference": ('),
    ],
)
edit(
    "interfaces/cli/__init__.py",
    [
        ('("answer", ', '("approve", '),
        ('("stopping", ', '("stop", '),
        ('("try_", "try_"', '("dry_run", "try_"'),
    ],
)
edit("app/worker_main.py", [('"judging.ranks"', '"judging.rank_anomaly"')])
for f in (
    "src/vedette/app/workers.py",
    "tests/faults/test_box.py",
    "tests/contract/adapters/reasoners/test_root_agents.py",
):
    p = pathlib.Path(sys.argv[1]) / f
    s = p.read_text()
    p.write_text(s.replace('"adapters.adk.root_agent"', '"adapters.reasoners.adk.root_agent"'))


def t(f, *pairs):
    p = pathlib.Path(sys.argv[1]) / f
    s = p.read_text()
    o = s
    for a, b in pairs:
        if a not in s:
            print("  ! fixup", f, a[:60])
        s = s.replace(a, b)
    p.write_text(s)


t(
    "tests/unit/interfaces/test_cli.py",
    (
        '"vedette.interfaces.cli.text_width",',
        '"vedette.interfaces.cli.text_width",\n            "vedette.interfaces",\n            "vedette.domain",\n            "vedette.domain.base",',
    ),
)
t(
    "tests/unit/test_imports.py",
    ('"quick_data.py"', '"dataclass.py"'),
    ('"vedette.ledger.history"', '"vedette.ledger.history.explain"'),
    ('        "vedette.console",\n', ""),
)
t("tests/simulation/planted.toml", ("hold.ended(row", "held_actions.ended(row"))
