"""A dataset of BigQuery with the tables of the ledger: made, written to, asked. Synchronous."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vedette.adapters.bigquery.clients import TIMEOUT_S, query_client, write_client
from vedette.adapters.bigquery.query import Query, QueryPendingError
from vedette.adapters.bigquery.sql import dataset_name
from vedette.adapters.bigquery.tables import (
    CLUSTER_COLUMNS,
    KINDS,
    PARTITION_COLUMN,
    VIEWS,
    table_columns,
    view_query,
)

if TYPE_CHECKING:
    from google.cloud.bigquery import Client
    from google.cloud.bigquery_storage_v1 import BigQueryWriteClient

# The client's own retries would hold a thread for ten minutes; ours are in the shipper.
_NO_RETRY: dict[str, Any] = {"retry": None, "timeout": TIMEOUT_S}


class AppendError(Exception):
    """BigQuery did not take an append as it was sent; where its stream stands is to be asked.

    `code` is that of gRPC: 6 already exists, 9 failed precondition, 11 out of range, …
    """

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what} (code {code})")
        self.code = code


class Warehouse:
    """One BigQuery dataset, whose clients are made when they are first needed."""

    def __init__(
        self,
        project: str,
        dataset: str,
        *,
        location: str | None = None,
        queries: Callable[[], Client] | None = None,
        writes: Callable[[], BigQueryWriteClient] | None = None,
    ) -> None:
        """Raises BadFleet for a name that is none."""
        self.dataset = dataset_name(project, dataset)
        self.view_problems: list[str] = []
        self._project, self._dataset_id = project, dataset
        self._open_query_client = queries or (lambda: query_client(project, location))
        self._open_write_client = writes or write_client
        self._pending_query: Query | None = None
        self._query_client: Client | None = None
        self._write_client: BigQueryWriteClient | None = None

    def table_id(self, table: str) -> str:
        """Return where a table is: project.dataset.table."""
        return f"{self.dataset}.{table}"

    # --- tables -----------------------------------------------------------------------------

    def prepare(self) -> set[str]:
        """Make the dataset, its tables and its views where they are missing, renew changed views.

        Returns the tables that were missing. Raises what the client raises; Forbidden where they
        may not be made. Views that may not be are left and named in `view_problems`: where
        Terraform makes them, this process has no right to.
        """
        from google.api_core.exceptions import Forbidden, NotFound
        from google.cloud import bigquery

        client = self._get_query_client()
        try:
            client.get_dataset(self.dataset, **_NO_RETRY)
        except NotFound:
            client.create_dataset(self.dataset, exists_ok=True, **_NO_RETRY)
        missing = set[str]()
        for table in KINDS:
            try:
                client.get_table(self.table_id(table), **_NO_RETRY)
            except NotFound:
                fields = [
                    bigquery.SchemaField.from_api_repr(column) for column in table_columns(table)
                ]
                wanted = bigquery.Table(self.table_id(table), schema=fields)
                wanted.time_partitioning = bigquery.TimePartitioning(field=PARTITION_COLUMN)
                wanted.clustering_fields = list(CLUSTER_COLUMNS[table])
                client.create_table(wanted, exists_ok=True, **_NO_RETRY)
                missing.add(table)
        for view in VIEWS:
            text = view_query(view, self.dataset)
            try:
                found = client.get_table(self.table_id(view), **_NO_RETRY)
            except NotFound:
                found = None
            try:
                if found is None:
                    self._make_view(view, text)
                elif found.view_query is not None and found.view_query.strip() != text.strip():
                    self.run_query(f"CREATE OR REPLACE VIEW `{self.table_id(view)}` AS\n{text}")
            except Forbidden:
                self.view_problems.append(
                    f"the view {self.table_id(view)} may not be made or renewed"
                )
        return missing

    def _make_view(self, view: str, text: str) -> None:
        from google.cloud import bigquery

        wanted = bigquery.Table(self.table_id(view))
        wanted.view_query = text
        self._get_query_client().create_table(wanted, exists_ok=True, **_NO_RETRY)

    # --- streams ----------------------------------------------------------------------------

    def open_stream(self, table: str) -> str:
        """Return a new stream into a table; what is appended to it is seen at once."""
        from google.cloud.bigquery_storage_v1 import types

        parent = f"projects/{self._project}/datasets/{self._dataset_id}/tables/{table}"
        wanted = types.WriteStream(type_=types.WriteStream.Type.COMMITTED)
        stream = self._get_write_client().create_write_stream(
            parent=parent, write_stream=wanted, retry=None, timeout=TIMEOUT_S
        )
        return str(stream.name)

    def append(
        self, stream: str, offset: int | None, rows: Sequence[bytes], descriptor: Any
    ) -> None:
        """Append rows at an offset of a stream: all of them, or none.

        Raises RefusedError for what the service did not take, and what the client raises where it
        is not known whether it did.
        """
        from google.cloud.bigquery_storage_v1 import types

        request = types.AppendRowsRequest(
            write_stream=stream,
            offset=offset,
            proto_rows=types.AppendRowsRequest.ProtoData(
                writer_schema=types.ProtoSchema(proto_descriptor=descriptor),
                rows=types.ProtoRows(serialized_rows=rows),
            ),
        )
        # A stream of one request. Retries are the caller's: they have to ask first.
        answers = self._get_write_client().append_rows(
            iter([request]),
            retry=None,
            timeout=TIMEOUT_S,
            metadata=(("x-goog-request-params", f"write_stream={stream}"),),
        )
        is_answered = False
        for answer in answers:
            is_answered = True
            if answer.error.code:
                raise AppendError(answer.error.code, answer.error.message)
            if answer.row_errors:
                raise AppendError(3, answer.row_errors[0].message)
        if not is_answered:
            raise AppendError(13, "the append was not answered")

    def close_stream(self, stream: str) -> int | None:
        """Let nobody append to a stream any more; return how many rows it took.

        None if there is no such stream. Asked again it answers the same.
        """
        from google.api_core.exceptions import NotFound

        try:
            closed = self._get_write_client().finalize_write_stream(
                name=stream, retry=None, timeout=TIMEOUT_S
            )
        except NotFound:
            return None
        return int(closed.row_count)

    # --- questions --------------------------------------------------------------------------

    def read_progress(self, table: str, fleet: str, history: int) -> tuple[int, int, str]:
        """Return how many rows a table has of a fleet, and the last of one of its histories.

        That is told by seq and digest; (count, 0, "") where there is none.
        """
        ours = f"FROM `{self.table_id(table)}` WHERE fleet = @fleet"
        text = f"SELECT COUNT(*), IFNULL(MAX(IF(history = @history, seq, NULL)), 0) {ours}"
        count, last = next(self.run_query(text, fleet=fleet, history=history)).values()
        if not last:
            return int(count), 0, ""
        text = f"SELECT digest {ours} AND history = @history AND seq = @last LIMIT 1"
        (digest,) = next(self.run_query(text, fleet=fleet, history=history, last=last)).values()
        return int(count), int(last), str(digest)

    def run_query(self, text: str, **values: str | int) -> Iterator[Mapping[str, Any]]:
        """Wait for a query as long as it runs; yield its rows. `values` are its parameters."""
        query = Query(
            text,
            [
                (name, "STRING" if isinstance(value, str) else "INT64", value)
                for name, value in values.items()
            ],
        )
        self._pending_query = query
        try:
            while True:
                try:
                    return query.rows(self._get_query_client())
                except QueryPendingError:
                    if query.cancel_requested:
                        raise
        finally:
            self._pending_query = None

    def cancel_query(self) -> None:
        """End the query that another thread waits for, if any, so that it comes back."""
        if (query := self._pending_query) is not None:
            query.request_cancel()

    def close(self) -> None:
        """Let go of the connections."""
        if self._query_client is not None:
            self._query_client.close()  # type: ignore[no-untyped-call]
        if self._write_client is not None:
            self._write_client.transport.close()  # type: ignore[no-untyped-call]

    def _get_query_client(self) -> Client:
        if self._query_client is None:
            self._query_client = self._open_query_client()
        return self._query_client

    def _get_write_client(self) -> BigQueryWriteClient:
        if self._write_client is None:
            self._write_client = self._open_write_client()
        return self._write_client
