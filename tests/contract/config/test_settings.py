"""vedette.toml: defaults, paths, the environment, and what is wrong by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from vedette.adapters.files.config import CsvFile, JsonlFile
from vedette.adapters.host.config import HostFile
from vedette.adapters.mail.maildir.config import MaildirFile
from vedette.config.secret_reference import read_secret
from vedette.config.settings import Settings, load_settings, read_settings
from vedette.domain.base.errors import BadFleet

TOML = """\
fleet = "harbour"

[limits]
max_hops = 3

[serve]
http = "127.0.0.1:8088"

[[serve.senders]]
name = "monitoring"
token_env = "MONITORING_TOKEN"

[targets.oncall]
kind = "webhook"
url = "http://127.0.0.1:8099/hook"

[targets.mailbox]
kind = "maildir"
path = "@state/mailbox"

[[sources]]
kind = "csv"
name = "series"
path = "metrics/*.csv"
rate = 400

[[sources]]
kind = "maildir"
name = "desk"
path = "@state/mailbox"
copy_from = "mailbox"

[[sources]]
kind = "host"
name = "host"
every = "500ms"

[[sources]]
kind = "jsonl"
name = "events"
path = "/var/spool/events/*.jsonl"
"""


def put(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "vedette.toml"
    file.write_text(text)
    return file


def test_settings_are_read_and_paths_resolved(tmp_path: Path) -> None:
    settings = load_settings(put(tmp_path, TOML))
    root = tmp_path.resolve()
    assert (settings.root, settings.state) == (root, root / ".vedette")
    assert (settings.agents, settings.policies) == (root / "agents", root / "policies")
    assert (settings.max_hops, settings.max_event_bytes) == (3, 262_144)
    assert (settings.http, settings.http_fallback) == (("127.0.0.1", 8088), False)
    assert settings.targets["mailbox"]["path"] == str(root / ".vedette" / "mailbox")
    assert settings.targets["oncall"]["url"] == "http://127.0.0.1:8099/hook"
    assert settings.sources == (
        CsvFile(kind="csv", name="series", path=str(root / "metrics/*.csv"), rate=400.0),
        MaildirFile(
            kind="maildir",
            name="desk",
            path=str(root / ".vedette/mailbox"),
            copy_from=str(root / "mailbox"),
        ),
        HostFile(kind="host", name="host", every="500ms"),
        JsonlFile(kind="jsonl", name="events", path="/var/spool/events/*.jsonl"),
    )


def test_a_file_that_names_only_the_fleet_is_enough(tmp_path: Path) -> None:
    settings = load_settings(put(tmp_path, 'fleet = "harbour"\n'))
    usual = Settings.of(tmp_path, "harbour")
    assert (settings.state, settings.memory) == (usual.state, usual.memory)
    assert settings.sources == ()
    assert settings.http == ("127.0.0.1", 0)


def test_the_environment_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEDETTE_STATE", "/var/lib/harbour")
    monkeypatch.setenv("VEDETTE_LIMITS__MAX_HOPS", "5")
    monkeypatch.setenv("VEDETTE_SERVE__HTTP", "")
    settings = load_settings(put(tmp_path, TOML))
    assert settings.state == Path("/var/lib/harbour")
    assert settings.targets["mailbox"]["path"] == "/var/lib/harbour/mailbox"
    assert settings.max_hops == 5
    assert settings.max_event_bytes == 262_144
    assert settings.http == ("127.0.0.1", 8088)


def test_opentelemetrys_variables_have_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = '[telemetry]\ntraces = "otlp"\nendpoint = "http://here:4318"\nsample = 0.5\n'
    path = put(tmp_path, f'fleet = "harbour"\n{traced}')
    plain = load_settings(path).deployment.telemetry
    assert (plain.traces, plain.endpoint, plain.sample) == ("otlp", "http://here:4318", 0.5)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://there:4318")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    found = load_settings(path).deployment.telemetry
    assert (found.traces, found.endpoint, found.sample) == ("otlp", None, 0.25)
    for name, share in (("always_on", 1.0), ("always_off", 0.0), ("parentbased_always_on", 1.0)):
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
        assert load_settings(path).deployment.telemetry.sample == share
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert load_settings(path).deployment.telemetry.traces == "none"
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert load_settings(path).deployment.telemetry.traces == "none"
    # Alone they are enough: the file need not name a collector, nor ask for traces.
    bare = put(tmp_path, 'fleet = "harbour"\n')
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    assert load_settings(bare).deployment.telemetry.traces == "otlp"
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    with pytest.raises(BadFleet, match="traces need a collector"):
        load_settings(bare)


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("OTEL_TRACES_EXPORTER", "console", "'console' is no exporter that is known here"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "'jaeger_remote' is no sampler"),
        ("OTEL_TRACES_SAMPLER_ARG", "half", "'half' is no share"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan", "'nan' is no share"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5", "'1.5' is no share"),
    ],
)
def test_a_wrong_variable_of_opentelemetry_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, what: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BadFleet) as refused:
        load_settings(put(tmp_path, 'fleet = "harbour"\n'))
    assert what in str(refused.value)
    assert name in str(refused.value)


def test_a_wrong_environment_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEDETTE_LIMITS__MAX_HOPS", "many")
    with pytest.raises(BadFleet) as caught:
        load_settings(put(tmp_path, TOML))
    assert caught.value.where == "environment: VEDETTE_LIMITS__MAX_HOPS"


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "what", "mend"),
    [
        ("max_hops = 3", "max_hop = 3", 4, "limits.max_hop", "unknown key", "'max_hops'"),
        ("max_hops = 3", "max_hops = -1", 4, "limits.max_hops", "at least 0", ""),
        ("max_hops = 3", "max_hops = true", 4, "limits.max_hops", "a number", ""),
        ("max_hops = 3", "max_hops = ", 4, "", "is not TOML", "correct"),
        ("[limits]", "[limit]", 3, "limit", "unknown key", "'limits'"),
        ('fleet = "harbour"\n', "", 1, "fleet", "is missing", "identity"),
        ('fleet = "harbour"', 'fleet = "The Harbour"', 1, "fleet", "pattern", ""),
        ("127.0.0.1:8088", "8088", 7, "serve.http", "no address", "host:port"),
        ('token_env = "MONITORING_TOKEN"\n', "", 9, "serve.senders[0]", "token", "token_env"),
        ('token_env = "MON', 'token = "MON', 11, "serve.senders[0].token", "unknown key", ""),
        ('kind = "csv"', 'kind = "cvs"', 21, "sources[0]", "'cvs'", "'csv'"),
        ('kind = "csv"\n', "", 21, "sources[0]", "kind", "kind"),
        ("rate = 400", "rate = -4", 25, "sources[0].rate", "at least 0", ""),
        ("rate = 400", "speed = 4", 25, "sources[0].speed", "unknown key", "there are"),
        ('"500ms"', '"soon"', 36, "sources[2].every", "not a duration", "30s"),
        ('name = "desk"', 'name = "series"', 29, "sources[1].name", "already", "own name"),
        ('kind = "webhook"\n', "", 13, "targets.oncall.kind", "is missing", "webhook"),
        ("url =", "uri =", 13, "targets.oncall.url", "needs a url", "add url"),
        ("http://127", "ftp://127", 15, "targets.oncall.url", "no URL", "https"),
        ("//127.0.0.1:8099", "//me:pw@host", 15, "targets.oncall.url", "a secret", "token_env"),
        ('path = "@', 'token = "abc"\npath = "@', 19, "targets.mailbox.token", "secret", "_env"),
    ],
)
def test_wrong_settings(
    tmp_path: Path, old: str, new: str, line: int, field: str, what: str, mend: str
) -> None:
    assert old in TOML
    settings, problems = read_settings(put(tmp_path, TOML.replace(old, new, 1)))
    assert settings is None
    found = [p for p in problems if p.field == field]
    assert found, [str(problem) for problem in problems]
    assert what in found[0].what
    assert mend in found[0].mend
    assert (found[0].file, found[0].line) == ("vedette.toml", line)


def test_no_secret_is_repeated_in_a_message(tmp_path: Path) -> None:
    text = TOML.replace("//127.0.0.1:8099", "//me:hunter2@host")
    _, problems = read_settings(put(tmp_path, text))
    assert problems
    assert "hunter2" not in " ".join(str(problem) for problem in problems)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadFleet, match=r"vedette\.toml: cannot be read"):
        load_settings(tmp_path / "vedette.toml")


def test_a_root_with_glob_characters_stays_literal(tmp_path: Path) -> None:
    odd = tmp_path / "fleet[1]"
    odd.mkdir()
    settings = load_settings(put(odd, TOML))
    source = settings.sources[0]
    assert isinstance(source, CsvFile)
    assert source.path.endswith("fleet[[]1]/metrics/*.csv")


def test_secrets_are_read_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("from a file\n")
    by_file = {"token_file": str(tmp_path / "token")}
    assert read_secret(by_file, "token", where="here") == "from a file"
    assert read_secret({}, "token", where="here") is None
    sender = load_settings(put(tmp_path, TOML)).senders[0]
    with pytest.raises(BadFleet, match="MONITORING_TOKEN is not set"):
        sender.token()
    monkeypatch.setenv("MONITORING_TOKEN", "from the environment")
    assert sender.token() == "from the environment"
    with pytest.raises(BadFleet, match="cannot read"):
        read_secret({"token_file": str(tmp_path / "none")}, "token", where="here")


def test_other_variables_of_the_project_are_no_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEDETTE_DATA", "/somewhere")
    monkeypatch.setenv("VEDETTE_MODEL", "a-model")
    assert load_settings(put(tmp_path, TOML)).fleet == "harbour"


def test_a_weaker_store_is_chosen_by_name_and_only_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "vedette.toml"
    path.write_text('fleet = "harbour"\n[store]\nsurvives = "kill"\n')
    assert load_settings(path).store.survives == "kill"
    path.write_text('fleet = "harbour"\n')
    assert load_settings(path).store.survives == "power-loss"
    path.write_text(
        'fleet = "harbour"\n[store]\nkind = "postgresql"\nurl_env = "URL"\nsurvives = "kill"\n'
    )
    with pytest.raises(BadFleet, match="SQLite store only"):
        load_settings(path)


AGENTS = """\
[[serve.agents]]
agent = "courier"
token_env = "COURIER_TOKEN"

[[serve.agents]]
agent = "porter"
"""


def test_served_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURIER_TOKEN", "a-token-of-the-courier")
    found = load_settings(put(tmp_path, TOML + AGENTS))
    courier, porter = found.served_agents
    assert (courier.agent, courier.token()) == ("courier", "a-token-of-the-courier")
    assert (porter.agent, porter.token()) == ("porter", None)
    assert found.call_window_us == 600_000_000
    assert (found.calls_per_minute, found.open_calls) == (300, 100)
    monkeypatch.delenv("COURIER_TOKEN")
    with pytest.raises(BadFleet, match="agent courier"):
        courier.token()


@pytest.mark.parametrize(
    ("old", "new", "field", "what"),
    [
        ('"porter"', '"courier"', "serve.agents[1].agent", "already"),
        ('token_env = "C', 'token_file = "x"\ntoken_env = "C', "serve.agents[0]", "several"),
        ('agent = "porter"', 'name = "porter"', "serve.agents[1].agent", "missing"),
        ('agent = "porter"', 'agent = "Porter!"', "serve.agents[1].agent", "pattern"),
    ],
)
def test_wrong_served_agents(tmp_path: Path, old: str, new: str, field: str, what: str) -> None:
    assert old in AGENTS
    settings, problems = read_settings(put(tmp_path, TOML + AGENTS.replace(old, new, 1)))
    assert settings is None
    found = [p for p in problems if p.field == field]
    assert found, [str(problem) for problem in problems]
    assert what in found[0].what
