"""Both ends of a connection prove that they hold the token, which itself never crosses the wire.

    server -> client   {"tailrace": 2, "nonce": S}
    client -> server   {"nonce": C, "proof": HMAC(token, "client" S C)}
    server -> client   {"proof": HMAC(token, "server" S C), "relay": {...}}   or an error

What follows is neither encrypted nor signed: across hosts, use a network that is yours.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

from tailrace.paramserver.errors import AuthenticationFailed, ParamServerError, ProtocolError, to_wire
from tailrace.paramserver.machine.protocol import HostInterface
from tailrace.paramserver.wire.channel import Channel

TOKEN_VARIABLE = "TAILRACE_RELAY_TOKEN"  # noqa: S105  the variable's name, not a token
_PROTOCOL = 2
_LIMIT = 4096  # bytes of a message from a peer that has proved nothing yet
HANDSHAKE_S = 10.0


def new_token() -> str:
    """A fresh random token."""
    return secrets.token_hex(32)


def check_token(token: str) -> str:
    """The token itself.

    Raises:
        AuthenticationFailed: it is empty.
    """
    if not token:
        raise AuthenticationFailed("found an empty token, expected a secret shared by relays, publisher and readers")
    return token


def admit(channel: Channel, token: str, welcome: dict[str, Any]) -> None:
    """The server's side.

    Raises:
        AuthenticationFailed: the client does not hold the token.
    """
    challenge = secrets.token_hex(32)
    channel.send({"tailrace": _PROTOCOL, "nonce": challenge})
    answer = channel.receive(HANDSHAKE_S, limit=_LIMIT)
    nonce, proof = answer.get("nonce"), answer.get("proof")
    if not isinstance(nonce, str) or not isinstance(proof, str) or not (nonce + proof).isascii():
        raise ProtocolError(f"{channel.peer} did not answer the challenge")
    if not hmac.compare_digest(proof.encode(), _proof(token, "client", challenge, nonce)):
        error = AuthenticationFailed("found a wrong token; give every relay, publisher and reader the same one")
        channel.send(to_wire(error))
        raise error
    channel.send({"proof": _proof(token, "server", challenge, nonce).decode(), "relay": welcome})


def connect(
    machine: HostInterface, address: str, *, token: str, timeout_s: float, stall_s: float
) -> tuple[Channel, dict[str, Any]]:
    """The client's side: returns an authenticated connection and the relay's greeting.

    Raises:
        RelayUnreachable: nobody listens there.
        AuthenticationFailed: the relay holds another token.
        ProtocolError: it is not a relay.
    """
    channel = Channel(machine.dial(address, timeout_s), stall_s, f"the relay {address}")
    try:
        greeting = channel.receive(timeout_s, limit=_LIMIT)
        challenge = greeting.get("nonce")
        if greeting.get("tailrace") != _PROTOCOL or not isinstance(challenge, str) or not challenge.isascii():
            raise ProtocolError(f"{address} is no relay of protocol {_PROTOCOL}; use one Tailrace release everywhere")
        nonce = secrets.token_hex(32)
        channel.send({"nonce": nonce, "proof": _proof(token, "client", challenge, nonce).decode()})
        answer = channel.answer(timeout_s)
        proof, welcome = answer.get("proof"), answer.get("relay")
        expected = _proof(token, "server", challenge, nonce).decode()
        if not isinstance(proof, str) or not proof.isascii() or not hmac.compare_digest(proof, expected):
            raise AuthenticationFailed(f"the relay {address} did not prove that it holds the token")
        if not isinstance(welcome, dict):
            raise ProtocolError(f"the relay {address} did not introduce itself")
    except ParamServerError:
        channel.close()
        raise
    return channel, welcome


def _proof(token: str, side: str, challenge: str, nonce: str) -> bytes:
    return hmac.new(token.encode(), f"{side}/{challenge}/{nonce}".encode(), "sha256").hexdigest().encode()
