"""What agents' code can still do in its box, and that what a fleet says of the box is so."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.said import ROOT, vedette
from tests.workers import Crew, brief, until, write_judge

from vedette.adapters.reasoners.workers import seccomp
from vedette.adapters.reasoners.workers.pending_call import WorkerLost
from vedette.adapters.reasoners.workers.reasoner_client import JudgeSpec
from vedette.adapters.reasoners.workers.sandbox_probe import Protection
from vedette.adapters.reasoners.workers.tool_client import WorkerTools
from vedette.app.workers import Containment, assess_containment, require_sandbox
from vedette.config.reach import build_reach
from vedette.config.settings import Isolation, Settings, read_settings
from vedette.domain.agent import ResourceLimits
from vedette.domain.base.errors import BadFleet, Forbidden
from vedette.domain.effect import Call
from vedette.domain.tool import Tool
from vedette.interfaces.http.ancestry import is_descendant
from vedette.interfaces.http.local_api import serve_local
from vedette.interfaces.http.local_client import LocalClient
from vedette.testing.harness import FleetHarness

LIMITS = ResourceLimits(time_us=20_000_000, memory=256 << 20)

USES = """
import json, os, socket, sqlite3, ssl, tempfile, threading, time, zoneinfo
import http.client
import numpy
from pathlib import Path
from vedette.judging import Judge as Base
from vedette.judging import Judgement

class Judge(Base):
    def judge(self, seen, briefing):
        import decimal, email.mime.text, xml.sax, asyncio, concurrent.futures
        assert numpy.linalg.inv(numpy.eye(3)).sum() == 3
        words = []
        thread = threading.Thread(target=lambda: words.append("thread"))
        thread.start(); thread.join()
        with tempfile.TemporaryDirectory() as folder:
            db = sqlite3.connect(Path(folder) / "notes.db")
            db.execute("create table t (a)"); db.commit(); db.close()
            words.append(str(Path(folder).parent))
        asyncio.run(asyncio.sleep(0))
        zoneinfo.ZoneInfo("Europe/Berlin")
        words.append((Path(__file__).parent / "data.txt").read_text())
        words.append(sorted(os.listdir(os.environ["TMPDIR"])) == [])
        return Judgement(json.dumps(words), 1.0)
"""

TOOLS_PY = """
import socket, urllib.request
from pathlib import Path
from vedette.domain.effect import Outcome

def act(call):
    path = Path(call.target["path"])
    (path / "new").mkdir(exist_ok=True)
    (path / "a").write_text("x")
    (path / "a").rename(path / "new" / "a")
    answer = "none"
    if "url" in call.target:
        answer = urllib.request.urlopen(call.target["url"], timeout=5).read().decode()
    names = []
    for name in call.args.get("names", []):
        try:
            socket.getaddrinfo(name, 80)
            names.append(name)
        except socket.gaierror:
            pass
    return Outcome("done", {"answer": answer, "names": names})
"""


def a_call(target: dict[str, Any], **args: Any) -> Call:
    return Call("world.act", args, "k", "worker", "run", target, ("worker",), 1, 10_000_000)


ACT = Tool("world.act", "world", "world", {}, (), "none", "act", None)


async def test_a_judge_has_all_that_judging_takes(tmp_path: Path) -> None:
    """Threads, temporary files, SQLite, time zones, numpy, late imports, files of its own."""
    folder = write_judge(tmp_path / "agents", code=USES)
    (folder / "data.txt").write_text("own")
    left = tmp_path / "state" / "scratch" / "worker.judge.before" / "left"
    left.parent.mkdir(parents=True)
    left.write_text("by one before")
    crew = Crew(tmp_path, LIMITS)
    try:
        label = (await crew.judges.reason(brief())).label
    finally:
        crew.pool.close()
    own = json.loads(label)
    assert Path(own.pop(1)).parent == left.parent.parent
    assert own == ["thread", "own", True]


LEAVES = """
import os, tempfile
from pathlib import Path
from vedette.judging import Judge as Base, Judgement

class Judge(Base):
    def judge(self, seen, briefing):
        own = Path(tempfile.gettempdir())
        found = sorted(os.listdir(own))
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
        if briefing.event.data.get("leave"):
            os.mkdir(own / "memory", 0o300)
            (own / "memory" / "notes").write_text("what I saw")
            os.chdir(own)
            for _ in range(3000):
                os.mkdir("d")
                os.chdir("d")
        return Judgement(f"{own} {found}", 1.0)
"""


def is_gone(path: Path) -> bool:
    return not path.exists()


async def test_what_a_worker_leaves_is_removed_and_no_other_worker_s(tmp_path: Path) -> None:
    """As deep as no call stack, without rights, links out: it goes, and keeps nobody."""
    write_judge(tmp_path / "agents", code=LEAVES)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").touch()
    left = tmp_path / "state" / "scratch"
    (left / "old" / "deeper").mkdir(parents=True)
    for place in (left, left / "old", left / "old" / "deeper"):
        (place / "link").symlink_to(victim)
    for _ in range(2):
        crew = Crew(tmp_path, LIMITS)
        try:
            label = (await crew.judges.reason(brief(leave=True))).label
            own, found = label.split()
            assert found == "[]"
            crew.judges.renew("worker")
            assert "[]" in (await crew.judges.reason(brief(2))).label
            await until(partial(is_gone, Path(own)))
            await crew.judges.reason(brief(3, 2, key="other", leave=True))
        finally:
            crew.pool.close()
        assert crew.deaths == []
        assert len(list(left.iterdir())) == 1, "what the next start removes"
    crew = Crew(tmp_path, LIMITS)
    try:
        label = (await crew.judges.reason(brief())).label
        await until(lambda: list(left.iterdir()) == [Path(label.split()[0])])
    finally:
        crew.pool.close()
    assert (victim / "kept").exists()


@pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="its code is x86-64's"
)
@pytest.mark.parametrize("stay", [True, False])
async def test_a_worker_of_many_threads_is_killed(tmp_path: Path, stay: bool) -> None:
    """Threads by raw calls on one stack: no memory limit sees them. At work, and idle."""
    crew = Crew(tmp_path, LIMITS)
    try:
        briefing = crew.judges.reason(brief(do="threads", most=600, stay=stay))
        if stay:
            with pytest.raises(WorkerLost, match="had more than 256 threads"):
                await briefing
        else:
            with suppress(WorkerLost):
                await briefing
        await until(lambda: crew.deaths != [])
        assert crew.deaths == [("worker", "judge", "had more than 256 threads")]
        assert (await crew.judges.reason(brief(2, key="other"))).label == "seen 1"
    finally:
        crew.pool.close()


async def test_trying_a_judge_leaves_the_running_one_its_scratch_folder(tmp_path: Path) -> None:
    write_judge(tmp_path / "agents", code=LEAVES)
    crew = Crew(tmp_path, LIMITS)
    try:
        before = (await crew.judges.reason(brief())).label
        await crew.judges.try_spec("worker", JudgeSpec(str(tmp_path / "agents" / "worker"), {}))
        assert (await crew.judges.reason(brief(2, 1))).label == before
    finally:
        crew.pool.close()


async def test_a_box_that_cannot_be_entered_is_no_event_s_fault(tmp_path: Path) -> None:
    """A worker whose scratch folder is gone before it is there to enter: the next one answers."""
    write_judge(tmp_path / "agents", code=LEAVES)
    scratch = tmp_path / "state" / "scratch"
    crew = Crew(tmp_path, LIMITS)
    try:
        task = asyncio.ensure_future(crew.judges.reason(brief()))
        await until(lambda: scratch.is_dir() and list(scratch.iterdir()) != [])
        for folder in scratch.iterdir():
            folder.rmdir()
        thought = await task
    finally:
        crew.pool.close()
    assert thought.label.endswith(" []")
    assert [death[2] for death in crew.deaths] == ["could not enter its box"]


ENDS = """
import os
from vedette.judging import Judge as Base, Judgement

class Judge(Base):
    def judge(self, seen, briefing):
        os._exit(97)
"""


async def test_who_ends_as_if_it_had_not_entered_is_charged(tmp_path: Path) -> None:
    """Code chooses how its process ends, but not what that says of it."""
    write_judge(tmp_path / "agents", code=ENDS)
    crew = Crew(tmp_path, LIMITS)
    try:
        with pytest.raises(WorkerLost, match="ended by itself with exit code 97"):
            await asyncio.wait_for(crew.judges.reason(brief()), 20)
    finally:
        crew.pool.close()
    assert len(crew.deaths) == 1


async def test_tools_reach_their_target_and_no_other(tmp_path: Path) -> None:
    """Folder, port and name of the target; a folder that is made later, or made anew."""
    agent = tmp_path / "agents" / "worker"
    agent.mkdir(parents=True)
    (agent / "tools.py").write_text(TOOLS_PY)
    own, other = tmp_path / "own", tmp_path / "other"
    other.mkdir()
    crew = Crew(tmp_path, LIMITS)
    with answering() as port:
        target = {"kind": "maildir", "path": str(own), "url": f"http://localhost:{port}/"}
        tools = WorkerTools(
            crew.pool, lambda name: (str(agent), None, LIMITS), lambda name: build_reach([target])
        )
        try:
            with pytest.raises(Exception, match=r"Permission denied|No such file"):
                await tools.perform(ACT, a_call(target), lambda: True)
            for _ in range(2):
                own.mkdir()
                done = await tools.perform(
                    ACT, a_call(target, names=["localhost", "example.org"]), lambda: True
                )
                assert done is not None
                assert done.data == {"answer": "hello", "names": ["localhost"]}
                assert (own / "new" / "a").read_text() == "x"
                own.rename(tmp_path / f"old-{os.urandom(4).hex()}")
            elsewhere = {**target, "path": str(other)}
            with pytest.raises(Exception, match="Permission denied"):
                await tools.perform(ACT, a_call(elsewhere), lambda: True)
        finally:
            crew.pool.close()


READER_PY = """
from pathlib import Path
from vedette.sdk import Outcome

def act(call):
    folder = Path(call.target["read"][0])
    try:
        (folder / "new").write_text("x")
        written = True
    except OSError:
        written = False
    return Outcome("done", {"text": (folder / "paper").read_text(), "written": written})
"""


@pytest.mark.parametrize("named", [True, False])
async def test_tools_read_what_their_target_names_and_write_nothing_there(
    tmp_path: Path, named: bool
) -> None:
    agent, papers = tmp_path / "agents" / "worker", tmp_path / "papers"
    for folder in (agent, papers, tmp_path / "own"):
        folder.mkdir(parents=True)
    (agent / "tools.py").write_text(READER_PY)
    (papers / "paper").write_text("it rained")
    target = {"kind": "folder", "path": str(tmp_path / "own"), "read": [str(papers)]}
    opened = target if named else {**target, "read": []}
    crew = Crew(tmp_path, LIMITS)
    tools = WorkerTools(
        crew.pool, lambda name: (str(agent), None, LIMITS), lambda name: build_reach([opened])
    )
    try:
        if named:
            done = await tools.perform(ACT, a_call(target), lambda: True)
            assert done is not None
            assert done.data == {"text": "it rained", "written": False}
        else:
            with pytest.raises(Exception, match="Permission denied"):
                await tools.perform(ACT, a_call(target), lambda: True)
    finally:
        crew.pool.close()


class answering:
    """Answers every request on a free port with `hello`."""

    def __enter__(self) -> int:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return int(self._socket.getsockname()[1])

    def _serve(self) -> None:
        while True:
            try:
                opened, _ = self._socket.accept()
            except OSError:
                return
            with opened:
                opened.recv(4096)
                opened.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello")

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


# --- what is said of it -----------------------------------------------------------------------


def test_what_a_kernel_lacks_is_said() -> None:
    assert Protection(7, True).gaps() == []
    assert Protection(4, True).gaps() == []
    assert len(Protection(3, True).gaps()) == 1
    assert len(Protection(1, True).gaps()) == 2
    assert len(Protection(0, False).gaps()) == 2
    for landlock in range(8):
        for filtered in (True, False):
            document = Protection(landlock, filtered).to_json()
            assert bool(document["open"]) == (landlock < 4 or not filtered)


@pytest.mark.parametrize(
    ("isolation", "named"),
    [
        (Isolation(False, require_sandbox=True), "workers = none"),
        (Isolation(True, sandbox=False, require_sandbox=True), "box = none"),
    ],
)
@pytest.mark.parametrize("reasoner", ["judge", "adk"])
def test_required_and_not_there_is_refused(
    tmp_path: Path, isolation: Isolation, reasoner: str, named: str
) -> None:
    settings = replace(Settings.of(tmp_path), isolation=isolation)
    agents: Any = {"mind": _Reasoner("mind", reasoner)}
    found = assess_containment(settings, agents)
    with pytest.raises(BadFleet, match=named) as refused:
        require_sandbox(settings, found)
    assert refused.value.code == "not-boxed"
    require_sandbox(replace(settings, isolation=replace(isolation, require_sandbox=False)), found)


@pytest.mark.parametrize(("reasoner", "said"), [("adk", True), ("judge", False)])
def test_where_models_are_asked_without_workers_is_said(
    tmp_path: Path, reasoner: str, said: bool
) -> None:
    settings = replace(Settings.of(tmp_path), isolation=Isolation(False))
    agents: Any = {"sorter": _Reasoner("sorter", reasoner)}
    (gap,) = assess_containment(settings, agents).gaps()
    assert "in the engine's process" in gap
    assert ("models are asked" in gap) == said


class _Reasoner:
    def __init__(self, name: str, reasoner: str) -> None:
        self.name, self.tools = name, dict[str, Any]()
        self.reasoner = self.last_reasoner = reasoner


def test_an_old_kernel_is_refused_where_a_box_is_required(tmp_path: Path) -> None:
    settings = replace(Settings.of(tmp_path), isolation=Isolation(True, require_sandbox=True))
    with pytest.raises(BadFleet, match=r"Linux 6\.7"):
        require_sandbox(settings, Containment(Protection(2, True)))
    require_sandbox(settings, Containment(Protection(6, True)))


@pytest.mark.parametrize(
    "path", ["@state/board.db", "board.db", "policies/board.db", "./.", "@state/.", "/"]
)
def test_a_target_that_would_open_the_fleet_is_refused(tmp_path: Path, path: str) -> None:
    for name in ("policies", "agents", "memory"):
        (tmp_path / name).mkdir()
    file = tmp_path / "vedette.toml"
    text = f'fleet = "f"\n[targets.board]\nkind = "board"\npath = "{path}"\n'
    file.write_text(text)
    settings, problems = read_settings(file)
    assert settings is None
    (problem,) = problems
    assert (problem.line, problem.field) == (4, "targets.board.path")
    assert "@state/board/" in problem.mend
    file.write_text(text.replace(f'"{path}"', '"@state/board/board.db"'))
    assert read_settings(file)[1] == []
    # Where no box is asked for, nothing is opened by it.
    file.write_text(f'{text}[isolation]\nbox = "none"\n')
    assert read_settings(file)[1] == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('read = ["./policies"]', "tools would reach"),
        ('read = ["./policies/grants"]', "tools would reach"),
        ('read = ["./"]', "tools would reach"),
        ('read = ["@state/keys"]', "tools would reach"),
        ('read = ["@state/store.db"]', "tools would reach"),
        ('read = ["@state/week"]', "which they only read"),
        ('read = ["@state/week/papers"]', "which they only read"),
        ('read = ["papers"]', "is no list of absolute paths"),
        ('read = "./papers"', "is no list of absolute paths"),
        ("read = [5]", "is no list of absolute paths"),
        ('create = "yes"', "is not true or false"),
    ],
)
def test_what_a_target_may_not_read_is_refused(tmp_path: Path, line: str, what: str) -> None:
    for name in ("policies", "agents", "memory"):
        (tmp_path / name).mkdir()
    file = tmp_path / "vedette.toml"
    text = f'fleet = "f"\n[targets.week]\nkind = "folder"\npath = "@state/week"\n{line}\n'
    file.write_text(text)
    (problem,) = read_settings(file)[1]
    assert (problem.line, problem.field.split(".")[:2]) == (5, ["targets", "week"])
    assert what in problem.what
    assert problem.mend
    file.write_text(text.replace(line, 'create = true\nread = ["./papers", "@state/other"]'))
    settings, problems = read_settings(file)
    assert problems == []
    assert settings is not None
    state = settings.state
    assert settings.targets["week"]["read"] == [str(tmp_path / "papers"), str(state / "other")]


@pytest.mark.parametrize(
    ("table", "addresses"),
    [
        ({"kind": "webhook", "url": "https://a.example/x"}, [("a.example", 443)]),
        ({"kind": "http", "base_url": "http://a.example:81"}, [("a.example", 81)]),
        ({"kind": "imap", "host": "m.example"}, [("m.example", 993)]),
        ({"kind": "imap", "host": "m.example", "tls": "starttls"}, [("m.example", 143)]),
        ({"kind": "smtp", "host": "m.example"}, [("m.example", 587)]),
        ({"kind": "smtp", "host": "m.example", "port": 2525}, [("m.example", 2525)]),
        (
            {"kind": "imap", "host": "m.example", "smtp_host": "r.example", "smtp_tls": "implicit"},
            [("m.example", 993), ("r.example", 465)],
        ),
        (
            {"kind": "crm", "reach": ["crm.example:8443", "[::1]:9"]},
            [("crm.example", 8443), ("::1", 9)],
        ),
        ({"kind": "crm"}, []),
    ],
)
def test_what_a_target_declares(table: dict[str, Any], addresses: list[tuple[str, int]]) -> None:
    assert list(build_reach([table]).addresses) == addresses


def test_the_folder_of_a_target(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dir.d").mkdir()
    for kind, name, folder in [
        ("maildir", "new.mail", "new.mail"), ("board", "new.db", "."), ("own", "new", "new"),
        ("own", "file", "."), ("own", "dir.d", "dir.d"),
    ]:  # fmt: skip
        found = build_reach([{"kind": kind, "path": str(tmp_path / name)}]).folders
        assert found == (str(tmp_path / folder),)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(("connects", "datagrams"), [(True, False), (False, False), (True, True)])
def test_a_filter_ends_every_way_with_an_answer(
    machine: str, connects: bool, datagrams: bool
) -> None:
    """Every jump of the program lands inside it, and its last instruction returns."""
    code = seccomp.build_program(machine, 4711, connects=connects, datagrams=datagrams)
    rows = [code[at : at + 8] for at in range(0, len(code), 8)]
    assert len(code) % 8 == 0
    assert len(rows) <= 4096, "the kernel takes no more"
    for at, row in enumerate(rows):
        kind = int.from_bytes(row[:2], "little")
        if kind & 0x07 == 0x05:
            further = int.from_bytes(row[4:], "little") if kind == 0x05 else max(row[2], row[3])
            assert at + 1 + further < len(rows)
    assert int.from_bytes(rows[-1][:2], "little") == 0x06
    # It is made once for all, but for the number of its process.
    other = seccomp.build_program(machine, 815, connects=connects, datagrams=datagrams)
    own, its = (pid.to_bytes(4, "little") for pid in (4711, 815))
    assert code.count(own) == 4
    assert code.replace(own, its) == other


# --- who may speak to the local API -----------------------------------------------------------


def test_ancestry_is_told_by_proc() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', "
         "'print(__import__(\"os\").getpid(), flush=True); input()'])"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert is_descendant(child.pid, os.getpid())
        assert is_descendant(grandchild, os.getpid())
        assert is_descendant(grandchild, child.pid)
        assert not is_descendant(os.getpid(), child.pid)
        assert not is_descendant(os.getppid(), os.getpid())
    with pytest.raises(Forbidden, match="cannot be told"):
        is_descendant(grandchild, os.getpid())


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({9: (5, 90), 5: (3, 50), 3: (1, 30), 1: (0, 1)}, True),
        ({9: (5, 90), 5: (4, 50), 4: (1, 40), 1: (0, 1)}, False),
        ({9: (0, 90)}, False),
        ({9: (5, 90), 5: (4, 95), 4: (1, 40)}, None),  # 5 is another one that got the number
        ({9: (5, 90)}, None),  # hidden
        ({}, None),
        ({9: (8, 90), 8: (9, 80)}, None),
    ],
)
def test_a_number_that_was_used_again_does_not_pass(
    tmp_path: Path, rows: dict[int, tuple[int, int]], expected: bool | None
) -> None:
    for pid, (parent, began) in rows.items():
        (tmp_path / str(pid)).mkdir()
        fields = " ".join(["S", str(parent), *["0"] * 17, str(began)])
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a ) b) {fields} 0 0")
    if expected is None:
        with pytest.raises(Forbidden):
            is_descendant(9, 3, tmp_path)
    else:
        assert is_descendant(9, 3, tmp_path) is expected


SPEAKS = """
import json, os, socket
from vedette.judging import Judge as Base
from vedette.judging import Judgement

def speak(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        body = b'{"reason": "mine", "args": {"all": true}}'
        s.sendall(b"POST /v1/commands/stop HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n"
                  b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
        return s.makefile("rb").read().decode()

def apart(path):
    \"\"\"Speak from a process whose parent has gone, in a session of its own.\"\"\"
    r, w = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while os.getppid() == os.getsid(0):
                pass
            os.write(w, speak(path).encode())
        os._exit(0)
    os.wait()
    return os.read(r, 65536).decode()

class Judge(Base):
    def judge(self, seen, briefing):
        data = briefing.event.data
        try:
            told = apart(data["path"]) if data["apart"] else speak(data["path"])
        except OSError as error:
            told = repr(error)
        return Judgement(told, 1.0)
"""


ASKS = """
import socket, sys
crowd = [socket.socket(socket.AF_UNIX) for _ in range(int(sys.argv[2]))]
for one in crowd:
    one.connect(sys.argv[1])
    one.settimeout(10)
print(b"fleet-process" in crowd[0].recv(4096), flush=True)
input()
"""


async def test_who_is_refused_takes_no_place_and_is_told_at_once(tmp_path: Path) -> None:
    """A child opens more connections than there are places, and says nothing; others get in."""
    async with (
        FleetHarness(tmp_path / "fleet") as fleet,
        serve_local(fleet.app, fleet.folder / "state") as path,
    ):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ASKS, str(path), "80",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout is not None
        async with asyncio.timeout(30):
            assert await child.stdout.readline() == b"True\n"
        # The control beside it: this process is none of its own children.
        for _ in range(3):
            assert await asyncio.to_thread(LocalClient(fleet.folder / "state").is_alive)
        # A verb of such a child names the cause, and not that another fleet has the store.
        order = ("stop", "--all", "--reason", "an incident", "--json")
        state = {"VEDETTE_STATE": str(fleet.folder / "state")}
        said = await asyncio.to_thread(partial(vedette, ROOT, *order, **state))
        assert (said.code, said.error["code"]) == (2, "fleet-process")
        await child.communicate(b"\n")
        assert not fleet.app.services.stops.list_scopes()


async def test_a_fleet_takes_no_command_of_its_own_agents(tmp_path: Path) -> None:
    """Boxed there is no socket; unboxed the door knows them, also when they hide their parents.

    The control: a process that was not started by the fleet is taken at its word.
    """
    async with (
        FleetHarness(tmp_path / "fleet") as fleet,
        serve_local(fleet.app, fleet.folder / "state") as path,
    ):
        answers = []
        for boxed in (True, False):
            folder = tmp_path / f"boxed-{boxed}"
            write_judge(folder / "agents", code=SPEAKS)
            crew = Crew(folder, LIMITS, sandboxed=boxed)
            try:
                for apart in (False, True):
                    briefing = brief(key=f"{apart}", path=str(path), apart=apart)
                    answers.append((await crew.judges.reason(briefing)).label)
            finally:
                crew.pool.close()
        assert [answer.startswith("PermissionError") for answer in answers[:2]] == [True, True]
        assert all("403" in answer and "started by the fleet" in answer for answer in answers[2:])
        assert not fleet.app.services.stops.list_scopes()
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport) as client:
            order = {"reason": "mine", "args": {"all": True}}
            done = await client.post("http://x/v1/commands/stop", json=order)
        assert done.status_code == 200, done.text
        assert fleet.app.services.stops.list_scopes()
