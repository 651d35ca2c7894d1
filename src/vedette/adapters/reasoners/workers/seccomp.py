"""Seccomp: a process gives up, for good, all system calls but those that this lists.

The filter is a small program of classic BPF that the kernel runs before each call (seccomp(2)). It
goes by what is allowed: what nobody thought of is refused. So there is no new process or program,
no socket but those named here, no signal to anybody else, no tracing, no mount, no change of
modes, owners or times of files, and no way around by io_uring, another ABI of the processor or a
descriptor of another process. A box of `programs` has new processes and programs besides, which
inherit the filter, and signals: by number to any process where Landlock (ABI 6) keeps them within
the box, elsewhere to the whole process group. No process leaves its group or session there, so that
the whole group can be ended; a change of a file's mode is answered with success there and not done.
A call is refused with EPERM; newer ones (424 and later) with ENOSYS, so that libraries take the
older one. A call by another architecture's ABI ends the process.

Numbers are those of the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h); x86-64 and aarch64, tried on the former only. Written here
since what there is on PyPI needs the C library libseccomp on each machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from vedette.adapters.reasoners.workers.landlock import SIGNALS, abi, give_up_privileges, libc

# As `os.uname` says it: the kernel's name (AUDIT_ARCH_…), and the column of the table below.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_ALLOWED = """
read 0 63; write 1 64; open 2 -; close 3 57; stat 4 -; fstat 5 80; lstat 6 -; poll 7 -
lseek 8 62; mmap 9 222; mprotect 10 226; munmap 11 215; brk 12 214; rt_sigaction 13 134
rt_sigprocmask 14 135; rt_sigreturn 15 139; pread64 17 67; pwrite64 18 68; readv 19 65
writev 20 66; access 21 -; pipe 22 -; select 23 -; sched_yield 24 124; mremap 25 216
msync 26 227; mincore 27 232; madvise 28 233; dup 32 23; dup2 33 -; pause 34 -
nanosleep 35 101; getitimer 36 102; setitimer 38 103; alarm 37 -; getpid 39 172
sendfile 40 71; recvfrom 45 207; recvmsg 47 212; shutdown 48 210; getsockname 51 204
getpeername 52 205; setsockopt 54 208; getsockopt 55 209; exit 60 93; wait4 61 260
uname 63 160; fsync 74 82; fdatasync 75 83; ftruncate 77 46; getdents 78 -; getcwd 79 17
chdir 80 49; fchdir 81 50; rename 82 -; mkdir 83 -; rmdir 84 -; creat 85 -; link 86 -
unlink 87 -; readlink 89 -; umask 95 166; gettimeofday 96 169; getrlimit 97 163
getrusage 98 165; sysinfo 99 179; times 100 153; getuid 102 174; getgid 104 176
geteuid 107 175; getegid 108 177; getppid 110 173; getpgrp 111 -; getpgid 121 155
getsid 124 156; getgroups 115 158; getresuid 118 148; getresgid 120 150; rt_sigpending 127 136
rt_sigtimedwait 128 137; rt_sigsuspend 130 133; sigaltstack 131 132; statfs 137 43
fstatfs 138 44; getpriority 140 141; sched_getparam 143 121; sched_getscheduler 145 120
sched_get_priority_max 146 125; sched_get_priority_min 147 126; arch_prctl 158 -
gettid 186 178; time 201 -; futex 202 98; sched_getaffinity 204 123; epoll_create 213 -
getdents64 217 61; set_tid_address 218 96; restart_syscall 219 128; fadvise64 221 223
clock_gettime 228 113; clock_getres 229 114; clock_nanosleep 230 115; exit_group 231 94
epoll_wait 232 -; epoll_ctl 233 21; waitid 247 95; openat 257 56; mkdirat 258 34
newfstatat 262 79; unlinkat 263 35; renameat 264 38; linkat 265 37; readlinkat 267 78
faccessat 269 48; pselect6 270 72; ppoll 271 73; set_robust_list 273 99
get_robust_list 274 100; sync_file_range 277 84; epoll_pwait 281 22; eventfd 284 -
timerfd_create 283 85; fallocate 285 47; timerfd_settime 286 86; timerfd_gettime 287 87
eventfd2 290 19; epoll_create1 291 20; dup3 292 24; pipe2 293 59; preadv 295 69
pwritev 296 70; getcpu 309 168; renameat2 316 276; getrandom 318 278; membarrier 324 283
copy_file_range 326 285; preadv2 327 286; pwritev2 328 287; statx 332 291; rseq 334 293
close_range 436 436; openat2 437 437; faccessat2 439 439; epoll_pwait2 441 441
futex_waitv 449 449; map_shadow_stack 453 453; futex_wake 454 454; futex_wait 455 455
"""
_PROGRAMS = """
execve 59 221; execveat 322 281; fork 57 -; vfork 58 -
"""
# Landlock does not see modes, so nobody may change one; programs that give each file that they
# write its mode would stop at a no, and are told yes.
_IGNORED = """
chmod 90 -; fchmod 91 52; fchmodat 268 53
"""
_BOUNDED = """
kill 62 129; tgkill 234 131; rt_sigqueueinfo 129 138; rt_tgsigqueueinfo 297 240; clone 56 220
prctl 157 167; prlimit64 302 261; fcntl 72 25; ioctl 16 29; socket 41 198; connect 42 203
socketpair 53 199; sendto 44 206; sendmsg 46 211; sendmmsg 307 269
"""
_NEWER = 424  # from here on the numbers are the same everywhere
_X32 = 0x4000_0000

_SET_SECCOMP, _FILTER = 22, 2
_GET_ACTION_AVAIL = 2
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _AND, _EQUAL, _AT_LEAST, _JUMP, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x05, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_ALL = 0xFFFF_FFFF
_OWN = -1  # stands for the number of the process that enters

_THREAD = 0x0001_0000
# CLONE_PTRACE and every CLONE_NEW…: no thread in namespaces of its own.
_NOT_OF_THREADS = 0x7E02_2000
_UNIX, _INET, _INET6, _STREAM, _DGRAM, _TCP = 1, 2, 10, 1, 2, 6
_NOT_TYPE = 0x0008_0800  # SOCK_CLOEXEC, SOCK_NONBLOCK
_FAST_OPEN = 0x2000_0000  # connects with the first data, past Landlock
# Duplicates, flags and locks of a descriptor; not to whom a signal of it goes, not leases.
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FICLONE; nothing that types on a
# terminal.
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x4004_9409)
# Names of threads and of memory, and what a debugger may do.
_PRCTL = (15, 16, 0x53564D41, 3)
_SET_PARENT_DEATH_SIGNAL = 1


class _Test(NamedTuple):
    """What an argument of a call must be: `value` in the bits of `mask`; `half` 1 is the upper."""

    argument: int
    value: int
    mask: int = _ALL
    half: int = 0


# Instructions: code, how far to jump if true and if false, operand.
_Code = list[tuple[int, int, int, int]]
# A call is allowed if all tests of one of its forms hold.
_Form = tuple[_Test, ...]


def _null(argument: int) -> _Form:
    return _Test(argument, 0), _Test(argument, 0, half=1)


def _bounds(connects: bool, datagrams: bool, programs: bool) -> dict[str, list[_Form]]:
    """Return the forms in which each call of `_BOUNDED` is allowed."""
    own_process: list[_Form] = [(_Test(0, _OWN),)]
    kind = _ALL ^ _NOT_TYPE
    bounds: dict[str, list[_Form]] = {
        "kill": own_process,
        "tgkill": own_process,
        "rt_sigqueueinfo": own_process,
        "rt_tgsigqueueinfo": own_process,
        "clone": [(_Test(0, _THREAD, _THREAD | _NOT_OF_THREADS),)],
        "prctl": [(_Test(0, option),) for option in _PRCTL],
        "prlimit64": [(_Test(0, 0), *_null(2))],
        "fcntl": [(_Test(1, command),) for command in _FCNTL],
        "ioctl": [(_Test(1, command),) for command in _IOCTL],
        # A pair that is connected to itself and to nobody else: what an event loop wakes up by.
        "socketpair": [(_Test(0, _UNIX), _Test(1, _STREAM, kind))],
        "sendto": [(_Test(3, 0, _FAST_OPEN), *_null(4))],
        "sendmsg": [(_Test(2, 0, _FAST_OPEN),)],
    }
    if programs:
        bounds["clone"] = [(_Test(0, 0, _NOT_OF_THREADS),)]
        # Who dies with whom, and a program's own process group, which it cannot leave.
        bounds["prctl"].append((_Test(0, _SET_PARENT_DEATH_SIGNAL),))
        bounds["kill"] = [*own_process, (_Test(0, 0),)]
        if abi() >= SIGNALS:
            bounds |= {name: [()] for name in ("kill", "tgkill")}
    if connects:
        # Plain TCP: of other protocols Landlock knows no ports.
        bounds["socket"] = [
            (_Test(0, family), _Test(1, _STREAM, kind), _Test(2, protocol))
            for family in (_INET, _INET6)
            for protocol in (0, _TCP)
        ]
        if datagrams and programs:
            # By which a C library asks a name server for both kinds of address.
            bounds["sendmmsg"] = [(_Test(3, 0, _FAST_OPEN),)]
        if datagrams:
            bounds["socket"] += [(_Test(0, one), _Test(1, _DGRAM, kind)) for one in (_INET, _INET6)]
        bounds["connect"] = [()]
    return bounds


def is_available() -> bool:
    """Say whether this kernel and processor take a seccomp filter of ours."""
    if sys.platform != "linux" or sys.maxsize < 2**32 or os.uname().machine not in _MACHINES:
        return False
    number = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
    wanted = ctypes.c_uint32(_ERRNO)
    done = libc().syscall(ctypes.c_long(number), _GET_ACTION_AVAIL, 0, ctypes.byref(wanted))
    return bool(done == 0)


def apply_seccomp(*, connects: bool, datagrams: bool = False, programs: bool = False) -> None:
    """Have seccomp refuse all other system calls; with `connects` TCP connections may be opened.

    With `datagrams`, which needs `connects`, UDP sockets as well; with `programs` processes may be
    started, else it forks no more. Must be called by a process of one thread. Raises OSError.
    """
    code = build_program(
        os.uname().machine, os.getpid(), connects=connects, datagrams=datagrams, programs=programs
    )
    buffer = ctypes.create_string_buffer(code)
    fprog = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    give_up_privileges()
    if libc().prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(fprog), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


def prepare(*, connects: bool, datagrams: bool = False) -> None:
    """Have the seccomp filter of a sandbox ready for the workers that are forked from here."""
    if is_available():
        _template(os.uname().machine, connects, datagrams, False)


def build_program(
    machine: str, pid: int, *, connects: bool, datagrams: bool = False, programs: bool = False
) -> bytes:
    """Return the seccomp filter as the kernel takes it: BPF instructions (<linux/filter.h>)."""
    template, offsets = _template(machine, connects, datagrams, programs)
    code = bytearray(template)
    for at in offsets:
        struct.pack_into("I", code, at, pid)
    return bytes(code)


@cache
def _template(
    machine: str, connects: bool, datagrams: bool, programs: bool
) -> tuple[bytes, tuple[int, ...]]:
    """Return a filter without the number of its process, and where that belongs."""
    arch, column = _MACHINES[machine]
    code: _Code = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    allow, refuse = [(_RETURN, 0, 0, _ALLOW)], [(_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    allowed = _ALLOWED + (_PROGRAMS if programs else "")
    answers = dict.fromkeys(_numbers(allowed, column).values(), allow)
    bounds = _bounds(connects, datagrams, programs)
    if programs:
        ignore = [(_RETURN, 0, 0, _ERRNO)]
        answers |= dict.fromkeys(_numbers(_IGNORED, column).values(), ignore)
    for name, number in _numbers(_BOUNDED, column).items():
        answers[number] = list(_argument_checks(bounds.get(name, [])))
    newer = [(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    code += _tree(list(_segments(answers, refuse, newer)))
    places = tuple(8 * at + 4 for at, row in enumerate(code) if row[3] == _OWN)
    packed = (struct.pack("HBBI", *row[:3], 0 if row[3] == _OWN else row[3]) for row in code)
    return b"".join(packed), places


def _segments(
    answers: dict[int, _Code], refuse: _Code, newer: _Code
) -> Iterator[tuple[int, _Code]]:
    """Yield from which number on which answer holds, lowest first, over all numbers there are."""
    last: _Code = []
    for number in range(max(*answers, _NEWER) + 2):
        found = answers.get(number, refuse if number < _NEWER else newer)
        if found is not last:
            yield number, found
            last = found
    yield _X32, [(_RETURN, 0, 0, _KILL)]


def _tree(segments: Sequence[tuple[int, _Code]]) -> _Code:
    """Return a search for the segment of a number. The kernel tries the filter for each number of
    each table when it is installed, so a list in a row would cost milliseconds.
    """
    if len(segments) == 1:
        return segments[0][1]
    half = len(segments) // 2
    lower, upper = _tree(segments[:half]), _tree(segments[half:])
    return [(_AT_LEAST, 0, 1, segments[half][0]), (_JUMP, 0, 0, len(lower)), *lower, *upper]


def _argument_checks(forms: Sequence[_Form]) -> Iterator[tuple[int, int, int, int]]:
    """Yield what comes of a call whose arguments are to be looked at; always ends with an answer.

    Arguments lie as two halves of 32 bits, the lower first: both processors are little-endian.
    """
    for form in forms:
        length = sum(2 + (test.mask != _ALL) for test in form)
        left = length
        for test in form:
            yield _LOAD, 0, 0, _ARGUMENTS + 8 * test.argument + 4 * test.half
            if test.mask != _ALL:
                yield _AND, 0, 0, test.mask
            left -= 2 + (test.mask != _ALL)
            # Else past the rest of this form and its answer.
            yield _EQUAL, 0, left + 1, test.value
        yield _RETURN, 0, 0, _ALLOW
    yield _RETURN, 0, 0, _ERRNO | errno.EPERM


def _numbers(table: str, column: int) -> dict[str, int]:
    """Return the numbers of the calls of a table that a processor has."""
    rows = (row.split() for row in table.replace("\n", ";").split(";") if row.strip())
    return {row[0]: int(row[1 + column]) for row in rows if row[1 + column] != "-"}
