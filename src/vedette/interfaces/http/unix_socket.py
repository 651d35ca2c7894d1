"""The Unix socket at which the local API listens in the state folder, and whose peer is who.

A Unix socket's path is limited to about 100 bytes (`sun_path`: 108 on Linux, 104 on macOS). Where
the state folder lies deeper than that, the socket lies in a private folder of the user's and
`api.path` in the state folder says where.
"""

from __future__ import annotations

import os
import pwd
import socket
import stat
import struct
import sys
import tempfile
from pathlib import Path

from vedette.domain.base.canonical import sha256_hex
from vedette.domain.base.errors import Forbidden, Unavailable
from vedette.domain.identity import Principal

SOCKET, POINTER = "api.sock", "api.path"
MAX_PATH_BYTES = 100

# <sys/un.h> of macOS: SOL_LOCAL and LOCAL_PEERCRED, which answers with a struct xucred.
_SOL_LOCAL, _LOCAL_PEERCRED = 0, 1


def socket_of(state: Path) -> Path:
    """Return the Unix socket at which a state folder's runner would listen. Connects nowhere."""
    pointer = state / POINTER
    try:
        return Path(pointer.read_text(encoding="utf-8").strip())
    except (FileNotFoundError, NotADirectoryError):
        return state.absolute() / SOCKET


def open_socket(state: Path) -> tuple[socket.socket, Path]:
    """Open the local API's Unix socket in a state folder; only its owner may connect.

    Called by the runner, who holds the store's lock: a socket that is there is a dead one's.
    Raises Unavailable if nothing can be opened.
    """
    path = state.absolute() / SOCKET
    pointer = state / POINTER
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        path = _private_folder() / f"{sha256_hex(os.fsencode(path.resolve()))[:24]}.sock"
        pointer.write_text(f"{path}\n", encoding="utf-8")
    else:
        pointer.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode must be right from the first instant: between bind and chmod anyone could connect.
    before = os.umask(0o177)
    try:
        opened.bind(str(path))
        opened.listen(64)
    except OSError as error:
        opened.close()
        what = f"the local API cannot listen: {error.strerror or error}"
        mend = "put the state folder on a local file system"
        raise Unavailable(what, where=str(path), mend=mend) from error
    finally:
        os.umask(before)
    opened.setblocking(False)
    return opened, path


def remove_socket(state: Path, path: Path) -> None:
    """Remove the local API's Unix socket that `open_socket` left in the file system."""
    path.unlink(missing_ok=True)
    (state / POINTER).unlink(missing_ok=True)


def _private_folder() -> Path:
    """Return a folder of short path that nobody else can write. Raises Unavailable."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"vedette-{os.getuid()}"
    if len(os.fsencode(folder)) > MAX_PATH_BYTES - 30:
        folder = Path("/tmp") / f"vedette-{os.getuid()}"  # noqa: S108 (its owner is checked below)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise Unavailable(
            f"cannot be made: {error.strerror}", where=str(folder), mend="use a shorter state path"
        ) from error
    private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    if not private or found.st_uid != os.getuid():
        raise Unavailable(
            "is not a private folder of yours", where=str(folder), mend="remove it and try again"
        )
    return folder


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of a Unix socket's peer, as the kernel says. Raises Forbidden."""
    try:
        if sys.platform == "darwin":
            raw = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)
            version, uid = struct.unpack_from("II", raw)
            if version == 0:
                return int(uid)
        else:
            size = struct.calcsize("3i")
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return int(struct.unpack("3i", raw)[1])
    except (OSError, struct.error, AttributeError) as error:
        raise Forbidden("who you are cannot be told") from error
    raise Forbidden("who you are cannot be told")


def find_person(uid: int) -> Principal:
    """Return the person of a peer's user id, by the system; it owns the fleet, or is refused."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid-{uid}"
    return Principal.owner(name)


def current_person() -> Principal:
    """Return the person who started this process, as the local API names people."""
    return find_person(os.geteuid())
