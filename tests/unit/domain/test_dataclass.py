"""A quick dataclass is as the standard one: every test runs on both and compares."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from types import ModuleType
from typing import Any

import pytest

from vedette.domain.base import dataclass

SHAPES = '''
from __future__ import annotations
from dataclasses import field
from typing import ClassVar

@dataclass(frozen=True, slots=True)
class Frozen:
    """With defaults of each kind."""
    a: int
    b: str = "b"
    c: tuple[int, ...] = ()
    d: dict[str, int] = field(default_factory=dict, repr=False)
    e: int = field(default=5, compare=False)
    f: ClassVar[int] = 7

@dataclass(slots=True)
class Open:
    """May be changed."""
    a: int
    b: list[int] = field(default_factory=list)
    c: str = field(init=False, compare=False, default="")

@dataclass(frozen=True, slots=True)
class One:
    """One value."""
    a: float

@dataclass(frozen=True, slots=True)
class Empty:
    """None."""

@dataclass(frozen=True, slots=True, eq=False)
class Itself:
    """Equal to nothing else."""
    a: int

@dataclass(slots=True, weakref_slot=True)
class Watched:
    """May be referred to weakly."""
    a: int

@dataclass(frozen=True)
class Wide:
    """Without slots."""
    a: int
    b: int = 2

@dataclass(frozen=True, slots=True)
class Under(Frozen):
    """More of the same."""
    g: int = 9

@dataclass(slots=True)
class After:
    """Does something afterwards."""
    a: int
    b: int = field(init=False)
    def __post_init__(self):
        self.b = self.a * 2

@dataclass(frozen=True, slots=True)
class Own:
    """Has methods of its own."""
    a: int
    def __eq__(self, other):
        return isinstance(other, Own)
    def __hash__(self):
        return 3
    def __repr__(self):
        return "own"

@dataclass(frozen=True, slots=True)
class OwnEq:
    """Compares by itself; hashed like any other."""
    a: int
    def __eq__(self, other):
        return isinstance(other, OwnEq) and self.a == other.a

class Loose(Wide):
    """A plain class made of a frozen one."""
'''
GIVEN: dict[str, list[tuple[Any, ...]]] = {
    "Frozen": [(1,), (1, "x", (2,), {"y": 1}, 6), (2,)],
    "Open": [(1,), (1, [2])],
    "One": [(1.5,), (2.5,)],  # no NaN: whether it equals itself depends on the version
    "Empty": [()],
    "Itself": [(1,)],
    "Watched": [(1,)],
    "Wide": [(1,), (1, 3)],
    "Under": [(1,), (1, "b", (), {}, 5, 10)],
    "After": [(3,)],
    "Own": [(1,)],
    "OwnEq": [(1,), (2,)],
    "Loose": [(1,)],
}
NAMES = sorted(GIVEN)


def _shapes(name: str, decorator: Callable[..., Any]) -> ModuleType:
    module = sys.modules[name] = ModuleType(name)
    vars(module)["dataclass"] = decorator
    exec(SHAPES, vars(module))
    return module


QUICK = _shapes("quick_shapes", dataclass.dataclass)
STANDARD = _shapes("standard_shapes", dataclasses.dataclass)


def both(told: Callable[[type[Any]], Any], name: str) -> Any:
    """Return what holds of a class made in both ways, which must be the same."""
    quick, standard = told(getattr(QUICK, name)), told(getattr(STANDARD, name))
    assert quick == standard
    return quick


def raised(work: Callable[[], object]) -> tuple[type[BaseException], str] | None:
    try:
        work()
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("name", NAMES)
def test_values_words_and_comparison(name: str) -> None:
    def told(cls: type[Any]) -> Any:
        made = [cls(*given) for given in GIVEN[name]]
        again = [cls(*given) for given in GIVEN[name]]
        return (
            [repr(each) for each in made],
            [[getattr(each, f.name) for f in dataclasses.fields(each)].__repr__() for each in made],
            [[one == other for other in again] for one in made],
            [one == one for one in made],
            [one != "another" for one in made],
            [cls.__match_args__, [f.name for f in dataclasses.fields(cls)]],
            "__dict__" in dir(made[0]),
        )

    both(told, name)


@pytest.mark.parametrize("name", NAMES)
def test_hashes(name: str) -> None:
    def told(cls: type[Any]) -> Any:
        made = [cls(*given) for given in GIVEN[name]]
        return [raised(lambda each=each: hash(each)) for each in made], [  # type: ignore[misc]
            hash(one) == hash(cls(*given))
            for one, given in zip(made, GIVEN[name], strict=True)
            if cls.__hash__ is not None
            and name not in ("Itself", "Watched")
            and raised(lambda one=one: hash(one)) is None  # type: ignore[misc]
        ]

    both(told, name)


@pytest.mark.parametrize("name", NAMES)
def test_changes_are_refused_where_they_were(name: str) -> None:
    def told(cls: type[Any]) -> Any:
        one = cls(*GIVEN[name][0])
        fields = [f.name for f in dataclasses.fields(cls)]
        return [
            [raised(lambda f=f: setattr(one, f, 8)) for f in fields],  # type: ignore[misc]
            [raised(lambda f=f: delattr(one, f)) for f in fields],  # type: ignore[misc]
            [getattr(one, f, None) for f in fields],
            # How is a matter of the version: one of Python's calls super() of another class.
            raised(lambda: setattr(one, "other", 8)) is None,
        ]

    found = both(told, name)
    if name in ("Frozen", "Wide", "Loose", "Under"):
        assert found[0][0] == (FrozenInstanceError, "cannot assign to field 'a'")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "Loose"])
def test_copies(name: str) -> None:
    def told(cls: type[Any]) -> Any:
        one = cls(*GIVEN[name][-1])
        same = [copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))]
        return [repr(each) for each in same], repr(dataclasses.asdict(one))

    both(told, name)


def test_replacing() -> None:
    def told(cls: type[Any]) -> Any:
        return repr(dataclasses.replace(cls(1), a=4, b="c"))

    assert both(told, "Frozen") == "Frozen(a=4, b='c', c=(), e=5)"


def test_each_instance_has_a_default_of_its_own() -> None:
    one, other = QUICK.Open(1), QUICK.Open(1)
    one.b.append(1)
    assert (one.b, other.b) == ([1], [])


@pytest.mark.parametrize("given", [(), (1, 2, 3, 4, 5, 6, 7)])
def test_wrong_arguments_are_refused(given: tuple[Any, ...]) -> None:
    for module in (QUICK, STANDARD):
        found = raised(lambda module=module: module.Frozen(*given))  # type: ignore[misc]
        assert found is not None
        assert found[0] is TypeError
        assert "Frozen.__init__()" in found[1]


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(TypeError, match="kw_only"):

        @dataclass.dataclass
        class Named:
            a: int = field(kw_only=True)

    decorator: Any = dataclass.dataclass
    with pytest.raises(TypeError, match="order"):
        decorator(order=True)


def test_init_is_compiled_when_it_is_first_called(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[type[Any]] = []
    init = dataclass._init

    def counted(cls: type[Any], frozen: bool) -> Callable[..., None]:
        compiled.append(cls)
        return init(cls, frozen)

    monkeypatch.setattr(dataclass, "_init", counted)
    shapes = _shapes("counted_shapes", dataclass.dataclass)
    assert compiled == []
    assert (shapes.One(1), shapes.One(2), shapes.One(2)) == (shapes.One(1), *[shapes.One(2)] * 2)
    assert compiled == [shapes.One]
