"""The HTTP client against servers that misbehave: how long, how much, and whether it was sent."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.contract.adapters.http.test_http_tool import certificate

from vedette.adapters import http_client
from vedette.adapters.http_client import (
    NoResponse,
    Response,
    SendFailure,
    request,
    request_in_thread,
)

ONE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def served(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """Have `serve` speak on each connection once the head of a request is there, or nothing is."""
    heads: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        with suppress(OSError):
            while True:
                line, _ = server.accept()
                with line, suppress(OSError):
                    line.settimeout(5)
                    head = b""
                    while b"\r\n\r\n" not in head and (part := line.recv(1)):
                        head += part
                    heads.append(head)
                    serve(line)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", heads
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def get(url: str, seconds: float = 5.0, most_bytes: int = 1000, **headers: str) -> Response:
    return request("GET", url, headers, timeout_s=seconds, max_bytes=most_bytes)


def saying(answer: bytes) -> Callable[[socket.socket], None]:
    return lambda line: line.sendall(answer)


def trickling(first: bytes, drop: bytes) -> Callable[[socket.socket], None]:
    """Say something, then a little again and again, as long as it is taken."""

    def serve(line: socket.socket) -> None:
        line.sendall(first)
        while True:
            line.sendall(drop)
            time.sleep(0.01)

    return serve


# --- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [("GET", b"", None), ("DELETE", b"", None), ("POST", b"", "0"), ("PUT", b"abc", "3"),
     ("DELETE", b"abc", "3")],
)  # fmt: skip
def test_a_request_is_no_more_than_was_asked_for(
    method: str, body: bytes, length: str | None
) -> None:
    with served(saying(ONE)) as (url, heads):
        headers = {"X-Key": " a\tb "}
        found = request(method, f"{url}/a?b=c", headers, body, timeout_s=5, max_bytes=10)
    assert (found.status, found.body, found.truncated) == (200, b"ok", False)
    first, *lines = heads[0].decode().removesuffix("\r\n\r\n").split("\r\n")
    assert first == f"{method} /a?b=c HTTP/1.1"
    fields = dict(line.split(": ", 1) for line in lines)
    wanted = {"Host": url.removeprefix("http://"), "Accept-Encoding": "identity",
              "Connection": "close", "X-Key": "a\tb"}  # fmt: skip
    assert fields == wanted | ({} if length is None else {"Content-Length": length})


def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(saying(ONE)) as (url, heads), served(saying(ONE)) as (proxy, asked):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        # A machine's own exceptions would keep the control from its proxy.
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        get(url)
        # The control: urllib asks it. `urlopen` keeps the proxies of its first call in the process.
        import urllib.request

        urllib.request.build_opener().open(url).read()
    assert (len(heads), len(asked)) == (1, 1)


@pytest.mark.parametrize(
    ("host", "port", "secure", "expected"),
    [("a.example", 80, False, "a.example"), ("a.example", 443, True, "a.example"),
     ("a.example", 443, False, "a.example:443"), ("::1", 8080, False, "[::1]:8080"),
     ("fe80::1%eth0", 80, False, "[fe80::1]"), ("bücher.example", 80, False,
     "xn--bcher-kva.example")],
)  # fmt: skip
def test_a_host_is_named_as_the_url_names_it(
    host: str, port: int, secure: bool, expected: str
) -> None:
    assert http_client.authority(host, port, secure=secure) == expected


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/a b", {}), ("/\r\nX: y", {}), ("/ä", {}), ("/", {"X": "a\r\nY: b"}), ("/", {"X": "ł"}),
     ("/", {"X": "a\0"}), ("/", {"a b": "c"}), ("/", {"host": "other"})],
)  # fmt: skip
def test_what_is_no_line_of_http_is_not_sent(path: str, headers: dict[str, str]) -> None:
    with served(saying(ONE)) as (url, heads):
        host = url.removeprefix("http://")
        end = time.monotonic() + 5
        line = http_client.connect("127.0.0.1", int(host.rpartition(":")[2]), end)
        with line, pytest.raises(ValueError, match=r"."):
            http_client.exchange(line, host, "GET", path, headers, b"", deadline=end, max_bytes=9)
    assert not any(heads)


@pytest.mark.parametrize("url", ["ftp://a.example/", "http:///x", "a.example", "http://a:b/"])
def test_what_is_no_url_of_a_server_is_not_asked(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        get(url)


# --- was it sent? --------------------------------------------------------------------------------


def test_nothing_is_sent_where_nobody_listens_or_nobody_waits() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(SendFailure, match="no connection"):
            get(f"http://127.0.0.1:{sock.getsockname()[1]}")
    with served(saying(ONE)) as (url, heads), pytest.raises(SendFailure):
        request("GET", url, {}, timeout_s=5, max_bytes=9, may_send=lambda line: False)
    assert not any(heads)


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 2", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nA\r\n\r\n"]
)
def test_without_the_head_of_an_answer_nobody_knows(head: bytes) -> None:
    with served(saying(head)) as (url, heads), pytest.raises(NoResponse):
        get(url)
    assert heads[0]


def test_an_answer_to_half_a_request_is_none() -> None:
    """The server refuses to read on, and says something meanwhile: the write says what it is."""

    def serve(line: socket.socket) -> None:
        line.sendall(ONE)
        line.shutdown(socket.SHUT_RDWR)

    with served(serve) as (url, _), pytest.raises(NoResponse):
        request("POST", url, {}, b"x" * (64 << 20), timeout_s=5, max_bytes=9)


def test_a_connection_whose_time_is_over_before_the_first_byte_sent_nothing() -> None:
    with served(saying(ONE)) as (url, heads):
        port = int(url.rpartition(":")[2])
        line = http_client.connect("127.0.0.1", port, time.monotonic() + 5)
        end = time.monotonic()
        with line, pytest.raises(SendFailure):
            http_client.exchange(line, "a", "GET", "/", {}, b"", deadline=end, max_bytes=9)
    assert not any(heads)


# --- how long ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "drop", "cut"),
    [
        (b"", b"H", None),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x", None),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n", b"x", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", True),
    ],
)
def test_a_trickle_ends_with_the_time_of_the_whole(
    first: bytes, drop: bytes, cut: bool | None
) -> None:
    """Each read is quick; what is known by then is the status, or nothing."""
    began = time.monotonic()
    with served(trickling(first, drop)) as (url, _):
        if cut is None:
            with pytest.raises(NoResponse):
                get(url, 0.2)
        else:
            found = get(url, 0.2)
            assert (found.status, found.truncated) == (200, True)
    assert time.monotonic() - began < 2


def test_a_handshake_that_trickles_ends_in_time() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    began = time.monotonic()
    with server, pytest.raises(SendFailure, match="timed out"):
        # Nobody ever answers the first word of TLS.
        get(f"https://127.0.0.1:{server.getsockname()[1]}", 1)
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"])
def test_a_silence_ends_before_the_whole(first: bytes) -> None:
    def serve(line: socket.socket) -> None:
        line.sendall(first)
        line.recv(1)

    began = time.monotonic()
    with served(serve) as (url, _):
        try:
            found = request("GET", url, {}, timeout_s=9, read_timeout_s=0.2, max_bytes=9)
        except NoResponse:
            assert not first
        else:
            assert (found.body, found.truncated) == (b"x", True)
    assert time.monotonic() - began < 4


def test_a_server_that_does_not_read_ends_in_time() -> None:
    began = time.monotonic()
    with served(lambda line: time.sleep(0.5)) as (url, _), pytest.raises(NoResponse):
        request("POST", url, {}, b"x" * (64 << 20), timeout_s=0.2, max_bytes=9)
    assert time.monotonic() - began < 3


async def test_a_task_that_ends_takes_its_connection_along() -> None:
    """Cancelled or late, nothing is left that waits, and the server sees the end."""
    disconnect = threading.Event()

    def serve(line: socket.socket) -> None:
        with suppress(ConnectionError):
            assert line.recv(1) == b""
        disconnect.set()

    with served(serve) as (url, heads):
        task = asyncio.create_task(request_in_thread("GET", url, {}, timeout_s=9, max_bytes=9))
        while not heads:  # noqa: ASYNC110 (a thread is waited for)
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(disconnect.wait, 2)


async def test_a_name_that_is_not_resolved_in_time_is_never_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go, real = threading.Event(), socket.getaddrinfo

    def slow(*args: object, **more: object) -> object:
        go.wait(10)
        return real(*args, **more)  # type: ignore[arg-type]

    with served(saying(ONE)) as (url, heads):
        monkeypatch.setattr(socket, "getaddrinfo", slow)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await request_in_thread("GET", url, {}, timeout_s=0.1, max_bytes=9)
        assert time.monotonic() - began < 2
        go.set()
        await asyncio.sleep(0.1)
    assert not any(heads)


# --- how much ------------------------------------------------------------------------------------


def test_a_body_is_kept_as_it_came_and_no_longer_than_asked_for() -> None:
    """Nothing unpacks it: a small answer stays small, however much it would become."""
    bomb = gzip.compress(b"0" * (8 << 20))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    with served(saying(head + bomb)) as (url, _):
        assert get(url, most_bytes=1 << 20).body == bomb
        short = get(url, most_bytes=7)
    assert (short.status, short.body, short.truncated) == (200, bomb[:7], True)


def test_an_endless_body_is_read_no_further_than_it_is_kept() -> None:
    began = time.monotonic()
    with served(trickling(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 100)) as (url, _):
        found = get(url, 9, most_bytes=10)
    assert (found.body, found.truncated) == (b"x" * 10, True)
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("expected", "body", "cut"),
    [
        (b"Content-Length: 3\r\n\r\nabc", b"abc", False),
        (b"Content-Length: 3\r\n\r\nabcd", b"abc", False),
        (b"Content-Length: 4\r\n\r\nabc", b"abc", True),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc", False),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"abc", True),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nno", b"abc", True),
        (b"\r\nabc", b"abc", False),
    ],
)
def test_whether_a_body_is_whole_is_told(expected: bytes, body: bytes, cut: bool) -> None:
    with served(saying(b"HTTP/1.1 200 OK\r\n" + expected)) as (url, _):
        found = get(url)
    assert (found.status, found.body, found.truncated) == (200, body, cut)


def test_a_head_has_a_bound() -> None:
    endless = b"X-%d: " % 1 + b"y" * 1000 + b"\r\n"
    with served(trickling(b"HTTP/1.1 200 OK\r\n" + endless * 200, endless)) as (url, _):
        began = time.monotonic()
        with pytest.raises(NoResponse):
            get(url, 5)
    assert time.monotonic() - began < 3


def test_a_redirect_is_an_answer() -> None:
    redirect = b"HTTP/1.1 307 No\r\nLocation: /b\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
    with served(saying(redirect)) as (url, heads):
        found = get(f"{url}/a")
        get(f"{url}/a")
    assert (found.status, found.headers["location"]) == (307, "/b")
    assert [head.split(b"\r\n")[0] for head in heads] == [b"GET /a HTTP/1.1"] * 2
    assert not any(b"ookie" in head for head in heads)


# --- where to ------------------------------------------------------------------------------------


def test_one_address_that_is_refused_refuses_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is connected to; and the name is asked for once."""
    requests: list[str] = []

    def resolve(host: str, port: int, **_: object) -> object:
        requests.append(host)
        return [(0, 0, 0, "", (one, port)) for one in ("127.0.0.1", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with served(saying(ONE)) as (url, heads):
        port = int(url.rpartition(":")[2])
        with pytest.raises(SendFailure, match=r"10\.0\.0\.1, inside") as refusal:
            http_client.connect(
                "half.example", port, time.monotonic() + 5,
                refusal_reason=lambda one: "inside" if str(one) == "10.0.0.1" else None,
            )  # fmt: skip
    assert not refusal.value.transient
    assert requests == ["half.example"]
    assert not heads


@pytest.mark.parametrize("name", ["quay.example", "pier.example"])
def test_a_certificate_has_to_name_the_host_of_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Not the address that it is at; the server is told that name, too."""
    ca = certificate(tmp_path, "quay.example")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    requests: list[str] = []
    serving.sni_callback = lambda line, host, context: requests.append(host)
    trusting = ssl.create_default_context(cafile=ca)
    found = [(0, 0, 0, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def shake() -> None:
            line, _ = server.accept()
            with line, suppress(OSError):
                serving.wrap_socket(line, server_side=True).close()

        thread = threading.Thread(target=shake)
        thread.start()
        port, end = server.getsockname()[1], time.monotonic() + 5
        monkeypatch.setattr(socket, "create_connection", straight)
        if name == "quay.example":
            http_client.connect(name, port, end, trusting).close()
        else:
            with pytest.raises(SendFailure, match="CERTIFICATE"):
                http_client.connect(name, port, end, trusting)
        thread.join()
    assert requests == [name]


def straight(place: tuple[str, int], timeout: float) -> socket.socket:
    """Connect to an address without asking what it is called."""
    line = socket.socket()
    line.settimeout(timeout)
    line.connect(place)
    return line


def test_whom_the_system_does_not_trust_is_shown_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            line, _ = server.accept()
            with line, suppress(OSError):
                line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(SendFailure, match="SSL"):
            request(
                "GET", f"https://localhost:{server.getsockname()[1]}/secret", {},
                timeout_s=5, max_bytes=9, tls=ssl.create_default_context(),
            )  # fmt: skip
        thread.join()
