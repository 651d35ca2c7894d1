"""`dataclass`, made quickly: as the standard one, without compiling what nobody calls.

The standard decorator compiles up to six methods for each class, a third to a full millisecond;
with some 150 classes that was a fifth of a start. Here it only collects the fields. Comparing,
hashing, printing and refusing changes are done by functions that are compiled once for all classes,
and `__init__` is compiled when a class is first made an instance of.

What it does not know (`order`, `kw_only`, `InitVar`) it refuses. To a type checker it is the
standard one, whose `field`, `fields`, `replace` and `asdict` go with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, slots=False, weakref_slot=False):
        """Make a dataclass of a class."""

        def made(cls):
            return _made(cls, frozen, eq, slots, weakref_slot)

        return made if cls is None else made(cls)


def _made(cls: type[Any], frozen: bool, eq: bool, slots: bool, weakref_slot: bool) -> type[Any]:
    # Without a text the standard decorator makes one of the signature, which takes as long again.
    cls.__doc__ = cls.__doc__ or cls.__name__
    collect = dataclasses.dataclass(
        init=False, repr=False, eq=False, slots=slots, weakref_slot=weakref_slot
    )
    cls = collect(cls)
    for field in dataclasses.fields(cls):
        if field.kw_only:
            raise TypeError(f"{cls.__qualname__}.{field.name}: kw_only is not known here")
    own = set(cls.__dict__)
    if "__eq__" in own and cls.__dict__.get("__hash__") is None:
        own.discard("__hash__")  # Python put None there, nobody wrote it
    methods: dict[str, Any] = {"__init__": _first(cls, frozen), "__repr__": _repr}
    if eq:
        methods["__eq__"] = _eq(_values(cls, lambda field: field.compare))
        hashed = _values(cls, lambda field: field.compare if field.hash is None else field.hash)
        methods["__hash__"] = _hash(hashed) if frozen else None
    if frozen:
        methods |= {"__setattr__": _set, "__delattr__": _delete}
        if slots:
            methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    return cls


# --- __init__ ---------------------------------------------------------------------------------


def _first(cls: type[Any], frozen: bool) -> Callable[..., None]:
    """Return an `__init__` that puts the real one in its place."""

    def __init__(self: Any, *given: Any, **named: Any) -> None:
        made = _init(cls, frozen)
        cls.__init__ = made
        made(self, *given, **named)

    return __init__


def _init(cls: type[Any], frozen: bool) -> Callable[..., None]:
    """Compile the `__init__` of a class."""
    known: dict[str, Any] = {"__name__": cls.__module__, "_missing": MISSING, "_any": _set_any}
    parameters, lines = ["self"], []
    for field in dataclasses.fields(cls):
        name = value = field.name
        if field.default_factory is not MISSING:
            known[f"_new_{name}"] = field.default_factory
            default, fallback = "_missing", f"_new_{name}()"
            value = f"{fallback} if {name} is _missing else {name}"
        else:
            known[f"_default_{name}"] = field.default
            default = fallback = f"_default_{name}"
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if field.init:
            parameters.append(f"{name}={default}" if has_default else name)
        elif has_default:
            value = fallback
        else:
            continue
        if not frozen:
            lines.append(f"self.{name} = {value}")
        elif isinstance(slot := getattr(cls, name, None), MemberDescriptorType):
            known[f"_set_{name}"] = slot.__set__
            lines.append(f"_set_{name}(self, {value})")
        else:
            lines.append(f"_any(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "\n    ".join(lines or ["pass"])
    exec(f"def __init__({', '.join(parameters)}):\n    {body}\n", known)  # noqa: S102 (our own text)
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


_set_any = object.__setattr__


# --- what all classes share -------------------------------------------------------------------


def _values(
    cls: type[Any], wanted: Callable[[dataclasses.Field[Any]], bool]
) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes the values of some fields of an instance."""
    names = [field.name for field in dataclasses.fields(cls) if wanted(field)]
    if len(names) > 1:
        return attrgetter(*names)
    if names:
        (name,) = names
        return lambda self: (getattr(self, name),)
    return lambda self: ()


def _eq(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        if other.__class__ is self.__class__:
            return values(self) == values(other)
        return NotImplemented

    return __eq__


def _hash(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


@recursive_repr()
def _repr(self: Any) -> str:
    told = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(told)})"


def _set(self: Any, name: str, value: object) -> None:
    _refuse(self, name, "assign to")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    _refuse(self, name, "delete")
    object.__delattr__(self, name)


def _refuse(self: Any, name: str, what: str) -> None:
    """Raise FrozenInstanceError, unless a class made of a frozen one has more than fields."""
    if "__dataclass_fields__" in type(self).__dict__ or name in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot {what} field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
