"""Operations on Rego values during partial evaluation: computed now, or written as source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vedette.adapters.policy_engines.regorus.residual import values
from vedette.adapters.policy_engines.regorus.residual.code_writer import (
    COMPARISON_WORK,
    MAX_LOOP_DEPTH,
    NEVER,
    Code,
    Known,
    Path,
    QuestionPart,
    SourceWriter,
    Then,
    Unsupported,
    Value,
    kind_of,
)
from vedette.adapters.policy_engines.regorus.residual.values import (
    BUILTINS,
    OPERATORS,
    RESULT_KINDS,
    TYPE_TESTS,
    UNDEFINED,
    RegoSet,
)

_COMPARED = {"Eq": "==", "Ne": "!=", "Lt": "<", "Le": "<=", "Gt": ">", "Ge": ">="}
# As how many operations on a text a function counts; any other than these as one.
_OPERATIONS = {"contains": 2, "replace": 3, "split": 2, "count": 0, "type_name": 0, "abs": 0}
_OPERATIONS |= dict.fromkeys([*TYPE_TESTS, *(each.__name__ for each in OPERATORS.values())], 0)


class OperationWriter(SourceWriter):
    """Writes operations on values, some of which are parts of the question.

    `known` are fields of the question by their paths (UNDEFINED: it has none such), `kinds` the
    types of others.
    """

    def __init__(self, known: Mapping[Path, Any], kinds: Mapping[Path, str]) -> None:
        super().__init__()
        self._known, self._kinds = known, kinds
        self._inner = {path[:size] for path in (*known, *kinds) for size in range(len(path))}

    def made_of(self, kind: str, found: tuple[Value, ...], then: Then) -> str:
        """Write an array, a set or an object by its elements."""
        if kind == "Object":
            names, parts = found[::2], found[1::2]
            if not all(isinstance(name, Known) and type(name.value) is str for name in names):
                raise Unsupported("an object's name that is not written out")
            words = [name.value for name in names if isinstance(name, Known)]
            if len(set(words)) < len(words):
                raise Unsupported("an object with a name twice")
            if all(isinstance(part, Known) for part in parts):
                return then(Known({w: p.value for w, p in zip(words, parts, strict=True)}))  # type: ignore[union-attr]
            self.count_operations(0)
            fields = (f"{w!r}: {self.text(p)}" for w, p in zip(words, parts, strict=True))
            return self.named(f"{{{', '.join(fields)}}}", "object", then)
        if all(isinstance(value, Known) for value in found):
            plain = [value.value for value in found if isinstance(value, Known)]
            return then(Known(plain if kind == "Array" else self.fold(RegoSet.of, plain)))
        self.count_operations(0)
        inner = ", ".join(map(self.text, found))
        if kind == "Array":
            return self.named(f"[{inner}]", "array", then)
        inner = ", ".join(map(self.key, found))
        return self.named(f"RegoSet.of(({inner},))" if found else "RegoSet()", "set", then)

    def compared(self, op: str, found: tuple[Value, ...], then: Then) -> str:
        one, other = found
        if isinstance(one, Known) and isinstance(other, Known):
            return then(Known(self.fold(_compare_known, op, one.value, other.value)))
        kinds = kind_of(one), kind_of(other)
        sides = self.text(one), self.text(other)
        sign = _COMPARED[op]
        if "number" not in kinds and "boolean" not in kinds:
            text = next((each.value for each in (one, other) if isinstance(each, Known)), None)
            self.add_work(min(COMPARISON_WORK, 27 * len(text)) if type(text) is str else
                          COMPARISON_WORK)  # fmt: skip
        if op in ("Eq", "Ne"):
            if None not in kinds and kinds[0] != kinds[1]:
                return then(Known(op == "Ne"))
            known = [side.value for side in (one, other) if isinstance(side, Known)]
            if known and (known[0] is None or type(known[0]) is bool):
                sign = "is" if op == "Eq" else "is not"
            elif not (known and type(known[0]) is str) and not (
                kinds[0] == kinds[1] and kinds[0] in ("string", "number")
            ):
                if self.loops == MAX_LOOP_DEPTH:  # of scalars: it gives way for what is deep
                    return then(Code(f"(compare({', '.join(sides)}) {sign} 0)", "boolean"))
                negation = "not " * (op == "Ne")
                return then(Code(f"({negation}equal({', '.join(sides)}))", "boolean"))
            return then(Code(f"({sides[0]} {sign} {sides[1]})", "boolean"))
        if kinds[0] == kinds[1] and kinds[0] in ("string", "number"):
            return then(Code(f"({sides[0]} {sign} {sides[1]})", "boolean"))
        return then(Code(f"(compare({', '.join(sides)}) {sign} 0)", "boolean"))

    def member(self, found: tuple[Value, ...], then: Then) -> str:
        value, collection = found
        if isinstance(value, Known) and isinstance(collection, Known):
            return then(Known(self.fold(values.is_member, value.value, collection.value)))
        self.count_membership()
        text = self.text(value)
        if kind_of(value) == "string" and isinstance(collection, Known):
            elements = list(self.fold(values.values_of, collection.value))
            words = frozenset(each for each in elements if type(each) is str)
            return then(Code(f"({text} in {self.constant(words)})", "boolean"))
        if self.loops:
            most = values.MAX_LOOP_ELEMENTS if self.loops == 1 else values.MAX_INNER
            call = f"is_near_member({text}, {self.text(collection)}, {most})"
            return then(Code(call, "boolean"))
        return then(Code(f"is_member({text}, {self.text(collection)})", "boolean"))

    def computed(
        self, name: str, function: Callable[..., Any], found: tuple[Value, ...], then: Then
    ) -> str:
        """Compute an operator or a built-in function, now or at run time; it may be undefined."""
        if all(isinstance(value, Known) for value in found):
            plain = [value.value for value in found if isinstance(value, Known)]
            answer = self.fold(function, *plain)
            return NEVER if answer is UNDEFINED else then(Known(answer))
        self.count_operations(_OPERATIONS.get(name, 1))
        kind = RESULT_KINDS.get(name)
        if function in OPERATORS.values():
            kinds = {kind_of(value) for value in found}
            kind = kinds.pop() if len(kinds) == 1 else None
        inner = ", ".join(map(self.text, found))
        call = f"BUILTINS[{name!r}]" if name in BUILTINS else name
        if self.loops and name in BUILTINS:
            return self.defined(f"near({call}, {inner})", kind, then)
        if name not in BUILTINS and kind == "set":
            return self.named(f"{call}({inner})", kind, then)
        return self.defined(f"{call}({inner})", kind, then)

    def count_of(self, value: Value) -> Value:
        if isinstance(value, Known):
            return Known(self.fold(values.count, value.value))
        self.count_operations(0)
        return Code(f"len({value.text})", "number")

    def step(self, value: Value, index: Value, then: Then) -> str:
        if isinstance(value, Known) and isinstance(index, Known):
            found = self.fold(values.get, value.value, index.value)
            return NEVER if found is UNDEFINED else then(Known(found))
        if isinstance(value, QuestionPart) and isinstance(index, Known):
            if type(index.value) is not str:
                return NEVER
            path = (*value.path, index.value)
            if path in self._known:
                known = self._known[path]
                return NEVER if known is UNDEFINED else then(Known(known))
            text = f"{value.text}[{index.value!r}]"
            if path in self._inner:
                return then(QuestionPart(text, "object", path))
            if path in self._kinds:
                return self.named(text, self._kinds[path], then)
            return self.defined(f"{value.text}.get({index.value!r}, UNDEFINED)", None, then)
        at = self.key(index)
        if kind_of(value) == "object" and kind_of(index) == "string":
            get = f"{self.text(value)}.get({at}, UNDEFINED)"
            return self.defined(get, None, then)
        return self.defined(f"get({self.text(value)}, {at})", None, then)


def _compare_known(op: str, one: Any, other: Any) -> bool:
    if op in ("Eq", "Ne"):
        return values.equal(one, other) == (op == "Eq")
    found = values.compare(one, other)
    return {"Lt": found < 0, "Le": found <= 0, "Gt": found > 0, "Ge": found >= 0}[op]
