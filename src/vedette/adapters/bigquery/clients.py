"""The clients of BigQuery, against the service or against an emulator.

BIGQUERY_EMULATOR_HOST (host:port of its REST side) and BIGQUERY_STORAGE_EMULATOR_HOST (host:port
of its gRPC side) name an emulator; then no credentials are looked for and nothing is encrypted.
Both clients are synchronous: call them in a thread, never on the event loop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vedette.domain.base.errors import BadFleet

if TYPE_CHECKING:
    from google.cloud.bigquery import Client
    from google.cloud.bigquery_storage_v1 import BigQueryWriteClient

REST_EMULATOR_HOST, GRPC_EMULATOR_HOST = "BIGQUERY_EMULATOR_HOST", "BIGQUERY_STORAGE_EMULATOR_HOST"

# Seconds that one request may take. The loop's end waits for the threads that are in one.
TIMEOUT_S = 20.0

# What a gRPC message may hold; an append is cut far below (tables.MOST_BYTES).
_CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

# Reasons that the service gives for a request that stays wrong.
_PERMANENT_REASONS = frozenset(
    {"invalidQuery", "invalid", "invalidParameter", "parseError", "required"}
)


def query_client(
    project: str, location: str | None = None, environ: Mapping[str, str] = os.environ
) -> Client:
    """Return BigQuery's client for queries and tables. Raises BadFleet without credentials."""
    from google.api_core.client_options import ClientOptions
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import bigquery

    given: dict[str, Any] = {"project": project, "location": location}
    if host := environ.get(REST_EMULATOR_HOST):
        endpoint = host if "://" in host else f"http://{host}"
        given["client_options"] = ClientOptions(api_endpoint=endpoint)
        given["credentials"] = AnonymousCredentials()  # type: ignore[no-untyped-call]
    try:
        return bigquery.Client(**given)
    except DefaultCredentialsError as error:
        raise _no_credentials() from error


def write_client(environ: Mapping[str, str] = os.environ) -> BigQueryWriteClient:
    """Return BigQuery's client of Storage Write. Raises BadFleet where it is not installed."""
    try:
        from google.cloud.bigquery_storage_v1 import BigQueryWriteClient
        from google.cloud.bigquery_storage_v1.services.big_query_write.transports import (
            BigQueryWriteGrpcTransport,
        )
    except ImportError as error:
        mend = "install vedette[google]"
        raise BadFleet("Storage Write is not installed", where="[audit]", mend=mend) from error
    from google.auth.exceptions import DefaultCredentialsError

    if host := environ.get(GRPC_EMULATOR_HOST):
        import grpc  # type: ignore[import-untyped]

        channel = grpc.insecure_channel(host, options=_CHANNEL_OPTIONS)
        transport = BigQueryWriteGrpcTransport(channel=channel)
        return BigQueryWriteClient(transport=transport)  # type: ignore[no-untyped-call]
    if environ.get(REST_EMULATOR_HOST):
        mend = f"set {GRPC_EMULATOR_HOST} to the host:port of the emulator's gRPC side, too"
        raise BadFleet(
            f"{REST_EMULATOR_HOST} names an emulator, {GRPC_EMULATOR_HOST} does not",
            where="[audit]",
            mend=mend,
        )
    try:
        return BigQueryWriteClient()  # type: ignore[no-untyped-call]
    except DefaultCredentialsError as error:
        raise _no_credentials() from error


def _no_credentials() -> BadFleet:
    mend = "give the process a service account (see docs/deploy.md)"
    return BadFleet("there are no Google Cloud credentials here", where="bigquery", mend=mend)


def is_transient(error: BaseException) -> bool:
    """Say whether BigQuery may take the same request later: all but what it calls wrong.

    A table that is not there and a right that is not given may come; a query that is not SQL, or
    names a column that is not there, stays wrong until somebody changes a file. The status alone
    does not tell: jobs that failed for the moment are answered with 400, too. Reasons:
    https://cloud.google.com/bigquery/docs/error-messages
    """
    from google.api_core import exceptions

    if not isinstance(error, exceptions.BadRequest):
        return True
    detail = error.errors[0] if error.errors else None
    return not (isinstance(detail, Mapping) and detail.get("reason") in _PERMANENT_REASONS)
