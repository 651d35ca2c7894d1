"""Formats are asserted: what is of each, and what only looks like it."""

from __future__ import annotations

import time

import pytest
from jsonschema import FormatChecker

from vedette.domain.argument_format import FORMATS

GOOD = {
    "date": ["2026-02-28", "2024-02-29"],
    "time": ["23:59:59Z", "08:30:06.283185+01:00", "23:59:60z"],
    "date-time": ["2026-11-27T14:25:00Z", "1990-12-31t23:59:60-08:00"],
    "duration": ["P1D", "PT36H", "P4W", "P1Y2M3DT4H5M6S", "P2M", "PT5M6S"],
    "email": ["desk@example.org", "a.b+c@sub.example", "o'neil@example.org"],
    "hostname": ["example.org", "a", "xn--4gbwdl.xn--wgbh1c"],
    "ipv4": ["127.0.0.1"],
    "ipv6": ["::1", "2001:db8::1"],
    "uri": ["https://example.org/a?b=c#d", "urn:x:y", "mailto:a@b.example", "http://[::1]:80/"],
    "uri-reference": ["/a/b", "a%20b", "", "https://example.org"],
    "uuid": ["2EB8AA08-aa98-11ea-b4aa-73b441d16380"],
    "json-pointer": ["", "/a/0", "/a~1b/~0"],
}
BAD = {
    "date": ["2026-02-29", "2026-1-1", "20260101", "2026-W01-1", "2026-02-28\n", "२०२६-01-01"],
    "time": ["24:00:00Z", "12:00:00", "12:00Z", "12:00:00+24:00", "12:00:00Z\n"],
    "date-time": ["2026-11-27 14:25:00Z", "2026-11-27T14:25:00", "2026-13-01T00:00:00Z", ""],
    "duration": ["P", "PT", "1D", "P1D2W", "P1.5D", "P-1D", "P1Y1D", "PT1H1S", "P1DT", "P1W1D"],
    "email": [
        "@", "a@", "@b.example", "a b@c.example", "a@b..example", ".a@b.example", "a@b.example\n",
        "a@b.example,c@d.example", "A <a@b.example>", '"a"@b.example', "a@[127.0.0.1]",
        "a" * 65 + "@b.example", "é@b.example",
    ],
    "hostname": ["", "-a", "a-", "a..b", "a.", "a_b", "a" * 64, "é.example"],
    "ipv4": ["127.0.0", "127.0.0.01", "256.0.0.1", "127.0.0.1/8", "١.1.1.1"],
    "ipv6": ["::1%eth0", "12345::", "1::2::3", "127.0.0.1"],
    "uri": [
        "//example.org", "a", "", "http://a b", "http://[::1", "https://x/é", "a:%zz", "a:b#c#d",
        "http://a@b@c/", "a:[[", "http://x/[", "http://x/?[]", "http://[::1]x/", "http://a:b:c/",
    ],
    "uri-reference": ["a b", "\\\\host\\share", "http://x:99999/", "a\n"],
    "uuid": ["2eb8aa08-aa98-11ea-b4aa-73b441d1638", "{2eb8aa08-aa98-11ea-b4aa-73b441d16380}"],
    "json-pointer": ["a", "/~2", "/~"],
}  # fmt: skip


def test_every_format_has_its_examples() -> None:
    assert GOOD.keys() == BAD.keys() == FORMATS.keys()


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, each in GOOD.items() for t in each])
def test_what_is_of_a_format(name: str, text: str) -> None:
    assert FORMATS[name](text)


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, each in BAD.items() for t in each])
def test_what_is_not_of_a_format(name: str, text: str) -> None:
    assert not FORMATS[name](text)


def test_whatever_passes_here_passes_jsonschema_s_own_check_too() -> None:
    checker = FormatChecker()
    known = ("date", "email", "ipv4", "ipv6", "uuid")
    assert all(checker.conforms(text, name) for name in known for text in GOOD[name])


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_long_text_takes_no_long_time(name: str) -> None:
    hostile = ["a" * 200_000, "a." * 100_000, "1" * 200_000, "P" + "1Y" * 100_000, "/" * 200_000]
    began = time.process_time()
    for text in hostile:
        FORMATS[name](text)
    assert time.process_time() - began < 2
