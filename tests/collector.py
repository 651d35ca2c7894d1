"""An OpenTelemetry collector for tests: OTLP over real HTTP on the loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP, as a collector does, and keeps the spans; or refuses."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taker)
        self.spans: list[Any] = []
        self.headers: dict[str, str] = {}
        self.resource: dict[str, str] = {}
        self.refuse = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Taker(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/traces" or self.server.refuse:
            self.send_response(400)
            self.end_headers()
            return
        request = ExportTraceServiceRequest.FromString(raw)
        self.server.headers = dict(self.headers.items())
        for resource in request.resource_spans:
            given = resource.resource.attributes
            self.server.resource = {one.key: one.value.string_value for one in given}
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def running_collector() -> Iterator[Collector]:
    """Serve a collector while the context lasts."""
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
