"""Events and commands as plain JSON objects and back, for an event log or a wire. Decoding runs no code from the data."""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache

from tailrace.contracts import commands, events
from tailrace.contracts.errors import CodecError

_Reader = Callable[[typing.Any], typing.Any]
_PLAIN = frozenset({bool, int, float, str})
"""Types that JSON has too."""
_KINDS: dict[str, type] = {
    kind.__name__: kind for union in (events.Event, commands.Command) for kind in typing.get_args(union)
}


def encode(message: events.Event | commands.Command) -> dict[str, typing.Any]:
    """The message as a JSON-ready object whose key ``"is"`` names its kind."""
    return {"is": type(message).__name__, **_plain_fields(message)}


def encode_level(value: typing.Any) -> dict[str, typing.Any]:
    """One level of `encode`, for a message or a record inside one. Pass it as ``default`` of a `json.JSONEncoder`.

    The text is the same as from `encode` followed by `json.dumps`, in a third of the time.

    Raises:
        TypeError: the value is neither a dataclass nor a mapping.
    """
    if isinstance(value, collections.abc.Mapping):
        return dict(value)
    kind: type = type(value)
    level: dict[str, typing.Any] = {"is": kind.__name__} if kind.__name__ in _KINDS else {}
    for name, default in _defaults(kind):
        found = getattr(value, name)
        if found != default:
            level[name] = found
    return level


def decode(data: typing.Any) -> typing.Any:
    """The event or command that `encode` made.

    Raises:
        CodecError: no object, unknown kind, or a field that is missing, unknown or of the wrong type.
    """
    if not isinstance(data, collections.abc.Mapping):
        raise CodecError(f"found {data!r:.200}, expected an object with the message kind as 'is'")
    fields = dict(data)
    name = fields.pop("is", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise CodecError(f"found the message kind {name!r}, expected one of {', '.join(sorted(_KINDS))}")
    return _build(kind, fields)


def _plain(value: typing.Any) -> typing.Any:
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain_fields(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, collections.abc.Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _plain_fields(value: typing.Any) -> dict[str, typing.Any]:
    """The fields that differ from their defaults."""
    kind: type = type(value)
    return {name: _plain(found) for name, default in _defaults(kind) if (found := getattr(value, name)) != default}


@cache
def _defaults(kind: type) -> list[tuple[str, typing.Any]]:
    """The fields of a message, each with its default; `MISSING`, which equals no value, if it has none."""
    return [
        (field.name, field.default if field.default_factory is dataclasses.MISSING else field.default_factory())
        for field in dataclasses.fields(kind)
    ]


@cache
def _readers(kind: type) -> tuple[dict[str, typing.Any], dict[str, _Reader]]:
    """The type of each field whose values are taken as they are, and what reads others."""
    hints = typing.get_type_hints(kind)
    return {name: _as_is(hint) for name, hint in hints.items()}, {
        name: _reader(hint, f"{kind.__name__}.{name}") for name, hint in hints.items()
    }


def _as_is(hint: typing.Any) -> typing.Any:
    """The one type of JSON whose values a field may have; None where they must be read."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return hint if hint in _PLAIN else None


def _build(kind: type, fields: dict[str, typing.Any]) -> typing.Any:
    """Build a message. The call may change `fields`."""
    as_is, readers = _readers(kind)
    try:
        for name, value in fields.items():
            if as_is.get(name) is not type(value):
                fields[name] = readers[name](value)
        return kind(**fields)
    except KeyError as error:
        raise CodecError(f"{kind.__name__} has no field {error}") from error
    except CodecError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise CodecError(f"{kind.__name__}: {error}") from error


def _reader(hint: typing.Any, where: str) -> _Reader:
    """A function from JSON to a value of the type. It is built once for each field, since a log has millions of values."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        read = _reader(next(arg for arg in args if arg is not type(None)), where)
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        one = [_reader(arg, where) for arg in args if arg is not Ellipsis]
        if args[-1] is Ellipsis:
            if args[0] in _PLAIN:
                only = {args[0]}
                return lambda value: (
                    tuple(value)
                    if type(value) is list and only.issuperset(map(type, value))
                    else tuple([one[0](item) for item in _of(value, list | tuple, "a list", where)])
                )
            return lambda value: tuple([one[0](item) for item in _of(value, list | tuple, "a list", where)])
        return lambda value: tuple(
            [read(item) for read, item in zip(one, _of(value, list | tuple, "a list", where), strict=True)]
        )
    if origin is dict or origin is collections.abc.Mapping:
        read = _reader(args[1], where)
        return lambda value: {key: read(item) for key, item in _of(value, dict, "an object", where).items()}
    assert isinstance(hint, type)
    if issubclass(hint, Enum):
        members = {member.value: member for member in hint}
        return lambda value: (members.get(value) if type(value) is str else None) or _member(hint, value, where)
    if dataclasses.is_dataclass(hint):
        return lambda value: _build(hint, dict(_of(value, dict, "an object", where)))
    return lambda value: value if type(value) is hint else _plain_value(hint, value, where)


def _of(value: typing.Any, kinds: typing.Any, expected: str, where: str) -> typing.Any:
    if not isinstance(value, kinds):
        raise CodecError(f"{where}: found {type(value).__name__}, expected {expected}")
    return value


def _member(kind: type[Enum], value: typing.Any, where: str) -> Enum:
    try:
        return kind(value)
    except ValueError as error:
        raise CodecError(f"{where}: {error}") from error


def _plain_value(kind: type, value: typing.Any, where: str) -> typing.Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CodecError(f"{where}: found {type(value).__name__} {value!r}, expected {kind.__name__}")
    return value
