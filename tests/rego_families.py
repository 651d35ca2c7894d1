"""Expressions that engines were seen to decide apart, by family: a hundred and more of each.

Each is a module's rules with a rule `decision`. Not every one of a family differs; each is of the
kind that did. Made by putting together what stood around the difference with what made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

_LOOPS = (
    'some v in input.x; v == "a"',
    "some v in input.x; is_number(v); v > 1",
    "some v in data.probe.l; v == input.x",
    'some k, v in input.x; k == "a"; v != null',
    "some v in data.probe.nums; v > 5",
    "some v in input.x.k; v in data.probe.l",
    "some v in input.x; some w in v; w == 1",
    'input.x[_] == "a"',
    'some i; input.x[i] == "b"',
    "some v in held; v != input.y",
)
_HELD = 'held contains v if { some v in input.x; v != "b" }'
_ITERABLE = (
    "input.x",
    "input.y",
    "input.x.k",
    "data.probe.l",
    "data.probe.nums",
    "held",
    '["a", 1, null]',
)


def else_after_iteration() -> Iterator[str]:
    """A domain list that fails open: the `else` beside an iterating body is never taken."""
    shapes = (
        "decision := 1 if {{ {0} }}\n\nelse := 2",
        "decision := 1 if {{ {0} }}\n\nelse := 2 if input.y\n\nelse := 3",
        "decision if {{ {0} }}\n\nelse if input.y != 1",
        "decision := 1 if input.y == 7\n\nelse := 2 if {{ {0} }}\n\nelse := 3",
        'f(x) := "in" if {{ {0}; x != null }}\n\nelse := "out" if x != null\n\ndecision := f(1)',
        "f(x) if {{ {0}; x != 3 }}\n\nelse := false if x != 3\n\ng if f(1)\n\ndecision if not g",
        'decision := {{"k": 1}} if {{ {0} }}\n\nelse := {{"k": 2}}',
        "h := 1 if {{ {0} }}\n\nelse := 2\n\ndecision if h == 2",
        "h if {{ {0} }}\n\ndecision := 1 if h\n\nelse := 2",
        "decision := 1 if {{ is_object(input); {0} }}\n\nelse := 2 if {{ {0} }}\n\nelse := 3",
    )
    for shape, loop in product(shapes, _LOOPS):
        yield f"{_HELD}\n\n{shape.format(loop)}"


def values_in_conflict() -> Iterator[str]:
    """Two values of one name at a time: an error for OPA, for regorus no value or the last one."""
    tests = (
        "input.x",
        "is_string(input.x)",
        'input.x != "z"',
        "input.y != 9",
        "count(data.probe.l) == 3",
    )
    pairs = (("1", "2"), ('"a"', '"b"'), ("true", "false"), ("[]", "{}"), ("1", "input.y"))
    shapes = (
        "decision := {2} if {0}\n\ndecision := {3} if {1}",
        "h := {2} if {0}\n\nh := {3} if {1}\n\ndecision if not h",
        "f(x) := {2} if {{ x != 5; {0} }}\n\nf(x) := {3} if {{ x != 6; {1} }}\n\ndecision := f(1)",
        "default decision := 0\n\ndecision := {2} if {0}\n\ndecision := {3} if {1}",
    )
    for shape, one, two, (left, right) in product(shapes, tests[:3], tests[2:], pairs):
        yield shape.format(one, two, left, right)
    for over, value in product(_ITERABLE, ("v", "[v]", '{"k": v}', "k")):
        yield f"{_HELD}\n\ndecision := {value} if {{ some k, v in {over} }}"
        yield f"{_HELD}\n\nh := {{v: k | some k, v in {over}}}\n\ndecision := h"
        yield f"{_HELD}\n\nh := {{type_name(v): {value} | some k, v in {over}}}\n\ndecision := h"


def wrong_types_in_a_comprehension() -> Iterator[str]:
    """Arithmetic, or set minus, on what is no number, or no set, while something is collected."""
    operations = (
        "v + 1",
        "v - 1",
        "1 - v",
        "v * 2",
        "v % 2",
        "v + input.y",
        "input.y - v",
        "v - {1}",
        "{1} - v",
        "v | {1}",
        "abs(v)",
        "{v} - input.y",
        "v & held",
        "held - v",
        "count(v)",
        "max(v)",
    )
    shapes = (
        "decision := [n | some v in {1}; n := {0}; n != 7]",
        "decision := count({{n | some v in {1}; n := {0}; n != 7}})",
        "decision contains n if {{ some v in {1}; n := {0}; n != 7 }}",
        "h if {{ count([1 | some v in {1}; {0} == 2]) > 0 }}\n\ndecision if not h",
    )
    for shape, operation, over in product(shapes, operations, ("input.x", "data.probe.l", "held")):
        yield f"{_HELD}\n\n{shape.format(operation, over)}"


def comprehensions_within() -> Iterator[str]:
    """A comprehension within another: what is undefined inside is so outside as well."""
    inner = (
        "[w | some w in v]",
        "{w | some w in v; w != input.y}",
        '{k: w | some k, w in v; k != "z"}',
        "[w | w := v.a; w != 1]",
        "{1 | v == input.y}",
        "[w | some w in held; w == v]",
        "{w | some w in data.probe.l; w == v}",
    )
    shapes = (
        "decision := [n | some v in {1}; n := {0}; n != 7]",
        "decision := count([1 | some v in {1}; count({0}) == 0])",
        "decision := [{0} | some v in {1}]",
        "decision contains v if {{ some v in {1}; count([1 | count({0}) > 0]) > 0 }}",
        "decision if {{ count([v | some v in {1}; some w in {0}; w != 1]) == 0 }}",
    )
    for shape, inside, over in product(shapes, inner, ("input.x", "input.y", "held")):
        yield f"{_HELD}\n\n{shape.format(inside, over)}"


def measures_of_text() -> Iterator[str]:
    """How long a text is, and where something stands in it: bytes, or characters of many bytes."""
    texts = (
        "input.x",
        "input.t",
        'concat("", [input.t, "a"])',
        'replace(input.t, "a", "é")',
        'split(input.t, "/")[0]',
    )
    ways = (
        "count({0})",
        "count({0}) > 1",
        "substring({0}, 0, 1)",
        "substring({0}, 1, -1)",
        'indexof({0}, "a")',
        "upper({0})",
        "lower({0})",
        "strings.reverse({0})",
        'split({0}, "")',
        'trim({0}, "aé")',
        "trim_space({0})",
        'trim_left({0}, "é")',
    )
    for text, way in product(texts, ways):
        yield f"decision := {way.format(text)}"
        yield f"h if {{ is_string(input.t); {way.format(text)} != 1 }}\n\ndecision if not h"


def numbers_as_names() -> Iterator[str]:
    """A list in the data indexed by a text, or an object's key `1` by the number."""
    lists = (
        "data.probe.l",
        "data.probe.nums",
        "data.probe.m.a",
        "data.probe.m[input.y]",
        "data.probe.g.a.only.k",
    )
    objects = ("data.probe.d", "data.probe.d", "data.probe")
    indices = (
        '["0"]',
        '["1"]',
        "[input.x]",
        "[input.y]",
        '[concat("", ["", "1"])]',
        "[input.x.a]",
        "[1]",
        "[key]",
    )
    shapes = (
        "decision := {0}",
        'decision if {0} == "b"',
        "h if {0}\n\ndecision if not h",
        "decision := [n | n := {0}; n != null]",
    )
    for shape, base, index in product(shapes, (*lists, *objects), indices):
        yield f"key := input.x\n\n{shape.format(base + index)}"


def every() -> Iterator[str]:
    """`every`: the compiled program takes it for true where it holds once."""
    tests = (
        'v == "a"',
        "is_string(v)",
        "v in data.probe.l",
        "v != input.y",
        "v > 1",
        "v",
        "not no",
        'v.a == "b"',
        "f(v)",
    )
    shapes = (
        "decision if {{ every v in {1} {{ {0} }} }}",
        "h if {{ every v in {1} {{ {0} }} }}\n\ndecision if not h",
        "decision := count([1 | every v in {1} {{ {0} }}])",
    )
    rest = "no if input.y == 1\n\nf(v) if v != 2"
    for shape, test, over in product(shapes, tests, ("input.x", "input.y", "data.probe.l", "held")):
        yield f"{_HELD}\n\n{rest}\n\n{shape.format(test, over)}"


def undefined_kept() -> Iterator[str]:
    """What is undefined is kept: assigned and not asked for, collected, given to a function."""
    missing = (
        "input.absent",
        "input.x.a",
        "input.x[0]",
        "data.probe.g[input.x]",
        "input.x.a.b.c",
        "least",
        "f(input.x)",
    )
    shapes = (
        "decision if {{ v := {0} }}",
        "decision if {{ v := [{0}]; v != 1 }}",
        'decision if {{ v := {{"k": {0}}}; is_object(v) }}',
        "decision := count({{v | v := {0}}})",
        "decision := count({{{0} | some i in [1, 2]}})",
        "decision contains {0}",
        "decision := {{1: {0} | some i in [1]}}",
        "g(_) if true\n\ndecision if g({0})",
        "g(x) if input.y != 7\n\ndecision if g({0})",
        "g(x) := [x]\n\ndecision := g({0})",
        "decision := [1, {0}] if input.x\n\nelse := 2",
        "decision := {0} if input.x\n\nelse := 2",
        "default decision := 3\n\ndecision := {0} if input.x",
        "decision if {{ _ := {0} }}",
        "decision if [{0}] != [1]",
        "decision if {{ some v in [{0}, 1]; v != 2 }}",
    )
    rest = "least := min(held)\n\nf(x) := x.a if is_object(x)"
    for shape, gone in product(shapes, missing):
        yield f"{_HELD}\n\n{rest}\n\n{shape.format(gone)}"


def order_seen() -> Iterator[str]:
    """The order of a set or an object: OPA sorts, its Wasm does not."""
    made = (
        "[v | some v in held]",
        '[v | some v in {2, 1, 10, 3, "b"}]',
        "[v | some v in input.x]",
        "[k | some k, _ in data.probe.o]",
        "[v | some v in names]",
        "[v | some v in object.keys(data.probe.g)]",
        "[v | some v in union]",
    )
    shapes = (
        "l := {0}\n\ndecision := l[0]",
        "l := {0}\n\ndecision if l == [1, 2]",
        'l := {0}\n\ndecision := concat(",", l)',
        "l := {0}\n\ndecision := [i | some i, v in l; v == 1]",
        "l := {0}\n\ndecision if l < [2]",
        "l := {0}\n\ndecision if [1, 2] in [l]",
        "l := {0}\n\ndecision contains l",
        "decision if {{ l := {0}; l[0] == 1 }}",
        "l := {0}\n\ndecision := array.concat(l, [1])",
        "decision if {{ l := {0}; l == input.x }}",
        'decision := concat(",", {0})',
        "f(x) := x[0] if is_array(x)\n\ndecision := f({0})",
        'l := {{"k": {0}}}\n\ndecision if l.k[0] == 1',
        "decision := min([{0}, [1]])",
        "decision := array.slice({0}, 0, 1)",
    )
    rest = 'names := {"zeta", "alpha", "mu", "b", "a"}\n\nunion := held | {"q", "c", 3}'
    for shape, array in product(shapes, made):
        yield f"{_HELD}\n\n{rest}\n\n{shape.format(array)}"


def functions_of_the_host() -> Iterator[str]:
    """Builtins that the Wasm leaves to its host, and whatever else no list of ours has."""
    calls = (
        'sprintf("%v", [{0}])',
        'sprintf("%d", [{0}])',
        'sprintf("%s-%v", [{0}, 1])',
        'strings.any_prefix_match({0}, ["a"])',
        'strings.any_suffix_match({0}, "b")',
        "json.marshal({0})",
        'regex.match("^a", {0})',
        "time.now_ns()",
        "rand.intn({0}, 3)",
        "http.send({0})",
        "opa.runtime()",
        "uuid.rfc4122({0})",
        "to_number({0})",
        "format_int({0}, 10)",
        "sum({0})",
        "product({0})",
        "sort({0})",
        "base64.encode({0})",
        "crypto.sha256({0})",
        'glob.match("a*", [], {0})',
        "walk({0})",
        "bits.lsh({0}, 2)",
        "array.reverse({0})",
        "object.union({0}, {0})",
        "is_set({0})",
        'strings.count({0}, "a")',
        "numbers.range({0}, 3)",
    )
    for call, what in product(calls, ("input.x", "input.y", "held", "data.probe.l")):
        yield f"{_HELD}\n\ndecision if {{ {call.format(what)} != 1 }}"


def named_in_a_comprehension_first() -> Iterator[str]:
    """What a comprehension over nothing was the first to load is not loaded after it."""
    first = (
        "[n | some n in {0}; input.x]",
        "{{n | some n in {0}; n != input.y}}",
        "[n | some n in {0}; data.probe.z == 0]",
        "[n | some n in {0}; n in data.probe.l]",
        "{{n: 1 | some n in {0}; input.x.a}}",
    )
    empty = ("data.probe.none", "data.probe.no", "nothing", "input.x", "input.absent")
    shapes = (
        "decision if {{ count({0}) == 0; input.y != 7 }}",
        "decision if {{ count({0}) == 0; data.probe.z == 0 }}",
        "decision := input.y if count({0}) == 0",
        'decision := {{"bag": {0}, "b": [1 | input.y != 7]}}',
        "decision := [count({0}), data.probe.z]",
    )
    rest = "nothing contains n if { some n in data.probe.none; n == 1 }"
    for shape, inner, over in product(shapes, first, empty):
        yield f"{rest}\n\n{shape.format(inner.format(over))}"


def patterns() -> Iterator[str]:
    """Unification, patterns and unbound names: not needed, and seen to differ."""
    bodies = (
        "v = {0}; v != 1",
        "{0} = v; v != 1",
        "[v, _] := {0}; v != 1",
        "[v, 1] = {0}",
        '{{"a": v}} = {0}; v != 1',
        "{0}[_] == 1",
        "{0}[i] == data.probe.l[i]",
        "some i; {0}[i] == 1",
        "some [v, w] in {0}; v != w",
        'some {{"a": v}} in {0}; v != 1',
        '"a", 1 in {0}',
        "{0} == v; v := 1",
        "some v; {0} = v",
        "walk({0}, [p, v]); v == 1",
    )
    shapes = (
        "decision if {{ {0} }}",
        "h if {{ {0} }}\n\ndecision if not h",
        "decision := count([1 | {0}])",
    )
    for shape, body, what in product(shapes, bodies, ("input.x", "input.y", "data.probe.l")):
        yield shape.format(body.format(what))


FAMILIES = {
    each.__name__: each
    for each in (
        else_after_iteration,
        values_in_conflict,
        wrong_types_in_a_comprehension,
        comprehensions_within,
        measures_of_text,
        numbers_as_names,
        every,
        undefined_kept,
        order_seen,
        functions_of_the_host,
        named_in_a_comprehension_first,
        patterns,
    )
}
