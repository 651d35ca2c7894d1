"""Fields of the files that people write, declared once, for the check and for the schema.

A file's model is a class of annotated fields. From the annotations come the check that `fit` runs
and the JSON Schema that editors use, so the two cannot drift apart. This does what the fleet's
files need and no more, because it is paid for at every start: importing a general library for it
costs a first start a third of its time (docs/decisions/0019-what-a-start-may-cost.md).

Understood are str, int, float, bool, Any, None, Literal, list, dict with text keys, models, unions
of one of these with None and of one with a list; each may stand in Annotated with BeforeValidator,
AfterValidator and Field, or with a Kind that checks it instead (models told apart by a field).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Literal, Self, Union

from msgspec import Struct

from vedette.config.kinds import (
    Checked,
    Either,
    Errors,
    Flag,
    Kind,
    ListOf,
    Loc,
    MapOf,
    Number,
    OneOf,
    Text,
    Whole,
    build_error,
)

_NOT_GIVEN: Any = object()


class AfterValidator(Struct, frozen=True):
    """Runs on a field's checked value; a ValueError says what is wrong, ` | ` and the mend."""

    run: Callable[[Any], Any]


class BeforeValidator(Struct, frozen=True):
    """Runs on a field's value as it was written."""

    run: Callable[[Any], Any]


class FieldInfo(Struct, frozen=True, eq=False):
    """What is known of one field of a file. `kind` checks it; without default it is required."""

    default: Any = _NOT_GIVEN
    default_factory: Callable[[], Any] | None = None
    description: str | None = None
    limits: Mapping[str, Any] | None = None
    kind: Kind | None = None

    @property
    def is_required(self) -> bool:
        """Say whether a file must give the field."""
        return self.default is _NOT_GIVEN and self.default_factory is None

    def fallback(self) -> Any:
        """Return what stands for a field that was not given."""
        return self.default if self.default_factory is None else self.default_factory()


def Field(
    *,
    default: Any = _NOT_GIVEN,
    default_factory: Callable[[], Any] | None = None,
    description: str | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    pattern: str | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
) -> Any:
    """Describe a field of a file: its default, what people are told of it, and its limits."""
    limits = {
        "ge": ge, "gt": gt, "le": le, "pattern": pattern,
        "min_length": min_length, "max_length": max_length,
    }  # fmt: skip
    given = {name: limit for name, limit in limits.items() if limit is not None}
    return FieldInfo(default, default_factory, description, given)


class Shape:
    """Base of all file models: no unknown keys, no silent conversions.

    A model with `strict = False` takes numbers and flags as text, too, as the environment gives
    them. Models are made by `check` and never change.
    """

    strict: ClassVar[bool] = True
    _fields: ClassVar[dict[str, FieldInfo] | None] = None

    model_fields_set: frozenset[str]

    def __init__(self, **values: Any) -> None:
        """Make a model of values that fit; what is not given has its default."""
        fields = self.fields()
        if unknown := values.keys() - fields:
            raise TypeError(f"{type(self).__name__} has no {min(unknown)!r}")
        for name, field in fields.items():
            self.__dict__[name] = values[name] if name in values else field.fallback()
        self.__dict__["model_fields_set"] = frozenset(values)

    def __init_subclass__(cls) -> None:
        cls._fields = None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is never changed")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]  # it may hold lists

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_dump()})"

    def replace(self, **values: Any) -> Self:
        """Return the model with other values, which fit."""
        given = {name: self.__dict__[name] for name in self.model_fields_set}
        return type(self)(**{**given, **values})

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        """Return the fields by name, in the order of their declaration."""
        if cls._fields is None:
            hints = typing.get_type_hints(cls, include_extras=True)
            del hints["strict"], hints["_fields"], hints["model_fields_set"]
            cls._fields = {
                name: _field(hint, getattr(cls, name, _NOT_GIVEN), cls.strict)
                for name, hint in hints.items()
            }
        return cls._fields

    @classmethod
    def check(cls, value: Any, loc: Loc = (), errors: Errors | None = None) -> Self | None:
        """Return `value` as a model, or None with what does not fit added to `errors`."""
        found = [] if errors is None else errors
        before = len(found)
        if not isinstance(value, Mapping):
            found.append(build_error("model_type", loc, value))
            return None
        fields = cls.fields()
        values: dict[str, Any] = {}
        for name, field in fields.items():
            at, known = (*loc, name), len(found)
            if name in value:
                assert field.kind is not None
                values[name] = field.kind.check(value[name], at, found)
            elif field.is_required:
                found.append(build_error("missing", at, value))
            for error in found[known:]:
                if error["loc"] == at:
                    error["description"] = field.description
        for name in value:
            if name not in fields:
                known_keys = {"known": list(fields)}
                found.append(build_error("extra_forbidden", (*loc, name), value[name], known_keys))
        return cls(**values) if len(found) == before else None

    def model_dump(
        self, *, exclude: Collection[str] = (), exclude_none: bool = False
    ) -> dict[str, Any]:
        """Return the fields as plain values, models within them too."""
        return {
            name: _dump_value(self.__dict__[name], exclude_none)
            for name in self.fields()
            if name not in exclude and not (exclude_none and self.__dict__[name] is None)
        }


def _dump_value(value: Any, exclude_none: bool) -> Any:
    if isinstance(value, Shape):
        return value.model_dump(exclude_none=exclude_none)
    if isinstance(value, list):
        return [_dump_value(item, exclude_none) for item in value]
    return value


# --- annotations ---------------------------------------------------------------------------------


class Table(Kind):
    """A mapping in a file that is a model of its own."""

    def __init__(self, shape: type[Shape]) -> None:
        self.shape = shape

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Check the mapping field by field."""
        return self.shape.check(value, loc, errors)

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Point to the model's own schema."""
        name = self.shape.__name__
        if name not in defs:
            defs[name] = {}
            defs[name].update(object_schema(self.shape, defs))
        return {"$ref": f"#/$defs/{name}"}


class Tagged(Kind):
    """One of several models of a file, told apart by the value of one field."""

    def __init__(self, field: str, tables: Mapping[str, Kind]) -> None:
        self.field, self.tables = field, tables

    def check(self, value: Any, loc: Loc, errors: Errors) -> Any:
        """Check the mapping as the model that its tag names."""
        if not isinstance(value, Mapping):
            errors.append(build_error("model_type", loc, value))
            return None
        tag = value.get(self.field)
        if isinstance(tag, str) and tag in self.tables:
            return self.tables[tag].check(value, loc, errors)
        if self.field not in value:
            errors.append(build_error("union_tag_not_found", loc, value))
        else:
            expected = ", ".join(repr(known) for known in self.tables)
            context = {"tag": tag, "expected": expected}
            errors.append(build_error("union_tag_invalid", loc, value, context))
        return None

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        """Offer the models."""
        return {"oneOf": [table.schema(defs) for table in self.tables.values()]}


def _field(hint: Any, declared: Any, strict: bool) -> FieldInfo:
    info = declared if isinstance(declared, FieldInfo) else FieldInfo(default=declared)
    kind = _kind(hint, strict)
    if info.limits:
        kind = Checked(kind, limits=info.limits)
    return FieldInfo(
        info.default,
        info.default_factory,
        info.description or _find_description(hint),
        info.limits,
        kind,
    )


def _find_description(hint: Any) -> str | None:
    """Return the description that a field's own type carries."""
    for part in (hint, *typing.get_args(hint)):
        for note in getattr(part, "__metadata__", ()):
            if isinstance(note, FieldInfo) and note.description:
                return note.description
    return None


_LENIENT: Mapping[Any, Callable[[bool], Kind]] = {int: Whole, float: Number, bool: Flag}


def _kind(hint: Any, strict: bool) -> Kind:
    """Return what checks a value of an annotation. Raises TypeError for one not understood."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in _LENIENT:
        return _LENIENT[hint](strict)
    if hint is str:
        return Text()
    if hint is Any:
        return Kind()
    if isinstance(hint, type) and issubclass(hint, Shape):
        return Table(hint)
    if origin is typing.Annotated:
        return _annotated_kind(args, strict)
    if origin is Literal:
        return OneOf(args)
    if origin is list:
        return ListOf(_kind(args[0], strict))
    if origin is dict and args[0] is str:
        return MapOf(_kind(args[1], strict))
    if origin in (Union, types.UnionType):
        kinds = [_kind(arg, strict) for arg in args if arg is not type(None)]
        return Either(kinds, len(kinds) < len(args))
    raise TypeError(f"no check for a field of type {hint!r}")


def _annotated_kind(args: tuple[Any, ...], strict: bool) -> Kind:
    notes = args[1:]
    infos = [note for note in notes if isinstance(note, FieldInfo)]
    limits: dict[str, Any] = {}
    for info in infos:
        limits |= info.limits or {}
    own = next((note for note in notes if isinstance(note, Kind)), None)
    return Checked(
        own or _kind(args[0], strict),
        before=[note.run for note in notes if isinstance(note, BeforeValidator)],
        after=[note.run for note in notes if isinstance(note, AfterValidator)],
        limits=limits,
    )


# --- the schema for editors ----------------------------------------------------------------------


def json_schema(shape: type[Shape]) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a model, with the models within it under `$defs`."""
    defs: dict[str, Any] = {}
    schema = object_schema(shape, defs)
    return {"$defs": defs, **schema} if defs else schema


def object_schema(shape: type[Shape], defs: dict[str, Any]) -> dict[str, Any]:
    """Return one model of a file as a JSON Schema; those within it are added to `defs`."""
    properties: dict[str, Any] = {}
    for name, field in shape.fields().items():
        assert field.kind is not None
        described = dict(field.kind.schema(defs))
        if field.description:
            described["description"] = field.description
        if not field.is_required:
            fallback = _dump_value(field.fallback(), False)
            if fallback is not None or field.default is None:
                described["default"] = fallback
        properties[name] = described
    schema = {
        "title": shape.__name__,
        "description": (shape.__doc__ or "").strip(),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    required = [name for name, field in shape.fields().items() if field.is_required]
    return {**schema, "required": required} if required else schema
