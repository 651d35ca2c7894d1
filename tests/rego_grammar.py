"""Modules of Rego made at random: of the forms that are admitted and, now and then, of others.

One module is a package `vedette.policy.gateway` whose rule `decision` stands on two to six helpers.
What a module holds is known while it is made (which names are bound, which were asked for their
type), so that most are admitted; `SLIP` is how often one forgets to ask, and is refused or, where
nothing hangs on it, equal. Seeded: the same seed makes the same modules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")

DATA: dict[str, Any] = {
    "probe": {
        "o": {"a": 1, "b": {"c": False}, "n": None, "t": "a/b"},
        "l": ["a", "b", "1"],
        "nums": [1, 2, 3],
        "no": {},
        "none": [],
        "f": False,
        "z": 0,
        "m": {"a": ["a", "1"], "b": [], "k": ["b", 2]},
        "g": {"a": {"only": {"k": ["a"]}, "n": 2}, "b": {}, "k": {"n": "2"}},
        "d": {"a": 1, "1": "b"},
    }
}
SLIP = 0.02
ENTRY = "decision"

_SCALARS: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, -1, -7, 9007199254740991, "", "a", "b", "1", "0", "a/b", "/a",
    "é", "\U0001f6a2", "a~1b", "<undefined>", "true", "z" * 40,
)  # fmt: skip
_LITERALS = ('"a"', '"b"', '"1"', '""', "0", "1", "2", "3", "true", "false", "null")
_PATHS = (
    "input.x", "input.x", "input.x", "input.y", "input.y", "input.z", "input.x.a", "input.x.k",
    "input.x.a.b", "input.y.a", 'input.x["a"]', "input.x[0]", "input.x[1]", "input.absent",
    "data.probe.o.a", "data.probe.o.t", "data.probe.f", "data.probe.z", "data.probe.nums[1]",
    "data.probe.o[input.x]", "data.probe.g[input.x].n", "data.probe.g[input.y].only.k",
    "data.probe.m[input.y]", "data.probe.l[0]", "input.z[input.y]", "input.x[input.y].a",
    "data.probe.d.a",
)  # fmt: skip
_MANY = (
    "input.x", "input.x", "input.y", "input.z", "input.x.k", "data.probe.l", "data.probe.nums",
    "data.probe.o", "data.probe.g", "data.probe.m[input.y]", "data.probe.none", "data.probe.no",
    '["a", "b"]', '{"a", "b", 1}', '{"a": 1, "b": "a"}',
)  # fmt: skip
_TYPES = {
    "string": "is_string", "number": "is_number", "array": "is_array", "object": "is_object",
}  # fmt: skip


def questions(chance: random.Random, many: int) -> list[dict[str, Any]]:
    """Return questions: any of three fields, each any value or missing; the empty one first."""
    found: list[dict[str, Any]] = [{}]
    while len(found) < many:
        found.append({name: _value(chance, 3) for name in "xyz" if chance.random() < 0.85})
    return found


def _value(chance: random.Random, depth: int) -> Any:
    if depth == 0 or chance.random() < 0.55:
        return chance.choice(_SCALARS)
    if chance.random() < 0.5:
        return [_value(chance, depth - 1) for _ in range(chance.randint(0, 4))]
    names = ("a", "b", "k", "n", "1", "é")
    return {
        chance.choice(names): _value(chance, depth - 1) for _ in range(chance.randint(0, 4))
    }  # fmt: skip


@dataclass
class _Body:
    """What is bound and asked for in the body being made: expressions by the kind they have."""

    known: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in _TYPES})
    free: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    inner: bool = False


class Grammar:
    """Makes modules. `rules` are the helpers made so far, by kind."""

    def __init__(self, chance: random.Random, slip: float = SLIP) -> None:
        self._chance = chance
        self._slip = slip
        self._number = 0
        self._rules: dict[str, list[str]] = {}

    def module(self) -> str:
        """Return the rules of a module, without its package."""
        self._number = 0
        self._rules = {
            kind: []
            for kind in ("true", "set", "texts", "object", "value", "total", "function", "many")
        }
        makers = (
            self._true, self._true, self._set, self._set, self._texts, self._object, self._chain,
            self._chain, self._value, self._function, self._function, self._minus, self._default,
            self._array,
        )  # fmt: skip
        texts = [self._pick(makers)() for _ in range(self._chance.randint(2, 6))]
        return "\n\n".join([*texts, self._decision()]) + "\n"

    # --- rules ------------------------------------------------------------------------------

    def _true(self) -> str:
        name = self._name()
        bodies = [
            f"{name} if {self._text(self._body(loops=True))}"
            for _ in range(self._chance.choice((1, 1, 2)))
        ]
        self._rules["true"].append(name)
        return "\n\n".join(bodies)

    def _set(self) -> str:
        name = self._name()
        found = []
        objects = self._chance.random() < 0.2
        for _ in range(self._chance.choice((1, 1, 2, 3))):
            body = self._body(loops=True)
            term = self._pick(('"r"', '"s"', *body.free, *body.free))
            if objects:
                term = f'{{"t": "u", "of": {term}}}'
            found.append(f"{name} contains {term} if {self._text(body)}")
        self._rules["many" if objects else "set"].append(name)
        return "\n\n".join(found)

    def _texts(self) -> str:
        """Texts built out of what is gone through, as reasons are."""
        name = self._name()
        body = _Body()
        each = self._local(body)
        body.lines += [f"some {each} in {self._collection()}"]
        self._ask(body, each, "string")
        made = self._local(body)
        body.lines.append(f"{made} := {self._made_text(body)}")
        body.lines.append(f"is_string({made})")
        self._rules["texts"].append(name)
        return f"{name} contains {made} if {self._text(body)}"

    def _minus(self) -> str:
        sets = self._rules["set"] + self._rules["texts"]
        if len(sets) < 2:
            return self._set()
        name = self._name()
        one, other = self._pick(sets), self._pick(sets)
        self._rules["set"].append(name)
        return f"{name} := {one} {self._pick('-|&')} {other}"

    def _object(self) -> str:
        name = self._name()
        body = _Body(inner=True)
        key, value = self._local(body), self._local(body)
        body.lines.append(f"some {key}, {value} in {self._pick(_MANY[:12])}")
        self._statements(body, self._chance.randint(0, 2), loops=False)
        if self._chance.random() < 0.3:
            self._ask(body, key, "string")
        self._rules["object"].append(name)
        return f"{name} := {{{key}: {value} | {'; '.join(body.lines)}}}"

    def _array(self) -> str:
        """An array of known order: made of one that was asked for."""
        name = self._name()
        path = self._pick(_PATHS)
        each = self._name()
        body = _Body(inner=True, free=[each])
        self._statements(body, self._chance.randint(0, 1), loops=False)
        inner = "; ".join([f"some {each} in {path}", *body.lines])
        self._rules["many"].append(name)
        return f"{name} := [{each} | {inner}] if is_array({path})"

    def _chain(self) -> str:
        name = self._name()
        found: list[str] = []
        for _ in range(self._chance.randint(1, 3)):
            body = self._body(loops=False)
            value = self._pick((*_LITERALS, '{"k": "a"}', *self._asked(body)))
            found.append(f"{value} if {self._text(body)}")
        if self._chance.random() < 0.6:
            found.append(self._pick(_LITERALS))
            self._rules["total"].append(name)
        else:
            self._rules["value"].append(name)
        return f"{name} := " + "\n\nelse := ".join(found)

    def _value(self) -> str:
        name = self._name()
        self._rules["value"].append(name)
        if self._chance.random() < 0.3:
            return f"{name} := {self._pick(_PATHS)}"
        body = self._body(loops=False)
        return f"{name} := {self._pick((*_PATHS, *body.free))} if {self._text(body)}"

    def _default(self) -> str:
        name = self._name()
        body = self._body(loops=True)
        self._rules["total"].append(name)
        value = self._pick(_LITERALS)
        return (
            f"default {name} := {self._pick(_LITERALS)}\n\n{name} := {value} if {self._text(body)}"
        )

    def _function(self) -> str:
        name, param = self._name(), self._name()
        body = _Body(free=[param])
        kind = self._pick(tuple(_TYPES))
        self._ask(body, param, kind)
        self._statements(body, self._chance.randint(0, 2), loops=False)
        way = self._chance.random()
        head = f"{name}({param})"
        if way < 0.35:
            text = f"{head} if {self._text(body)}"
            other = _Body(free=[param])
            other.lines.append(f"{param} {self._pick(('==', '!='))} {self._pick(_LITERALS)}")
            text += f"\n\n{head} if {self._text(other)}" if way < 0.15 else ""
        elif way < 0.7:
            text = (
                f"{head} := {self._pick((param, *_LITERALS, f'[{param}]'))} if {self._text(body)}"
            )
        else:
            other = _Body(free=[param])
            self._ask(other, param, self._pick(tuple(_TYPES)))
            text = (
                f"{head} := {self._pick(_LITERALS)} if {self._text(body)}"
                f"\n\nelse := {self._pick((param, *_LITERALS))} if {self._text(other)}"
            )
        self._rules["function"].append(name)
        return text

    def _decision(self) -> str:
        rules = self._rules
        anything = [name for kind in ("true", "value", "total") for name in rules[kind]]
        sets = rules["set"] + rules["texts"]
        fields: list[str] = []
        body = _Body()
        for name in self._chance.sample(sets, min(2, len(sets))):
            fields.append(f'"n_{name}": count({name})')
            fields.append(f'"bag_{name}": [each | some each in {name}]')
        for name in rules["many"]:
            fields.append(f'"n_{name}": count({name})')
        for name in rules["object"]:
            fields.append(f'"o_{name}": {name}')
        for name in anything:
            fields.append(f'"has_{name}": has_{name}')
        has = []
        for name in anything:
            variable = self._name()
            rule = f"{variable} := {name}\n\t{variable} != null"
            has.append(f'has_{name} := {variable} if {{\n\t{rule}\n}}\n\nelse := "none"')
        nots = [f"no_{name} if not {name}" for name in anything]
        for name in anything:
            fields.append(f'"not_{name}": [1 | no_{name}]')
        self._statements(body, self._chance.choice((0, 0, 1)), loops=False)
        head = f"{ENTRY} := {{{', '.join(fields)}}}"
        if body.lines:
            head += f" if {self._text(body)}"
        if any(name in rules["set"] or name in rules["texts"] for name in sets):
            chosen = self._pick(tuple(sets))
            nots.append(f"least_{chosen} := min({chosen})")
            least = f'"least": [each | each := least_{chosen}; each != null]'
            head = head.replace(" := {", f" := {{{least}, ", 1)
        return "\n\n".join([*has, *nots, head.replace(", }", "}")])

    # --- bodies -----------------------------------------------------------------------------

    def _body(self, *, loops: bool) -> _Body:
        body = _Body()
        self._statements(body, self._chance.randint(1, 3), loops=loops)
        return body

    def _statements(self, body: _Body, many: int, *, loops: bool) -> None:
        ways: list[Callable[[_Body], None]] = [
            self._compare, self._compare, self._member, self._truth, self._assign, self._assign,
            self._named, self._named, self._builtin, self._builtin, self._count, self._sum,
            self._call, self._test, self._gone,
        ]  # fmt: skip
        if loops:
            ways += [self._loop, self._loop, self._loop]
        for _ in range(many):
            self._pick(ways)(body)

    def _text(self, body: _Body) -> str:
        return "{\n\t" + "\n\t".join(body.lines or ["true"]) + "\n}"

    def _loop(self, body: _Body) -> None:
        each = self._local(body)
        if self._chance.random() < 0.3:
            key = self._local(body)
            body.lines.append(f"some {key}, {each} in {self._pick(_MANY[:13])}")
        else:
            body.lines.append(f"some {each} in {self._collection()}")
        if self._chance.random() < 0.8:
            self._test_of(body, each)

    def _compare(self, body: _Body) -> None:
        sign = self._pick(("==", "==", "!=", "<", "<=", ">", ">="))
        one = self._term(body)
        other = self._term(body) if self._chance.random() < 0.4 else self._literal(body, one)
        body.lines.append(f"{one} {sign} {other}")

    def _member(self, body: _Body) -> None:
        value = self._pick((self._term(body), self._pick(_LITERALS)))
        body.lines.append(f"{value} in {self._collection()}")

    def _truth(self, body: _Body) -> None:
        body.lines.append(self._pick(_PATHS))

    def _test(self, body: _Body) -> None:
        self._test_of(body, self._pick(_PATHS))

    def _test_of(self, body: _Body, what: str) -> None:
        way = self._chance.random()
        if way < 0.4:
            self._ask(body, what, self._pick(tuple(_TYPES)))
        elif way < 0.5:
            body.lines.append(f'type_name({what}) != "{self._pick(("string", "null"))}"')
        else:
            sign = self._pick(("==", "!=", "!=", "<", ">="))
            body.lines.append(f"{what} {sign} {self._literal(body, what)}")

    def _assign(self, body: _Body) -> None:
        value = self._pick(_PATHS)
        name = self._local(body)
        body.lines.append(f"{name} := {value}")
        if self._chance.random() > self._slip:
            self._test_of(body, name)

    def _gone(self, body: _Body) -> None:
        """A comprehension within a body, counted or asked for what is in it."""
        if body.inner:
            return self._compare(body)
        inner = _Body(inner=True)
        each = self._name()
        inner.free.append(each)
        if self._chance.random() < 0.7:
            self._test_of(inner, each)
        if self._chance.random() < 0.4:
            self._statements(inner, 1, loops=False)
        # What a comprehension is the first to name must not be named after it.
        if self._chance.random() < 0.9:
            body.lines += ["is_object(input)", "data.probe.z == 0"]
        of = "; ".join([f"some {each} in {self._collection()}", *inner.lines])
        left, right = self._pick((("{", "}"), ("[", "]")))
        made = f"{left}{each} | {of}{right}"
        if self._chance.random() < 0.6:
            sign = self._pick(("==", ">", "<="))
            body.lines.append(f"count({made}) {sign} {self._pick('012')}")
        else:
            body.lines.append(f"{self._pick(_LITERALS)} in {made}")
        return None

    def _named(self, body: _Body) -> None:
        rules = self._rules["true"] + self._rules["value"] + self._rules["total"]
        if not rules:
            return self._compare(body)
        name = self._pick(rules)
        if self._chance.random() < 0.2:
            name = f"data.vedette.gateway.{name}"
        if self._chance.random() < 0.2 and name in self._rules["value"]:
            body.lines.append(f"{name} != {self._pick(_LITERALS)}")
        else:
            body.lines.append(self._pick(("", "", "not ")) + name)
        return None

    def _count(self, body: _Body) -> None:
        sets = [name for kind in ("set", "texts", "object", "many") for name in self._rules[kind]]
        if sets and self._chance.random() < 0.7:
            what = self._pick(sets)
        else:
            what = self._known(body, self._pick(("array", "object")))
        sign = self._pick(("==", "!=", ">", "<="))
        body.lines.append(f"count({what}) {sign} {self._pick('0123')}")

    def _sum(self, body: _Body) -> None:
        one = self._known(body, "number")
        other = self._pick(("1", "2", "7", self._known(body, "number")))
        sign = self._pick("+-+-%") if other != "0" else "+"
        name = self._local(body)
        body.lines.append(f"{name} := {one} {sign} {other}")
        if self._chance.random() > self._slip:
            self._ask(body, name, "number")

    def _builtin(self, body: _Body) -> None:
        way = self._chance.randint(0, 7)
        text = self._known(body, "string")
        if way < 3:
            test = self._pick(("startswith", "endswith", "contains"))
            other = self._pick(('"a"', '"/"', '""', self._known(body, "string")))
            body.lines.append(f"{test}({text}, {other})")
        elif way == 3:
            parts = self._local(body)
            body.free.remove(parts)
            body.lines.append(f'{parts} := split({text}, "{self._pick(("/", "a", "~1"))}")')
            body.lines.append(
                self._pick((f"count({parts}) > 1", f'{parts}[0] == "a"', f'{parts} == ["", "a"]'))
            )
        elif way == 4:
            made = self._local(body)
            body.lines.append(f"{made} := {self._made_text(body)}")
            self._ask(body, made, "string")
        elif way == 5:
            thing = self._known(body, "object")
            body.lines.append(
                self._pick((
                    f'object.keys({thing}) == {{"a"}}',
                    f'"a" in object.keys({thing})',
                    f'object.remove({thing}, {{"a", "k"}}) == {{}}',
                    f'count(object.filter({thing}, {{"a", "b"}})) > 0',
                    f'object.get({thing}, "a", {self._pick(_LITERALS)}) != {self._pick(_LITERALS)}',
                ))
            )  # fmt: skip
        elif way == 6:
            number = self._known(body, "number")
            body.lines.append(f"abs({number}) {self._pick(('>', '==', '<='))} {self._pick('0127')}")
        else:
            sets = self._rules["set"]
            what = self._pick(sets) if sets else self._known(body, "array")
            sign = self._pick(("==", "!="))
            body.lines.append(
                f"{self._pick(('min', 'max'))}({what}) {sign} {self._pick(_LITERALS)}"
            )

    def _made_text(self, body: _Body) -> str:
        text = self._known(body, "string")
        return self._pick((
            f'concat(":", ["r", {text}])',
            f'concat("", [{text}, {self._known(body, "string")}])',
            f'replace({text}, "~1", "/")',
            f'replace(replace({text}, "a", "bb"), "b", "")',
            f'trim_prefix({text}, "{self._pick(("/", "a", ""))}")',
            f'trim_suffix({text}, "{self._pick(("b", "a/b"))}")',
        ))  # fmt: skip

    def _call(self, body: _Body) -> None:
        if not self._rules["function"]:
            return self._compare(body)
        call = f"{self._pick(self._rules['function'])}({self._term(body)})"
        if self._chance.random() < 0.5:
            body.lines.append(call)
        else:
            sign = self._pick(("==", "!="))
            body.lines.append(f"{call} {sign} {self._pick(_LITERALS)}")
        return None

    # --- words ------------------------------------------------------------------------------

    def _known(self, body: _Body, kind: str) -> str:
        """Return something of a kind, asked for here if nothing is known to be."""
        if body.known[kind] and self._chance.random() < 0.6:
            return self._pick(body.known[kind])
        what = self._pick((*_PATHS, *body.free))
        if self._chance.random() > self._slip:
            self._ask(body, what, kind)
        return what

    def _ask(self, body: _Body, what: str, kind: str) -> None:
        body.lines.append(f"{_TYPES[kind]}({what})")
        body.known[kind].append(what)

    def _asked(self, body: _Body) -> list[str]:
        return [name for names in body.known.values() for name in names if name in body.free]

    def _literal(self, body: _Body, what: str) -> str:
        """Return a literal that something may equal, as far as it was asked what it is."""
        if what in body.known["string"]:
            return str(self._pick(_LITERALS[:4]))
        if what in body.known["number"]:
            return str(self._pick(_LITERALS[4:8]))
        return str(self._pick(_LITERALS))

    def _term(self, body: _Body) -> str:
        return self._pick((*_PATHS, *body.free, *body.free, *body.free))

    def _collection(self) -> str:
        sets = self._rules["set"] + self._rules["texts"] + self._rules["object"]
        return self._pick(_MANY) if self._chance.random() < 0.6 or not sets else self._pick(sets)

    def _local(self, body: _Body) -> str:
        name = self._name()
        body.free.append(name)
        return name

    def _name(self) -> str:
        self._number += 1
        return f"n{self._number}"

    def _pick(self, values: Sequence[_T]) -> _T:
        """Return one of some texts, or of some ways."""
        return self._chance.choice(values)


def modules(seed: int) -> Iterator[str]:
    """Yield modules without end, their package included."""
    grammar = Grammar(random.Random(seed))
    while True:
        yield f"package vedette.gateway\n\n{grammar.module()}"
