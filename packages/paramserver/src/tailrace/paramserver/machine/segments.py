"""POSIX shared-memory segments and who owns them.

    /dev/shm/tailrace-1000      0700: what lies there is this user's, and no other user can take a name or lock a file in it
    ├── lock                    held while a name is claimed or its remains are removed
    ├── 0123456789ab-o          the record of a relay's process
    └── 0123456789ab-0, -1 ...  its slots

Names are a function of the relay's name, so the next relay of that name finds what a crashed one left. Where the system does
not list shared memory, names have no directory, and only the lock has one. `multiprocessing.shared_memory` is not used: the
resource tracker behind it unlinks segments of which another process is the owner.
"""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]  # of the standard library, without stubs
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import secrets
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.paramserver.copying import Address
from tailrace.paramserver.errors import NotEnoughSharedMemory, ProtocolError, RelayNameTaken, RelayTimeout
from tailrace.processes import ProcessId

PREFIX = "tailrace-"
MAX_SLOTS = 16
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux lists them
_LISTED = _SHARED_MEMORY.is_dir()
_NAME = re.compile(rf"{PREFIX}[\w.-]+(/\w[\w-]*)?", re.ASCII)
_SEGMENT = re.compile(r"[0-9a-f]{12}-(o|\d+)")
_LOCK_S = 10.0
_LOOK_S = 0.01
_OWNER_BYTES = 4096
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # of madvise, since Linux 5.14
_LIBC = ctypes.CDLL(None)
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class MappedSegment:
    """A mapped piece of shared memory. `create` makes one for writing, `attach` maps another process's for reading.

    A write through an attached segment's view is refused, so a reader cannot damage what others read.
    """

    def __init__(self, name: str, fd: int, size: int, writable: bool) -> None:
        self.name, self.fd, self.size = name, fd, size
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=protection)
        self.view = memoryview(self._map)
        _populate(self.view, writable=writable)

    @classmethod
    def create(cls, name: str, size: int) -> MappedSegment:
        """A new segment with all its memory allocated.

        Raises:
            NotEnoughSharedMemory: it does not fit; nothing is left behind.
        """
        size = max(size, mmap.PAGESIZE)
        fd = _open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        try:
            os.ftruncate(fd, size)
            if hasattr(os, "posix_fallocate"):  # without it a full tmpfs is a SIGBUS at the first write
                os.posix_fallocate(fd, 0, size)
            return cls(name, fd, size, writable=True)
        except OSError as error:
            os.close(fd)
            unlink(name)
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise NotEnoughSharedMemory(
                f"found too little shared memory for {size} bytes ({error.strerror}); "
                "enlarge /dev/shm (docker: --shm-size), or use fewer slots or a smaller model"
            ) from error

    @classmethod
    def attach(cls, name: str, *, writable: bool = False) -> MappedSegment:
        """Map an existing segment.

        Raises:
            FileNotFoundError: there is none of this name on this host.
        """
        fd = _open(name, os.O_RDWR if writable else os.O_RDONLY)
        try:
            return cls(name, fd, os.fstat(fd).st_size, writable=writable)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Give the descriptor back. The memory goes when nothing refers to it any more."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _populate(view: memoryview, *, writable: bool) -> None:
    """Page faults now rather than in the middle of a transfer, and while other threads run: with MAP_POPULATE a relay
    would answer nobody until gigabytes are mapped. Where the kernel knows no such advice, pages come as they are touched.
    """
    if sys.platform == "linux":
        with Address(view) as place:
            _LIBC.madvise(place.start, place.nbytes, _POPULATE_WRITE if writable else _POPULATE_READ)


class SegmentOwner:
    """The segments of one relay: claims the name, cleans up after a dead owner, unlinks on close.

    Raises:
        RelayNameTaken: a living relay of this host and user has the name.
    """

    def __init__(self, relay: str) -> None:
        self._base = _base(relay)
        self.nonce = secrets.token_hex(16)
        with _claiming():
            self.cleaned = self._claim(relay)

    def slot_name(self, slot: int) -> str:
        """Name of a slot's segment."""
        return f"{self._base}-{slot}"

    def create(self, slot: int, nbytes: int) -> MappedSegment:
        """New memory for a slot; the name that its old memory had goes first.

        Raises:
            NotEnoughSharedMemory: it does not fit.
        """
        name = self.slot_name(slot)
        unlink(name)
        return MappedSegment.create(name, nbytes)

    def remove(self, slot: int) -> None:
        """Give the memory of a slot up, if it has any. Those who have it mapped keep it."""
        unlink(self.slot_name(slot))

    @property
    def owner_name(self) -> str:
        """Name of the segment that says who owns the others."""
        return _owner_name(self._base)

    def introduction(self) -> dict[str, str]:
        """The fields by which a reader finds out whether it sees the same shared memory."""
        return {"owner_segment": self.owner_name, "nonce": self.nonce}

    def close(self) -> None:
        """Unlink everything. Readers that have a segment mapped keep it."""
        self._unlink_all()

    def _claim(self, relay: str) -> list[str]:
        found = living_owner(relay)
        if found is not None:
            raise _taken(relay, found)
        cleaned = self._unlink_all()
        record = {**own_fields(), "nonce": self.nonce, "relay": relay}
        text = json.dumps(record).encode()
        segment = MappedSegment.create(self.owner_name, max(_OWNER_BYTES, len(text)))
        segment.view[: len(text)] = text
        segment.close()
        return cleaned

    def _unlink_all(self) -> list[str]:
        return _unlink_all(self._base)


def living_owner(relay: str) -> ProcessId | None:
    """The process of the relay of this name, if it lives on this host."""
    found = read_owner(_owner_name(_base(relay)), ours=True)
    return found[0] if found is not None and found[0].alive() else None


def clear(relay: str) -> list[str]:
    """Remove the segments that a dead relay of this name left. Returns their names.

    Raises:
        RelayNameTaken: one of the name lives.
    """
    with _claiming():
        found = living_owner(relay)
        if found is not None:
            raise _taken(relay, found)
        return _unlink_all(_base(relay))


def is_left(relay: str) -> bool:
    """Whether a dead relay of this name left segments."""
    return (_SHARED_MEMORY / _owner_name(_base(relay))).exists() and living_owner(relay) is None


@dataclass(frozen=True, slots=True)
class LeftSegments:
    """Segments of a relay that is dead.

    Args:
        base: the beginning of their names.
        names: their names.
        nbytes: their size together.
        owner: what their owner's record says: the relay's name and its process; empty if there is none.
    """

    base: str
    names: tuple[str, ...]
    nbytes: int
    owner: str


def left_segments() -> list[LeftSegments]:
    """All segments of this user on this host whose relays are dead; none where the system does not list segments.

    Segments of another pid namespace, whose owner cannot be looked for from here, are left out.
    """
    if not _LISTED:
        return []
    found: dict[str, list[Path]] = {}
    with _claiming():
        folder = _folder()
        for path in sorted(folder.iterdir()):
            if _SEGMENT.fullmatch(path.name):
                found.setdefault(f"{folder.name}/{path.name.rpartition('-')[0]}", []).append(path)
        return [_left(base, paths) for base, paths in found.items() if not _lives(base)]


def remove_left(left: LeftSegments) -> list[str]:
    """Remove the segments of a dead relay. Returns the names of those that were removed: none if a relay has them now."""
    with _claiming():
        return [] if _lives(left.base) else _unlink_all(left.base)


def _lives(base: str) -> bool:
    found = read_owner(_owner_name(base), ours=True)
    return found is not None and found[0].alive()


def _left(base: str, paths: Sequence[Path]) -> LeftSegments:
    try:
        record = json.loads((_SHARED_MEMORY / _owner_name(base)).read_bytes().rstrip(b"\0"))
        owner = f"relay {record['relay']}, process {record['pid']}"
    except (OSError, ValueError, KeyError, TypeError):
        owner = ""
    names = tuple(str(path.relative_to(_SHARED_MEMORY)) for path in paths)
    return LeftSegments(base, names, sum(path.stat().st_size for path in paths), owner)


def _taken(relay: str, owner: ProcessId) -> RelayNameTaken:
    return RelayNameTaken(
        f"found a living relay named {relay!r} (pid {owner.pid}) on this host; stop it or choose another name"
    )


def _unlink_all(base: str) -> list[str]:
    names = [*(f"{base}-{slot}" for slot in range(MAX_SLOTS + 1)), _owner_name(base)]
    return [name for name in names if unlink(name)]


def _base(relay: str) -> str:
    digest = hashlib.blake2b(f"{os.getuid()}/{relay}".encode(), digest_size=6).hexdigest()
    return f"{_folder().name}/{digest}" if _LISTED else f"{PREFIX}{digest}"  # macOS allows 30 characters


def _owner_name(base: str) -> str:
    return f"{base}-o"


@contextlib.contextmanager
def _claiming() -> Iterator[None]:
    """Serialise claims on this host: of two relays that start at once, only one may see a dead owner.

    Raises:
        RelayTimeout: another process of this user has the lock, and does not give it back.
    """
    path = _folder() / "lock"
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + _LOCK_S
        while not _locked(fd):
            if time.monotonic() > until:
                raise RelayTimeout(
                    f"waited {_LOCK_S:.0f} s for {path}; another process of yours has it, see: fuser {path}"
                )
            time.sleep(_LOOK_S)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _folder() -> Path:
    """This user's directory, which nobody else may enter; it is made if it is not there.

    Everybody may make a file of any name beside it. If somebody has taken the name, another one is found by its owner.
    """
    beside = _SHARED_MEMORY if _LISTED else Path(tempfile.gettempdir())
    first = beside / f"{PREFIX}{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        first.mkdir(mode=stat.S_IRWXU)
    if _is_ours(first):
        return first
    others = f"{first.name}-*"
    if not any(map(_is_ours, beside.glob(others))):
        tempfile.mkdtemp(prefix=f"{first.name}-", dir=beside)
    return min(path for path in beside.glob(others) if _is_ours(path))


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False  # it was removed meanwhile
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return False
    if stat.S_IMODE(found.st_mode) != stat.S_IRWXU:
        folder.chmod(stat.S_IRWXU)
    return True


def is_name(name: str) -> bool:
    """Whether a text that came from elsewhere can be the name of a segment: of shared memory, and of nothing beside it."""
    return _NAME.fullmatch(name) is not None


def read_owner(name: str, *, ours: bool = False) -> tuple[ProcessId, str] | None:
    """The owner that an owner segment records, and its nonce; None where there is no such record.

    Args:
        ours: whether a record counts only if this user wrote it.
    """
    try:
        segment = MappedSegment.attach(name)
    except (FileNotFoundError, PermissionError, ValueError):  # another user's; of size 0, its maker died in the middle
        return None
    try:
        if ours and os.fstat(segment.fd).st_uid != os.getuid():
            return None
        data = json.loads(bytes(segment.view).rstrip(b"\0"))
        process = process_of(data)
        return None if process is None else (process, str(data["nonce"]))
    except (ValueError, KeyError, TypeError, AttributeError, ProtocolError):
        return None
    finally:
        segment.close()


def unlink(name: str) -> bool:
    """Remove a segment's name; whether there was one."""
    try:
        if _LISTED:
            (_SHARED_MEMORY / name).unlink()
        else:
            _posixshmem.shm_unlink(f"/{name}")
    except FileNotFoundError:
        return False
    return True


def _open(name: str, flags: int) -> int:
    """A descriptor of a segment, for this user alone if it is made."""
    if _LISTED:  # as `shm_open` does, but for names in a directory
        return os.open(_SHARED_MEMORY / name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    return int(_posixshmem.shm_open(f"/{name}", flags, mode=0o600))


def own_fields() -> dict[str, Any]:
    """The fields by which records and messages name this process."""
    me = ProcessId.current()
    return {"pid": me.pid, "started": me.started, "namespace": me.namespace}


def process_of(fields: Mapping[str, Any]) -> ProcessId | None:
    """The process that a record or a message names; None if it names none.

    Raises:
        ProtocolError: the fields do not fit together.
    """
    if (pid := fields.get("pid")) is None:
        return None
    namespace, started = fields.get("namespace"), fields.get("started")
    if not isinstance(namespace, str) or type(pid) is not int or not isinstance(started, int | None):
        raise ProtocolError(f"pid: found {pid!r}, expected it with started and namespace")
    return ProcessId(pid, started, namespace)
