"""Google Secret Manager: the value of a version of a secret, kept for a bounded time.

The service's own client (google-cloud-secret-manager) is loaded when a first secret is read.
SECRET_MANAGER_EMULATOR_HOST=127.0.0.1:PORT names a stand-in on this machine, as Google's emulators
are named; it is spoken to without TLS, so no other host is taken there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from vedette.domain.base import machine
from vedette.domain.base.errors import BadFleet, Unavailable
from vedette.domain.base.urls import is_loopback

EMULATOR_HOST = "SECRET_MANAGER_EMULATOR_HOST"


# Once the service was away it is not asked for that version for so long, while there is a last
# value to go by; and without one, so that a call's few tries are not over before it is back.
_BACKOFF_S, _FIRST_BACKOFF_S = 30.0, 2.0


class SecretManager:
    """The reader of Google Secret Manager's secrets; one is asked for again after `max_age_s`.

    While the service is away a value that it gave no more than `stale_s` ago is still used; one
    that it refuses is not. Times are monotonic seconds. Safe across threads: nobody waits for
    another version's request, nor for anyone's while the service is known to be away.
    """

    def __init__(
        self,
        *,
        max_age_s: float = 300.0,
        stale_s: float = 3600.0,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = lambda: machine.monotonic_s(),
    ) -> None:
        self._max_age_s = max_age_s
        self._stale_s = stale_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._client: Any = None
        self._client_lock = machine.Lock()
        self._cache: dict[str, tuple[float, str]] = {}
        # Not to be asked for before an instant, and why.
        self._outages: dict[str, tuple[float, str]] = {}
        self._locks: dict[str, machine.Lock] = {}
        self.request_count = 0

    def read(self, version: str) -> str:
        """Return the value of `projects/P/secrets/S/versions/V`.

        Raises BadFleet if it is not there, may not be read, is no text, or came damaged;
        Unavailable if the service cannot be asked now.
        """
        found = self._value(version, self._max_age_s)
        if found is not None:
            return found
        asking = self._locks.setdefault(version, machine.Lock())
        # While it is away, whoever asks again asks for all.
        if not asking.acquire(blocking=version not in self._outages):
            return self._stale_value(version)
        try:
            # Whoever had the lock before may have fetched it, or found the service away.
            found = self._value(version, self._max_age_s)
            if found is not None:
                return found
            away = self._outages.get(version)
            if away is not None and self._clock() < away[0]:
                return self._stale_value(version)
            return self._fetch(version)
        finally:
            asking.release()

    def _fetch(self, version: str) -> str:
        try:
            value = self._request(version)
        except Unavailable as error:
            wait_s = _FIRST_BACKOFF_S if self._value(version, self._stale_s) is None else _BACKOFF_S
            self._outages[version] = (self._clock() + wait_s, error.what)
            return self._stale_value(version)
        except BadFleet:
            self._cache.pop(version, None)
            self._outages.pop(version, None)
            raise
        self._cache[version] = (self._clock(), value)
        self._outages.pop(version, None)
        return value

    def _stale_value(self, version: str) -> str:
        """Return what it gave last, if that is not too old. Raises Unavailable."""
        found = self._value(version, self._stale_s)
        if found is None:
            away = self._outages.get(version)
            raise Unavailable(away[1] if away else "is being asked for", where=version)
        return found

    def _value(self, version: str, age_s: float) -> str | None:
        known = self._cache.get(version)
        return known[1] if known is not None and self._clock() - known[0] < age_s else None

    def _request(self, version: str) -> str:
        client = self._get_client()
        from google.api_core import exceptions

        self.request_count += 1
        try:
            # Not the library's own retries: they would go on for a minute, and others wait for it.
            answer = client.access_secret_version(
                name=version, timeout=self._timeout_s, retry=None
            )  # fmt: skip
        except (exceptions.NotFound, exceptions.FailedPrecondition) as error:
            mend = "add the version, or enable it"
            raise BadFleet("there is no such secret", where=version, mend=mend) from error
        except (exceptions.PermissionDenied, exceptions.Unauthenticated) as error:
            mend = "give this identity roles/secretmanager.secretAccessor on it"
            raise BadFleet("the secret may not be read", where=version, mend=mend) from error
        except exceptions.GoogleAPICallError as error:
            what = f"Secret Manager does not answer: {type(error).__name__}"
            raise Unavailable(what, where=version) from error
        return _text(version, answer.payload)

    def _get_client(self) -> Any:
        with self._client_lock:
            if self._client is None:
                self._client = _connect()
            return self._client


def _connect() -> Any:
    try:
        from google.cloud import secretmanager_v1
    except ImportError as error:
        mend = "install vedette[google]"
        raise BadFleet("secrets of Secret Manager need its client", mend=mend) from error
    emulator = os.environ.get(EMULATOR_HOST, "")
    return (
        _emulator_client(secretmanager_v1, emulator)
        if emulator
        else _service_client(secretmanager_v1)
    )


def _service_client(library: Any) -> Any:
    from google.auth.exceptions import DefaultCredentialsError

    try:
        return library.SecretManagerServiceClient()
    except DefaultCredentialsError as error:
        mend = "run where a service account is attached, or set up application default credentials"
        raise BadFleet("Secret Manager is asked without credentials", mend=mend) from error


def _emulator_client(library: Any, host: str) -> Any:
    name = host.rpartition(":")[0]
    if not is_loopback(name.strip("[]")):
        raise BadFleet("is not on this machine", where=f"{EMULATOR_HOST}={host}", mend="unset it")
    import grpc  # type: ignore[import-untyped]
    from google.cloud.secretmanager_v1.services.secret_manager_service import transports

    channel = grpc.insecure_channel(host)
    transport = transports.SecretManagerServiceGrpcTransport(channel=channel, host=host)
    return library.SecretManagerServiceClient(transport=transport)


def _text(version: str, payload: Any) -> str:
    raw = bytes(payload.data)
    if payload.data_crc32c and _crc32c(raw) != int(payload.data_crc32c):
        raise Unavailable("the secret came damaged", where=version)
    try:
        return raw.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        mend = "add a version that is text"
        raise BadFleet("the secret is no text", where=version, mend=mend) from error


def _crc32c(raw: bytes) -> int:
    """Return the Castagnoli CRC (RFC 3720 appendix B.4), which the service sends beside a value.

    Bit by bit: a secret is short, and this is not worth a further package.
    """
    crc = 0xFFFFFFFF
    for byte in raw:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
