"""Terraform really run: every module's tests, and that each of them can fail."""

from __future__ import annotations

import re
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import click
import pytest
from tests.infra import grants
from tests.infra.plans import ROOT, Checked, check, copy, edit, need_terraform, stand_in

from vedette.adapters.bigquery.tables import CLUSTER_COLUMNS, VIEWS
from vedette.adapters.identity.google import GoogleTokens, IamCredentials, MetadataServer
from vedette.adapters.pubsub.config import PubsubFile
from vedette.adapters.reasoners.workers.websocket_server import PATH
from vedette.config.settings import load_settings
from vedette.domain.base.clock import duration_us
from vedette.interfaces.cli import cli
from vedette.interfaces.http.operator_api import PATH_PREFIX

MODULES = sorted(path.name for path in (ROOT / "infra/terraform/modules").iterdir())
HARBOUR = "examples/harbour"
OPTIONS = "with_people_and_a_mailbox"
SECRETS = ("seeded-password-7f3a", "c2VlZGVkLWxlZGdlci03ZjNh", "c2VlZGVkLXBvbGljeS03ZjNh")


@pytest.fixture(scope="module")
def environ() -> Iterator[Mapping[str, str]]:
    need_terraform()
    # A socket's path is short on macOS, and pytest's own folders are not.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, stand_in(Path(folder)) as found:
        yield found


@pytest.fixture(scope="module")
def harbour(environ: Mapping[str, str]) -> Checked:
    """The example as it is, and all that it would make; and that with options, below."""
    with tempfile.TemporaryDirectory() as folder:
        root = copy(Path(folder))
        only(root, "fleet")
        found = check(environ, HARBOUR, root, told=True)
    assert found.code == 0, found.text
    return found


@pytest.fixture(scope="module")
def grown(environ: Mapping[str, str]) -> Checked:
    """The example with its options, and with two agents more under agents/."""
    with tempfile.TemporaryDirectory() as folder:
        root = copy(Path(folder))
        for name, agent in (("night_watch", NIGHT_WATCH), ("tide_watch", TIDE_WATCH)):
            (root / "agents" / name).mkdir()
            (root / "agents" / name / "agent.yaml").write_text(agent, "utf-8")
        only(root, OPTIONS, HALVED)
        found = check(environ, HARBOUR, root, told=True)
    assert found.code == 0, found.text
    return found


def only(root: Path, run: str, more: str = "") -> None:
    """Leave one run in the tests of a copy's example: the other would plan all of it again."""
    tests = root / "infra/terraform" / HARBOUR / "tests"
    (tests / "models.tftest.hcl").unlink()
    assert keep(tests / "harbour.tftest.hcl", run, more) == ["fleet", OPTIONS]


def keep(file: Path, run: str, more: str = "") -> list[str]:
    """Leave one run in a file of tests, and add `more`; returns the names of all it had."""
    head, *runs = re.split(r'(?m)^(?=run ")', file.read_text("utf-8"))
    (kept,) = [one for one in runs if one.startswith(f'run "{run}"')]
    file.write_text(head + kept + more, "utf-8")
    return [one.split('"')[1] for one in runs]


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
        ("streams", "main.tf", "streams"),
        ("agent", "subscription.tf", "own_subscription_has_dead_letters"),
    ],
)
def test_a_dropped_dead_letter_policy_fails(
    module: str, file: str, run: str, environ: Mapping[str, str], tmp_path: Path
) -> None:
    root = copy(tmp_path)
    tests = root / f"infra/terraform/modules/{module}/tests/{module}.tftest.hcl"
    keep(tests, run)
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


def test_open_ports_and_wide_roles_fail(environ: Mapping[str, str], tmp_path: Path) -> None:
    root = copy(tmp_path)
    for file, old, new in (
        ("run.tf", "INGRESS_TRAFFIC_INTERNAL_ONLY", "INGRESS_TRAFFIC_ALL"),
        ("run.tf", "roles/monitoring.metricWriter", "roles/editor"),
        ("bundles.tf", '= "enforced"', '= "inherited"'),
        ("bundles.tf", "var.bundle_retention_days * 86400", "0"),
        ("database.tf", "ipv4_enabled    = false", "ipv4_enabled    = true"),
        ("network.tf", 'private = ["10.0.0.0/8", ', "private = ["),
    ):
        edit(root, f"modules/gateway/{file}", old, new)
    found = check(environ, "modules/gateway", root)
    assert found.code != 0
    for said in (
        "Nobody on the internet reaches the gateway",
        "The database has a private address only",
        "The bundles are nobody else's",
        "A bundle that was overwritten or deleted can be had back",
        "On the project: write metrics; no other role",
        "The database, the mailbox and all other private addresses are barred",
    ):
        assert said in found.text, said


# --- the example ----------------------------------------------------------------------------------


def values_of(found: Checked, kind: str, run: str = "fleet") -> list[Mapping[str, Any]]:
    return [one["values"] for one in found.resources(run) if one["type"] == kind]


def accounts(names: Iterable[str]) -> set[str]:
    return {f"agent-{name.replace('_', '-')}" for name in names}


def wanted(*more: str, names: Iterable[str] | None = None) -> list[str]:
    """Return the grants that there may be."""
    agents = [
        grants.AGENT.format(one) for one in accounts(agent_names() if names is None else names)
    ]
    return grants.listed(grants.ALWAYS, *agents, *more)


def test_there_is_no_grant_but_the_listed(harbour: Checked, grown: Checked) -> None:
    """Every grant, with and without options, and every permission of our own roles."""
    bare, full = harbour.resources("fleet"), grown.resources(OPTIONS)
    assert grants.granted(bare) == wanted()
    more = [grants.OPTIONS, grants.STREAM.format(name="tides", broker=grants.BROKER)]
    more += [grants.OWN.format(name=one, broker=grants.BROKER) for one in WATCHES]
    # (A list and no set: two resources for one grant would take it from each other.)
    assert grants.granted(full) == wanted(*more, names=[*agent_names(), *ADDED])
    for resources in (bare, full):
        assert grants.custom(resources) == grants.ROLES
        assert grants.unlisted(resources) == []
    held_by = {line.split()[3] for line in grants.granted(full)}
    assert held_by.isdisjoint(accounts([*agent_names(), *ADDED]))


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("google_project_iam_member", {"project": grants.PROJECT}),
        ("google_storage_bucket_iam_member", {"bucket": "harbour-lights-fleet-harbour-bundles"}),
        ("google_secret_manager_secret_iam_member", {"secret_id": "harbour-policy-key"}),
        ("google_bigquery_dataset_iam_member", {"dataset_id": "vedette_harbour_witness"}),
        ("google_pubsub_topic_iam_member", {"topic": "harbour-ticks"}),
    ],
)
def test_one_grant_more_is_seen(harbour: Checked, kind: str, place: Mapping[str, str]) -> None:
    resources = harbour.resources("fleet")
    (account,) = [
        one["values"] for one in resources
        if one["type"] == "google_service_account"
        and one["values"]["account_id"] == "agent-inbox-triage"
    ]  # fmt: skip
    for member in (f"serviceAccount:{account['email']}", account["member"], "user:a@b.example"):
        values = {**place, "role": "roles/x.y", "member": member}
        more = {"type": kind, "address": "added", "values": values}
        assert grants.granted([*resources, more]) != wanted()
    whole = {"type": "google_storage_bucket_iam_binding", "address": "added", "values": {}}
    assert grants.unlisted([*resources, whole]) == ["added"]


# --- the network ----------------------------------------------------------------------------------


def reaches(found: Checked, tags: Iterable[str], address: str, port: int) -> bool:
    """Tell whether the plan's firewall lets TCP out; without a rule Google's network does."""
    rules = values_of(found, "google_compute_firewall")
    for rule in sorted(rules, key=lambda rule: (rule["priority"], not rule["deny"])):
        ranges = [ip_network(one) for one in rule["destination_ranges"]]
        if (
            rule["direction"] != "EGRESS"
            or rule["disabled"]
            or not {*rule["target_tags"]} & {*tags}
            or not any(ip_address(address) in one for one in ranges)
        ):
            continue
        for one in rule["deny"] or rule["allow"]:
            ports = one["ports"] or [str(port)]
            if one["protocol"] in ("all", "tcp") and str(port) in ports:
                return bool(rule["allow"])
    return True


def test_an_agent_reaches_google_and_nothing_of_the_fleet(harbour: Checked) -> None:
    """Not the database, not the mailbox, not each other; the gateway reaches all of them."""
    pools = values_of(harbour, "google_cloud_run_v2_worker_pool")
    barred = (
        ("10.20.0.7", 8088), ("10.94.0.3", 5432), ("10.0.0.2", 2049), ("172.16.9.9", 5432),
        ("192.168.1.1", 22), ("100.64.0.1", 443), ("203.0.113.9", 5432), ("8.8.8.8", 53),
    )  # fmt: skip
    google = (("199.36.153.8", 443), ("216.239.36.53", 443))
    assert len(pools) == len(agent_names())
    for pool in pools:
        (access,) = pool["template"][0]["vpc_access"]
        (wire,) = access["network_interfaces"]
        assert access["egress"] == "ALL_TRAFFIC"
        for place in barred:
            assert not reaches(harbour, wire["tags"], *place), place
        for place in google:
            assert reaches(harbour, wire["tags"], *place), place
    (service,) = values_of(harbour, "google_cloud_run_v2_service")
    (wire,) = service["template"][0]["vpc_access"][0]["network_interfaces"]
    for place in barred:
        assert reaches(harbour, wire["tags"] or (), *place), place
    (network,) = values_of(harbour, "google_compute_network")
    rules = values_of(harbour, "google_compute_firewall")
    assert {rule["network"] for rule in rules} == {network["id"]}


def test_no_secret_is_planned(harbour: Checked) -> None:
    assert "database-url" in harbour.text
    for secret in SECRETS:
        assert secret not in harbour.text


def test_the_settings_are_good(harbour: Checked, grown: Checked, tmp_path: Path) -> None:
    """What Terraform writes for the gateway passes the check, with and without the options."""
    path = tmp_path / "vedette.toml"
    for found, run, more in ((harbour, "fleet", ()), (grown, OPTIONS, ADDED)):
        path.write_text(found.output(run, "settings"), "utf-8")
        settings = load_settings(path)
        assert settings.store.kind == "postgresql"
        assert settings.deployment.tokens.kind == "google"
        assert settings.deployment.gateway.agents == tuple(sorted([*agent_names(), *more]))
        assert (
            settings.deployment.policy.bundles
            == "gs://harbour-lights-fleet-harbour-bundles/bundles"
        )
        assert (settings.deployment.people.issuer is not None) == (run != "fleet")


def test_the_models_are_in_the_settings_and_their_keys_in_secret_manager(
    grown: Checked, tmp_path: Path
) -> None:
    path = tmp_path / "vedette.toml"
    path.write_text(grown.output(OPTIONS, "settings"), "utf-8")
    models = load_settings(path).models
    assert {name: plan.provider for name, plan in models.items()} == {
        "fast": "gemini",
        "deep": "vertex",
    }
    fast, deep = models["fast"], models["deep"]
    assert fast.key_secret == "projects/harbour-lights-fleet/secrets/gemini-key/versions/latest"
    assert (fast.model.calls_per_minute, fast.model.fallback) == (60, "deep")
    assert (deep.project, deep.location) == ("harbour-lights-fleet", "global")
    assert deep.model.timeout_us == duration_us("2m")


def test_models_that_the_gateway_would_refuse_are_not_planned(
    environ: Mapping[str, str], tmp_path: Path
) -> None:
    root = copy(tmp_path)
    (root / "infra/terraform" / HARBOUR / "tests/harbour.tftest.hcl").unlink()
    found = check(environ, HARBOUR, root)
    assert found.code == 0, found.text
    assert "Success! 3 passed, 0 failed" in found.text
    edit(root, f"{HARBOUR}/variables.tf", '(model.provider == "vertex") != ', "true || ")
    assert check(environ, HARBOUR, root).code != 0


def test_the_settings_name_what_is_made(harbour: Checked, tmp_path: Path) -> None:
    path = tmp_path / "vedette.toml"
    path.write_text(harbour.output("fleet", "settings"), "utf-8")
    settings = load_settings(path)
    pulled = [plan for plan in settings.sources if isinstance(plan, PubsubFile)]
    made = {one["name"]: one for one in values_of(harbour, "google_pubsub_subscription")}
    assert {plan.name for plan in pulled} == {"metrics", "ticks"}
    for plan in pulled:
        one = made[plan.subscription]
        assert f"{plan.dead_letter_topic}" in made
        assert plan.ordered == one["enable_message_ordering"]
        assert plan.exactly_once == one["enable_exactly_once_delivery"]
        assert duration_us(plan.ack_deadline) == one["ack_deadline_seconds"] * 1_000_000
        attempts = one["dead_letter_policy"][0]["max_delivery_attempts"]
        assert plan.max_delivery_attempts == attempts
    audit = settings.deployment.audit.dataset
    made_there = {one["dataset_id"] for one in values_of(harbour, "google_bigquery_dataset")}
    assert made_there == {audit, f"{audit}_witness"}
    made_accounts = {one["account_id"] for one in values_of(harbour, "google_service_account")}
    pattern = settings.deployment.tokens.service_account or ""
    tokens = GoogleTokens(
        "harbour",
        pattern,
        IamCredentials(MetadataServer()),
        audience="",
        check_agent=lambda agent, claims: None,
    )
    for agent in agent_names():
        assert tokens.account(agent).partition("@")[0] in made_accounts


def test_the_warehouse_is_the_engine_s(harbour: Checked) -> None:
    """Tables are clustered, views named as the engine would make them."""
    tables = {one["table_id"]: one for one in values_of(harbour, "google_bigquery_table")}
    assert set(tables) == {*CLUSTER_COLUMNS, *VIEWS}
    for table, columns in CLUSTER_COLUMNS.items():
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
        assert given["identity"].startswith("google:https://")
    (service,) = values_of(harbour, "google_cloud_run_v2_service")
    containers = {one["name"]: one for one in service["template"][0]["containers"]}
    config, path, verb, *arguments = containers["gateway"]["args"]
    assert (config, path, verb) == ("--config", "/run/vedette/settings/vedette.toml", "run")
    assert options(verb, arguments) == {"gateway": True}
    with pytest.raises(click.UsageError):
        options("worker", ["--no-such-thing"])


def test_the_router_knows_the_endpoints(harbour: Checked) -> None:
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
        f"{PATH_PREFIX}/": http,
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


TIDE_WATCH = """\
version: 1
name: tide_watch
title: Watches the tide
owner: operations@harbourlights.example
triggers:
  - on: [metric.point, tide.point]
    source: [pubsub:tide-watch]
tools: []
"""
ADDED = ("night_watch", "tide_watch")
WATCHES = ("night-watch", "tide-watch")
# No stream carries both types: such a plan is refused, where it was a warning once.
HALVED = """
run "halved" {
  command = plan

  variables {
    streams = {
      metrics = { types = ["metric.point"] }
      tides   = { types = ["tide.point"] }
    }
  }

  expect_failures = [output.agents]
}
"""


def test_an_agent_added_appears(grown: Checked) -> None:
    """A folder under agents/ is all it takes."""
    agents = grown.output(OPTIONS, "agents")
    assert set(agents) == {*agent_names(), *ADDED}
    pools = values_of(grown, "google_cloud_run_v2_worker_pool", OPTIONS)
    assert {f"harbour-{one}" for one in WATCHES} <= {pool["name"] for pool in pools}
    made = {one["account_id"] for one in values_of(grown, "google_service_account", OPTIONS)}
    assert accounts(ADDED) <= made
    jobs = grown.output(OPTIONS, "schedules")["jobs"]
    assert jobs["night_watch/daily"] == {"cron": "15 22 * * *", "zone": "Europe/London"}
    own = agents["night_watch"]["subscription"]
    assert own["dead_letter_topic"] == "harbour-own-night-watch-dead"
    settings = tomllib.loads(grown.output(OPTIONS, "settings"))
    assert {source["name"] for source in settings["sources"]} >= set(WATCHES)
    assert "night_watch" in settings["gateway"]["agents"]


def test_a_subscription_is_of_the_stream_that_carries_all_types(grown: Checked) -> None:
    """And a plan in which none does was refused: the run "halved" expects that."""
    topics = {one["id"]: one["name"] for one in values_of(grown, "google_pubsub_topic", OPTIONS)}
    agents = grown.output(OPTIONS, "agents")
    own = {name: topics[agents[name]["subscription"]["topic"]] for name in ADDED}
    assert own == {"night_watch": "harbour-metrics", "tide_watch": "harbour-tides"}
    assert '"halved"' in grown.text


# --- monitoring -----------------------------------------------------------------------------------


def test_monitoring_asks_for_metrics_that_exist(harbour: Checked) -> None:
    """Every metric in an alarm or on the dashboard stands in docs/telemetry.md."""
    text = (ROOT / "docs/telemetry.md").read_text("utf-8")
    known = set(re.findall(r"^\| `(vedette_[a-z0-9_]+)` \|", text, re.MULTILINE))
    metrics = set()
    for one in values_of(harbour, "google_monitoring_alert_policy"):
        for condition in one["conditions"]:
            for query in condition["condition_prometheus_query_language"]:
                metrics.update(re.findall(r"vedette_[a-z0-9_]+", query["query"]))
    for one in values_of(harbour, "google_monitoring_dashboard"):
        metrics.update(re.findall(r"vedette_[a-z0-9_]+", one["dashboard_json"].replace("\\", " ")))
    for one in values_of(harbour, "google_monitoring_slo"):
        metrics.update(re.findall(r"vedette_[a-z0-9_]+", str(one["request_based_sli"])))
    assert len(metrics) > 12
    assert {name.removesuffix("_bucket") for name in metrics} - known == set()


# --- the page -------------------------------------------------------------------------------------


def test_the_page_names_what_there_is() -> None:
    """APIs that a plan asks before it can enable any; and variables that the example has."""
    text = (ROOT / "docs/deploy.md").read_text("utf-8").partition("## Google Cloud")[2]
    enabled = set(re.findall(r"([a-z]+)\.googleapis\.com", text))
    # data.google_project and google_project_service are these two.
    assert {"cloudresourcemanager", "serviceusage"} <= enabled
    main = (ROOT / "infra/terraform" / HARBOUR / "main.tf").read_text("utf-8")
    made = set(re.findall(r'"([a-z]+)"', main.split("for_each = toset([")[1].split("])")[0]))
    assert enabled - {"serviceusage"} <= made
    known = "".join(
        (ROOT / "infra/terraform" / folder / "variables.tf").read_text("utf-8")
        for folder in (HARBOUR, "modules/gateway", "modules/agent")
    )
    named = re.findall(r"`([a-z_]+) = ", text)
    assert "availability_type" in named
    for name in named:
        assert f'variable "{name}"' in known, name
