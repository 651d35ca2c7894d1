"""A request on a link that is cut under it, in a network of its own. Prints what arrived as JSON.

`asked` is made by the engine, with a time of 0.3 s; `plain` by a connection that is just closed.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import threading
import time

from vedette.adapters.http_tool.send import NoAnswer, exchange, place_of
from vedette.load.http_template import Request

TIME_S, CUT_S, LATER_S = 0.3, 1.0, 4.0
_SIOCSIFFLAGS, _UP = 0x8914, 0x1


def set_link(up: bool) -> None:
    """Set the loopback device up or down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        told = struct.pack("16sh14x", b"lo", _UP if up else 0)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, told)


def take_all(listening: socket.socket, arrived: list[str]) -> None:
    """Note the first word of whatever comes in; answer nothing."""

    def take(one: socket.socket) -> None:
        try:
            arrived.append(one.recv(1 << 16).split(b" ")[0].decode())
        except OSError:
            arrived.append("")

    while True:
        one, _ = listening.accept()
        threading.Thread(target=take, args=(one,), daemon=True).start()


def main() -> None:
    set_link(True)
    arrived: list[str] = []
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=take_all, args=(listening, arrived), daemon=True).start()
    port = listening.getsockname()[1]
    plain = socket.create_connection(("127.0.0.1", port))

    def cut(line: socket.socket) -> bool:
        set_link(False)
        plain.sendall(b"plain request")
        return True

    place = place_of({"base_url": f"http://127.0.0.1:{port}", "private": True})
    request = Request(method="POST", target="/", headers={}, body={}, has_body=True)
    try:
        exchange(place, request, {}, time.monotonic() + TIME_S, cut)
    except NoAnswer:
        plain.close()
        time.sleep(CUT_S)
        set_link(True)
        time.sleep(LATER_S)
    print(json.dumps(arrived))


if __name__ == "__main__":
    main()
