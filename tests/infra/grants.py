"""Who may do what in the example's plan: the whole list, to be read by a person.

A grant that is in the plan and not here fails the test, and so does one that is here only. Accounts
and roles of the fleet's own stand under their ids: the stand-in makes their e-mails up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PROJECT = "harbour-lights-fleet"
BROKER = "serviceAccount:service-123@gcp-sa-pubsub.iam.gserviceaccount.com"
CRON = "serviceAccount:service-123@gcp-sa-cloudscheduler.iam.gserviceaccount.com"
_BUNDLES = f"{PROJECT}-harbour-bundles"
_LIVE = f"resource.name=='projects/_/buckets/{_BUNDLES}/objects/bundles/harbour.tar.gz'"

# What it is on, which one, the role, who; a condition, if there is one.
ALWAYS = f"""
project               {PROJECT}                roles/monitoring.metricWriter       harbour-gateway
project               {PROJECT}                roles/bigquery.jobUser              harbour-gateway
project               {PROJECT}                roles/bigquery.jobUser              harbour-witness
secret_manager_secret harbour-database-url     roles/secretmanager.secretAccessor  harbour-gateway
secret_manager_secret harbour-ledger-key       roles/secretmanager.secretAccessor  harbour-gateway
secret_manager_secret harbour-policy-key       roles/secretmanager.secretAccessor  harbour-gateway
secret_manager_secret harbour-settings         roles/secretmanager.secretAccessor  harbour-gateway
secret_manager_secret harbour-router           roles/secretmanager.secretAccessor  harbour-gateway
secret_manager_secret harbour-metrics          roles/secretmanager.secretAccessor  harbour-gateway
storage_bucket        {_BUNDLES}               roles/storage.objectViewer          harbour-gateway
storage_bucket        {_BUNDLES}               roles/storage.objectCreator         harbour-gateway
storage_bucket        {_BUNDLES}               vedette_harbour_replaces            harbour-gateway {_LIVE}
bigquery_dataset      vedette_harbour          vedette_harbour_ships               harbour-gateway
bigquery_dataset      vedette_harbour          roles/bigquery.dataViewer           harbour-witness
bigquery_dataset      vedette_harbour_witness  vedette_harbour_witnesses           harbour-witness
pubsub_subscription   harbour-metrics          roles/pubsub.subscriber             harbour-gateway
pubsub_subscription   harbour-metrics-dead     roles/pubsub.subscriber             harbour-gateway
pubsub_topic          harbour-metrics          roles/pubsub.publisher              harbour-gateway
pubsub_subscription   harbour-ticks            roles/pubsub.subscriber             harbour-gateway
pubsub_topic          harbour-ticks            roles/pubsub.publisher              {CRON}
pubsub_subscription   harbour-metrics          roles/pubsub.subscriber             {BROKER}
pubsub_topic          harbour-metrics-dead     roles/pubsub.publisher              {BROKER}
pubsub_subscription   harbour-ticks            roles/pubsub.subscriber             {BROKER}
pubsub_topic          harbour-ticks-dead       roles/pubsub.publisher              {BROKER}
"""  # noqa: E501
# One more for each agent, for the gateway and not for the agent.
AGENT = "service_account {} roles/iam.serviceAccountTokenCreator harbour-gateway"
# With the options of the run "with_people_and_a_mailbox".
OPTIONS = """
bigquery_dataset      vedette_harbour          roles/bigquery.dataViewer           group:compliance@harbourlights.example
bigquery_dataset      vedette_harbour_witness  roles/bigquery.dataViewer           group:compliance@harbourlights.example
project               harbour-lights-fleet     roles/aiplatform.user               harbour-gateway
secret_manager_secret gemini-key               roles/secretmanager.secretAccessor  harbour-gateway
secret_manager_secret oncall-token             roles/secretmanager.secretAccessor  harbour-gateway
pubsub_topic          harbour-metrics          roles/pubsub.publisher              serviceAccount:collector@harbour-lights.iam.gserviceaccount.com
"""  # noqa: E501
# For each stream more, and for each subscription of an agent's own.
STREAM = """
pubsub_subscription   harbour-{name}           roles/pubsub.subscriber             harbour-gateway
pubsub_subscription   harbour-{name}-dead      roles/pubsub.subscriber             harbour-gateway
pubsub_topic          harbour-{name}           roles/pubsub.publisher              harbour-gateway
pubsub_subscription   harbour-{name}           roles/pubsub.subscriber             {broker}
pubsub_topic          harbour-{name}-dead      roles/pubsub.publisher              {broker}
"""
OWN = """
pubsub_subscription   harbour-own-{name}       roles/pubsub.subscriber             harbour-gateway
pubsub_subscription   harbour-own-{name}-dead  roles/pubsub.subscriber             harbour-gateway
pubsub_subscription   harbour-own-{name}       roles/pubsub.subscriber             {broker}
pubsub_topic          harbour-own-{name}-dead  roles/pubsub.publisher              {broker}
"""
ROLES = {
    "vedette_harbour_replaces": ["storage.objects.delete"],
    "vedette_harbour_ships": [
        "bigquery.datasets.get", "bigquery.tables.get", "bigquery.tables.getData",
        "bigquery.tables.updateData",
    ],
    "vedette_harbour_witnesses": [
        "bigquery.datasets.get", "bigquery.tables.create", "bigquery.tables.updateData",
    ],
}  # fmt: skip
_NOT_THE_PLACE = {"id", "etag", "role", "member", "project", "condition"}


def listed(*texts: str) -> list[str]:
    """Return the grants of such texts, one blank between their words, sorted."""
    lines = "\n".join(texts).splitlines()
    return sorted(" ".join(line.split()) for line in lines if line.strip())


def granted(resources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return every grant of a plan as the lists above have it, sorted."""
    resources = list(resources)
    ids: dict[str, str] = {}
    for one in resources:
        values = one["values"]
        if one["type"] == "google_service_account":
            account = values["account_id"]
            ids |= {values["name"]: account, values["member"]: account}
            ids[f"serviceAccount:{values['email']}"] = account
        elif one["type"] == "google_project_iam_custom_role":
            ids[values["name"]] = values["role_id"]
    found = []
    for one in resources:
        if not one["type"].endswith("_iam_member"):
            continue
        values = one["values"]
        place = [
            ids.get(value, value) for key, value in sorted(values.items())
            if key not in _NOT_THE_PLACE and isinstance(value, str)
        ]  # fmt: skip
        project = values.get("project", PROJECT)
        words = [
            one["type"].removeprefix("google_").removesuffix("_iam_member"),
            *([project] if project != PROJECT or not place else []),
            *place,
            ids.get(values["role"], values["role"]),
            ids.get(values["member"], values["member"]),
            *("".join(one["expression"].split()) for one in values.get("condition") or ()),
        ]
        found.append(" ".join(words))
    return sorted(found)


def custom(resources: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the permissions of every role that the plan makes."""
    return {
        one["values"]["role_id"]: sorted(one["values"]["permissions"])
        for one in resources
        if one["type"].endswith("_iam_custom_role")
    }


def unlisted(resources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return what gives access by another way than one grant: policies, bindings, access lists."""
    found = []
    for one in resources:
        kind = one["type"]
        single = kind.endswith(("_iam_member", "_iam_custom_role"))
        whole = "_iam_" in kind or "_acl" in kind or "_access" in kind
        if (whole and not single) or one["values"].get("access"):
            found.append(one["address"])
    return found
