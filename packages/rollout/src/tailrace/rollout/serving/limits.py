"""What a body may say and how large it may be."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.contracts import expected_one_of
from tailrace.rollout.errors import RequestError, RequestTooLargeError

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Sizes beyond which a request is refused.

    Args:
        body_bytes: a JSON body.
        update_bytes: a safetensors body.
        samples: prompts times samples of one request.
        requests: requests at once, those included whose reader was cut.
        linger_s: seconds for which a request is kept after its reader went.
        version_wait_s: seconds that a request waits for its version.
    """

    body_bytes: int = 16 << 20
    update_bytes: int = 64 << 30
    samples: int = 65_536
    requests: int = 64
    linger_s: float = 300.0
    version_wait_s: float = 60.0


@dataclass(frozen=True, slots=True)
class GenerateBody:
    """The body of ``POST /v1/generate``.

    Args:
        prompts: text or token ids; None: the request `request` is resumed.
        samples: of each prompt.
        max_tokens: most response tokens.
        at_least_version: nothing starts under older weights.
        request: the request's id, chosen by the client.
        have: prompt and sample of what the reader has.
    """

    prompts: tuple[str | tuple[int, ...], ...] | None
    samples: int
    max_tokens: int | None
    at_least_version: int
    request: str | None
    have: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class UpdateBody:
    """The JSON body of ``POST /v1/update``.

    Args:
        relay: address of a relay (`tailrace-paramserver`) that has the version.
        version: the version.
    """

    relay: str
    version: int


def read_generate(body: bytes, limits: RequestLimits) -> GenerateBody:
    """Read the body of a request for samples.

    Raises:
        RequestError: it is not such a body.
        RequestTooLargeError: it asks for more samples than the limit.
    """
    fields = _object(body, ("prompts", "samples", "max_tokens", "at_least_version", "request", "have"))
    prompts, request = fields.get("prompts"), fields.get("request")
    if prompts is None and request is None:
        raise RequestError("found no 'prompts', expected a list of texts or of lists of token ids")
    if request is not None and not (isinstance(request, str) and _ID.fullmatch(request)):
        raise RequestError(f"'request': found {_short(request)}, expected up to 64 letters, digits, _ and -")
    if prompts is not None and not isinstance(prompts, list):
        raise RequestError(f"'prompts': found {_short(prompts)}, expected a list of texts or of lists of token ids")
    samples = _whole(fields, "samples", 1, least=1)
    have = fields.get("have", [])
    if not isinstance(have, list) or not all(_is_pair(pair) for pair in have):
        raise RequestError(f"'have': found {_short(have)}, expected a list of [prompt, sample]")
    wanted = max(samples * len(prompts or ()), len(have))
    if wanted > limits.samples:
        raise RequestTooLargeError(f"found a request for {wanted} samples, expected at most {limits.samples}")
    return GenerateBody(
        None if prompts is None else tuple(_prompt(index, prompt) for index, prompt in enumerate(prompts)),
        samples,
        None if fields.get("max_tokens") is None else _whole(fields, "max_tokens", 1, least=1),
        _whole(fields, "at_least_version", 0, least=0),
        request,
        tuple((pair[0], pair[1]) for pair in have),
    )


def read_update(body: bytes) -> UpdateBody:
    """Read the body of an update from a relay.

    Raises:
        RequestError: it is not such a body.
    """
    fields = _object(body, ("relay", "version"))
    relay = fields.get("relay")
    if not isinstance(relay, str) or not relay:
        raise RequestError(f"'relay': found {_short(relay)}, expected the address of a relay")
    if "version" not in fields:
        raise RequestError("found no 'version', expected a number above the one that is served")
    return UpdateBody(relay, _whole(fields, "version", 0, least=0))


def read_version(text: str | None) -> int:
    """Read ``?version=``.

    Raises:
        RequestError: it is not a whole number.
    """
    if text is None or not re.fullmatch(r"[0-9]{1,18}", text):
        raise RequestError(f"?version=: found {_short(text)}, expected a number above the one that is served")
    return int(text)


def _object(body: bytes, known: tuple[str, ...]) -> Mapping[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError(f"found {_short(fields)} as the body, expected an object")
    for name in fields:
        if name not in known:
            raise RequestError(f"found the unknown field {_short(name)}, {expected_one_of(name, known)}")
    return fields


def _whole(fields: Mapping[str, Any], name: str, default: int, *, least: int) -> int:
    value = fields.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 63:
        raise RequestError(f"{name!r}: found {_short(value)}, expected a whole number of at least {least}")
    return value


def _prompt(index: int, prompt: Any) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(type(token) is int and 0 <= token < 1 << 31 for token in prompt):
        return tuple(prompt)
    raise RequestError(f"prompt {index}: found {_short(prompt)}, expected text or a list of token ids")


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(part) is int for part in pair)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
