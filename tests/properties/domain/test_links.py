"""No text is passed over in which a link would be found."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from vedette.domain.links import find_argument_links, find_links
from vedette.domain.origin import Origin

# What links are made of, what breaks one up, and what ends it.
PIECES = [
    "a", "b4", "1", "2", "203.0", ".113.7", ".", ".com", "evil", "xn--a", "http:", "mailto:", "://",
    "/", "//", "\\", "@", "&#46;", "\n", "\r", "\t", " ", "(", ")", "[", "]", "<", ">", "<a href=",
    "-", "_", ",", "\u3002", "\u200b", "\uff0e", "\u00e9",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@settings(max_examples=1500, deadline=None)
@example("[click](evil.4u.\ncom)")
@example("<a href=evil.4u.\ncom>")
@example("[x](203.0\n.113.7)")
@example("(1.2\n.3\n.4)")
@example("[x](evil.\ncom)")
@example("[x](/\n/evil)")
def test_an_argument_has_every_link_of_its_text(text: str) -> None:
    found = {link[:512] for link, _, _ in find_links(text)}
    origins: dict[str, Origin] = {"/before": "trusted", "/text": "untrusted"}
    args = {"before": "1.", "text": text}
    assert {link.link for link in find_argument_links(args, origins, frozenset)} == found
