"""A request, or a `mail`, on a link that is cut under it, in a network of its own.

Prints what arrived as JSON: what the engine sent, with a time of 0.3 s, and what a plain connection
sent that was just closed.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from vedette.adapters.http.request import NoResponse, parse_endpoint, send_request
from vedette.adapters.http.template import Request
from vedette.adapters.mail import smtp
from vedette.domain.base import failpoint

TIME_S, CUT_S, LATER_S = 0.3, 1.0, 4.0
_SIOCSIFFLAGS, _UP = 0x8914, 0x1


def set_link(up: bool) -> None:
    """Set the loopback device up or down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", _UP if up else 0)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def take_first(listening: socket.socket, arrived: list[str]) -> None:
    """Note the first word of what comes in; answer nothing."""
    one, _ = listening.accept()
    with suppress(OSError):
        arrived += one.recv(1 << 16).split(b" ")[0].decode().split()


def take_mail(listening: socket.socket, arrived: list[str]) -> None:
    """Be a mail server for one mail: note that its content came, answer nothing to that."""
    one, _ = listening.accept()
    one.sendall(b"220 here\r\n")
    with one.makefile("rb") as lines:
        for line in lines:
            if line.startswith(b"DATA"):
                one.sendall(b"354 go on\r\n")
                break
            one.sendall(b"250 yes\r\n")
        arrived += ["mail"] * bool(lines.readline())


def send_mail(port: int, cut: Callable[[], None]) -> None:
    """Hand a mail over whose content finds the link cut. Returns once nobody waits any more."""
    smtp.TIMEOUT_S = TIME_S
    failpoint.hook = lambda point: cut() if point == "smtp.data:before" else None
    server = {"host": "127.0.0.1", "port": port, "tls": "none"}
    with suppress(smtp.Unanswered):
        smtp.send_mail(server, b"Subject: late\r\n\r\nlate\r\n", "a@b.example", ["c@d.example"])


def send_post(port: int, cut: Callable[[], None]) -> None:
    """Make a request that finds the link cut. Returns once nobody waits for its answer any more."""

    def may_send(line: socket.socket) -> bool:
        cut()
        return True

    place = parse_endpoint({"base_url": f"http://127.0.0.1:{port}", "private": True})
    request = Request(method="POST", target="/", headers={}, body={}, has_body=True)
    with suppress(NoResponse):
        send_request(place, request, {}, time.monotonic() + TIME_S, may_send)


WAYS = {"POST": (take_first, send_post), "mail": (take_mail, send_mail)}


def main() -> None:
    set_link(True)
    arrived: list[str] = []
    ports = []
    take, send = WAYS[sys.argv[1]]
    for each in (take, take_first):
        listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=each, args=(listening, arrived), daemon=True).start()
        ports.append(listening.getsockname()[1])
    plain = socket.create_connection(("127.0.0.1", ports[1]))

    def cut() -> None:
        set_link(False)
        plain.sendall(b"plain request")

    send(ports[0], cut)
    plain.close()
    time.sleep(CUT_S)
    set_link(True)
    time.sleep(LATER_S)
    print(json.dumps(arrived))


if __name__ == "__main__":
    main()
