"""Errors that agents' code raised in a worker, raised again in the engine by name and words."""

from __future__ import annotations

from functools import lru_cache

from vedette.adapters.reasoners.workers.frames import BadFrame
from vedette.adapters.reasoners.workers.plain_data import read_plain
from vedette.domain.base.errors import Temporary


class Raised(Exception):
    """An error of agents' code in a worker. Subclasses bear the name that it had there.

    Whatever it was there (SystemExit, a cancellation), here it is an error and nothing else.
    """


def read_error(plain: bytes) -> tuple[Exception, str]:
    """Return the error that a worker reported, and of which kind it is. Raises BadFrame."""
    values = read_plain(plain)
    if (
        not isinstance(values, list)
        or len(values) != 3
        or not all(isinstance(t, str) for t in values)
    ):
        raise BadFrame("no error where one belongs")
    name, words, kind = values
    if kind == "temporary":
        return Temporary(words), kind
    return _error_class(name if name.isidentifier() and len(name) < 80 else "Raised")(words), kind


@lru_cache(maxsize=256)
def _error_class(name: str) -> type[Exception]:
    return type(name, (Raised,), {})
