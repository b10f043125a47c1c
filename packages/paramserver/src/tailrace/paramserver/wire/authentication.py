"""Both ends of a connection prove that they hold the token, which itself never crosses the wire.

    server -> client   {"tailrace": 3, "nonce": S}
    client -> server   {"nonce": C, "to": A, "proof": HMAC(token, "client" S C A)}
    server -> client   {"proof": HMAC(token, "server" S C A), "relay": {...}}   or an error

A are the addresses that the client has dialled: as it was given, and in numbers. The server takes no proof that is meant for
another one, so who is dialled and does not hold the token cannot pass the proof on to a relay. All of it has one deadline.

What follows is neither encrypted nor signed: across hosts, use a network that is yours.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Callable, Collection
from typing import Any, TypeGuard

from tailrace.paramserver.errors import AuthenticationFailed, ParamServerError, ProtocolError, to_wire
from tailrace.paramserver.machine.protocol import HostInterface
from tailrace.paramserver.wire.channel import Channel

TOKEN_VARIABLE = "TAILRACE_RELAY_TOKEN"  # noqa: S105  the variable's name, not a token
_PROTOCOL = 3
_LIMIT = 4096  # bytes of a message from a peer that has proved nothing yet
_WELCOME_LIMIT = 65536  # with a relay's name in it
HANDSHAKE_S = 10.0


def new_token() -> str:
    """A fresh random token."""
    return secrets.token_hex(32)


def check_token(token: str) -> str:
    """The token itself.

    Raises:
        AuthenticationFailed: it is empty.
    """
    if not token or not token.strip():
        raise AuthenticationFailed("found an empty token, expected a secret shared by relays, publisher and readers")
    return token


def admit(
    channel: Channel,
    token: str,
    welcome: dict[str, Any],
    *,
    known_as: Collection[str] = (),
    now: Callable[[], float] = time.monotonic,
) -> None:
    """The server's side.

    Args:
        channel: the connection.
        token: the secret.
        welcome: how the server introduces itself to who holds it.
        known_as: addresses under which it is dialled beside its own: those of proxies before it.
        now: the clock, in seconds.

    Raises:
        AuthenticationFailed: the client does not hold the token, or dialled somebody else.
        RelayTimeout: it did not prove it in time.
    """
    with channel.within(HANDSHAKE_S, now):
        challenge = secrets.token_hex(32)
        channel.send({"tailrace": _PROTOCOL, "nonce": challenge})
        answer = channel.receive(HANDSHAKE_S, limit=_LIMIT)
        nonce, to, proof = answer.get("nonce"), answer.get("to"), answer.get("proof")
        if not isinstance(nonce, str) or not isinstance(proof, str) or not proof.isascii() or not _texts(to):
            raise ProtocolError(f"{channel.peer} did not answer the challenge")
        here, _ = channel.ends
        error = None
        if not hmac.compare_digest(proof.encode(), _proof(token, "client", challenge, nonce, to)):
            error = AuthenticationFailed("found a wrong token; give every relay, publisher and reader the same one")
        elif here and not {here, *known_as}.intersection(to):
            error = AuthenticationFailed(
                f"found a proof for {' or '.join(to)[:200]}, expected one for {here}: another one passed it on; "
                "if that is a proxy of yours, start the relay with its address as known_as"
            )
        if error is not None:
            channel.send(to_wire(error))
            raise error
        channel.send({"proof": _proof(token, "server", challenge, nonce, to).decode(), "relay": welcome})


def connect(
    machine: HostInterface, address: str, *, token: str, timeout_s: float, stall_s: float
) -> tuple[Channel, dict[str, Any]]:
    """The client's side: returns an authenticated connection and the relay's greeting, after `timeout_s` seconds at most.

    Raises:
        RelayUnreachable: nobody listens there.
        AuthenticationFailed: the relay holds another token.
        RelayTimeout: it did not answer in time.
        ProtocolError: it is not a relay.
    """
    until = machine.now() + timeout_s
    channel = Channel(machine.dial(address, timeout_s), stall_s, f"the relay {address}")
    try:
        with channel.within(until - machine.now(), machine.now):
            proof, expected, welcome = _proved(channel, address, token, timeout_s)
        if not isinstance(proof, str) or not proof.isascii() or not hmac.compare_digest(proof, expected):
            raise AuthenticationFailed(f"the relay {address} did not prove that it holds the token")
        if not isinstance(welcome, dict):
            raise ProtocolError(f"the relay {address} did not introduce itself")
    except ParamServerError:
        channel.close()
        raise
    return channel, welcome


def _proved(channel: Channel, address: str, token: str, timeout_s: float) -> tuple[object, str, object]:
    """Prove to a relay that this process holds the token; its own proof, what that must be, and how it introduces itself."""
    greeting = channel.receive(timeout_s, limit=_LIMIT)
    challenge = greeting.get("nonce")
    if greeting.get("tailrace") != _PROTOCOL or not isinstance(challenge, str):
        raise ProtocolError(f"{address} is no relay of protocol {_PROTOCOL}; use one Tailrace release everywhere")
    nonce, to = secrets.token_hex(32), [known for known in dict.fromkeys((address, channel.ends[1])) if known]
    channel.send({"nonce": nonce, "to": to, "proof": _proof(token, "client", challenge, nonce, to).decode()})
    answer = channel.answer(timeout_s, limit=_WELCOME_LIMIT)
    return answer.get("proof"), _proof(token, "server", challenge, nonce, to).decode(), answer.get("relay")


def _texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _proof(token: str, side: str, challenge: str, nonce: str, to: Collection[str]) -> bytes:
    said = json.dumps([side, challenge, nonce, list(to)])
    return hmac.new(token.strip().encode(), said.encode(), "sha256").hexdigest().encode()
