"""Has a child's system calls fail: the n-th write, sync, open, rename … of a kind of file.

A child installs a filter (seccomp(2), SECCOMP_RET_USER_NOTIF) under which each call that changes
files stops before the kernel does it, and hands its parent the descriptor over which that is told.
The parent looks which file it is for and has the kernel go on, or answers with an error in its
place. So nothing of the program is changed, and no library that it uses is missed.

    failing = Failing(kind_of, Fault("write", "witness", 3, "EIO"))
    ended = in_child(failing.under(work), beside=failing.attend)
    failing.struck  # the path of the file, or "" if there was no third write; `times` it failed

`kind_of` names the kind of a file by its path; "" for one that is not ours, which never fails.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

# Names by which faults go, the calls that are meant (their numbers on x86-64 and aarch64, as in
# vedette.adapters.reasoners.workers.seccomp), and where the file is named: a descriptor, or a path
# and what it is relative to (-1: the current folder).
_TABLE = """
write write 1 64 fd 0; write pwrite64 18 68 fd 0; write writev 20 66 fd 0
write pwritev 296 70 fd 0; write pwritev2 328 287 fd 0; write sendfile 40 71 fd 0
write copy_file_range 326 285 fd 2; allocate fallocate 285 47 fd 0
sync fsync 74 82 fd 0; sync fdatasync 75 83 fd 0
truncate truncate 76 45 path 0 -1; truncate ftruncate 77 46 fd 0
open open 2 - path 0 -1; open creat 85 - path 0 -1; open openat 257 56 path 1 0
rename rename 82 - path 1 -1; rename renameat 264 38 path 3 2; rename renameat2 316 276 path 3 2
unlink unlink 87 - path 0 -1; unlink rmdir 84 - path 0 -1; unlink unlinkat 263 35 path 1 0
link link 86 - path 1 -1; link linkat 265 37 path 3 2
mkdir mkdir 83 - path 0 -1; mkdir mkdirat 258 34 path 1 0
"""
# How a call may fail; the last two go on until the process ends.
LASTING = ("dead", "full")
FAULTS = ("EIO", "ENOSPC", "half", *LASTING)
# What a full disk refuses, beside making a file; what a disk may find out late that it has no room.
_TAKES_ROOM = ("write", "allocate", "link", "mkdir")
_FOUND_FULL = (*_TAKES_ROOM, "sync", "rename", "truncate")

_MACHINES = {"x86_64": (0xC000003E, 317, 0), "aarch64": (0xC00000B7, 277, 1)}
_NO_NEW_PRIVS, _SET_FILTER, _NEW_LISTENER = 38, 1, 8
_ALLOW, _NOTIFY, _KILL = 0x7FFF0000, 0x7FC00000, 0x80000000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_CONTINUE = 1
_AT_CWD, _LONGEST = -100, 4096


class _Call(NamedTuple):
    """One system call: the name of its fault, its own, and which arguments name its file."""

    fault: str
    name: str
    by: str
    argument: int
    beside: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What fails: the `at`-th (from 1) of those calls for that kind of file, and how.

    With `every`, each further one that comes so many calls later fails, too. `dead` fails that and
    every later call, of every kind, with EIO; `full` every one that takes room, with ENOSPC; `half`
    writes half of what was to be written.
    """

    call: str
    kind: str
    at: int
    how: str
    every: int = 0

    def __str__(self) -> str:
        further = f", and at each {self.every}th from there," if self.every else ""
        return f"{self.how} at {self.call} {self.at}{further} of {self.kind}"

    def strikes(self, call: str, kind: str, number: int) -> bool:
        """Say whether a call is one that fails: `number` counts those like it."""
        past = number - self.at
        now = past == 0 or (self.every > 0 and past > 0 and past % self.every == 0)
        return (self.call, self.kind) == (call, kind) and now

    @property
    def lasts(self) -> bool:
        """Say whether it goes on until the process ends."""
        return self.how in LASTING


def ways(call: str) -> tuple[str, ...]:
    """Return how a call of that name may fail."""
    lasting = LASTING if call in _TAKES_ROOM or call == "open" else ("dead",)
    if call == "write":
        return ("EIO", "ENOSPC", "half", *lasting)
    return ("EIO", "ENOSPC", *lasting) if call in _FOUND_FULL or call == "open" else ("EIO", "dead")


class Failing:
    """Counts a child's calls by name and kind of file, and has one of them fail."""

    def __init__(self, kind_of: Callable[[str], str], fault: Fault | None = None) -> None:
        self._kind_of, self._fault = kind_of, fault
        self.counts: Counter[tuple[str, str]] = Counter()
        self.struck, self.times = "", 0
        self._ours, self._childs = socket.socketpair()
        self._notify = self._memory = -1

    def under(self, work: Callable[[], object]) -> Callable[[], object]:
        """Return `work`, to be done by the child under the filter."""
        return partial(self._do, work)

    def _do(self, work: Callable[[], object]) -> object:
        listener = _install()
        # (A call that is not filtered: a write here would wait for who does not listen yet.)
        socket.send_fds(self._childs, [b"."], [listener])
        os.close(listener)
        return work()

    def attend(self, pid: int, heard: int) -> None:
        """Answer the child's calls until it says something over the pipe `heard`, or has ended."""
        self._childs.close()
        try:
            _, descriptors, _, _ = socket.recv_fds(self._ours, 1, 1)
            if not descriptors:
                return  # it ended before
            self._notify = descriptors[0]
            self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
            poll = select.poll()
            poll.register(self._notify, select.POLLIN)
            poll.register(heard, select.POLLIN)
            while True:
                for ready, events in poll.poll():
                    if ready == heard or not events & select.POLLIN:
                        return
                    self._answer_one()
        finally:
            for descriptor in (self._notify, self._memory):
                if descriptor >= 0:
                    os.close(descriptor)
            self._ours.close()

    def _answer_one(self) -> None:
        notification = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._notify, _RECEIVE, notification)
        except FileNotFoundError:
            return  # whoever made the call was killed meanwhile
        place, tid, _, number, _, _, *arguments = _NOTIFICATION.unpack(notification)
        call = _calls()[number]
        error, value = 0, 0
        try:
            path = self._path(tid, call, arguments)
            if path and (kind := self._kind_of(path)):
                error, value = self._fate(call, kind, path, tid, arguments)
        except (FileNotFoundError, ProcessLookupError):
            pass  # the same
        goes_on = _CONTINUE if not error and not value else 0
        try:
            fcntl.ioctl(self._notify, _SEND, _ANSWER.pack(place, value, -error, goes_on))
        except FileNotFoundError:
            return  # the same

    def _fate(
        self, call: _Call, kind: str, path: str, tid: int, arguments: list[int]
    ) -> tuple[int, int]:
        """Return (errno, value) with which a call returns; (0, 0) if the kernel is to do it."""
        fault = self._fault
        self.counts[call.fault, kind] += 1
        if fault is None:
            return 0, 0
        if not (self.struck and fault.lasts):
            if not fault.strikes(call.fault, kind, self.counts[call.fault, kind]):
                return 0, 0
            self.struck, self.times = path, self.times + 1
        if fault.how == "half":
            return self._half(call, tid, arguments)
        if fault.how == "full" and not self._takes_room(call, path, arguments):
            return 0, 0
        return (errno.EIO if fault.how in ("EIO", "dead") else errno.ENOSPC), 0

    def _takes_room(self, call: _Call, path: str, arguments: list[int]) -> bool:
        if call.fault != "open":
            return call.fault in _TAKES_ROOM
        flags = arguments[2 if call.name == "openat" else 1]
        return bool(flags & os.O_CREAT) and not os.path.exists(path)  # noqa: PTH110 (often)

    def _half(self, call: _Call, tid: int, arguments: list[int]) -> tuple[int, int]:
        """Do half of a write in the child's place, as a disk does that has room for no more."""
        length = arguments[2] // 2
        if call.name not in ("write", "pwrite64") or not length:
            return errno.ENOSPC, 0
        data = os.pread(self._memory, length, arguments[1])
        file = _descriptor_of(tid, arguments[0])
        try:
            if call.name == "write":
                return 0, os.write(file, data)
            return 0, os.pwrite(file, data, arguments[3])
        finally:
            os.close(file)

    def _path(self, tid: int, call: _Call, arguments: list[int]) -> str:
        if call.by == "fd":
            return _link(f"/proc/{tid}/fd/{_int(arguments[call.argument])}")
        raw = os.pread(self._memory, _LONGEST, arguments[call.argument])
        path = os.fsdecode(raw.partition(b"\0")[0])
        if path.startswith("/"):
            return os.path.normpath(path)
        folder = _AT_CWD if call.beside < 0 else _int(arguments[call.beside])
        at = "cwd" if folder == _AT_CWD else f"fd/{folder}"
        return os.path.normpath(f"{_link(f'/proc/{tid}/{at}')}/{path}")


def available() -> bool:
    """Say whether this kernel and processor take such a filter: one that is allowed and unused."""
    if os.uname().sysname != "Linux" or os.uname().machine not in _MACHINES:
        return False
    pid = os.fork()
    if not pid:
        try:
            os.close(_install())
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _link(path: str) -> str:
    return os.readlink(path)  # noqa: PTH115 (for each call)


def _int(value: int) -> int:
    """Return an argument as the C int that it is."""
    value &= 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


def _descriptor_of(tid: int, number: int) -> int:
    """Return the same open file as another process's descriptor: its place and flags are one."""
    status = dict(line.split(":", 1) for line in _lines(f"/proc/{tid}/status") if ":" in line)
    process = os.pidfd_open(int(status["Tgid"]))
    try:
        number_of = 438  # pidfd_getfd, everywhere
        found = _libc().syscall(number_of, process, _int(number), 0)
        if found < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        return int(found)
    finally:
        os.close(process)


def _lines(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 (often)
        yield from file


def _install() -> int:
    """Have this process's calls told; return the descriptor over which. Raises OSError."""
    arch, seccomp, _ = _MACHINES[os.uname().machine]
    numbers = list(_calls())
    code = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for at, number in enumerate(numbers):
        code.append((_EQUAL, len(numbers) - at, 0, number))
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]
    raw = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in code))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(raw))
    libc = _libc()
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    result = libc.syscall(seccomp, _SET_FILTER, _NEW_LISTENER, ctypes.c_char_p(program))
    if result < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return int(result)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


_found: dict[int, _Call] = {}


def _calls() -> dict[int, _Call]:
    """Return the calls that are told, by their numbers on this processor."""
    if not _found:
        column = _MACHINES[os.uname().machine][2]
        for row in _TABLE.replace("\n", ";").split(";"):
            if not row.strip():
                continue
            fault, name, *numbers, by, argument = row.split()[:6]
            fields = row.split()[6:]
            if numbers[column] != "-":
                at = int(fields[0]) if fields else -1
                _found[int(numbers[column])] = _Call(fault, name, by, int(argument), at)
    return _found
