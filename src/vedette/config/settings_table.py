"""Tables of vedette.toml: what they are declared with."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from vedette.config.field import AfterValidator, BeforeValidator, Shape
from vedette.domain.base.clock import duration_us

NAME = r"^[a-z][a-z0-9_-]{0,62}$"


def reject_bool(value: Any) -> Any:
    """Refuse true and false where a table of vedette.toml takes a number."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, found {str(value).lower()}")
    return value


def check_duration(text: str) -> str:
    """Return a duration that a table of vedette.toml has as text. Raises ValueError."""
    try:
        length = duration_us(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a duration | write for example 500ms or 30s") from error
    if length <= 0:
        raise ValueError(f"{text!r} is no time at all | write for example 500ms or 30s")
    return text


def check_address(text: str) -> str:
    """Return an address that a table of vedette.toml has as text. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if text and not (host and port.isdigit() and int(port) < 65536):
        raise ValueError(f"{text!r} is no address | write host:port, for example 127.0.0.1:8088")
    return text


Whole = Annotated[int, BeforeValidator(reject_bool)]
Number = Annotated[float, BeforeValidator(reject_bool)]
Duration = Annotated[str, AfterValidator(check_duration)]


class SettingsTable(Shape):
    """Base of all tables of vedette.toml. Not strict, since the environment knows only text."""

    strict: ClassVar[bool] = False


Address = Annotated[str, AfterValidator(check_address)]
