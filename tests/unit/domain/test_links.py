"""Every link that a reader's program may make of a text is found, however it is written."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

import pytest

from vedette.domain.links import MAX_LINKS, find_argument_links, find_links
from vedette.domain.origin import bare_origin, collect_known_values

EVIL = "evil.example"


def hosts(text: str) -> set[str]:
    return {host for _, host, _ in find_links(text)}


@pytest.mark.parametrize(
    "text",
    [
        "see https://evil.example/a?b=c.",
        "see HTTPS://EVIL.EXAMPLE",
        "[here](https://evil.example/x)",
        "[here](<//evil.example/x>)",
        "[1]: //evil.example/x",
        "![](https://evil.example/pixel.png?q=1)",
        '<a href="https://evil.example">us</a>',
        "<a href='//evil.example'>us</a>",
        "<a href=//evil.example>us</a>",
        '<img src="https:\\\\evil.example\\x">',
        '<a href="https:evil.example">',
        '<a href="https:/evil.example">',
        '<a href="https:////evil.example">',
        '<a href="ht\ntps://ev\til.example">',
        '<a href="&#104;ttps://evil&#46;example">',
        "https://%65vil.example",
        "https://evil.exa\u200bmple",
        "https://ev\u00adil.example",
        "\u202ehttps://evil.example",
        "https://evil\uff0eexample",
        "https://evil\u3002example",
        "\uff48ttps://evil.example",
        "go to evil.example today",
        "go to www.evil.example/today",
        "(evil.example)",
        "**evil.example**",
        "write to x@evil.example",
        "mailto:x@evil.example",
        "mailto:x%40evil.example",
        "<x@evil.example>",
        "https://harbour.example@evil.example/",
        "https://evil.example\\@harbour.example/",
        "https://evil.example:8443/x",
        "https://evil.example./",
        "ftp://evil.example",
        "evil.example:8080/x",
        "see:evil.example",
        "Hi.https://evil.example",
    ],
)
def test_a_link_is_found_with_its_host(text: str) -> None:
    assert any(host == EVIL or host.endswith("." + EVIL) for host in hosts(text)), [
        *find_links(text)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "data:text/html,<b>", "javascript:alert(1)", "\\\\share\\x", "file:///etc/passwd",
        "tel:+441234", "hxxp://x", "custom://x", "http://192.0.2.7/x", "192.0.2.7",
        "https://[2001:db8::1]/x", "xn--e1awd7f.xn--p1ai", "пример.рф", "https://пример.рф/",
        "mailto:a@harbour.example?bcc=x", "http://0x7f.1/", "intent://x", "vbscript:x",
    ],
)  # fmt: skip
def test_what_has_no_usual_host_is_a_link_too(text: str) -> None:
    assert list(find_links(text))


@pytest.mark.parametrize(
    "text",
    [
        "", "Dear Ada", "Meet at 10:30, e.g. by the quay", "see report.pdf and list.csv",
        "v1.2", "1.5 and 2.25", "Hello... world", "a/b/c", "and/or", "no. 5", "C++ // comment",
        "@ noon", "a @ b", "Note: yes", "x=1;y=2", "$1,000.00", "2026-03-01T06:00:00Z",
    ],
)  # fmt: skip
def test_prose_has_no_links(text: str) -> None:
    assert list(find_links(text)) == []


KNOWN = frozenset({"harbour.example", "ada@quay.example", "https://docs.example/handbook"})


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://harbour.example/x?y=z", "registered"),
        ("https://harbour.example:8443/", "registered"),
        ("harbour.example", "registered"),
        ("https://docs.example/handbook", "registered"),
        ("https://docs.example/other", "derived"),
        ("ada@quay.example", "registered"),
        ("mailto:ada@quay.example", "registered"),
        ("mailto:ada@quay.example?bcc=x@evil.example", "derived"),
        ("eve@quay.example", "derived"),
        ("https://quay.example", "derived"),
        ("https://www.harbour.example", "derived"),
        ("https://harbour.example.evil.example", "derived"),
        ("https://evil.example\\@harbour.example/", "derived"),
        ("https://evil.example/harbour.example", "derived"),
        ("https://harbour.example@evil.example", "derived"),
        ("javascript://harbour.example/%0aalert(1)", "derived"),
        ("custom://harbour.example", "derived"),
        ("https://harb\u043eur.example", "derived"),
    ],
)
def test_only_a_known_host_or_link_is_registered(text: str, origin: str) -> None:
    found = find_argument_links({"body": f"see {text} now"}, {"/body": "derived"}, lambda: KNOWN)
    assert origin in {link.origin for link in found}
    if origin == "registered":
        assert {link.origin for link in found} == {"registered"}
    assert all(link.pointer == "/body" for link in found)


@pytest.mark.parametrize(
    "text",
    [
        "[a](https://harbour.example/)[b](https://evil.example/x)",
        "[a](https://harbour.example/)[b](//evil.example/x)",
        "https://harbour.example/|https://evil.example/",
        "https://harbour.example/,mailto:x@evil.example",
        "https://harbour.example/)evil.example",
        "https://harbour.example/…evil.example",
        "https://harbour.example/](https:evil.example)",
        "https://evil.example)@harbour.example/",
        "https://evil.example,x:y@harbour.example/",
        "https://harbour.example" + ":" * 3000 + "@evil.example/",
        "https://harbßour.example/",
        "https://straße.example/",
        "https://σας.example/",
        "https://har‍bour.example/",
        "https://har%E2%80%8Cbour.example/",
    ],
)
def test_no_known_link_hides_another(text: str) -> None:
    known = KNOWN | {"strasse.example", "xn--mxaa2f.example", "xn--mxa6an.example"}
    found = find_argument_links({"body": text}, {"/body": "untrusted"}, lambda: known)
    assert "untrusted" in {link.origin for link in found}


def test_two_slashes_within_a_path_are_no_link() -> None:
    assert hosts("https://harbour.example/a//evil.example/b") == {"harbour.example"}


@pytest.mark.parametrize("text", ["tel:+1900555", "javascript:alert(1)"])
def test_an_empty_text_that_is_known_makes_no_link_known(text: str) -> None:
    found = find_argument_links(
        {"body": f"see {text}"}, {"/body": "untrusted"}, lambda: frozenset({""})
    )
    assert {link.origin for link in found} == {"untrusted"}
    assert bare_origin("", collect_known_values({"note": ""})) == "derived"


def test_what_is_known_is_asked_for_once() -> None:
    counts = Counter[str]()

    def known() -> frozenset[str]:
        counts["known"] += 1
        return KNOWN

    find_argument_links({"a": "x.example y.example", "b": "z.example"}, {}, known)
    assert counts["known"] == 1


def steps(text: str) -> int:
    """Return how many calls, of generators too, the search takes: the same on any machine.

    The least of three, as what the interpreter does beside it (a collection, an import) counts too.
    """
    return min(_calls(text) for _ in range(3))


def _calls(text: str) -> int:
    counts = Counter[str]()

    def count(_frame: Any, event: str, _arg: Any) -> None:
        counts[event] += 1

    sys.setprofile(count)
    try:
        list(find_links(text))
    finally:
        sys.setprofile(None)
    return counts.total()


@pytest.mark.parametrize(
    "piece", ["a@b.cc c.txt ", "http://a.bc d.txt ", "http://a.bc,d.io", "a.bc ", "//a.bc(//"]
)
def test_twice_the_text_takes_twice_the_steps(piece: str) -> None:
    assert steps(piece * 600) < 2.5 * steps(piece * 300)


def test_links_stand_where_their_text_stands_and_have_its_origin() -> None:
    args = {"a": {"b": ["x.example", "fine"]}, "c": "y.example", "y.example/k": "-"}
    origins = {"/a": "untrusted", "/a/b": "untrusted", "/a/b/0": "untrusted", "/c": "derived"}
    found = find_argument_links(args, origins, frozenset)  # type: ignore[arg-type]
    assert {(link.pointer, link.link, link.origin) for link in found} == {
        ("/a/b/0", "x.example", "untrusted"), ("/c", "y.example", "derived"),
    }  # fmt: skip
    assert find_argument_links({"c": "y.example"}, {"/c": "trusted"}, frozenset) == ()
    # A key is a text as well.
    (key,) = find_argument_links({"a": {"z.example": 1}}, {"/a": "derived"}, frozenset)
    assert (key.pointer, key.host) == ("/a", "z.example")


def test_more_links_than_are_told_are_untrusted() -> None:
    text = " ".join(f"h{n}.harbour.example" for n in range(MAX_LINKS + 5))
    known = frozenset(text.split())
    found = find_argument_links({"body": text}, {"/body": "derived"}, lambda: known)
    assert len(found) == MAX_LINKS + 1
    assert (found[-1].host, found[-1].origin) == ("", "untrusted")


@pytest.mark.parametrize("piece", ["a.", "a@", "<", "&#", "//", "http:", "x" * 50 + ".", "\u200b."])
def test_no_text_takes_long(piece: str) -> None:
    text = (piece * 200_000)[:200_000]
    began = time.process_time()
    find_argument_links({"body": text}, {"/body": "derived"}, frozenset)
    assert time.process_time() - began < 5
