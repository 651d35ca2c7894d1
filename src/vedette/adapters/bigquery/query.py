"""One query of BigQuery: begun once, and waited for in turns. Synchronous.

A query may run for longer than one request may take. What asks again asks for the same job, by the
id that was chosen here, so a try that was not answered leaves no second job behind, to be paid for.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vedette.adapters.bigquery.clients import TIMEOUT_S

if TYPE_CHECKING:
    from google.cloud.bigquery import Client, QueryJob

# The service itself ends a job after so long, milliseconds: one that nobody waits for any more
# (its process was killed) must come to an end, too.
JOB_TIMEOUT_MS = 3_600_000

# The client's own retries would hold a thread for ten minutes; ours are the caller's.
_NO_RETRY: dict[str, Any] = {"retry": None, "timeout": TIMEOUT_S}

Parameter = tuple[str, str, Any]  # name, type, value


class QueryPendingError(Exception):
    """BigQuery has not finished the query yet; `rows` takes it up again."""


class Query:
    """A BigQuery query and its parameters, for one caller at a time.

    Only `request_cancel` is for any thread.
    """

    def __init__(
        self, text: str, parameters: Sequence[Parameter], *, location: str | None = None
    ) -> None:
        self.id = f"vedette-{uuid.uuid4()}"
        self.failed = False  # no job runs any more, and its rows were not got: ask anew
        self.cancel_requested = False
        self._text, self._parameters, self._location = text, parameters, location
        self._job: QueryJob | None = None

    def rows(self, client: Client, *, page_size: int | None = None) -> Iterator[Mapping[str, Any]]:
        """Wait for the query, some twenty seconds at most; yield its rows, fetched page by page.

        May be called again after any error until `failed`. Raises RunningError while it is not
        done, and what the client raises.
        """
        from google.api_core.exceptions import ClientError, NotFound

        try:
            if self._job is None:
                self._job = self._start_job(client)
            rows = self._job.result(page_size=page_size, job_retry=None, **_NO_RETRY)
        except TimeoutError as error:
            if self.cancel_requested:
                self.cancel_job()
            if error.__cause__ is not None:
                raise  # it is the request that was not answered
            raise QueryPendingError(f"the query {self.id} is not done yet") from error
        except ClientError as error:
            # 4xx: it was not begun, it is known no more, or it ended with this error.
            self.failed = self._job is None or isinstance(error, NotFound) or self._is_done()
            raise
        except Exception:
            self.failed = self._is_done()
            raise
        return (dict(row.items()) for row in rows)

    def request_cancel(self) -> None:
        """End the job, so that a thread that waits for it comes back; it may be at its beginning.

        For a thread, too: the service is asked.
        """
        self.cancel_requested = True
        self.cancel_job()

    def cancel_job(self) -> None:
        """Ask the service to end the job. An error is not told: it ends by itself, later."""
        if self._job is not None:
            with suppress(Exception):
                self._job.cancel(**_NO_RETRY)

    def _start_job(self, client: Client) -> QueryJob:
        from google.api_core.exceptions import Conflict
        from google.cloud.bigquery import QueryJobConfig, ScalarQueryParameter

        config = QueryJobConfig(
            query_parameters=[ScalarQueryParameter(*each) for each in self._parameters],
            job_timeout_ms=JOB_TIMEOUT_MS,
        )
        # Errors of a job come with `result`; the shorter way of query_and_wait hides some.
        try:
            return client.query(
                self._text, job_config=config, job_id=self.id, location=self._location,
                job_retry=None, **_NO_RETRY,
            )  # fmt: skip
        except Conflict:
            # An earlier try was taken, and only its answer was lost.
            found: Any = client.get_job(self.id, location=self._location, **_NO_RETRY)
            job: QueryJob = found
            return job

    def _is_done(self) -> bool:
        return self._job is not None and self._job.state == "DONE"
