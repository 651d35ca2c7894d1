"""What a model's worker is given, what it may read, and what comes back of it: all, exactly."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace
from tests.contract.adapters.reasoners.test_adk_reasoner import AGENT_PY, briefing, write
from tests.gemini_server import KEY, model_server
from tests.model_workers import MODEL, misbehaving, models
from tests.workers import brief, crew, until

from vedette.adapters.reasoners.adk.provider import find_access, find_entry_access, merge_access
from vedette.adapters.reasoners.workers import protocol
from vedette.adapters.reasoners.workers.environment import filter_environment
from vedette.adapters.reasoners.workers.frames import BadFrame, Frame
from vedette.adapters.reasoners.workers.model_client import (
    ModelTurnSuperseded,
    ModelWorkerLost,
    ModelWorkerSpec,
)
from vedette.adapters.reasoners.workers.pending_call import WorkerLost
from vedette.adapters.reasoners.workers.plain_data import pack_plain
from vedette.adapters.reasoners.workers.remote_error import pack_own_error, read_own_error
from vedette.adapters.reasoners.workers.sandbox_probe import protection
from vedette.config.agent_folder import release_digest
from vedette.config.models import ModelPlan
from vedette.domain.action import Proposal
from vedette.domain.base.errors import BadFleet, Permanent, StoreFailed, Temporary, VedetteError
from vedette.domain.memory import Briefing
from vedette.domain.model import Model, Provider
from vedette.domain.model_turn import (
    UNCHARGED,
    BadModelAnswer,
    ModelAway,
    ModelCallMetadata,
    ModelError,
    ModelFailed,
    ModelNotAsked,
    ModelTurn,
    ModelUse,
    RequestRefused,
)
from vedette.domain.origin import Ref
from vedette.domain.ports.reasoner import ReasonerJudgement
from vedette.domain.run import Superseded
from vedette.testing.model_server import FunctionCall, ModelServer, Request, Turn

CODE = AGENT_PY.replace('"none"', f'"{MODEL}"')
ARGS = {
    "to": ["ref:/registry/oncall", "x"], "text": "\ud83d\ude00 ref", "copies": 3.0, "urgent": True,
    "extra": {"a": [1, {"b": "ref:/event/data/from"}], "n": None},
}  # fmt: skip


# The same turn without any worker; in a process of its own, since Google's client leaves its
# connections to whoever collects the garbage.
NEAR = """
import asyncio, sys
from pathlib import Path
from tests.contract.adapters.reasoners.test_worker_models import asked
from vedette.adapters.reasoners.adk.reasoner import AdkReasoner

print(repr(asyncio.run(AdkReasoner({"sorter": Path(sys.argv[1])}).reason(asked()))))
"""


def asked() -> Briefing:
    """Return what both are asked."""
    data = {"from": "a@example.org", "n": [1.5, None]}
    return briefing(data, registry={"oncall": "d@e.org"})


async def test_a_turn_in_a_worker_is_the_turn_without_one(tmp_path: Path) -> None:
    """References at any depth, tokens, calls, whether it is the last turn."""
    folder = write(tmp_path, CODE)
    with model_server(("mail_send", ARGS)) as server, models(tmp_path) as there:
        await there.prepare("sorter", folder, server)
        far = await there.reasoner.reason(asked())
        path = os.pathsep.join(path for path in sys.path if path)
        near = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-c", NEAR, str(folder), stdout=subprocess.PIPE,
            env={**os.environ, **server.environment, "PYTHONPATH": path},
        )  # fmt: skip
        said, _ = await near.communicate()
        assert server.bodies[0] == server.bodies[1]
    took = re.compile(r"took_us=\d+")  # each by its own clock
    assert took.sub("", repr(far)) == took.sub("", said.decode().strip())
    assert far.proposals[0].args["to"] == [Ref("/registry/oncall"), "x"]
    assert (far.final, far.model_calls, dict(far.spent)) == (
        False, 1, {"input_tokens": 7, "output_tokens": 2},
    )  # fmt: skip


async def test_many_turns_are_asked_at_once(tmp_path: Path) -> None:
    with model_server() as server, models(tmp_path) as there:
        await there.prepare("sorter", write(tmp_path, CODE), server)
        turns = [
            there.reasoner.reason(briefing({"do": "held", "number": n}, run=f"run_{n}"))
            for n in range(12)
        ]
        waiting = asyncio.gather(*turns)
        await until(lambda: server.count("held") == len(turns))
        server.hold.set()
        assert all(turn.final for turn in await waiting)


# --- the credential ---------------------------------------------------------------------------


def environ_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_no_process_of_workers_is_started_with_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not where the system shows how a process was started; the model's server sees it."""
    with model_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        async with crew(tmp_path / "crew") as judges:
            with models(tmp_path) as there:
                await there.prepare("sorter", write(tmp_path, CODE), server)
                await there.reasoner.reason(briefing())
                await judges.judges.reason(brief())
                workers = [there.pid("sorter"), judges.pid()]
                pids = [*workers, *map(parent_of, workers)]
                assert all(KEY.encode() not in environ_of(pid) for pid in pids)
        control = await asyncio.create_subprocess_exec("/bin/sleep", "60")
        assert KEY.encode() in environ_of(control.pid)
        control.kill()
        await control.wait()
        assert server.keys == {KEY}


SECRETS = dict.fromkeys(
    (
        "GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "OPENAI_ORG_ID", "GROQ_API_KEY",
        "VEDETTE_HTTP_TOKEN",
    ),
    "secret",
)  # fmt: skip


KEY_VARIABLES = {name for name in SECRETS if name.endswith(("_KEY", "_TOKEN"))}


def test_workers_of_agents_code_get_the_key_of_no_model() -> None:
    assert filter_environment(SECRETS).keys().isdisjoint(SECRETS)


@pytest.mark.parametrize(
    ("model", "secrets"),
    [
        ("", {"GOOGLE_API_KEY", "GEMINI_API_KEY"}),
        ("gemini-3-pro", {"GOOGLE_API_KEY", "GEMINI_API_KEY"}),
        ("gemini:gemini-3-pro", {"GOOGLE_API_KEY", "GEMINI_API_KEY"}),
        ("claude-opus-5", {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"}),
        ("anthropic/claude-opus-5", {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"}),
        ("gpt-5", {"OPENAI_API_KEY", "OPENAI_ORG_ID"}),
        ("o4-mini", {"OPENAI_API_KEY", "OPENAI_ORG_ID"}),
        ("openai/gpt-5", {"OPENAI_API_KEY", "OPENAI_ORG_ID"}),
        ("groq/llama", {"GROQ_API_KEY"}),
        ("vertex_ai/gemini-3", {"GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS"}),
    ],
)
def test_a_worker_gets_the_credential_of_its_own_model(
    tmp_path: Path, model: str, secrets: set[str]
) -> None:
    environ = {**SECRETS, "GROQ_API_BASE": "https://api.groq.com/v1", "PATH": "/bin"}
    found = find_access(model, environ, tmp_path).environment
    assert found.keys() - {"GROQ_API_BASE"} == secrets


@pytest.mark.parametrize(
    ("model", "environ", "addresses"),
    [
        ("gemini-3-pro", {}, {("generativelanguage.googleapis.com", 443)}),
        ("claude-opus-5", {"ANTHROPIC_API_KEY": "x"}, {("api.anthropic.com", 443)}),
        ("gpt-5", {}, {("api.openai.com", 443)}),
        ("gpt-5", {"OPENAI_BASE_URL": "http://127.0.0.1:8080/v1"}, {("127.0.0.1", 8080)}),
        ("ollama_chat/qwen3", {}, {("localhost", 11434)}),
        ("ollama/qwen3", {"OLLAMA_API_BASE": "http://gpu:11434"}, {("gpu", 11434)}),
        ("groq/llama", {"GROQ_API_BASE": "https://api.groq.com"}, {("api.groq.com", 443)}),
        (
            "gemini-3-pro",
            {"HTTPS_PROXY": "http://proxy.example:3128"},
            {("generativelanguage.googleapis.com", 443), ("proxy.example", 3128)},
        ),
    ],
)
def test_a_connection_may_go_where_the_model_is_and_nowhere_else(
    tmp_path: Path, model: str, environ: dict[str, str], addresses: set[tuple[str, int]]
) -> None:
    reach = find_access(model, environ, tmp_path).reach
    assert set(reach.addresses) == addresses
    assert (reach.folders, reach.files, reach.allows_udp) == ((), (), False)


def test_vertex_is_reached_by_the_file_of_its_account_or_by_the_machine_s(tmp_path: Path) -> None:
    switch = {"GOOGLE_GENAI_USE_VERTEXAI": "True", "GOOGLE_CLOUD_LOCATION": "europe-west1"}
    bare = find_access("gemini-3-pro", switch, tmp_path).reach
    assert "europe-west1-aiplatform.googleapis.com" in bare.hosts
    assert ("metadata.google.internal", 80) in bare.addresses
    account = tmp_path / "account.json"
    account.touch()
    named = {**switch, "GOOGLE_APPLICATION_CREDENTIALS": str(account)}
    reach = find_access("gemini-3-pro", named, tmp_path).reach
    assert reach.files == (str(account),)
    assert set(reach.ports) == {443}


@pytest.mark.parametrize(
    ("model", "environ", "told"),
    [
        ("groq/llama", {"GROQ_API_KEY": "x"}, "set GROQ_API_BASE"),
        ("gpt-5", {"OPENAI_BASE_URL": "api.example"}, "OPENAI_BASE_URL: is no URL"),
    ],
)
def test_where_nobody_knows_the_way_none_is_opened(
    tmp_path: Path, model: str, environ: dict[str, str], told: str
) -> None:
    with pytest.raises(BadFleet, match=told) as refused:
        find_access(model, environ, tmp_path)
    assert refused.value.mend


# --- entries of [models] ----------------------------------------------------------------------

ENTRIES: list[tuple[Provider, str, str]] = [
    ("gemini", "gemini-3-pro-preview", ""),
    ("anthropic", "claude-opus-5-5", ""),
    ("openai", "gpt-5.5", "/v1"),
    ("ollama", "qwen3", ""),
    ("litellm", "openai/gpt-5.5", "/v1"),
]


def entry(provider: Provider, served_name: str, url: str, key: Path, **more: Any) -> ModelPlan:
    named = None if provider == "ollama" else str(key)
    return ModelPlan(
        Model("fast", provider=provider, served_name=served_name), url, key_file=named, **more
    )


def file_mail(request: Request) -> Turn:
    """Call a tool, then say what came of it."""
    if request.turn:
        return Turn(("Done.",))
    return Turn((FunctionCall("mail_file", {"message": "m", "to": "x"}),))


@pytest.mark.parametrize(("provider", "served_name", "path"), ENTRIES)
async def test_an_entry_is_asked_in_the_box_by_its_provider_s_own_client(
    tmp_path: Path, provider: Provider, served_name: str, path: str
) -> None:
    """By base_url, with the key of the file, and with no variable of the environment."""
    key = tmp_path / "key"
    key.write_text("sk-of-the-file")
    folder = write(tmp_path, CODE)
    with ModelServer(file_mail, keys=("sk-of-the-file",)) as server:
        plan = entry(provider, served_name, server.url + path, key)
        access = find_entry_access(plan, {}, tmp_path)
        assert dict(access.environment) == {}
        with models(tmp_path, plans={"fast": plan}) as there:
            spec = ModelWorkerSpec(
                str(folder), None, await there.describe("sorter", folder), access.environment,
                access.reach, models=(plan,),
            )  # fmt: skip
            (await there.reasoner.prepare("sorter", spec))()
            judgement = await there.reasoner.reason(replace(briefing(), model="fast"))
    assert [proposal.tool for proposal in judgement.proposals] == ["mail.file"]
    assert judgement.model_turn is not None
    assert {exchange.status for exchange in server.exchanges} == {200}


async def test_a_key_that_is_changed_is_taken_up_by_the_worker_that_runs(tmp_path: Path) -> None:
    """The provider refuses it once; then it is read again. No error says either key."""
    key, old, new = tmp_path / "key", "sk-of-yesterday", "sk-of-today"
    key.write_text(old)
    folder = write(tmp_path, CODE)
    with ModelServer(file_mail, keys=(old,)) as server:
        plan = entry("gemini", "gemini-3-pro-preview", server.url, key)
        reach = find_entry_access(plan, {}, tmp_path).reach
        with models(tmp_path, plans={"fast": plan}) as there:
            told = await there.describe("sorter", folder)
            spec = ModelWorkerSpec(str(folder), None, told, reach=reach, models=(plan,))
            (await there.reasoner.prepare("sorter", spec))()
            asked = replace(briefing(), model="fast")
            await there.reasoner.reason(asked)
            pid = there.pid("sorter")
            server.keys = frozenset({new})
            key.write_text(new)
            with pytest.raises(ModelAway) as refused:
                await there.reasoner.reason(asked)
            assert refused.value.kind == "key"
            assert not any(one in str(refused.value) for one in (old, new))
            assert (await there.reasoner.reason(asked)).proposals
            assert there.pid("sorter") == pid


def told_as(text: str) -> ModelCallMetadata:
    return ModelCallMetadata(1, text, text, text, text, {"reasoning": 1}, 9)


async def test_a_worker_that_tells_the_key_is_not_believed(tmp_path: Path) -> None:
    """Whatever is in a worker has the key of its entry: it is cut out of what is told of a call."""
    key = tmp_path / "key"
    key.write_text("sk-of-the-file")
    folder = write(tmp_path, CODE)
    lie = told_as("m-sk-of-the-file")
    failed = BadModelAnswer("sk-of-the-file is what it said", ModelUse(1))
    failed.metadata = lie
    judgement = ReasonerJudgement("x", 0.5, model_calls=1, metadata=lie)
    frames = (
        (protocol.DONE, protocol.pack_model_judgement(judgement)),
        (protocol.OWN_ERROR, (pack_own_error(failed), b"")),
    )
    with ModelServer(file_mail, keys=("sk-of-the-file",)) as server:
        plan = entry("gemini", "gemini-3-pro-preview", server.url, key)
        reach = find_entry_access(plan, {}, tmp_path).reach
        with models(tmp_path, plans={"fast": plan}) as there:
            told = await there.describe("sorter", folder)
            spec = ModelWorkerSpec(str(folder), None, told, reach=reach, models=(plan,))
            (await there.reasoner.prepare("sorter", spec))()
            asked = replace(briefing(), model="fast")
            await there.reasoner.reason(asked)
            handle = there.reasoner._handles["sorter"]
            for kind, (plain, blob) in frames:
                turn = asyncio.create_task(there.reasoner.reason(asked))
                await asyncio.sleep(0)
                (call,) = handle.pending.values()
                handle.on_answer(Frame(call.number, kind, plain, blob), call)
                (found,) = await asyncio.gather(turn, return_exceptions=True)
                assert isinstance(found, ReasonerJudgement | BadModelAnswer)
                assert found.metadata == told_as("m-***")


async def test_a_key_that_is_read_for_another_is_told_to_the_worker_that_runs(
    tmp_path: Path,
) -> None:
    """Where a release, or another agent, has had it read first, nobody is refused for it."""
    key, old, new = tmp_path / "key", "sk-of-yesterday", "sk-of-today"
    key.write_text(old)
    folder = write(tmp_path, CODE)
    with ModelServer(file_mail, keys=(old,)) as server:
        plan = entry("gemini", "gemini-3-pro-preview", server.url, key)
        reach = find_entry_access(plan, {}, tmp_path).reach
        with models(tmp_path, plans={"fast": plan}) as there:
            told = await there.describe("sorter", folder)
            spec = ModelWorkerSpec(str(folder), None, told, reach=reach, models=(plan,))
            (await there.reasoner.prepare("sorter", spec))()
            asked = replace(briefing(), model="fast")
            await there.reasoner.reason(asked)
            pid = there.pid("sorter")
            server.keys = frozenset({new})
            key.write_text(new)
            await there.reasoner.prepare("sorter", spec)
            assert (await there.reasoner.reason(asked)).proposals
            assert there.pid("sorter") == pid


async def test_a_key_that_is_not_there_keeps_a_fleet_from_its_start(tmp_path: Path) -> None:
    folder, missing = write(tmp_path, CODE), tmp_path / "nowhere"
    plan = entry("gemini", "gemini-3-pro-preview", "http://127.0.0.1:9", missing)
    with models(tmp_path, plans={"fast": plan}) as there:
        told = await there.describe("sorter", folder)
        spec = ModelWorkerSpec(str(folder), None, told, models=(plan,))
        with pytest.raises(BadFleet, match="cannot read") as refused:
            await there.reasoner.prepare("sorter", spec)
        assert refused.value.where == "vedette.toml: models.fast"


@pytest.mark.parametrize(
    ("provider", "served_name", "more", "addresses"),
    [
        ("gemini", "g", {}, {("generativelanguage.googleapis.com", 443)}),
        ("anthropic", "c", {}, {("api.anthropic.com", 443)}),
        ("openai", "o", {}, {("api.openai.com", 443)}),
        ("ollama", "q", {}, {("127.0.0.1", 11434)}),
        ("openai", "o", {"base_url": "https://gate.example/v1"}, {("gate.example", 443)}),
        ("litellm", "groq/l", {"base_url": "http://localhost:4000"}, {("localhost", 4000)}),
        ("litellm", "openai/o", {}, {("api.openai.com", 443)}),
    ],
)
def test_an_entry_opens_the_way_to_its_own_server(
    tmp_path: Path,
    provider: Provider,
    served_name: str,
    more: dict[str, str],
    addresses: set[tuple[str, int]],
) -> None:
    """Its key comes apart: of the environment's keys it is given none."""
    plan = ModelPlan(
        Model("fast", provider=provider, served_name=served_name), key_env="ONE", **more
    )
    access = find_entry_access(plan, SECRETS, tmp_path)
    assert set(access.reach.addresses) == addresses
    assert access.environment.keys().isdisjoint(KEY_VARIABLES)


def test_an_entry_of_vertex_opens_its_region_and_reads_its_account(tmp_path: Path) -> None:
    plan = ModelPlan(
        Model("fast", provider="vertex", served_name="g"), project="p", location="europe-west1"
    )
    account = tmp_path / "account.json"
    account.touch()
    environ = {**SECRETS, "GOOGLE_APPLICATION_CREDENTIALS": str(account)}
    access = find_entry_access(plan, environ, tmp_path)
    assert "europe-west1-aiplatform.googleapis.com" in access.reach.hosts
    assert access.reach.files == (str(account),)
    assert access.environment.keys().isdisjoint(KEY_VARIABLES)


def test_an_agent_s_fallbacks_are_reached_too(tmp_path: Path) -> None:
    plans = [
        ModelPlan(Model("a", provider="openai", served_name="o")),
        ModelPlan(Model("b", provider="ollama", served_name="q")),
    ]
    merged = merge_access(find_entry_access(plan, SECRETS, tmp_path) for plan in plans)
    assert set(merged.reach.addresses) == {("api.openai.com", 443), ("127.0.0.1", 11434)}


def test_litellm_is_not_sent_where_nobody_knows_the_way(tmp_path: Path) -> None:
    plan = ModelPlan(Model("fast", provider="litellm", served_name="groq/llama"), key_env="ONE")
    with pytest.raises(BadFleet, match="not known where") as refused:
        find_entry_access(plan, {}, tmp_path)
    assert (refused.value.where, refused.value.mend) == (
        "vedette.toml: models.fast", "add base_url to it",
    )  # fmt: skip


# --- what it may read -------------------------------------------------------------------------


@pytest.mark.parametrize("boxed", [True, False])
async def test_code_of_an_agent_cannot_even_be_read_beside_a_key(
    tmp_path: Path, boxed: bool
) -> None:
    if boxed and protection().gaps():
        pytest.skip("no whole box here")
    folder = write(tmp_path, AGENT_PY.replace('"none"', '"bad-gemini"'))
    with model_server() as server, models(tmp_path, sandboxed=boxed, **misbehaving()) as there:
        spec = await there.spec("sorter", folder, server)
        code = {**spec.environment, "CODE": str(folder / "agent.py")}
        (await there.reasoner.prepare("sorter", replace(spec, environment=code)))()
        turn = there.reasoner.reason(briefing({"do": "code"}))
        if boxed:
            with pytest.raises(Temporary, match="PermissionError"):
                await turn
        else:
            assert (await turn).final, "the control: it is the box that refuses"


# --- what goes wrong --------------------------------------------------------------------------


async def test_files_of_another_release_are_not_taken(tmp_path: Path) -> None:
    folder = write(tmp_path, CODE)
    with model_server() as server, models(tmp_path) as there:
        release = release_digest(folder)
        await there.prepare("sorter", folder, server, release=release)
        (folder / "tools.py").write_text("")
        with pytest.raises(WorkerLost, match="release"):
            await there.prepare("sorter", folder, server, release=release)


async def test_what_found_no_worker_costs_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path, CODE)
    with model_server() as server, models(tmp_path) as there:
        await there.prepare("sorter", folder, server, release=release_digest(folder))
        (folder / "tools.py").write_text("")
        with pytest.raises(ModelWorkerLost, match="release") as lost:
            await there.reasoner.reason(briefing())
        assert (lost.value.use, lost.value.is_answered) == (UNCHARGED, False)
        assert server.requests == []


async def test_what_a_worker_refuses_is_told_as_it_is(tmp_path: Path) -> None:
    """The error that the engine's own code raised there comes with its place and mend."""
    folder = write(tmp_path, CODE)
    with model_server() as server, models(tmp_path) as there:
        spec = await there.spec("sorter", folder, server)
        assert spec.description is not None
        lie = replace(spec, description={**spec.description, "model": "nonsense"})
        with pytest.raises(BadFleet, match="is none that is known here") as refused:
            await there.reasoner.prepare("sorter", lie)
        assert (refused.value.where, refused.value.code) == ("sorter/agent.py", "bad-fleet")
        assert refused.value.mend


async def test_a_release_asks_by_what_it_says(tmp_path: Path) -> None:
    with model_server() as server, models(tmp_path) as there:
        for number, words in enumerate(("Sort.", "Sort twice.")):
            folder = write(tmp_path / str(number), CODE.replace("Sort.", words))
            await there.prepare("sorter", folder, server)
            await there.reasoner.reason(briefing())
            said = server.bodies.pop()["systemInstruction"]["parts"][0]["text"]
            assert said.startswith(words)


def refused_with_what_was_said() -> RequestRefused:
    made = RequestRefused("no", UNCHARGED)
    made.may_begin_anew = True
    return made


def with_metadata(error: ModelError) -> ModelError:
    error.metadata = METADATA
    return error


SPENT = {"input_tokens": 7, "output_tokens": 2}
METADATA = ModelCallMetadata(1, "gemini", "asked", "said-2.5", "stop", {"reasoning": 1}, 9)
MODEL_ERRORS = [
    ModelAway("busy", "rate", ModelUse(1, SPENT), mend="wait", retry_after_us=5_000_000),
    ModelAway("not there", "missing"),
    RequestRefused("no", UNCHARGED, mend="see"),
    ModelFailed("broke off", ModelUse(1)),
    BadModelAnswer("huge", ModelUse(1, SPENT)),
    ModelNotAsked("too long", ModelUse()),
    refused_with_what_was_said(),
    with_metadata(ModelAway("busy", "rate")),
    with_metadata(BadModelAnswer("huge", ModelUse(1, SPENT))),
]


@pytest.mark.parametrize("error", MODEL_ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_a_model_comes_with_what_it_cost(error: ModelError) -> None:
    read = read_own_error(pack_own_error(error))
    assert type(read) is type(error)
    assert vars(read) == vars(error)
    assert (read.code, str(read)) == (error.code, str(error))


AWAY: tuple[object, ...] = (["ModelAway", "ModelError", "Temporary"], "x", None, None)


@pytest.mark.parametrize(
    ("others", "use"),
    [
        ({"kind": "rate", "retry_after_us": 0}, None),
        ({"kind": "nonsense", "retry_after_us": 0}, [1, {}]),
        ({"kind": "rate", "retry_after_us": -1}, [1, {}]),
        ({"kind": "rate", "retry_after_us": 10**12}, [1, {}]),
        ({"kind": "rate"}, [1, {}]),
        ({"kind": "rate", "retry_after_us": 0}, [-1, {}]),
        ({"kind": "rate", "retry_after_us": 0}, [1, {"input_tokens": -5}]),
        ({"kind": "rate", "retry_after_us": 0}, [1, {"input_tokens": 1 << 40}]),
        ({"kind": "rate", "retry_after_us": 0}, [1, {"money": 1}]),
        ({"kind": ["rate"], "retry_after_us": 0}, [1, {}]),
    ],
)
def test_a_false_error_of_a_model_is_none(others: object, use: object) -> None:
    right = read_own_error(pack_plain([*AWAY, {"kind": "rate", "retry_after_us": 0}, [1, {}]]))
    assert isinstance(right, ModelAway)
    with pytest.raises(BadFrame):
        read_own_error(pack_plain([*AWAY, others, use]))


def test_no_worker_says_that_it_was_lost() -> None:
    """Whose turn was lost, and who is to be asked for nothing again, the engine sees itself."""
    for error in (ModelTurnSuperseded("x"), ModelWorkerLost("x", UNCHARGED)):
        assert not isinstance(read_own_error(pack_own_error(error)), ModelError | Superseded)


TURN = ModelTurn("m", "r", "first", "told \ud83d", (("/row", "d"),), "", '{"parts":[]}')


def test_what_a_model_said_comes_as_it_was() -> None:
    judgement = ReasonerJudgement(
        "x", 0.5, model_calls=1, spent=SPENT, model_turn=TURN, metadata=METADATA
    )
    assert protocol.read_model_judgement(*protocol.pack_model_judgement(judgement)) == judgement


@pytest.mark.parametrize(
    "turn",
    [
        replace(TURN, content="x" * ((1 << 20) + 1)),
        replace(TURN, model="x" * 5000),
        replace(TURN, shown=(("/row", "x" * 5000),)),
        replace(TURN, shown=(("/row", "x"),) * 70_000),
    ],
    ids=["content", "model", "shown", "many shown"],
)
def test_a_record_larger_than_any_answer_is_refused(turn: ModelTurn) -> None:
    judgement = ReasonerJudgement("x", 0.5, model_calls=1, model_turn=turn)
    with pytest.raises(BadFrame, match="a model's turn"):
        protocol.read_model_judgement(*protocol.pack_model_judgement(judgement))


def test_more_calls_than_an_answer_may_have_are_refused() -> None:
    many = (Proposal("mail.file", {}),) * 33
    judgement = ReasonerJudgement("x", 0.5, many, model_calls=1)
    with pytest.raises(BadFrame, match="33 proposals"):
        protocol.read_model_judgement(*protocol.pack_model_judgement(judgement))


@pytest.mark.parametrize("notes", [{"sum": 1}, "", 0, False])
def test_notes_of_a_model_are_refused(notes: object) -> None:
    judgement = ReasonerJudgement("x", 0.5, model_calls=1, final=False, notes=notes)
    with pytest.raises(BadFrame, match="notes of a model"):
        protocol.read_model_judgement(*protocol.pack_model_judgement(judgement))


class Wait(Temporary):
    """An error with a field of its own, and a construction of its own."""

    code = "wait"

    def __init__(self, until_us: int) -> None:
        super().__init__("not now", mend="wait")
        self.until_us = until_us
        self.kind = "rate"


def test_an_error_keeps_its_class_its_code_and_its_fields() -> None:
    read = read_own_error(pack_own_error(Wait(7)))
    assert type(read) is Wait
    assert (read.what, read.mend, read.code) == ("not now", "wait", "wait")
    assert (read.until_us, read.kind) == (7, "rate")
    fleet = BadFleet("x", where="a:1", mend="y", code="release-changed")
    assert read_own_error(pack_own_error(fleet)).to_json() == fleet.to_json()


def test_an_error_that_is_not_known_here_is_its_nearest_relative() -> None:
    packed = pack_plain([["Local", "Wait", "Temporary"], "x", None, None, {"until_us": 3}])
    read = read_own_error(packed)
    assert type(read) is Wait
    assert read.until_us == 3
    assert type(read_own_error(pack_plain([["Nobody"], "x", None, None, {}]))) is Permanent


@pytest.mark.parametrize("error", [StoreFailed("x"), Superseded("x")])
def test_no_worker_says_that_a_run_is_to_be_had_for_nothing(error: VedetteError) -> None:
    """Those are no attempt of a run: only who knows the store may say so."""
    assert type(read_own_error(pack_own_error(error))) in (Temporary, Permanent)


@pytest.mark.parametrize("plain", [b"", b"j[]", b"j[1,2,3,4,5]", b'j[["Wait"],7,null,null,{}]'])
def test_what_is_no_error_is_refused(plain: bytes) -> None:
    with pytest.raises(BadFrame):
        read_own_error(plain)


@pytest.mark.parametrize(
    "others",
    [
        {},
        {"model_calls": "1", "spent": {}, "model_turn": None},
        {"model_calls": -1, "spent": {}, "model_turn": None},
        {"model_calls": 1, "spent": {"input_tokens": 1.5}, "model_turn": None},
        {"model_calls": 1, "spent": {"input_tokens": -1}, "model_turn": None},
        {"model_calls": 1, "spent": {"money": 1}, "model_turn": None},
        {"model_calls": 1, "spent": {}, "model_turn": {"model": "m"}},
        {"model_calls": 1, "spent": {}, "model_turn": None, "more": 1},
    ],
)
def test_a_judgement_of_another_shape_is_refused(others: dict[str, object]) -> None:
    told = {"metadata": to_builtins(METADATA)}
    plain, right = protocol.pack_model_judgement(ReasonerJudgement("x", 0.5, model_calls=1))
    assert protocol.read_model_judgement(plain, right).model_calls == 1
    whole = {"model_calls": 1, "spent": {}, "model_turn": None, **told}
    assert protocol.read_model_judgement(plain, pack_plain(whole)).metadata == METADATA
    with pytest.raises(BadFrame):
        protocol.read_model_judgement(plain, pack_plain({**others, **told}))


@pytest.mark.parametrize(
    "false",
    [
        {"calls": -1},
        {"took_us": -1},
        {"took_us": 1.5},
        {"asked": "x" * 300},
        {"answered": "x" * 300},
        {"provider": "x" * 300},
        {"tokens": {"secret": 1}},
        {"tokens": {"reasoning": -1}},
        {"more": 1},
    ],
)
def test_what_else_is_told_of_a_call_is_of_its_kind_or_refused(false: dict[str, object]) -> None:
    """Whatever its texts are is looked at by the engine."""
    said = {**to_builtins(METADATA), **false}
    judgement = ReasonerJudgement("x", 0.5, model_calls=1)
    plain, _ = protocol.pack_model_judgement(judgement)
    whole = {"model_calls": 1, "spent": {}, "model_turn": None, "metadata": said}
    with pytest.raises(BadFrame):
        protocol.read_model_judgement(plain, pack_plain(whole))
    with pytest.raises(BadFrame):
        read_own_error(pack_plain([*AWAY, {"kind": "rate", "retry_after_us": 0}, [1, {}], said]))
