"""A dataset of BigQuery with the tables of the ledger: made, written to, asked. Synchronous."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vedette.adapters.bigquery.clients import TIMEOUT_S, query_client, write_client
from vedette.adapters.bigquery.query import Query, RunningError
from vedette.adapters.bigquery.sql import dataset_name
from vedette.adapters.bigquery.tables import (
    CLUSTERED,
    KINDS,
    PARTITIONED,
    VIEWS,
    columns,
    view_text,
)

if TYPE_CHECKING:
    from google.cloud.bigquery import Client
    from google.cloud.bigquery_storage_v1 import BigQueryWriteClient

# The client's own retries would hold a thread for ten minutes; ours are in the shipper.
_ONCE: dict[str, Any] = {"retry": None, "timeout": TIMEOUT_S}


class RefusedError(Exception):
    """The service did not take an append as it was sent; where its stream stands is to be asked.

    `code` is that of gRPC: 6 already exists, 9 failed precondition, 11 out of range, …
    """

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what} (code {code})")
        self.code = code


class Warehouse:
    """One dataset. The clients are made when they are first needed."""

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
        self.withheld: list[str] = []
        self._project, self._short = project, dataset
        self._make_queries = queries or (lambda: query_client(project, location))
        self._make_writes = writes or write_client
        self._under_way: Query | None = None
        self._queries: Client | None = None
        self._writes: BigQueryWriteClient | None = None

    def place(self, table: str) -> str:
        """Return where a table is: project.dataset.table."""
        return f"{self.dataset}.{table}"

    # --- tables -----------------------------------------------------------------------------

    def prepare(self) -> set[str]:
        """Make the dataset, its tables and its views where they are missing, renew changed views.

        Returns the tables that were missing. Raises what the client raises; Forbidden where they
        may not be made. Views that may not be are left and named in `withheld`: where Terraform
        makes them, this process has no right to.
        """
        from google.api_core.exceptions import Forbidden, NotFound
        from google.cloud import bigquery

        client = self._asking()
        try:
            client.get_dataset(self.dataset, **_ONCE)
        except NotFound:
            client.create_dataset(self.dataset, exists_ok=True, **_ONCE)
        missing = set[str]()
        for table in KINDS:
            try:
                client.get_table(self.place(table), **_ONCE)
            except NotFound:
                fields = [bigquery.SchemaField.from_api_repr(column) for column in columns(table)]
                wanted = bigquery.Table(self.place(table), schema=fields)
                wanted.time_partitioning = bigquery.TimePartitioning(field=PARTITIONED)
                wanted.clustering_fields = list(CLUSTERED[table])
                client.create_table(wanted, exists_ok=True, **_ONCE)
                missing.add(table)
        for view in VIEWS:
            text = view_text(view, self.dataset)
            try:
                found = client.get_table(self.place(view), **_ONCE)
            except NotFound:
                found = None
            try:
                if found is None:
                    self._make_view(view, text)
                elif found.view_query is not None and found.view_query.strip() != text.strip():
                    self.ask(f"CREATE OR REPLACE VIEW `{self.place(view)}` AS\n{text}")
            except Forbidden:
                self.withheld.append(f"the view {self.place(view)} may not be made or renewed")
        return missing

    def _make_view(self, view: str, text: str) -> None:
        from google.cloud import bigquery

        wanted = bigquery.Table(self.place(view))
        wanted.view_query = text
        self._asking().create_table(wanted, exists_ok=True, **_ONCE)

    # --- streams ----------------------------------------------------------------------------

    def open_stream(self, table: str) -> str:
        """Return a new stream into a table; what is appended to it is seen at once."""
        from google.cloud.bigquery_storage_v1 import types

        parent = f"projects/{self._project}/datasets/{self._short}/tables/{table}"
        wanted = types.WriteStream(type_=types.WriteStream.Type.COMMITTED)
        stream = self._writing().create_write_stream(
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
        answers = self._writing().append_rows(
            iter([request]),
            retry=None,
            timeout=TIMEOUT_S,
            metadata=(("x-goog-request-params", f"write_stream={stream}"),),
        )
        told = False
        for answer in answers:
            told = True
            if answer.error.code:
                raise RefusedError(answer.error.code, answer.error.message)
            if answer.row_errors:
                raise RefusedError(3, answer.row_errors[0].message)
        if not told:
            raise RefusedError(13, "the append was not answered")

    def close_stream(self, stream: str) -> int | None:
        """Let nobody append to a stream any more; return how many rows it took.

        None if there is no such stream. Asked again it answers the same.
        """
        from google.api_core.exceptions import NotFound

        try:
            closed = self._writing().finalize_write_stream(
                name=stream, retry=None, timeout=TIMEOUT_S
            )
        except NotFound:
            return None
        return int(closed.row_count)

    # --- questions --------------------------------------------------------------------------

    def shipped(self, table: str, fleet: str, history: int) -> tuple[int, int, str]:
        """Return how many rows a table has of a fleet, and the last of one of its histories.

        That is told by seq and digest; (count, 0, "") where there is none.
        """
        ours = f"FROM `{self.place(table)}` WHERE fleet = @fleet"
        text = f"SELECT COUNT(*), IFNULL(MAX(IF(history = @history, seq, NULL)), 0) {ours}"
        count, last = next(self.ask(text, fleet=fleet, history=history)).values()
        if not last:
            return int(count), 0, ""
        text = f"SELECT digest {ours} AND history = @history AND seq = @last LIMIT 1"
        (digest,) = next(self.ask(text, fleet=fleet, history=history, last=last)).values()
        return int(count), int(last), str(digest)

    def ask(self, text: str, **values: str | int) -> Iterator[Mapping[str, Any]]:
        """Wait for a query as long as it runs; yield its rows. `values` are its parameters."""
        query = Query(
            text,
            [
                (name, "STRING" if isinstance(value, str) else "INT64", value)
                for name, value in values.items()
            ],
        )
        self._under_way = query
        try:
            while True:
                try:
                    return query.rows(self._asking())
                except RunningError:
                    if query.given_up:
                        raise
        finally:
            self._under_way = None

    def let_go(self) -> None:
        """End the query that another thread waits for, if any, so that it comes back."""
        if (query := self._under_way) is not None:
            query.give_up()

    def close(self) -> None:
        """Let go of the connections."""
        if self._queries is not None:
            self._queries.close()  # type: ignore[no-untyped-call]
        if self._writes is not None:
            self._writes.transport.close()  # type: ignore[no-untyped-call]

    def _asking(self) -> Client:
        if self._queries is None:
            self._queries = self._make_queries()
        return self._queries

    def _writing(self) -> BigQueryWriteClient:
        if self._writes is None:
            self._writes = self._make_writes()
        return self._writes
