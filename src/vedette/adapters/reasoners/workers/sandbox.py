"""The box of a worker: what agents' code can reach, and how it is closed.

Entered by each worker once, after the fork and before a line of agents' code. What holds is the
kernel's: Landlock for files, TCP ports and abstract sockets; seccomp for everything else. Where a
kernel has only one of them, that one is entered; `protection` says what is missing.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

import vedette
from vedette.adapters.reasoners.workers import landlock, seccomp
from vedette.adapters.reasoners.workers.sandbox_probe import protection

# The exit code of a worker that could not enter its box. After `report_entered` it is one like any.
NOT_ENTERED = 97
_SET_DUMPABLE = 4
_SET_CHILD_SUBREAPER = 36
_CAPABILITY_VERSION_3 = 0x20080522
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: whose files a box may reach is not a matter of owners.
_FILE_CAPABILITIES = 1 << 1 | 1 << 2
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
# Libraries that are loaded late, their cache, time zones, locales.
_SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache",
    "/usr/share/zoneinfo", "/etc/localtime", "/usr/share/locale", "/etc/mime.types",
)  # fmt: skip
# Where a C library looks before it asks anybody for a name, and what certificates are checked by.
_NETWORK = (
    "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/services", "/etc/protocols",
    "/etc/gai.conf", "/etc/ssl", "/etc/pki", "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
)  # fmt: skip

# What programs of a system are started from.
_PROGRAMS = (
    "/bin", "/usr/bin", "/usr/libexec", "/usr/local/bin", "/usr/share", "/etc/ssl/openssl.cnf",
    "/etc/gitconfig",
)  # fmt: skip


class Sandbox(Struct, frozen=True):
    """What a worker process may reach beside the interpreter.

    `read` and `write` are absolute paths of folders or files, `ports` are TCP ports to connect to;
    with `datagrams` UDP is open, to anywhere; with `programs` it may start what it may read.
    `scratch` is an empty folder of its own, which is there already. Nothing that holds `closed`
    (folders of the fleet) becomes readable because the interpreter looks for modules there.
    """

    scratch: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    datagrams: bool = False
    closed: tuple[str, ...] = ()
    programs: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as it is sent to a worker."""
        return {
            "scratch": self.scratch, "read": list(self.read), "write": list(self.write),
            "ports": list(self.ports), "datagrams": self.datagrams, "closed": list(self.closed),
            "programs": self.programs,
        }  # fmt: skip

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Sandbox:
        """Return what `to_json` wrote. Raises KeyError, ValueError."""
        return cls(
            str(fields["scratch"]), tuple(fields["read"]), tuple(fields["write"]),
            tuple(int(port) for port in fields["ports"]), bool(fields["datagrams"]),
            tuple(fields["closed"]), bool(fields["programs"]),
        )  # fmt: skip


def prepare_sandbox(sandbox: Sandbox) -> None:
    """Find out what a worker's sandbox is made of before the fork: else each worker would.

    Changes nothing that anybody else would notice.
    """
    protection()
    _interpreter(sandbox.closed)
    if sandbox.ports:
        _certificates()
    seccomp.prepare(connects=bool(sandbox.ports), datagrams=sandbox.datagrams)


def enter_sandbox(sandbox: Sandbox, descriptors: Sequence[int]) -> None:
    """Enter a worker's sandbox for good, with nothing open but standard streams and `descriptors`.

    To be called in a process of one thread. Raises OSError: then agents' code must not run. Most of
    what it costs is memory that is touched for the first time after a fork: so it does little here.
    """
    kernel = protection()
    # Landlock passes over what is not there.
    os.stat(sandbox.scratch)  # noqa: PTH116
    os.environ["TMPDIR"] = tempfile.tempdir = sandbox.scratch
    _close_others(descriptors)
    _make_write_only(2)
    if sys.platform != "linux":
        return
    libc = landlock.libc()
    if libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot be kept from other processes")
    _drop_capabilities(libc)
    # Before Linux 5.19 no file could be moved to another folder, which a Maildir lives by.
    if kernel.landlock >= landlock.MOVES or (kernel.landlock and not sandbox.write):
        read = [
            *_interpreter(sandbox.closed),
            *sandbox.read,
            *(_certificates() if sandbox.ports else ()),
            *(_PROGRAMS if sandbox.programs else ()),
        ]
        landlock.apply_landlock(
            kernel.landlock,
            read,
            [sandbox.scratch, "/dev/null", *sandbox.write],
            ports=sandbox.ports,
            programs=sandbox.programs,
        )
    if kernel.seccomp:
        seccomp.apply_seccomp(
            connects=bool(sandbox.ports), datagrams=sandbox.datagrams, programs=sandbox.programs
        )


def keep_orphans() -> None:
    """Have the fork server keep the processes below workers that ended, where the kernel can.

    The local API recognises its peers by whom they descend from.
    """
    if sys.platform == "linux":
        landlock.libc().prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _close_others(exempt: Sequence[int]) -> None:
    """Close all descriptors but standard streams and those that are kept."""
    try:
        opened = [int(name) for name in os.listdir("/dev/fd")]  # noqa: PTH208
    except OSError:
        opened = list(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    for one in opened:
        if one > 2 and one not in exempt:
            with suppress(OSError):  # the listing's own
                os.close(one)


def _make_write_only(descriptor: int) -> None:
    """Have a stream that is written to not be read: it may be a person's terminal."""
    if not os.isatty(descriptor):
        return
    try:
        opened = os.open(f"/dev/fd/{descriptor}", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        opened = os.open(os.devnull, os.O_WRONLY)
    os.dup2(opened, descriptor)
    os.dup2(opened, 1)
    os.close(opened)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up what root may, but for reading and writing files of others (Landlock says which)."""
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: of 0 to 31, of 32 to 63
    if libc.capget(head, sets) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be told")
    for at in range(6):
        sets[at] &= _FILE_CAPABILITIES if at < 2 else 0
    if libc.capset(head, sets) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")


@cache
def _interpreter(closed: tuple[str, ...]) -> tuple[str, ...]:
    """Return what this interpreter and its libraries are read from.

    A folder that holds a folder of the fleet is left out, but for our own package in it.
    """
    # The interpreter's own library lies beside its modules, if it is a shared one.
    named = {*_SYSTEM, *sys.path, str(Path(sys.base_prefix) / "lib")}
    paths = {path for text in named if text and (path := Path(text).resolve()).exists()}
    inside = [Path(place).resolve() for place in closed]
    open_ = {path for path in paths if not any(one.is_relative_to(path) for one in inside)}
    open_.add(Path(vedette.__file__).resolve().parent)
    # Each rule costs its worker: what lies below another one is left out.
    return (*_DEVICES, *sorted(str(one) for one in open_ if open_.isdisjoint(one.parents)))


@cache
def _certificates() -> tuple[str, ...]:
    """Return what a connection is made with beside its socket."""
    import ssl

    known = ssl.get_default_verify_paths()
    openssl_paths = (known.cafile, known.capath, known.openssl_cafile, known.openssl_capath)
    named = (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return (*_NETWORK, *filter(None, openssl_paths + named))
