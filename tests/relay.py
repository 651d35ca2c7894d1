"""A relay of TCP connections: what comes to it goes on to another port of this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class Relay:
    """On a free port of 127.0.0.1, while the context lasts; `note` is called as bytes come in."""

    def __init__(self, port: int, note: Callable[[], None]) -> None:
        self._to, self._note = port, note
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        """Relay one connection until both its ends are over, and close them."""
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as server:
            answers = threading.Thread(target=self._answer, args=(client, server), daemon=True)
            answers.start()
            self._ask(client, server)
            answers.join()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self._note()
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
