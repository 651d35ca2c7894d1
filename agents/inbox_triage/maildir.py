"""The few moves on a Maildir that the tools are made of. Each is one rename or one link.

Maildir++ layout: the INBOX is `new/ cur/ tmp/`, a folder is `.NAME/` with the same three. A mail
is known by its unique name: the file name up to ":2,", which changes of flags and moves keep. So
a move that was cut short is either not done or done, and doing it again finds that out.
(Adding a copy and removing the original, as `mailbox.Maildir` does, leaves two after a crash and
gives the mail another name.)
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vedette.sdk import Call

_FOLDER = re.compile(r"[A-Za-z0-9_-](?:[A-Za-z0-9 _-]{0,62}[A-Za-z0-9_-])?")
_UNIQUE = re.compile(r"[^/:\x00-\x1f\x7f.][^/:\x00-\x1f\x7f]{0,239}")
_INFO = ":2,"
_NOTES = "vedette-was"
_LIFE_S = 7 * 86_400
MAX_MAIL = 32 * 1024 * 1024  # bytes


class Refused(Exception):
    """The call can never be done as asked; the text says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a mail lies: its folder ("" is the INBOX), `new` or `cur`, its file name."""

    folder: str
    place: str
    file: str

    @property
    def flags(self) -> str:
        """Return the flags of the mail, in their order."""
        return self.file.partition(_INFO)[2]


class Maildir:
    """A Maildir++ at a path of the settings. Nothing outside it can be named."""

    def __init__(self, path: str) -> None:
        self._root = Path(path)
        if not (self._root / "new").is_dir() and not (self._root / "cur").is_dir():
            # Not Refused: the disk may not be mounted yet.
            raise FileNotFoundError(errno.ENOENT, "no Maildir there", str(path))

    def find(self, unique: str) -> Found | None:
        """Return where the mail of that unique name lies, in whatever folder, or None.

        Raises Refused for what cannot be a unique name.
        """
        check_unique(unique)
        # Twice: a mail reader may move it from a folder not yet looked at to one that was.
        for _ in range(2):
            for folder in self._folders():
                found = self._find_in(folder, unique)
                if found is not None:
                    return found
        return None

    def every(self, unique: str) -> list[Found]:
        """Return each place where a mail of that unique name lies: a copy has the name, too.

        Raises Refused for what cannot be a unique name.
        """
        check_unique(unique)
        return [found for folder in self._folders() for found in self._all_in(folder, unique)]

    def move(self, found: Found, folder: str) -> bool:
        """Move a mail to a folder under the same file name; False if it is no longer there."""
        self.make(folder)
        return self._rename(found, Found(folder, found.place, found.file))

    def flag(self, found: Found, flags: str, *, new: bool = False) -> bool:
        """Give a mail exactly these flags; False if it is no longer there.

        It leaves `new`, unless it has no flags and is to be `new` again.
        """
        unique = found.file.split(":", 1)[0]
        if new and not flags:
            return self._rename(found, Found(found.folder, "new", unique))
        file = unique + _INFO + "".join(sorted(set(flags)))
        return self._rename(found, Found(found.folder, "cur", file))

    def before(self, name: str, found: Found) -> dict[str, str]:
        """Return how a mail lay before the call of that name touched it. Raises Refused.

        The first try of a call writes it down before it changes anything: after a crash the mail
        alone no longer tells. The notes lie beside the folders, where no mail reader looks; one
        that is a week old belongs to a call that was answered long ago, and is removed.
        """
        notes = self._root / _NOTES
        path = notes / name
        with suppress(FileNotFoundError):
            known = _note(path)
            _sync(notes)  # the try that put it there may have died before that
            return known
        was = {"flags": found.flags, "folder": found.folder, "place": found.place}
        notes.mkdir(mode=0o700, exist_ok=True)
        if _is_empty(notes):
            _sync(self._root)
        # Durable before the change is: after a power cut a mail that was changed would else be
        # taken for one that lay so before.
        temporary = notes / f"{name}.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            _write(temporary, json.dumps(was).encode("ascii"))
            temporary.rename(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync(notes)
        if name.startswith("00"):
            _drop_old(notes)
        return was

    def remove(self, found: Found) -> None:
        """Remove a mail, unless it is no longer there."""
        path = self._path(found.folder, found.place)
        (path / found.file).unlink(missing_ok=True)
        _sync(path)

    def read(self, found: Found) -> bytes | None:
        """Return the bytes of a mail; None if it is no longer there. Raises Refused."""
        path = self._path(found.folder, found.place) / found.file
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise Refused("the message is not a plain file")
        with os.fdopen(handle, "rb") as stream:
            raw = stream.read(MAX_MAIL + 1)
        if len(raw) > MAX_MAIL:
            raise Refused(f"the message is longer than {MAX_MAIL} bytes")
        return raw

    def put(self, folder: str, place: str, file: str, content: bytes) -> None:
        """Put a new mail into a folder under a file name of our choice, unless it is there.

        The file is whole and durable under a name in `tmp` before it is linked: a reader sees
        all of it or nothing.
        """
        self.make(folder)
        staging = self._path(folder, "tmp")
        unique = file.split(":", 1)[0]
        temporary = staging / f"{unique}.{os.getpid()}.{os.urandom(4).hex()}"
        _write(temporary, content)
        target = self._path(folder, place) / file
        try:
            os.link(temporary, target)
        except FileExistsError:
            pass
        except OSError as error:
            # Some network file systems have no links; a rename there shows the whole file too.
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            temporary.rename(target)
        _sync(target.parent)
        for leftover in sorted(staging.glob(f"{unique}.*")):
            leftover.unlink(missing_ok=True)

    def make(self, folder: str) -> None:
        """Make a folder, unless it is there. Raises Refused for what cannot be the name of one."""
        if not folder:
            return
        check_folder(folder)
        base = self._root / f".{folder}"
        if (base / "cur").is_dir() and (base / "new").is_dir() and (base / "tmp").is_dir():
            return
        base.mkdir(mode=0o700, exist_ok=True)
        for place in ("tmp", "new", "cur"):
            (base / place).mkdir(mode=0o700, exist_ok=True)
        # Maildir++ marks its folders with this empty file.
        (base / "maildirfolder").touch(mode=0o600)
        _sync(base)
        _sync(self._root)

    # --- inside ------------------------------------------------------------------------------

    def _folders(self) -> Iterator[str]:
        yield ""
        for name in sorted(_names(self._root)):
            if name.startswith(".") and (self._root / name / "cur").is_dir():
                yield name[1:]

    def _find_in(self, folder: str, unique: str) -> Found | None:
        new = self._path(folder, "new")
        if (new / unique).is_file():
            return Found(folder, "new", unique)
        return next(self._all_in(folder, unique), None)

    def _all_in(self, folder: str, unique: str) -> Iterator[Found]:
        for place in ("cur", "new"):
            for name in _names(self._path(folder, place)):
                if name == unique or name.startswith(unique + ":"):
                    yield Found(folder, place, name)

    def _rename(self, found: Found, wanted: Found) -> bool:
        source = self._path(found.folder, found.place) / found.file
        target = self._path(wanted.folder, wanted.place) / wanted.file
        try:
            source.rename(target)
        except FileNotFoundError:
            return False
        _sync(target.parent)
        if source.parent != target.parent:
            _sync(source.parent)
        return True

    def sync(self, found: Found) -> None:
        """Make durable that the mail lies where it was found: an earlier try may have died."""
        _sync(self._path(found.folder, found.place))

    def _path(self, folder: str, place: str) -> Path:
        return self._root / (f".{folder}" if folder else "") / place


def check_folder(folder: str) -> str:
    """Return the folder name if it is one we may make, else raise Refused."""
    if not _FOLDER.fullmatch(folder):
        raise Refused(f"folder {folder!r}: use letters, digits, space, '_' and '-', at most 64")
    return folder


def check_unique(unique: str) -> str:
    """Return the name if it can be the unique name of a mail, else raise Refused."""
    if not _UNIQUE.fullmatch(unique):
        raise Refused(f"message {unique!r} is not the unique name of a mail")
    return unique


def found_before(call: Call) -> Mapping[str, str] | None:
    """Return what the effect that is taken back found before it; None if none is taken back.

    Raises Refused for what no tool of a mailbox answers.
    """
    was = call.args.get("was")
    if was is None:
        return None
    if not isinstance(was, Mapping) or not all(isinstance(v, str) for v in was.values()):
        raise Refused("`was` is not what a tool of this mailbox answered")
    return was


def _note(path: Path) -> dict[str, str]:
    """Return what a note says. Raises FileNotFoundError, and Refused for one that says nothing."""
    try:
        known = json.loads(path.read_bytes())
    except ValueError:
        known = None
    if not isinstance(known, dict) or not all(isinstance(v, str) for v in known.values()):
        where = f"{path.parent.name}/{path.name}"
        raise Refused(
            f"the note {where} of how the message lay before cannot be read: see whether it lies "
            "as it should, and remove the note"
        )
    return known


def _write(path: Path, content: bytes) -> None:
    """Make a new file of that content, durable but for its name."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _names(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries]
    except FileNotFoundError:
        return []


def _is_empty(path: Path) -> bool:
    with os.scandir(path) as entries:
        return next(entries, None) is None


def _drop_old(notes: Path) -> None:
    oldest = time.time() - _LIFE_S
    for entry in os.scandir(notes):
        with suppress(FileNotFoundError):
            if entry.stat(follow_symlinks=False).st_mtime < oldest:
                Path(entry.path).unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
