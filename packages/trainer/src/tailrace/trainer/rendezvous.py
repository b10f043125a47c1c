"""Where the ranks of a trainer meet, on one machine or on several. Needs no torch.

    every rank      writes its place into a directory that all of them see
    the first rank  reads all places, and answers. If all share loopback, a file there will do, and no port is opened.
                    Otherwise it listens at its own address, on a port that it keeps for later meetings, and says where
    the others      read that, and take the interface that leads there

Whoever may write into the directory is believed, so it is for the run's user alone. What listens is bound to one address.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from tailrace.trainer.errors import ProcessGroupError, TrainerConfigError
from tailrace.trainer.network_interfaces import (
    LOOPBACK,
    address_towards,
    interface_of,
    interfaces,
    network_id,
    told_interface,
)

SCHEME = "meet://"
_NAME = "meeting-"
_DOOR, _PORT = "door.json", "port"
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Met:
    """What a rank knows after a meeting.

    Args:
        interface: the interface of this machine on which the ranks speak to each other.
        named: whether somebody named it; else the environment may name another.
        host, port: where the first rank listens; empty and 0 if the ranks share a file.
        listener: that of the first rank, which is bound and listens.
        file: the file that they share if they are on one machine.
    """

    interface: str
    named: bool = False
    host: str = ""
    port: int = 0
    listener: socket.socket | None = None
    file: Path | None = None


def meeting_url(directory: Path, interface: str = "", address: str = "") -> str:
    """The URL of a meeting, which is a rendezvous for `TrainerWorker`.

    Args:
        directory: an absolute one that all ranks see. The first rank removes what it holds, and if its name begins with
            ``meeting-``, others beside it that do.
        interface: name of the interface to use, or a network in which it has an address; empty: as the routes say.
        address: under which others reach this rank, such as its node's in a cluster; empty: as the routes say.
    """
    told = {key: value for key, value in (("interface", interface), ("address", address)) if value}
    return f"{SCHEME}{quote(str(directory))}" + (f"?{urlencode(told)}" if told else "")


def meet(url: str, rank: int, world_size: int, timeout_s: float) -> Met:
    """Meet the other ranks.

    Args:
        url: what `meeting_url` returned, of one directory for all ranks.
        rank: this rank.
        world_size: number of ranks.
        timeout_s: deadline until all have come.

    Raises:
        TrainerConfigError: the interface that was named does not exist, or the first rank has no address that others reach.
        ProcessGroupError: not all came in time.
    """
    parts = urlsplit(url)
    query = {key: values[0] for key, values in parse_qs(parts.query).items()}
    directory = Path(unquote(parts.path))
    told = query.get("interface", "")
    deadline = time.monotonic() + timeout_s
    there = interfaces()
    named = told_interface(told, there) if told else None
    own_address = query.get("address") or address_towards()
    mine = directory / f"{rank}.json"
    place = {"network": network_id(), "came": secrets.token_hex(8)}
    if rank == 0:
        _forget(directory)
        _write(mine, place)
        places = _gather(directory, world_size, deadline, timeout_s)
        met = _open(directory, named, own_address, {one["network"] for one in places})
        shared = "" if met.file is None else met.file.name
        came = [one["came"] for one in places]
        _write(directory / _DOOR, {"came": came, "host": met.host, "port": met.port, "file": shared})
        return met

    def tell() -> None:
        if not mine.exists():  # or the first rank, which came later, has removed it
            _write(mine, place)

    late = f"waited {timeout_s:.0f} s for the first rank of the trainer"
    # What a rank left that died in a meeting of this name knows nothing of this one.
    door: dict[str, Any] = _read(
        directory / _DOOR, deadline, lambda: late, tell, lambda found: place["came"] in found["came"]
    )
    if door["file"]:
        return Met(LOOPBACK, file=directory / door["file"])
    host = str(door["host"])
    interface = named[0] if named else interface_of(address_towards(host), interfaces())
    return Met(interface, named is not None, host, int(door["port"]))


def _gather(directory: Path, world_size: int, deadline: float, timeout_s: float) -> list[dict[str, Any]]:
    """What all ranks wrote."""
    paths = [directory / f"{one}.json" for one in range(world_size)]

    def late() -> str:
        missing = [str(one) for one, path in enumerate(paths) if not path.exists()]
        return f"waited {timeout_s:.0f} s for rank {', '.join(missing)} of the trainer"

    return [_read(path, deadline, late) for path in paths]


def _open(directory: Path, named: tuple[str, str] | None, own: str, networks: set[str]) -> Met:
    """Listen if the ranks do not share loopback."""
    if named is None and len(networks) == 1:
        return Met(LOOPBACK, file=directory / f"store-{secrets.token_hex(4)}")
    there = interfaces()
    if named is None and ipaddress.ip_address(own).is_loopback:
        exist = ", ".join(f"{name} ({addresses[0]})" for name, addresses in there.items())
        raise TrainerConfigError(
            f"found {own} as the address of the trainer's first rank, and other ranks on other machines, expected one they "
            f"reach: set trainer.interface to that which leads there, of {exist}"
        )
    interface, address = named or (interface_of(own, there), own)
    kept = directory.parent / _PORT
    listener = _listen(address, int(kept.read_text()) if kept.exists() else 0)
    port = listener.getsockname()[1]
    if directory.name.startswith(_NAME):
        _replace(kept, str(port))
    return Met(interface, named is not None, address, port, listener)


def _listen(address: str, port: int) -> socket.socket:
    """Listen at an address, on this port if it is free there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError:
            listener.bind((address, 0))
        listener.listen(socket.SOMAXCONN)
    except BaseException:
        listener.close()
        raise
    return listener


def _forget(directory: Path) -> None:
    """Remove what earlier meetings of the same trainer left, one of this name too: their ranks are gone."""
    earlier = directory.parent.glob(f"{_NAME}*") if directory.name.startswith(_NAME) else ()
    for path in {directory, *earlier}:
        shutil.rmtree(path, ignore_errors=True)


def _write(path: Path, fields: dict[str, Any]) -> None:
    _replace(path, json.dumps(fields))


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.write_text(text)
    partial.replace(path)


def _read(
    path: Path,
    deadline: float,
    why: Callable[[], str],
    meanwhile: Callable[[], None] = lambda: None,
    holds: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> dict[str, Any]:
    """What a file says, once it is there and holds."""
    while True:
        with suppress(FileNotFoundError):  # the first rank may remove the directory at any moment, once
            meanwhile()
            found: dict[str, Any] = json.loads(path.read_text())
            if holds(found):
                return found
        if time.monotonic() > deadline:
            raise ProcessGroupError(f"{why()} to come to the meeting in {path.parent}")
        time.sleep(_LOOK_S)
