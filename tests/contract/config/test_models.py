"""[models] of vedette.toml, and `model:` of agent.yaml: each wrong step is one sentence."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from vedette.config.fleet import read_fleet
from vedette.config.settings import load_settings, read_settings
from vedette.domain.agent import Agent, Cascade, ConfidencePlan
from vedette.domain.base.errors import BadFleet
from vedette.domain.model import Model

GEMINI = """\
[models.fast]
provider = "gemini"
model = "gemini-3-flash"
key_env = "FAST_KEY"
price = "flash"
calls_per_minute = 60
fallback = "local"

[models.local]
provider = "ollama"
model = "qwen3"
base_url = "http://127.0.0.1:11434"
timeout = "5m"
"""

AGENT = """\
version: 1
name: sorter
title: Sorts what comes in
owner: desk@example.org
model: fast
triggers: [{on: mail.received}]
budget: {model_calls_per_day: 100}
tools: []
"""


@pytest.fixture(autouse=True)
def litellm_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether an extra is installed says each test itself."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: found("json" if name in ("litellm", "anthropic") else name, *rest),
    )


def write(folder: Path, models: str = GEMINI, agent: str = AGENT) -> Path:
    own = folder / "agents" / "sorter"
    own.mkdir(parents=True)
    (folder / "memory").mkdir()
    (own / "__init__.py").touch()
    (own / "agent.yaml").write_text(agent)
    (own / "instruction.md").write_text("Sort it.\n")
    path = folder / "vedette.toml"
    path.write_text(f'fleet = "harbour"\n\n{models}')
    return path


def told(path: Path) -> list[str]:
    settings, problems = read_settings(path)
    if settings is not None:
        problems = [*read_fleet(settings.root, settings)[2]]
    return [str(problem) for problem in problems if "memory" not in problem.file]


def sorter(path: Path) -> Agent:
    settings = load_settings(path)
    agent = read_fleet(settings.root, settings)[0]["sorter"]
    return agent


def test_one_line_of_agent_yaml_switches_a_model_on(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert told(path) == []
    agent = sorter(path)
    assert (agent.model, agent.reasoner, agent.asks_model) == ("fast", "adk", True)
    assert agent.max_turns == 4
    assert agent.budget.price == "flash"
    plan = load_settings(path).models["fast"]
    assert plan.model == Model(
        "fast", calls_per_minute=60, fallback="local", price="flash",
        provider="gemini", served_name="gemini-3-flash",
    )  # fmt: skip
    assert load_settings(path).models["local"].model.timeout_us == 300_000_000


def test_without_models_nothing_is_different(tmp_path: Path) -> None:
    path = write(tmp_path, "", AGENT.replace("model: fast\n", ""))
    (tmp_path / "agents" / "sorter" / "judge.py").write_text("class Judge: pass\n")
    assert told(path) == []
    assert (sorter(path).model, sorter(path).reasoner, sorter(path).max_turns) == (None, "judge", 1)
    assert load_settings(path).models == {}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('provider = "gemini"', 'provider = "gemni"', ["models.fast.provider", "gemini"]),
        ('key_env = "FAST_KEY"\n', "", ["models.fast", "needs a key", "GEMINI_API_KEY"]),
        ('key_env = "FAST_KEY"\n', 'key_env = "A"\nkey_file = "b"\n', ["both given", "leave one"]),
        ('key_env = "FAST_KEY"\n', 'key = "sk-very-secret"\n', ["models.fast", "key"]),
        ("http://127.0.0.1:11434", "http://models.example.com", ["in the clear", "https://"]),
        ("http://127.0.0.1:11434", "https://me:pw@models.example.com", ["base_url", "no address"]),
        ('fallback = "local"', 'fallback = "locl"', ["no [models.locl]", "'local'"]),
        ('fallback = "local"', 'fallback = "fast"', ["go in a circle: fast → fast"]),
        ('timeout = "5m"', 'fallback = "fast"', ["fast → local → fast"]),
        ('timeout = "5m"', 'timeout = "soon"', ["models.local.timeout", "not a duration"]),
        ("calls_per_minute = 60", "calls_per_minute = 0", ["calls_per_minute", "at least 1"]),
        ('provider = "gemini"', 'provider = "vertex"', ["vertex needs the project"]),
        ('model = "qwen3"', 'model = "qwen3"\nkey_env = "K"', ["ollama takes no key"]),
        ("[models.fast]", "[models.Fast]", ["'Fast' cannot name a model"]),
    ],
)  # fmt: skip
def test_a_wrong_entry_says_what_mends_it(
    tmp_path: Path, old: str, new: str, words: list[str]
) -> None:
    assert old in GEMINI
    found = told(write(tmp_path, GEMINI.replace(old, new)))
    assert any(all(word in line for word in words) for line in found), found
    assert all(line.startswith("vedette.toml:") for line in found)
    assert "sk-very-secret" not in "\n".join(found)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("model: fast", "model: fats", ["agent.yaml:5: model", "no table [models.fats]", "'fast'"]),
        ("model: fast", "model: fast\nreasoner: judge", ["asks no model", "remove model:"]),
        ("_per_day: 100", "_per_day: 0", ["room for 0 model calls", "model_calls_per_day: 200"]),
        ("model: fast", "model: fast\nmax_turns: 1", ["a turn to act and one to say it is done"]),
        (
            "_per_day: 100",
            "_per_day: 100, money_micros_per_day: 5, input_tokens_per_call: 9, "
            "output_tokens_per_call: 9",
            ["nobody knows what its fallback local costs"],
        ),
    ],
)  # fmt: skip
def test_a_wrong_agent_says_what_mends_it(
    tmp_path: Path, old: str, new: str, words: list[str]
) -> None:
    assert old in AGENT
    found = told(write(tmp_path, agent=AGENT.replace(old, new)))
    assert any(all(word in line for word in words) for line in found), found


def test_money_needs_a_price_of_the_agent_or_of_its_model(tmp_path: Path) -> None:
    money = "_per_day: 100, money_micros_per_day: 5, input_tokens_per_call: 9, "
    agent = AGENT.replace("_per_day: 100", money + "output_tokens_per_call: 9")
    alone = GEMINI.replace('fallback = "local"\n', "")
    assert told(write(tmp_path / "a", alone, agent)) == []
    (line,) = told(write(tmp_path / "b", alone.replace('price = "flash"\n', ""), agent))
    assert "no price is named" in line
    assert "entry of [models]" in line


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ("", "nobody knows what a call may take"),
        (", input_tokens_per_call: 900, output_tokens_per_call: 200", "more than the 1000 tokens"),
        (", input_tokens_per_call: 800, output_tokens_per_call: 200", ""),
    ],
)
def test_tokens_of_a_minute_need_a_bound_of_each_call(
    tmp_path: Path, bounds: str, words: str
) -> None:
    models = GEMINI.replace("calls_per_minute = 60", "tokens_per_minute = 1000")
    agent = AGENT.replace("_per_day: 100", "_per_day: 100" + bounds)
    found = told(write(tmp_path, models, agent))
    assert (words in found[0]) if words else found == []


@pytest.mark.parametrize(
    ("provider", "package", "extra"),
    [("anthropic", "anthropic", "anthropic"), ("ollama", "mcp", "litellm")],
)
def test_a_missing_extra_is_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, package: str, extra: str
) -> None:
    """None in sys.modules: Python's own way to say that a package is not there."""
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, package, None)
    models = GEMINI.replace('"gemini"', f'"{provider}"').replace('fallback = "local"\n', "")
    if provider == "ollama":
        models = models.replace('key_env = "FAST_KEY"\n', "")
    path = write(tmp_path, models)
    (line,) = told(path)
    assert "agent.yaml:5: model" in line
    assert f'pip install "vedette[{extra}]"' in line
    with pytest.raises(BadFleet, match=r"pip install"):
        load_settings(path).models["fast"].import_extra()


def test_a_missing_key_is_said_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = load_settings(write(tmp_path)).models["fast"]
    monkeypatch.delenv("FAST_KEY", raising=False)
    with pytest.raises(BadFleet, match=r"models\.fast: environment variable FAST_KEY is not set"):
        plan.key()
    monkeypatch.setenv("FAST_KEY", "sk-secret")
    assert plan.key() == "sk-secret"
    assert "sk-secret" not in repr(plan)


def test_the_environment_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEDETTE_MODELS__FAST__BASE_URL", "http://127.0.0.1:1")
    assert load_settings(write(tmp_path)).models["fast"].base_url == "http://127.0.0.1:1"


def test_litellm_needs_a_key_or_a_server_of_this_machine(tmp_path: Path) -> None:
    """Else LiteLLM takes one of the environment."""
    base = '[models.fast]\nprovider = "litellm"\nmodel = "openai/gpt-5.5"\n'
    for index, (more, is_wrong) in enumerate(
        [
            ("", True),
            ('base_url = "https://models.example"\n', True),
            ('base_url = "http://127.0.0.1:8000"\n', False),
            ('key_env = "FAST_KEY"\n', False),
        ]
    ):
        folder = tmp_path / str(index)
        folder.mkdir()
        found = told(write(folder, base + more))
        assert [("litellm needs a key" in one) for one in found] == [True] * is_wrong


JUDGED = AGENT.replace("model: fast\n", "reasoner: [judge, model]\nmodel: fast\n")


def cascading(folder: Path, agent: str = JUDGED) -> Path:
    path = write(folder, GEMINI, agent)
    (folder / "agents" / "sorter" / "judge.py").write_text("class Judge: pass\n")
    return path


def test_a_judge_and_a_model_are_a_cascade(tmp_path: Path) -> None:
    words = "cascade: {settle_at: 950, person_after: 30m}\nconfidence: {cases: 140}\n"
    path = cascading(tmp_path, JUDGED + words)
    assert told(path) == []
    agent = sorter(path)
    assert (agent.reasoner, agent.last_reasoner, agent.model) == ("judge", "adk", "fast")
    assert (agent.has_judge, agent.asks_model, agent.max_turns) == (True, True, 4)
    assert agent.cascade == Cascade(950, 1_800_000_000)
    assert agent.confidence == ConfidencePlan(140, 50)


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (JUDGED.replace("[judge, model]", "[model, judge]"), ["reasoner", "[judge, model]"]),
        (JUDGED.replace("[judge, model]", "[judge]"), ["reasoner", "[judge, model]"]),
        (JUDGED + "cascade: {settle_at: 0.9}\n", ["cascade.settle_at"]),
        (JUDGED + "cascade: {settle_at: 1001}\n", ["cascade.settle_at", "1000"]),
        (JUDGED + "cascade: {person_after: soon}\n", ["cascade.person_after", "no"]),
        (JUDGED + "confidence: {audit_share: 0}\n", ["confidence.audit_share", "at least 20"]),
        (JUDGED + "confidence: {cases: 99}\n", ["confidence.cases", "at least 100"]),
        (AGENT + "cascade: {settle_at: 900}\n", ["cascade", "reasoner: [judge, model]"]),
    ],
)
def test_a_wrong_cascade_says_what_mends_it(tmp_path: Path, agent: str, words: list[str]) -> None:
    found = told(cascading(tmp_path, agent))
    assert any(all(word in line for word in words) for line in found), found
    assert all("agent.yaml:" in line for line in found)


def test_a_cascade_without_a_judge_says_so(tmp_path: Path) -> None:
    path = cascading(tmp_path)
    (tmp_path / "agents" / "sorter" / "judge.py").unlink()
    (line,) = told(path)
    assert "judge.py, which is not there" in line


def test_a_constant_confidence_is_warned_of_and_the_file_stays_valid(tmp_path: Path) -> None:
    text = AGENT + "charter: {model_confidence: 0.9}\n"
    (line,) = told(write(tmp_path, GEMINI, text))
    assert "warning" in line
    assert "charter.model_confidence: warning: counts no more" in line
    assert sorter(tmp_path / "vedette.toml").model == "fast"
