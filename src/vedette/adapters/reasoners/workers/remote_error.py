"""Errors of a worker, raised again in the engine.

What agents' code raised comes by name and words. What the engine's own code raised in a worker
comes as what it is: its class, its code and all its fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from msgspec import Struct, ValidationError, convert

from vedette.adapters.reasoners.workers.frames import BadFrame
from vedette.adapters.reasoners.workers.plain_data import pack_plain, read_plain
from vedette.domain.base.errors import Permanent, StoreFailed, Temporary, VedetteError

_MAX_CHARS = 4096


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


# --- errors of the engine's own code ----------------------------------------------------------


class _ErrorFields(Struct, array_like=True, forbid_unknown_fields=True):
    classes: list[str]
    what: str
    where: str | None
    mend: str | None
    others: dict[str, Any]


def pack_own_error(error: VedetteError) -> bytes:
    """Return an error of the engine's own code in a worker as plain data, with all its fields.

    Fields that are no plain data stay behind.
    """
    others = {name: value for name, value in vars(error).items() if name not in _NAMED}
    classes = [one.__name__ for one in type(error).__mro__ if issubclass(one, VedetteError)]
    fields = [classes, error.what[:_MAX_CHARS], error.where, error.mend]
    try:
        return pack_plain([*fields, others])
    except TypeError:
        return pack_plain([*fields, {}])


def read_own_error(plain: bytes) -> VedetteError:
    """Return the error that `pack_own_error` wrote. Raises BadFrame.

    It is of the first of its classes that is known here, be it temporary or permanent. That a
    store refused something, or that a run was moved on, no worker has to say.
    """
    try:
        found = convert(read_plain(plain), _ErrorFields)
    except (ValidationError, UnicodeEncodeError) as failure:
        raise BadFrame(f"no error: {failure}") from failure
    known = {one.__name__: one for base in (Permanent, Temporary) for one in _walk_classes(base)}
    kind = next((known[name] for name in found.classes if name in known), Permanent)
    # Each class has a construction of its own; all of it is in the fields.
    error = kind.__new__(kind)
    VedetteError.__init__(error, found.what, where=found.where, mend=found.mend)
    vars(error).update(found.others)
    return error


_NAMED = frozenset({"what", "where", "mend"})


def _walk_classes(base: type[VedetteError]) -> Iterator[type[VedetteError]]:
    if not issubclass(base, StoreFailed):
        yield base
        for one in base.__subclasses__():
            yield from _walk_classes(one)
