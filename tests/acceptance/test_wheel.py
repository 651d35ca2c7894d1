"""The built wheel, installed away from the checkout, does what the checkout does.

The environment is fresh and holds the wheel alone; the locked packages of the development
environment are made visible to it by a path file, so nothing is downloaded. What the checkout
lends by accident (content importable by name, a template found beside the source) is missing
there, and would show.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.acceptance import doc_page
from tests.opa import find_opa

import vedette

ROOT = Path(__file__).resolve().parents[2]
CONTENT = ("agents", "memory", "policies", "samples", "tests")

# The first test waits for the build, the environment and the installation.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Installed:
    """A wheel and the fresh environment that it is installed in."""

    wheel: Path
    bin: Path
    neutral: Path

    def run(
        self, command: Sequence[str], cwd: Path, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment as a person outside the checkout would."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYTEST", "VEDETTE", "VIRTUAL_ENV", "COV_"))
        }
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=cwd,
            env=kept | environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def _do(command: Sequence[str | Path], cwd: Path) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, "VEDETTE_OPA": find_opa()},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    base = tmp_path_factory.mktemp("wheel")
    dist, environment, neutral = base / "dist", base / "environment", base / "neutral"
    neutral.mkdir()
    # In a copy of what git would check out: state and caches of this checkout must not be able
    # to slip in, and the build must not need them.
    source = _tracked(base / "source")
    _do([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist], source)
    (wheel,) = dist.glob("*.whl")
    _do([sys.executable, "-m", "venv", "--without-pip", environment], base)
    python = environment / "bin" / "python"
    offline = ["--offline", "--no-index", "--no-deps", "--no-cache"]
    _do([ROOT / "tools/uv", "pip", "install", *offline, "--python", python, wheel], base)
    site = Path(
        subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()
    )
    # Path files inside a folder that a path file adds are not read, so the editable
    # installation of the development environment stays invisible.
    (site / "locked.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return Installed(wheel, environment / "bin", neutral)


def _tracked(target: Path) -> Path:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        origin = ROOT / name
        if not origin.is_file():
            continue
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(origin, copy, follow_symlinks=False)
    return target


def test_the_wheel_owns_one_name(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"vedette", f"vedette-{vedette.__version__}.dist-info"}
    assert "vedette/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_carries_the_content_as_a_template(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = set(archive.namelist())
    content = [
        path.relative_to(ROOT).as_posix()
        for folder in ("agents", "policies", "memory")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".yaml", ".md", ".rego", ".py"}
    ]
    assert content
    missing = [name for name in content if f"vedette/_template/{name}" not in names]
    assert missing == []
    assert "vedette/_template/vedette.toml" in names
    unwanted = (".pyc", ".db", ".sqlite", ".pem")
    assert [name for name in names if name.endswith(unwanted)] == []


def test_it_runs_from_the_wheel_and_not_from_the_checkout(installed: Installed) -> None:
    where = installed.run(
        ["python", "-c", "import vedette; print(vedette.__file__)"], installed.neutral
    )
    assert where.returncode == 0, where.stderr
    assert Path(where.stdout.strip()).is_relative_to(installed.bin.parent)


def test_content_is_not_importable_by_name(installed: Installed) -> None:
    code = (
        "import importlib.util, sys\n"
        "print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name)])"
    )
    names = (*CONTENT, "vedette")
    found = installed.run(["python", "-c", code, *names], installed.neutral)
    assert found.returncode == 0, found.stderr
    # vedette is the control: the question can be answered with yes.
    assert found.stdout.split() == ["vedette"]


def test_version(installed: Installed) -> None:
    done = installed.run(["vedette", "--version"], installed.neutral)
    assert done.returncode == 0, done.stderr
    assert vedette.__version__ in done.stdout


def test_init_writes_a_fleet_that_check_accepts(installed: Installed, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    made = installed.run(["vedette", "init", str(fleet)], installed.neutral)
    assert made.returncode == 0, made.stdout + made.stderr
    assert (fleet / "vedette.toml").is_file()
    for folder in ("agents", "policies", "memory"):
        assert any((fleet / folder).rglob("*")), folder
    checked = installed.run(["vedette", "check"], fleet)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_fleet_without_opa_decides_by_the_wasm_of_the_wheel(
    installed: Installed, tmp_path: Path
) -> None:
    """Whatever it grants. Changed rules the embedded engine decides, and that is doc_page."""
    fleet = tmp_path / "fleet"
    made = installed.run(["vedette", "init", str(fleet)], installed.neutral)
    assert made.returncode == 0, made.stdout + made.stderr
    grants, rule = fleet / "policies/grants/data.yaml", fleet / "policies/vedette/denies/more.rego"
    grants.write_text(grants.read_text("utf-8") + "# more\n", "utf-8")
    quiet = {"VEDETTE_SOURCES": "[]", "VEDETTE_SERVE__HTTP": "", "PATH": str(tmp_path)}
    first = installed.run(["vedette", "check", "--live"], fleet, **quiet)
    assert "shipped with vedette" in " ".join(first.stdout.split()), first.stdout + first.stderr
    for change, name, why in (
        (None, "opa wasm/", "published with the revision"),
        (rule, "regorus/", "no opa is here"),
    ):
        if change is not None:
            more = 'deny contains "denies.more" if input.action.tool == "mail.burn"'
            change.write_text(f"package vedette.denies\n\n{more}\n", "utf-8")
            # Rules that changed may loosen, so a start does not take them up by itself.
            made = installed.run(
                ["vedette", "policy", "publish", "--yes", "--reason", "more"], fleet, **quiet
            )
            assert made.returncode == 0, made.stdout + made.stderr
        ran = installed.run(["vedette", "run", "--until-idle", "--plain"], fleet, **quiet)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        stood = installed.run(["vedette", "status", "--json"], fleet, **quiet)
        assert json.loads(stood.stdout)["engine"]["name"].startswith(name), stood.stdout
        looked = installed.run(["vedette", "check", "--live"], fleet, **quiet)
        assert why in " ".join(looked.stdout.split()), looked.stdout
    assert "no opa is here" in " ".join(ran.stdout.split())


def test_a_wheel_is_not_built_without_opa(tmp_path: Path) -> None:
    source = _tracked(tmp_path / "source")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist"],
        cwd=source,
        env={name: value for name, value in os.environ.items() if name != "VEDETTE_OPA"}
        | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode != 0
    assert "Mend: put opa on PATH" in done.stdout + done.stderr
    assert not list((tmp_path / "dist").glob("*.whl"))


def test_check_is_not_content_with_anything(installed: Installed, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    made = installed.run(["vedette", "init", str(fleet)], installed.neutral)
    assert made.returncode == 0, made.stdout + made.stderr
    broken = min(fleet.glob("agents/*/agent.yaml"))
    broken.write_text("name: [\n", "utf-8")
    checked = installed.run(["vedette", "check"], fleet)
    assert checked.returncode != 0
    assert "agent.yaml" in checked.stdout + checked.stderr


# What one loop of an empty `for` costs on a machine at rest, in seconds.
_REST = 33e-9


def _slowness() -> float:
    """Return how many times slower this machine is just now than one at rest; 1 at least."""
    began = time.perf_counter()
    for _ in range(3_000_000):
        pass
    return max(1.0, (time.perf_counter() - began) / 3_000_000 / _REST)


@pytest.mark.parametrize(
    "most", [pytest.param(7, id="to the first approval"), pytest.param(28, id="whole")]
)
def test_the_tutorial_word_for_word(installed: Installed, tmp_path: Path, most: int) -> None:
    """From an empty folder to an own agent that was corrected, approved and undone."""
    steps = doc_page.commands(ROOT / "docs" / "tutorial.md")
    assert 15 <= len(steps) <= 28
    is_whole = len(steps) <= most
    steps = steps[:most]
    empty = tmp_path / "empty"
    empty.mkdir()
    shell = doc_page.shell(empty, installed.bin, tmp_path / "home")
    seen, outputs = "", []
    for step in steps:
        before = _slowness()
        done = shell.give(doc_page.filled(step, seen))
        slow = max(before, _slowness())
        outputs.append(
            f"{done.wall_s:5.1f} s, {done.cpu_s:4.1f} s CPU, x{slow:.1f}: {step.command}"
        )
        where = f"line {step.line}: {step.command}"
        assert done.code == 0, f"{where}\n{done.out}"
        lost = doc_page.missing(step, done.out)
        assert lost is None, f"{where}: not printed: {lost!r}\n{done.out}"
        # Three seconds of a machine at rest. CPU, since others may have the cores just then, and
        # three times that: a neighbour that empties the caches costs real work as much (4.4 to
        # 6.3 s were seen of one step), where the empty loop notices nothing.
        assert done.cpu_s <= 3 * 3.0 * slow, outputs
        seen += done.out
    print("\n".join(outputs))
    if not is_whole:
        assert steps[-1].command.startswith("vedette approve")
        return
    history = shell.give(doc_page.Shown(0, "vedette policy history --json", ())).out
    authors = {row["reason"]: row["by"] for row in json.loads(history)["revisions"]}
    assert authors["the front desk observes"].startswith("person:"), history
    home = shell.folder / ".vedette" / "mailbox"
    # In the inbox again; the flag was another action, and is still there.
    assert (home / "cur" / "1780000002.T2.harbour:2,F").read_bytes() == (
        shell.folder / "samples" / "tutorial" / "school-visit-again.eml"
    ).read_bytes()
    assert not list((home / ".Bookings").rglob("*T2*"))


def test_a_page_that_tells_another_story_is_found_out() -> None:
    shown = doc_page.Shown(1, "vedette runs", ("run_1 …", "…", "done in 3 s"))
    assert doc_page.missing(shown, "run_1 waits\nmore\ndone in 12 ms\n") is None
    assert doc_page.missing(shown, "done in 12 ms\nrun_1 waits\n") == "done in 3 s"
    assert doc_page.missing(shown, "run_2 waits\ndone in 12 ms\n") == "run_1 …"
    assert (
        doc_page.filled(doc_page.Shown(1, "approve cnd_a…", ()), "cnd_b1 cnd_a1").command
        == "approve cnd_a1"
    )
    with pytest.raises(ValueError, match="no cnd_…"):
        doc_page.filled(doc_page.Shown(1, "approve cnd_…", ()), "nothing")
