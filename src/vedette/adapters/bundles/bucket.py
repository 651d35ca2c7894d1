"""A bucket of Google Cloud Storage as a bundle repository, over its JSON API.

Objects change only under a precondition on their generation (`ifGenerationMatch`; 0: there is
none), so of two writers one is told that it came second. Source: Cloud Storage documentation,
"Request preconditions" and the JSON API's `objects.get` and `objects.insert`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from vedette.domain.base.errors import BadFleet, BadPolicy, Unavailable

HOST = "https://storage.googleapis.com"
# Google's emulators and our tests: as its own clients do, without credentials.
EMULATOR_HOST = "STORAGE_EMULATOR_HOST"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
TIMEOUT_S = 10.0
# A whole object, however slowly its parts come.
DOWNLOAD_TIMEOUT_S = 30.0
MAX_BYTES = 32 << 20

_GENERATION = "x-goog-generation"
_PART = 64 << 10
_BOUNDARY = "vedette-part-of-an-upload"


class BucketRepository:
    """Bundle archives in a bucket, under a prefix; the version of an object is its generation.

    The credentials are the machine's own (Application Default Credentials), which need
    `storage.objects.get`, `.create` and `.delete` (to overwrite) on the bucket.
    """

    def __init__(self, bucket: str, prefix: str = "") -> None:
        self.where = f"gs://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._session: Any = None
        self._base = HOST

    @classmethod
    def from_url(cls, where: str) -> BucketRepository:
        """Return the repository of gs://BUCKET/PREFIX. Raises BadFleet without a bucket."""
        bucket, _, prefix = where.removeprefix("gs://").partition("/")
        if not bucket:
            mend = "write gs://BUCKET/PREFIX"
            raise BadFleet("names no bucket", where="vedette.toml: policy.bundles", mend=mend)
        return cls(bucket, prefix.strip("/"))

    def get(self, name: str) -> tuple[bytes, str] | None:
        """Return the bytes under a name and their generation; None if there are none."""
        path = f"/storage/v1/b/{quote(self._bucket, safe='')}/o/{self._object_name(name)}"
        # Without this a gzip that was stored as such might be unpacked on the way.
        headers = {"Accept-Encoding": "gzip"}
        answer = self._request(
            "GET", path, name, params={"alt": "media"}, headers=headers, stream=True
        )
        with answer:
            if answer.status_code == 404:
                return None
            self._check_status(answer, name, 200)
            raw = self._read_body(answer, name)
        generation = answer.headers.get(_GENERATION, "")
        if not generation.isdigit():
            raise Unavailable(
                "what answers there is no Cloud Storage", where=self._object_url(name)
            )
        return raw, generation

    def put(self, name: str, raw: bytes) -> None:
        """Put bytes under a name that tells their content; what is there already stays."""
        if self._insert(name, raw, "0"):
            return
        there = self.get(name)
        if there is None or there[0] != raw:
            raise BadPolicy(
                "holds other bytes than its name tells",
                where=self._object_url(name),
                mend="somebody changed it: look who can write there, then delete it",
            )

    def replace(self, name: str, raw: bytes, version: str | None) -> bool:
        """Put bytes under a name if it still has this generation; say whether it had."""
        return self._insert(name, raw, version or "0")

    def _insert(self, name: str, raw: bytes, generation: str) -> bool:
        path = f"/upload/storage/v1/b/{quote(self._bucket, safe='')}/o"
        # OPA takes a new one when its ETag changes; nothing between may hold on to the old.
        about = {
            "name": self._prefix + name,
            "contentType": "application/gzip",
            "cacheControl": "no-cache",
        }
        parts = (
            (b"application/json; charset=UTF-8", orjson.dumps(about)),
            (b"application/gzip", raw),
        )
        limit = _BOUNDARY.encode()
        body = b"".join(
            b"--%b\r\nContent-Type: %b\r\n\r\n%b\r\n" % (limit, kind, part) for kind, part in parts
        )
        answer = self._request(
            "POST", path, name,
            params={"uploadType": "multipart", "ifGenerationMatch": generation},
            headers={"Content-Type": f"multipart/related; boundary={_BOUNDARY}"},
            data=body + b"--%b--\r\n" % limit,
        )  # fmt: skip
        if answer.status_code == 412:
            return False
        self._check_status(answer, name, 200)
        return True

    # --- the wire ---------------------------------------------------------------------------

    def _request(self, method: str, path: str, name: str, **options: Any) -> Any:
        with self._translate_errors(name):
            session = self._get_session()
            return session.request(
                method, self._base + path, timeout=TIMEOUT_S, allow_redirects=False, **options
            )

    def _read_body(self, answer: Any, name: str) -> bytes:
        """Return the body of an answer as it came over the wire, and nothing less than all of it.

        A part of an archive would read as one that somebody changed.
        """
        raw, end = bytearray(), time.monotonic() + DOWNLOAD_TIMEOUT_S
        with self._translate_errors(name):
            while part := answer.raw.read(_PART, decode_content=False):
                raw += part
                if len(raw) > MAX_BYTES:
                    what = f"is larger than {MAX_BYTES >> 20} MiB"
                    raise BadPolicy(what, where=self._object_url(name))
                if time.monotonic() > end:
                    raise Unavailable(
                        "Cloud Storage sends too slowly", where=self._object_url(name)
                    )
        length = answer.headers.get("Content-Length")
        chunked = answer.headers.get("Transfer-Encoding", "").lower() == "chunked"
        if not chunked and str(len(raw)) != length:
            what = f"Cloud Storage sent {len(raw)} bytes of {length or 'no length'}"
            raise Unavailable(what, where=self._object_url(name))
        return bytes(raw)

    @contextmanager
    def _translate_errors(self, name: str) -> Iterator[None]:
        """Raise Unavailable for what goes wrong on the way; requests hides not all of urllib3."""
        import requests
        from google.auth.exceptions import GoogleAuthError
        from urllib3.exceptions import HTTPError

        try:
            yield
        except (requests.RequestException, GoogleAuthError, HTTPError, OSError) as error:
            raise Unavailable(
                f"Cloud Storage cannot be asked: {type(error).__name__}: {error}",
                where=self._object_url(name),
                mend="see the machine's credentials, and `bundles` in [policy] of vedette.toml",
            ) from error

    def _get_session(self) -> Any:
        if self._session is None:
            if emulator := os.environ.get(EMULATOR_HOST):
                import requests

                self._base = emulator.rstrip("/") if "//" in emulator else f"http://{emulator}"
                self._session = requests.Session()
                # A proxy of the environment is not on the way to the machine itself.
                self._session.trust_env = urlsplit(self._base).scheme == "https"
            else:
                import google.auth
                from google.auth.transport.requests import AuthorizedSession

                credentials, _ = google.auth.default(scopes=[SCOPE])
                self._session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
        return self._session

    def _check_status(self, answer: Any, name: str, status: int) -> None:
        if answer.status_code == status:
            return
        mend = {
            401: "see the machine's credentials",
            403: "let its service account use the bucket's objects (roles/storage.objectUser)",
            404: "make the bucket, or mend `bundles` in [policy] of vedette.toml",
        }.get(answer.status_code)
        what = f"Cloud Storage answered {answer.status_code}"
        raise Unavailable(what, where=self._object_url(name), mend=mend)

    def _object_name(self, name: str) -> str:
        return quote(self._prefix + name, safe="")

    def _object_url(self, name: str) -> str:
        return f"{self.where}/{name}"
