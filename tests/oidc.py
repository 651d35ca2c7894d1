"""A real OpenID Connect provider for tests: npm's oidc-provider on the machine's Node.

`make setup` installs it (tools/oidc); without it, or without Node, a test is skipped for a person
and fails where CI is set. Each "person" is a client of the provider that asks for its own token,
a JWT for one audience with a `roles` claim, signed with keys that the test knows and may rotate.
The provider listens on a free loopback port and ends when our end of its standard input does.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
_SCRIPT = ROOT / "tools" / "oidc" / "provider.mjs"


def find_node(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> tuple[str, Path]:
    """Return Node and the folder of the installed provider; skips, or fails where CI is set."""
    node = shutil.which("node", path=environ.get("PATH", ""))
    folder = root / ".tools" / "oidc"
    if node and (folder / "node_modules" / "oidc-provider").is_dir():
        return node, folder
    if environ.get("CI"):
        pytest.fail("oidc-provider is missing. Mend: install Node 20, make setup", pytrace=False)
    pytest.skip("oidc-provider is not here; make setup installs it, where Node is")


def new_key(algorithm: str = "RS256") -> dict[str, Any]:
    """Return a new private signing key as a JWK with an id of its own."""
    from joserfc.jwk import ECKey, RSAKey

    kid = secrets.token_hex(6)
    fields: Any = {"kid": kid, "use": "sig", "alg": algorithm}
    if algorithm == "ES256":
        made: Any = ECKey.generate_key("P-256", fields)
    else:
        made = RSAKey.generate_key(2048, fields)
    return {**made.as_dict(private=True), **fields}


class Provider:
    """One running provider. `clients` are id -> {"roles": [...], "claims"?: {...}, "life"?: s}."""

    def __init__(
        self, clients: Mapping[str, Mapping[str, Any]], *, key: Mapping[str, Any] | None = None
    ) -> None:
        self.node, self.folder = find_node()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.key: Mapping[str, Any] = key or new_key()
        self._secret = secrets.token_urlsafe(24)
        self._clients = {name: {"secret": self._secret, **value} for name, value in clients.items()}
        self._start()

    @property
    def issuer(self) -> str:
        """Return the issuer's name, which is its address."""
        return f"http://127.0.0.1:{self.port}"

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [self.node, str(_SCRIPT), str(self.folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "NODE_ENV": "test", "NODE_NO_WARNINGS": "1"},
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        plan = {"port": self.port, "jwks": {"keys": [self.key]}, "clients": self._clients}
        self._process.stdin.write(json.dumps(plan) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:  # the provider warns on this stream, too
            if line.startswith("ready "):
                return
        raise RuntimeError(f"the provider did not start: exit {self._process.wait(10)}")

    def token(self, client: str, audience: str = "urn:vedette") -> str:
        """Return a new access token of a client (RFC 6749 section 4.4, RFC 8707)."""
        question = {
            "grant_type": "client_credentials", "client_id": client,
            "client_secret": self._secret, "scope": "fleet", "resource": audience,
        }  # fmt: skip
        request = urllib.request.Request(
            f"{self.issuer}/token", urllib.parse.urlencode(question).encode()
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(json.load(answer)["access_token"])

    def rotate(self, key: Mapping[str, Any] | None = None) -> None:
        """Start again on the same address with another key; the old one is gone."""
        self.stop()
        self.key = key or new_key()
        self._start()

    def stop(self) -> None:
        """Stop it, by closing what it reads."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
