"""Landlock: a process gives up, for good, all of the file system and of TCP but what it names.

By the kernel's documented interface (Documentation/userspace-api/landlock.rst): three system calls
without wrappers in libc. What a kernel knows is its ABI: 1 (Linux 5.13) limits files, 2 (5.19)
lets files be moved between folders, 3 (6.2) limits truncation, 4 (6.7) TCP by port, 5 (6.10)
devices' ioctl, 6 (6.12) signals and abstract sockets. It limits the calling thread and what comes
of it, so it has to come before any other thread. It does not limit: metadata (stat, chmod, times),
UDP, sockets that have a path; see `seccomp`.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Sequence

# The same on every architecture.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_BENEATH, _PORT = 1, 2
_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (
    1 << at for at in range(6)
)
_MAKE_DIR, _MAKE_REG = 1 << 7, 1 << 8
_ABI_1_RIGHTS = (1 << 13) - 1  # all that ABI 1 knows
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_BIND, _CONNECT = 1, 2
_ABSTRACT, _SIGNAL = 1, 2

_READ = _READ_FILE | _READ_DIR
# No links by name, pipes, sockets or devices: somebody else might follow or open them.
_WRITE = _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

# The ABI from which on each of these is limited.
FILES, MOVES, PORTS, SIGNALS = 1, 2, 4, 6


class _Rules(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("ports", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _Port(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


def abi() -> int:
    """Return the ABI of this kernel's Landlock; 0 where there is none to be had."""
    if sys.platform != "linux":
        return 0
    try:
        return max(0, _syscall(_CREATE, None, 0, _VERSION))
    except OSError:
        return 0


def apply_landlock(
    abi_version: int,
    read: Sequence[str],
    write: Sequence[str],
    ports: Sequence[int] = (),
    *,
    programs: bool = False,
) -> None:
    """Have Landlock refuse all files but below `read` and `write`, and all TCP but to `ports`.

    With `programs` what may be read may be executed, and no file that may be written: which an
    interpreter that may be executed does not ask.
    `abi_version` is the kernel's ABI, at least 1. A path that is not there is left out. Raises
    OSError; then nothing was given up.
    """
    files = (
        _ABI_1_RIGHTS
        | (_REFER if abi_version >= MOVES else 0)
        | (_TRUNCATE if abi_version >= 3 else 0)
    )
    files |= _IOCTL_DEV if abi_version >= 5 else 0
    rules = _Rules(
        files,
        _BIND | _CONNECT if abi_version >= PORTS else 0,
        _ABSTRACT | _SIGNAL if abi_version >= SIGNALS else 0,
    )
    size = 24 if abi_version >= SIGNALS else 16 if abi_version >= PORTS else 8
    ruleset = _syscall(_CREATE, ctypes.byref(rules), size, 0)
    try:
        for path in read:
            _allow(ruleset, path, (_READ | (_EXECUTE if programs else 0)) & files)
        for path in write:
            _allow(ruleset, path, (_WRITE | _TRUNCATE) & files)
        if abi_version >= PORTS:
            for port in ports:
                _syscall(_ADD, ruleset, _PORT, ctypes.byref(_Port(_CONNECT, port)), 0)
        give_up_privileges()
        _syscall(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def give_up_privileges() -> None:
    """Set no_new_privs: no program that this worker runs gives it a right that it has not."""
    if libc().prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _error("no_new_privs")


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            rights &= _FILE_RIGHTS
        _syscall(_ADD, ruleset, _BENEATH, ctypes.byref(_Beneath(rights, opened)), 0)
    finally:
        os.close(opened)


def _syscall(number: int, *arguments: object) -> int:
    args = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    done: int = libc().syscall(ctypes.c_long(number), *args)
    if done < 0:
        raise _error("landlock")
    return done


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


_LIBC: list[ctypes.CDLL] = []


def libc() -> ctypes.CDLL:
    """Return the C library by which a worker enters its sandbox (Landlock, seccomp, prctl)."""
    if not _LIBC:
        _LIBC.append(ctypes.CDLL(None, use_errno=True))
        _LIBC[0].syscall.restype = ctypes.c_long
    return _LIBC[0]
