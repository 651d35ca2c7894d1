"""A real IMAP server for tests: Dovecot, unprivileged, on free loopback ports, ended by its pid.

tools/dovecot finds or unpacks it. Without it a test is skipped for a person and fails where CI is
set. Any user may log in with the one password and finds an empty mailbox, so every test takes a
user of its own; what they keep is on disk, so `kill` and `start` lose nothing.
"""

from __future__ import annotations

import atexit
import functools
import imaplib
import itertools
import os
import re
import shutil
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.guarded import Guarded

from vedette.adapters.mail.imap.config import ImapFile

ROOT = Path(__file__).parents[1]
NOBODY = 65534
_NAMES = itertools.count(1)
# Dovecot logs nobody in as root: root runs it as nobody.
_DROP = (
    "import os, sys\n"
    "if os.getuid() == 0:\n    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    "os.environ['LD_LIBRARY_PATH'] = sys.argv[1]\n"
    "os.chdir(sys.argv[2]); os.execv(sys.argv[3], sys.argv[3:])\n"
)
_UID, _FLAGS = re.compile(rb"UID (\d+)"), re.compile(rb"FLAGS \(([^)]*)\)")
_LISTED = re.compile(rb'\([^)]*\) \S+ "?([^"]+)"?')

# (UID, Message-ID, flags without \Recent)
Kept = tuple[int, str, frozenset[str]]


def find_dovecot(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the prefix of Dovecot that tools/dovecot found.

    Skips the test if there is none, and fails it where CI is set.
    """
    found = root / ".tools/dovecot"
    if (found / "complete").exists():
        return found / "usr"
    if environ.get("CI"):
        mend = "make setup, where apt-get has Dovecot 2.3"
        pytest.fail(f"Dovecot is missing. Mend: {mend}", pytrace=False)
    pytest.skip("Dovecot is not here; make setup unpacks it where apt-get has it")


@functools.cache
def reached(usr: Path) -> Path:
    """Return a prefix that nobody may reach, if root runs Dovecot as nobody: a copy if need be."""
    folders = (usr.resolve(), *usr.resolve().parents)
    if os.getuid() != 0 or all(folder.stat().st_mode & 0o001 for folder in folders):
        return usr
    place = Path(tempfile.mkdtemp(prefix="vedette-dovecot-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    place.chmod(0o755)
    return shutil.copytree(usr, place / "usr", symlinks=True)


class ImapServer(Guarded):
    """One server: `port` speaks plain IMAP and STARTTLS, `tls_port` TLS; `ca_file` vouches for it.

    `fill` and `folders` act on the mailbox of `user`; `mailbox()` gives a fresh user's.
    """

    password = "open-sesame"
    user = "desk"

    def __init__(self, usr: Path | None = None) -> None:
        """Start it. Raises RuntimeError with what it said."""
        self._usr = reached(usr or find_dovecot())
        super().__init__("imap", 2)

    @property
    def port(self) -> int:
        """Return the port without TLS, or with STARTTLS."""
        return self.ports[0]

    @property
    def tls_port(self) -> int:
        """Return the port of implicit TLS."""
        return self.ports[1]

    @property
    def ca_file(self) -> str:
        """Return the file with the certificate of `localhost`."""
        return str(self._folder / "cert.pem")

    def mailbox(self, user: str | None = None) -> Mailbox:
        """Return the mailbox of a user: a fresh one, if none is named."""
        return Mailbox(self, user or f"user{os.getpid()}x{next(_NAMES)}")

    def fill(self, mails: Iterable[bytes], folder: str = "INBOX") -> None:
        """Put mails into a folder of `user`."""
        self.mailbox(self.user).fill(mails, folder)

    def folders(self) -> dict[str, set[Kept]]:
        """Return what lies in the folders of `user`."""
        return self.mailbox(self.user).folders()

    def stop(self) -> None:
        """End it and forget all."""
        self.close()

    def mails_at(self, user: str) -> Path:
        """Return the Maildir that a user's mails are kept in."""
        return self._folder / "mail" / user

    def command(self) -> list[str]:
        """Return what runs it."""
        folder, libraries = self._folder, self._usr / "lib/dovecot"
        if not (folder / "cert.pem").exists():
            write_certificate(folder)
        for name in ("run", "state", "mail"):
            (folder / name).mkdir(exist_ok=True)
        for place in (folder, folder / "run"):
            # Where the unpacked copy looks for its modules; an installed one looks nowhere here.
            if not (place / "modules").exists():
                (place / "modules").symlink_to(libraries / "modules")
        (folder / "conf").write_text(_CONF.format(
            b=folder, lib=libraries, port=self.port, tls=self.tls_port, password=self.password,
            user="nobody" if os.getuid() == 0 else _name_of(os.getuid()),
            group=_group_of(NOBODY if os.getuid() == 0 else os.getgid()),
            uid=NOBODY if os.getuid() == 0 else os.getuid(),
            gid=NOBODY if os.getuid() == 0 else os.getgid(),
        ))  # fmt: skip
        if os.getuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        conf = str(folder / "conf")
        return [
            sys.executable, "-I", "-c", _DROP, f"{libraries}:{libraries}/modules/old-stats",
            str(folder), str(self._usr / "bin/doveconf"), "-f", "service=master", "-c", conf,
            "-m", "master", "-p", "-e", str(self._usr / "sbin/dovecot"), "-F", "-c", conf,
        ]  # fmt: skip

    def ready(self, log: bytes) -> bool:
        """Say whether it greets."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as line:
                return line.recv(4) == b"* OK"
        except OSError:
            return False


class Mailbox:
    """One user's mailbox on a server."""

    def __init__(self, server: ImapServer, user: str) -> None:
        self.server, self.user = server, user

    def table(self, **more: Any) -> dict[str, Any]:
        """Return the table of this mailbox in vedette.toml, with its password in clear."""
        return {
            "kind": "imap", "host": "127.0.0.1", "port": self.server.port, "tls": "none",
            "user": self.user, "password": self.server.password, **more,
        }  # fmt: skip

    def source(self, **more: Any) -> ImapFile:
        """Return the table of a source of this mailbox; the password is in the environment."""
        os.environ["VEDETTE_TEST_MAIL"] = self.server.password
        usual = {"kind": "imap", "name": "t", "password_env": "VEDETTE_TEST_MAIL"}
        server = {key: self.table()[key] for key in ("host", "port", "tls", "user")}
        return ImapFile(**{**usual, **server, **more})

    @contextmanager
    def client(self, folder: str | None = None) -> Iterator[imaplib.IMAP4]:
        """Give a plain client, logged in; with a folder open if one is named."""
        with imaplib.IMAP4("127.0.0.1", self.server.port, timeout=20) as client:
            client.login(self.user, self.server.password)
            if folder is not None:
                assert client.select(f'"{folder}"')[0] == "OK"
            yield client

    def fill(
        self, mails: Iterable[bytes], folder: str = "INBOX", *, flags: str = "",
        at: datetime | None = None,
    ) -> None:  # fmt: skip
        """Put mails into a folder, which is made if it is not there; received now, or `at`."""
        with self.client() as client:
            if folder != "INBOX":
                client.create(f'"{folder}"')
            date = imaplib.Time2Internaldate(at) if at else ""
            for mail in mails:
                kind, answer = client.append(f'"{folder}"', flags, date, mail)
                assert kind == "OK", answer

    def create(self, folder: str) -> None:
        """Make a folder."""
        with self.client() as client:
            assert client.create(f'"{folder}"')[0] == "OK"

    def folders(self) -> dict[str, set[Kept]]:
        """Return what lies in each folder."""
        found: dict[str, set[Kept]] = {}
        with self.client() as client:
            for line in client.list()[1]:
                assert isinstance(line, bytes)
                named = _LISTED.match(line)
                assert named is not None, line
                name = named[1].decode()
                client.select(f'"{name}"', readonly=True)
                found[name] = _kept(client)
        return found

    def only(self, folder: str) -> Kept:
        """Return the one mail of a folder."""
        (mail,) = self.folders()[folder]
        return mail

    def raw(self, folder: str) -> list[bytes]:
        """Return the bytes of the mails of a folder, in order."""
        with self.client(folder) as client:
            answer = client.uid("FETCH", "1:*", "(BODY.PEEK[])")[1]
            return [part[1] for part in answer if isinstance(part, tuple)]

    def renumber(self) -> None:
        """Have the server number the mails of the INBOX anew, under another UIDVALIDITY."""
        for path in self.server.mails_at(self.user).glob("dovecot*"):
            if "uidvalidity" not in path.name:
                path.unlink()


def _kept(client: imaplib.IMAP4) -> set[Kept]:
    found: set[Kept] = set()
    # By UID, for which an empty folder is no error.
    attributes = "(UID FLAGS BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)])"
    kind, answer = client.uid("FETCH", "1:*", attributes)
    for part in answer if kind == "OK" else ():
        if not isinstance(part, tuple):
            continue
        uid, flags = _UID.search(part[0]), _FLAGS.search(part[0])
        assert uid is not None
        assert flags is not None
        words = frozenset(flags[1].decode().split()) - {"\\Recent"}
        found.add((int(uid[1]), part[1].partition(b":")[2].strip().decode(), words))
    return found


@functools.cache
def server() -> ImapServer:
    """Return this process's server; it ends with the process."""
    return ImapServer()


def write_certificate(folder: Path) -> None:
    """Write `cert.pem` and `key.pem` for localhost and 127.0.0.1, which vouch for themselves."""
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=7))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    shape, pem = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, shape, plain))
    ssl.create_default_context(cafile=str(folder / "cert.pem"))


def _name_of(uid: int) -> str:
    import pwd

    return pwd.getpwuid(uid).pw_name


def _group_of(gid: int) -> str:
    import grp

    return grp.getgrgid(gid).gr_name


_CONF = """
base_dir = {b}/run
state_dir = {b}/state
libexec_dir = {lib}
mail_plugin_dir = {lib}/modules
protocols = imap
listen = 127.0.0.1
default_internal_user = {user}
default_internal_group = {group}
default_login_user = {user}
import_environment = LD_LIBRARY_PATH
log_path = {b}/dovecot.log
mail_location = maildir:{b}/mail/%u
mail_fsync = never
first_valid_uid = 1
first_valid_gid = 1
mail_max_userip_connections = 50
auth_failure_delay = 0
disable_plaintext_auth = no
auth_mechanisms = plain login
ssl = yes
ssl_cert = <{b}/cert.pem
ssl_key = <{b}/key.pem
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={b}/mail/%u allow_all_users=yes
}}
service imap-login {{
  chroot =
  service_count = 0
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = {tls}
    ssl = yes
  }}
}}
service imap {{
  service_count = 256
}}
service anvil {{
  chroot =
  unix_listener anvil-auth-penalty {{
    mode = 0
  }}
}}
service stats {{
  chroot =
}}
namespace inbox {{
  inbox = yes
}}
"""
