"""Row sources, `bigquery` and `sql`: what they have in common, whatever the database; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from vedette.domain.ports.plugin import TableProblem


def vouched_column_problems(
    vouched: Sequence[str], handed_over: Collection[str] | None
) -> Iterator[TableProblem]:
    """Yield what is wrong with the columns that `vouched` of a source `sql` or `bigquery` lists.

    `handed_over` are the columns that events have; None where those are all of the table's.
    """
    for index, column in enumerate(vouched):
        if handed_over is not None and column not in handed_over:
            what = f"{column!r} is no column that is handed over"
            yield ("vouched", index), what, "add it to columns"
        if column == "action":
            # In an undo this place of the data is the engine's word.
            what = "a column called 'action' cannot be vouched for"
            yield ("vouched", index), what, "hand it over under another name, through a view"
