"""Origins: where the value of an argument comes from, decided by the engine and never by a judge.

A Proposal names a value by reference (a pointer that the engine resolves itself) or gives it
bare. By reference the origin is that of the pointer's root; bare it is `derived`, or
`registered` if it equals an entry of the charter or the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from msgspec import Struct, field

from vedette.domain.base.canonical import normalize_json, normalize_numbers
from vedette.domain.base.dataclass_fields import DataclassFields
from vedette.domain.base.errors import BadProposal
from vedette.domain.readers import PUBLIC, Labels, Readers, meet_labels

Origin = Literal["trusted", "registered", "derived", "untrusted"]

# Best first. A list or an object has the worst of its elements' origins.
RANK: Mapping[Origin, int] = {"trusted": 0, "registered": 1, "derived": 2, "untrusted": 3}

# An argument of more values than this, or nested deeper, is labelled as a whole only.
MAX_VALUES = 256
MAX_DEPTH = 8

# What the arguments of one proposal may come to, with all that their references stand for: one
# that is named a thousand times is there a thousand times.
MAX_REFERENCED_VALUES = 10_000  # values
MAX_REFERENCED_CHARS = 4_000_000

# A shorter number is in any charter by chance: a limit, a port, a year.
MIN_KNOWN_NUMBER = 100_000

KnownValues = frozenset[str | int]


class Ref(Struct, frozen=True):
    """A reference to a value by where it is: `/event/data/from`, `/outcome/1/id`."""

    __dataclass_fields__ = DataclassFields()

    pointer: str


# How models and clients write a reference: this, then a JSON Pointer without its first slash.
REF = "ref:/"


def read_reference(text: str) -> str | Ref:
    """Return the reference that a text of a model or a client is; else the text."""
    return Ref(text[len(REF) - 1 :]) if text.startswith(REF) else text


class Roots(Struct, frozen=True):
    """The roots that references of one run may point into, with what is known of their origin.

    `vouched` names envelope attributes that the source authenticated; `data` is among them only
    for a tick, whose data the engine made of the agent's own schedule. Of an undo, which the engine
    made of the record, it names the places in the data that were trusted there (`data/args/to`).
    `trusted_memories` are the ids of memories that people reviewed as files: their
    label is trusted, never the text. `trusted_outcomes` are the
    numbers of outcomes whose tool is declared to answer trusted data. `known` is what
    `known_values` says, where the caller knows it already. `labels` says who may read what stands
    at which root; None where nothing of the run is secret. `session` are the events that joined
    the run, each with what its source vouches for.
    """

    event: Mapping[str, Any]
    vouched: frozenset[str]
    charter: Mapping[str, Any]
    registry: Mapping[str, Any]
    memory: Mapping[str, Mapping[str, Any]]
    trusted_memories: frozenset[str]
    outcome: Mapping[str, Any]
    trusted_outcomes: frozenset[str]
    row: Mapping[str, Any]
    known: KnownValues | None = None
    labels: Labels | None = None
    session: Sequence[Mapping[str, Any]] = ()
    session_vouched: Sequence[frozenset[str]] = ()


def split_pointer(pointer: str) -> tuple[str, ...]:
    """Split a JSON Pointer (RFC 6901). Raises BadProposal if it is not one."""
    return _split_known(pointer) if len(pointer) <= _KEPT_CHARS else _split(pointer)


def _split(pointer: str) -> tuple[str, ...]:
    if not pointer.startswith("/"):
        raise BadProposal(f"{pointer!r} is not a JSON Pointer", mend="begin it with '/'")
    parts = pointer[1:].split("/")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


# Agents point at few places, over and over: the last thousand that are short are kept.
_KEPT_CHARS = 512
_split_known = lru_cache(1024)(_split)


class Reference(Struct, frozen=True):
    """A pointer of a `Ref` as it was read: its root, and the path below it.

    `place` is that path as what is vouched for names it.
    """

    root: str
    path: tuple[str, ...]
    place: str


def parse_reference(pointer: str) -> Reference:
    """Return what a pointer names. Raises BadProposal for one that names no value of a root."""
    return _parse_known(pointer) if len(pointer) <= _KEPT_CHARS else _parse(pointer)


def _parse(pointer: str) -> Reference:
    root, *path = split_pointer(pointer)
    if not path:
        raise BadProposal(f"reference {pointer!r} names a whole root", mend="point into it")
    if root not in ("event", "charter", "registry", "memory", "outcome", "row", "session"):
        raise BadProposal(
            f"reference {pointer!r} has no root {root!r}",
            mend="use /event, /charter, /registry, /memory, /outcome, /session or /row",
        )
    # Escaped, or a key with a slash in it would pass for a place below another.
    return Reference(root, tuple(path), "/".join(map(escape_pointer, path)))


_parse_known = lru_cache(1024)(_parse)


def resolve(ref: Ref, roots: Roots) -> tuple[Any, Origin]:
    """Return the value that a reference names and the origin of its root.

    Raises BadProposal if the pointer leads nowhere: a lost reference is never an empty value.
    """
    reference = parse_reference(ref.pointer)
    value = getattr(roots, reference.root)
    for token in reference.path:
        # Nearly all are plain: the other check asks an abstract class.
        if type(value) is dict and token in value:
            value = value[token]
        else:
            value = _resolve_token(value, token, reference.path)
    return value, _root_origin(reference, roots)


def resolve_path(value: Any, path: Sequence[str]) -> Any:
    """Return what stands at a reference's path below `value`, or raise BadProposal."""
    for token in path:
        value = _resolve_token(value, token, path)
    return value


def _resolve_token(value: Any, token: str, path: Sequence[str]) -> Any:
    if isinstance(value, Mapping) and token in value:
        return value[token]
    listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    # Python takes more for a number than RFC 6901 does, and a long one for an error of its own.
    if listed and token.isascii() and token.isdecimal() and len(token) < 10:
        index = int(token)
        if index < len(value):
            return value[index]
    raise BadProposal(f"reference …/{'/'.join(path)} leads nowhere at {token!r}")


def _root_origin(reference: Reference, roots: Roots) -> Origin:
    root, path = reference.root, reference.path
    if root == "event":
        vouched = roots.vouched
        return "trusted" if path[0] in vouched or reference.place in vouched else "untrusted"
    if root in ("charter", "registry"):
        return "trusted"
    if root == "session":
        vouched, place = roots.session_vouched[int(path[0])], reference.place.partition("/")[2]
        return "trusted" if vouched & {place, *path[1:2]} else "untrusted"
    if root == "memory":
        # Whoever reviewed it vouches for the label; the text may quote anybody.
        reviewed = path[0] in roots.trusted_memories and path[1:] == ("label",)
        return "trusted" if reviewed else "untrusted"
    if root == "outcome":
        return "trusted" if path[0] in roots.trusted_outcomes else "untrusted"
    # The fleet's own rows hold what runs wrote there: known to us, chosen from what they read.
    return "derived"


def known_values(roots: Roots) -> KnownValues:
    """Return the values of charter and registry: every text, every number of six digits or more."""
    if roots.known is not None:
        return roots.known
    return collect_known_values(roots.charter, roots.registry)


def collect_known_values(*values: Any) -> KnownValues:
    """Return what origins know of JSON values: texts not empty, numbers of six digits or more."""
    return frozenset(item for value in values for item in _leaves(value) if _may_be_known(item))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _may_be_known(value: Any) -> bool:
    if isinstance(value, str):
        return value != ""  # an empty entry makes nothing known
    # Exactly an int: True is one too, and equals 1.
    return type(value) is int and abs(value) >= MIN_KNOWN_NUMBER


def bare_origin(value: Any, known: KnownValues) -> Origin:
    """Return the origin of a value given bare: registered if it is known.

    A list or an object has the worst of its elements, an object of its keys too; without any it
    is derived.
    """
    if isinstance(value, str):
        return "registered" if value in known else "derived"
    if isinstance(value, Mapping):
        return worst_origin([*(bare_origin(k, known) for k in value),
                      *(bare_origin(v, known) for v in value.values())])  # fmt: skip
    if isinstance(value, list | tuple):
        return worst_origin([bare_origin(item, known) for item in value])
    return "registered" if _may_be_known(value) and value in known else "derived"


def worst_origin(origins: Sequence[Origin]) -> Origin:
    """Return the worst of some origins; of none `derived`, as nothing was drawn from anywhere."""
    return max(origins, key=RANK.__getitem__, default="derived")


def escape_pointer(name: str) -> str:
    """Return a name as it stands in a JSON Pointer of a reference."""
    return name.replace("~", "~0").replace("/", "~1")


class ReferenceSize(Struct):
    """How many values and characters references have drawn into the arguments of one proposal."""

    values: int = 0
    characters: int = 0

    def add(self, value: Any) -> None:
        """Count what one reference stands for. Raises BadProposal beyond what may be."""
        waiting = [value]
        while waiting:
            found = waiting.pop()
            self.values += 1
            if isinstance(found, str):
                self.characters += len(found)
            elif isinstance(found, list | tuple):
                waiting += found
            elif isinstance(found, Mapping):
                self.characters += sum(len(str(name)) for name in found)
                waiting += found.values()
            if self.values > MAX_REFERENCED_VALUES or self.characters > MAX_REFERENCED_CHARS:
                raise BadProposal(
                    f"its references stand for more than {MAX_REFERENCED_VALUES:,} values or "
                    f"{MAX_REFERENCED_CHARS:,} characters",
                    mend="name each value once",
                )


class ArgumentResolver(Struct):
    """What the arguments of one proposal were drawn from, by JSON Pointer into them.

    `origins` are those of every value, `sources` the references that drew some (both without those
    of elements of an argument that is labelled as a whole), `drawn` the places of all references,
    `readers` who may read an argument as a whole, where not everybody may. `known` is asked for
    once, and only if something is given bare. `size` counts what was drawn. With `keeps_numbers` a
    bare fraction stays a number, and is else its decimal text; drawn by reference it is that text
    either way, as the record of what it is drawn from has it.
    """

    roots: Roots
    keeps_numbers: bool = False
    origins: dict[str, Origin] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    drawn: set[str] = field(default_factory=set)
    readers: dict[str, frozenset[str]] = field(default_factory=dict)
    size: ReferenceSize = field(default_factory=ReferenceSize)
    _known: KnownValues | None = None

    def resolve(self, pointer: str, given: Any) -> Any:
        """Return the value of the argument at a pointer, each `Ref` in it resolved, and note its
        origins.

        Raises BadProposal for a reference that leads nowhere, a value that is no JSON, and for
        more values or characters than the arguments of one proposal may have.
        """
        if isinstance(given, str):
            known = self.known_values() if self._known is None else self._known
            self.origins[pointer] = "registered" if given in known else "derived"
            value, readers = given, self._run_readers()
        elif isinstance(given, Ref):
            value, readers = self._resolve_reference(given, pointer)
        elif isinstance(given, Mapping | list | tuple):
            value, readers = self._resolve_composite(given, pointer)
        else:
            value = self._normalize_bare(given)
            self.origins[pointer] = self._bare_origin(value)
            readers = self._run_readers()
        if readers is not None:
            self.readers[pointer] = readers
        return value

    def known_values(self) -> KnownValues:
        """Return what charter and registry make known."""
        if self._known is None:
            self._known = known_values(self.roots)
        return self._known

    def _normalize_bare(self, given: Any) -> Any:
        return _normalize(given, normalize_numbers if self.keeps_numbers else normalize_json)

    def _bare_origin(self, value: Any) -> Origin:
        return bare_origin(value, self.known_values())

    def _run_readers(self) -> Readers:
        labels = self.roots.labels
        return PUBLIC if labels is None else labels.run

    def _resolve_reference(self, ref: Ref, pointer: str) -> tuple[Any, Readers]:
        found, origin = resolve(ref, self.roots)
        self.size.add(found)
        value = found if type(found) is str else _normalize(found)
        self.sources[pointer] = ref.pointer
        self.drawn.add(pointer)
        self.origins[pointer] = origin
        if isinstance(value, dict | list):
            # One root for all of it: the elements are named as far as they are few.
            listed = dict.fromkeys(_element_pointers(value, pointer), origin)
            if len(listed) <= MAX_VALUES:
                self.origins |= listed
        labels = self.roots.labels
        return value, PUBLIC if labels is None else labels.readers_at(split_pointer(ref.pointer))

    def _resolve_composite(self, given: Any, pointer: str) -> tuple[Any, Readers]:
        inner = ArgumentResolver(
            self.roots, self.keeps_numbers, drawn=self.drawn, size=self.size, _known=self._known
        )
        readers: list[Readers] = [self._run_readers()]
        value = inner._resolve_element(given, pointer, readers, 0)
        self._known = inner._known
        if len(inner.origins) > MAX_VALUES + 1 or _depth(value) > MAX_DEPTH:
            # What is not looked at one by one is no better than chosen by the agent.
            self.origins[pointer] = worst_origin([inner.origins[pointer], "derived"])
        else:
            self.origins |= inner.origins
            self.sources |= inner.sources
        return value, meet_labels(*readers)

    def _resolve_element(self, given: Any, pointer: str, readers: list[Readers], depth: int) -> Any:
        if isinstance(given, Ref):
            value, own = self._resolve_reference(given, pointer)
            readers.append(own)
            return value
        if depth > _MAX_NESTING:
            raise BadProposal(f"the value at {pointer} is nested deeper than {_MAX_NESTING}")
        if isinstance(given, Mapping):
            value = {
                str(name): self._resolve_element(
                    item, f"{pointer}/{escape_pointer(str(name))}", readers, depth + 1
                )
                for name, item in given.items()
            }
            if len(value) < len(given):
                raise BadProposal(f"the object at {pointer} names a member twice")
        elif isinstance(given, list | tuple):
            value = [
                self._resolve_element(item, f"{pointer}/{index}", readers, depth + 1)
                for index, item in enumerate(given)
            ]
        else:
            value = given if type(given) is str else self._normalize_bare(given)
            self.origins[pointer] = self._bare_origin(value)
            return value
        self.origins[pointer] = composite_origin(value, pointer, self.origins, self._bare_origin)
        return value


_MAX_NESTING = 64


def composite_origin(
    value: Any, pointer: str, origins: Mapping[str, Origin], bare: Callable[[Any], Origin]
) -> Origin:
    """Return the origin of a list or an object whose elements' origins are known.

    The keys of an object are values that whoever composed it chose.
    """
    if isinstance(value, Mapping):
        keys = [bare(name) for name in value]
        return worst_origin(
            [*keys, *(origins[f"{pointer}/{escape_pointer(name)}"] for name in value)]
        )
    return worst_origin([origins[f"{pointer}/{index}"] for index in range(len(value))])


def _element_pointers(value: Any, pointer: str) -> Iterator[str]:
    """Yield the pointer of every element below a value, as far down as elements are labelled."""
    waiting = [(value, pointer, 0)]
    while waiting:
        found, at, depth = waiting.pop()
        if depth == MAX_DEPTH or not isinstance(found, dict | list):
            continue
        named = found.items() if isinstance(found, dict) else enumerate(found)
        for name, item in named:
            below = f"{at}/{escape_pointer(str(name))}"
            yield below
            waiting.append((item, below, depth + 1))


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _normalize(value: Any, normalize: Callable[[Any], Any] = normalize_json) -> Any:
    try:
        return normalize(value)
    except ValueError as error:
        raise BadProposal(f"a value has no canonical form: {error}") from error
