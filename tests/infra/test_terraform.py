"""Terraform really run: every module's tests, and that each of them can fail."""

from __future__ import annotations

import re
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from tests.infra.plans import ROOT, Checked, check, copy, edit, need_terraform, stand_in

from vedette.adapters.bigquery.tables import CLUSTERED, VIEWS
from vedette.adapters.google_tokens import GoogleTokens, IamCredentials, Metadata
from vedette.adapters.worker_pool.door import PATH
from vedette.cli import cli
from vedette.load import load_settings
from vedette.load.edges import PubsubPlan
from vedette.serve.operators import BELOW

MODULES = sorted(path.name for path in (ROOT / "infra/terraform/modules").iterdir())
HARBOUR = "examples/harbour"
SECRETS = ("seeded-password-7f3a", "c2VlZGVkLWxlZGdlci03ZjNh", "c2VlZGVkLXBvbGljeS03ZjNh")
EVERYBODY = {"allUsers", "allAuthenticatedUsers"}


@pytest.fixture(scope="module")
def environ() -> Iterator[Mapping[str, str]]:
    need_terraform()
    # A socket's path is short on macOS, and pytest's own folders are not.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, stand_in(Path(folder)) as found:
        yield found


@pytest.fixture(scope="module")
def harbour(environ: Mapping[str, str]) -> Checked:
    """The example's own tests, and with them all that it would make."""
    found = check(environ, HARBOUR, told=True)
    assert found.code == 0, found.text
    return found


def test_format(tmp_path: Path) -> None:
    need_terraform()
    command = ["terraform", "fmt", "-check", "-recursive"]
    assert subprocess.run([*command, ROOT / "infra/terraform"], capture_output=True).returncode == 0
    (tmp_path / "main.tf").write_text('locals {\n a   = "b"\n}\n', "utf-8")
    assert subprocess.run([*command, tmp_path], capture_output=True).returncode != 0


@pytest.mark.parametrize("module", MODULES)
def test_module(module: str, environ: Mapping[str, str]) -> None:
    found = check(environ, f"modules/{module}")
    assert found.code == 0, found.text
    assert re.search(r"Success! [1-9]\d* passed, 0 failed", found.text)


def test_without_terraform_ci_fails_and_a_person_skips() -> None:
    with pytest.raises(pytest.skip.Exception):
        need_terraform({"PATH": ""})
    with pytest.raises(pytest.fail.Exception):
        need_terraform({"PATH": "", "CI": "true"})


# --- the tests can fail -------------------------------------------------------------------------


def test_a_misspelt_argument_is_refused(environ: Mapping[str, str], tmp_path: Path) -> None:
    root = copy(tmp_path)
    path = "modules/streams/main.tf"
    edit(root, path, "enable_exactly_once_delivery =", "enable_exactly_once_deliver =")
    found = check(environ, "modules/streams", root)
    assert found.code != 0
    assert "Unsupported argument" in found.text
    assert 'Did you mean "enable_exactly_once_delivery"' in " ".join(found.text.split())


@pytest.mark.parametrize(
    ("module", "file", "run"),
    [
        ("streams", "main.tf", "dead_letters"),
        ("agent", "subscription.tf", "own_subscription_has_dead_letters"),
    ],
)
def test_a_dropped_dead_letter_policy_fails(
    module: str, file: str, run: str, environ: Mapping[str, str], tmp_path: Path
) -> None:
    root = copy(tmp_path)
    text = (root / "infra/terraform/modules" / module / file).read_text("utf-8")
    policy = re.search(r"\n  dead_letter_policy \{.*?\n  \}\n", text, re.DOTALL)
    assert policy is not None
    edit(root, f"modules/{module}/{file}", policy[0], "")
    if module == "agent":  # its output names the policy as well
        output = "modules/agent/outputs.tf"
        edit(root, output, "own.dead_letter_policy[0].max_delivery_attempts", "5")
    found = check(environ, f"modules/{module}", root)
    assert found.code != 0
    assert f'run "{run}"... fail' in found.text, found.text


def test_open_doors_and_wide_roles_fail(environ: Mapping[str, str], tmp_path: Path) -> None:
    root = copy(tmp_path)
    for file, old, new in (
        ("run.tf", "INGRESS_TRAFFIC_INTERNAL_ONLY", "INGRESS_TRAFFIC_ALL"),
        ("run.tf", "roles/monitoring.metricWriter", "roles/editor"),
        ("bundles.tf", '= "enforced"', '= "inherited"'),
        ("bundles.tf", "var.bundle_retention_days * 86400", "0"),
        ("database.tf", "ipv4_enabled    = false", "ipv4_enabled    = true"),
    ):
        edit(root, f"modules/gateway/{file}", old, new)
    # After a run that failed the next ones are skipped: each run in a file of its own.
    folder = root / "infra/terraform/modules/gateway/tests"
    text = (folder / "gateway.tftest.hcl").read_text("utf-8")
    head, *runs = re.split(r'(?m)^(?=run ")', text)
    (folder / "gateway.tftest.hcl").unlink()
    for number, run in enumerate(runs[:3]):
        (folder / f"{number}.tftest.hcl").write_text(head + run, "utf-8")
    found = check(environ, "modules/gateway", root)
    assert found.code != 0
    for said in (
        "Nobody on the internet reaches the gateway",
        "The database has a private address only",
        "The bundles are nobody else's",
        "A bundle that was overwritten or deleted can be had back",
        "On the project: write metrics; no other role",
    ):
        assert said in found.text, said


# --- the example ----------------------------------------------------------------------------------


def values_of(found: Checked, kind: str, run: str = "fleet") -> list[Mapping[str, Any]]:
    return [one["values"] for one in found.resources(run) if one["type"] == kind]


def broad(resources: list[Mapping[str, Any]]) -> list[str]:
    """Return the grants to everybody, of a basic role, or of one that manages access."""
    found = []
    for one in resources:
        role, member = str(one["values"].get("role", "")), str(one["values"].get("member", ""))
        basic = role in {"roles/owner", "roles/editor", "roles/viewer"}
        if member in EVERYBODY or basic or role.lower().endswith("admin"):
            found.append(one["address"])
    return found


def test_no_grant_is_broad(harbour: Checked) -> None:
    grants = [one for one in harbour.resources("fleet") if one["type"].endswith("_iam_member")]
    assert len(grants) > 20
    assert broad(grants) == []
    assert broad([{"address": "x", "values": {"role": "roles/editor", "member": "user:a"}}])
    # Nothing replaces the policy of a whole resource, which would take away what others granted.
    kinds = {one["type"] for one in harbour.resources("fleet")}
    assert not {kind for kind in kinds if kind.endswith(("_iam_policy", "_iam_binding"))}


def test_tokens_are_minted_for_exactly_the_agents(harbour: Checked) -> None:
    role = "roles/iam.serviceAccountTokenCreator"
    creators = [
        one for one in harbour.resources("fleet")
        if one["type"].endswith("_iam_member") and one["values"]["role"] == role
    ]  # fmt: skip
    assert {one["type"] for one in creators} == {"google_service_account_iam_member"}
    assert len(creators) == len(agent_names())


def test_no_secret_is_planned(harbour: Checked) -> None:
    assert "database-url" in harbour.text
    for secret in SECRETS:
        assert secret not in harbour.text


def test_the_settings_are_good(harbour: Checked, tmp_path: Path) -> None:
    """What Terraform writes for the gateway passes the check, with and without the options."""
    path = tmp_path / "vedette.toml"
    for run in ("fleet", "with_people_and_a_mailbox"):
        path.write_text(harbour.output(run, "settings"), "utf-8")
        settings = load_settings(path)
        tomllib.loads(path.read_text("utf-8"))
        assert settings.store.kind == "postgresql"
        assert settings.edges.tokens.kind == "google"
        assert settings.edges.gateway.agents == tuple(agent_names())
        assert settings.edges.policy.bundles == "gs://harbour-lights-fleet-harbour-bundles/bundles"
        assert (settings.edges.people.issuer is not None) == (run != "fleet")


def test_the_settings_name_what_is_made(harbour: Checked, tmp_path: Path) -> None:
    path = tmp_path / "vedette.toml"
    path.write_text(harbour.output("fleet", "settings"), "utf-8")
    settings = load_settings(path)
    pulled = [plan for plan in settings.sources if isinstance(plan, PubsubPlan)]
    made = {one["name"]: one for one in values_of(harbour, "google_pubsub_subscription")}
    assert {plan.name for plan in pulled} == {"metrics", "ticks"}
    for plan in pulled:
        one = made[plan.subscription]
        assert f"{plan.dead_letter_topic}" in made
        assert plan.ordered == one["enable_message_ordering"]
        assert plan.exactly_once == one["enable_exactly_once_delivery"]
        assert plan.ack_deadline_us == one["ack_deadline_seconds"] * 1_000_000
        attempts = one["dead_letter_policy"][0]["max_delivery_attempts"]
        assert plan.max_delivery_attempts == attempts
    (dataset,) = values_of(harbour, "google_bigquery_dataset")
    assert settings.edges.audit.dataset == dataset["dataset_id"]
    accounts = {one["account_id"] for one in values_of(harbour, "google_service_account")}
    pattern = settings.edges.tokens.service_account or ""
    tokens = GoogleTokens(
        "harbour",
        pattern,
        IamCredentials(Metadata()),
        audience="",
        refuse=lambda agent, claims: None,
    )
    for agent in agent_names():
        assert tokens.account(agent).partition("@")[0] in accounts


def test_the_warehouse_is_the_engine_s(harbour: Checked) -> None:
    """Tables are clustered, views named as the engine would make them."""
    tables = {one["table_id"]: one for one in values_of(harbour, "google_bigquery_table")}
    assert set(tables) == {*CLUSTERED, *VIEWS}
    for table, columns in CLUSTERED.items():
        assert tuple(tables[table]["clustering"]) == columns


def options(verb: str, arguments: list[str]) -> dict[str, Any]:
    """Return what a verb makes of its arguments, without running it. Raises click.UsageError."""
    context = click.Context(cli)
    command = cli.get_command(context, verb)
    assert command is not None
    return command.make_parser(context).parse_args(list(arguments))[0]


def test_the_processes_are_started_as_the_program_takes_it(harbour: Checked) -> None:
    pools = values_of(harbour, "google_cloud_run_v2_worker_pool")
    assert len(pools) == len(agent_names())
    for pool in pools:
        verb, *arguments = pool["template"][0]["containers"][0]["args"]
        given = options(verb, arguments)
        assert verb == "worker"
        assert given["agent"] in agent_names()
        assert given["identity"] == "google"
    (service,) = values_of(harbour, "google_cloud_run_v2_service")
    containers = {one["name"]: one for one in service["template"][0]["containers"]}
    config, path, verb = containers["gateway"]["args"]
    assert (config, path, verb) == ("--config", "/run/vedette/settings/vedette.toml", "gateway")
    assert options(verb, []) == {}
    with pytest.raises(click.UsageError):
        options("worker", ["--no-such-thing"])


def test_the_router_knows_the_doors(harbour: Checked) -> None:
    """Paths and ports of the engine, and no more paths than these."""
    text = (ROOT / "infra/terraform/modules/gateway/router.conf").read_text("utf-8")
    routes = dict(
        re.findall(r"location (\S+|= \S+) \{\s+(?:proxy_pass http://127\.0\.0\.1:)?([^;]+);", text)
    )
    settings = tomllib.loads(harbour.output("fleet", "settings"))
    http = settings["serve"]["http"].rpartition(":")[2]
    assert routes == {
        PATH: settings["gateway"]["listen"].rpartition(":")[2],
        "/v1/events": http,
        "/v1/pubsub/": http,
        f"{BELOW}/": http,
        "= /readyz": http,
        "/": "return 404",
    }


def agent_names() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "agents").glob("*/agent.yaml"))


NIGHT_WATCH = """\
version: 1
name: night_watch
title: Walks the pier
owner: operations@harbourlights.example
triggers:
  - on: metric.point
    source: pubsub:night-watch
  - daily: "22:15"
    zone: Europe/London
tools: []
"""


def test_an_agent_added_appears(environ: Mapping[str, str], tmp_path: Path) -> None:
    """A folder under agents/ is all it takes."""
    root = copy(tmp_path)
    (root / "agents/night_watch").mkdir()
    (root / "agents/night_watch/agent.yaml").write_text(NIGHT_WATCH, "utf-8")
    tests = root / "infra/terraform" / HARBOUR / "tests/harbour.tftest.hcl"
    text = tests.read_text("utf-8")
    tests.write_text(text[: text.index('run "with_people')], "utf-8")
    found = check(environ, HARBOUR, root, told=True)
    assert found.code == 0, found.text
    assert set(found.output("fleet", "agents")) == {*agent_names(), "night_watch"}
    pools = {one["name"] for one in values_of(found, "google_cloud_run_v2_worker_pool")}
    assert "harbour-night-watch" in pools
    accounts = {one["account_id"] for one in values_of(found, "google_service_account")}
    assert "agent-night-watch" in accounts
    jobs = found.output("fleet", "schedules")["jobs"]
    assert jobs["night_watch/daily"] == {"cron": "15 22 * * *", "zone": "Europe/London"}
    own = found.output("fleet", "agents")["night_watch"]["subscription"]
    assert own["dead_letter_topic"] == "harbour-own-night-watch-dead"
    settings = tomllib.loads(found.output("fleet", "settings"))
    assert "night-watch" in {source["name"] for source in settings["sources"]}
    assert "night_watch" in settings["gateway"]["agents"]


# --- monitoring -----------------------------------------------------------------------------------


def test_monitoring_asks_for_metrics_that_exist(harbour: Checked) -> None:
    """Every metric in an alarm or on the dashboard stands in docs/telemetry.md."""
    told = (ROOT / "docs/telemetry.md").read_text("utf-8")
    known = set(re.findall(r"^\| `(vedette_[a-z0-9_]+)` \|", told, re.MULTILINE))
    asked = set()
    for one in values_of(harbour, "google_monitoring_alert_policy"):
        for condition in one["conditions"]:
            for query in condition["condition_prometheus_query_language"]:
                asked.update(re.findall(r"vedette_[a-z0-9_]+", query["query"]))
    for one in values_of(harbour, "google_monitoring_dashboard"):
        asked.update(re.findall(r"vedette_[a-z0-9_]+", one["dashboard_json"].replace("\\", " ")))
    for one in values_of(harbour, "google_monitoring_slo"):
        asked.update(re.findall(r"vedette_[a-z0-9_]+", str(one["request_based_sli"])))
    assert len(asked) > 12
    assert {name.removesuffix("_bucket") for name in asked} - known == set()
