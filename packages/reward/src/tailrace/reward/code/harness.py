"""Runs inside the sandbox, as text: it runs a program with the input of each test, and passes on what it gives.

It knows no expected value, so a program that takes it over can only write values, which it must compute first. Each test is a
process of its own, which goes on as the program and ends as any Python program does: threads are joined, what stands at exit
is called, streams are flushed. A timer limits its CPU time; a program that resets it meets the sandbox's own limit. The process
of a test cannot signal the harness, and cannot open its memory or its descriptors.
It must run under ``python -I -S``, and imports only what loads at once: `json` and `ctypes` would take half of the time of a
short program.

stdin: lines of base64. First marshalled ``{"program", "entry_point", "count", "cpu_s", "wall_s", "reply_bytes", "filters",
"stands"}``, then for each test its marshalled arguments, or its text as UTF-8. In the filters, `stands` is where the harness's
process id goes.
stdout: ``{"tests": count}`` once it may begin. For each test that ran: lines of base64 with what it gave, which is text of JSON
where there is an entry point; then a line of JSON, ``{"status": exit status}`` or ``{"over": limit}`` (cpu, wall or output),
each with ``cpu_s``. It ends after a test that is over a limit. ``{"failed": reason}``: the harness itself failed.
"""

from __future__ import annotations

import _ctypes
import _json
import _signal  # type: ignore[import-not-found]
import binascii
import io
import marshal
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LOOK_S = 1.0  # more often, what the harness itself works would hide that nothing else does
LINE_BYTES = 48 << 10  # of what a test gives, at least, in a line that is not its last
FRAMES = 4  # of the sandbox and of the harness, below the program's own; those of calls into C count too
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38


def dumps(value: Any) -> str:
    """Does what `json.dumps` does, with the compiled part of it."""

    def refuse(odd: Any) -> Any:
        raise TypeError(f"{type(odd).__name__} is no JSON value")

    text = _json.encode_basestring_ascii
    return "".join(_json.make_encoder({}, refuse, text, None, ": ", ", ", False, False, True)(value, 0))


class Word(_ctypes._SimpleCData):  # type: ignore[type-arg]
    """A 16-bit number of C."""

    _type_ = "H"


class Text(_ctypes._SimpleCData):  # type: ignore[type-arg]
    """A pointer to bytes."""

    _type_ = "z"


class Filter(_ctypes.Structure):
    """The kernel's ``struct sock_fprog``."""

    _fields_ = (("length", Word), ("lines", Text))


def prctl(option: int, *arguments: Any) -> None:
    """Call prctl(2)."""
    address = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    if _ctypes.call_function(address, (option, *arguments, *(0,) * (4 - len(arguments)))) != 0:
        raise OSError(f"prctl({option}) was refused")


def write(out: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]


def say(out: int, **found: Any) -> None:
    """Write a line of JSON."""
    write(out, dumps(found).encode() + b"\n")


def source(asked: dict[str, Any]) -> bytes:
    """The program as a file has it, where a mark or a comment may say how it is encoded."""
    return asked["program"].encode("utf-8", "surrogatepass")  # type: ignore[no-any-return]


def made(name: str) -> dict[str, Any]:
    """The namespace of a new module that stands where imports find it."""
    module, here = type(sys)(name), os.getcwd()  # noqa: PTH109 (no more imports than needed)
    sys.modules[name] = module
    sys.path.insert(0, here)
    own: dict[str, Any] = {"__file__": f"{here}/program.py", "__cached__": None, "__annotations__": {}}
    vars(module).update(own, __builtins__=sys.modules["builtins"])
    return vars(module)


def called(asked: dict[str, Any], given: Any, out: int) -> None:
    """Call the program's function and write its value. Never returns."""
    sys.modules["__main__"] = type(sys)("__main__")
    space = made("program")
    status = 1
    try:
        exec(compile(source(asked), "program.py", "exec", dont_inherit=True), space)  # noqa: S102 (inside the sandbox)
        first, *rest = asked["entry_point"].split(".")
        if not rest and first not in space and hasattr(space.get("Solution"), first):
            first, rest = "Solution", [first]
        function = space[first]
        for name in rest:
            function = getattr(function() if isinstance(function, type) else function, name)
        write(out, dumps(function(*given)).encode())
        status = 0
    finally:  # the value is known: a thread that goes on for ever takes nothing from it
        os._exit(status)


def run(asked: dict[str, Any]) -> None:
    """Run the whole program. It ends with the process."""
    space = made("__main__")
    sys.setrecursionlimit(sys.getrecursionlimit() + FRAMES)
    exec(compile(source(asked), "program.py", "exec", dont_inherit=True), space)  # noqa: S102 (inside the sandbox)


def become_test(asked: dict[str, Any], given: bytes, out: int, path: str) -> Callable[[], None]:
    """Turn this new process into that of a test. What is returned goes on as the program."""
    argument = marshal.loads(given) if asked["entry_point"] is not None else None  # noqa: S302 (from outside the sandbox)
    os.dup2(1, 2)  # which lead nowhere
    if asked["entry_point"] is None:
        stdin = os.open(path, os.O_RDONLY)
        os.dup2(stdin, 0)
        os.dup2(out, 1)
        raw = io.FileIO(0, "r", closefd=False)  # made anew, since this one can be sought in
        raw.name = "<stdin>"
        text = io.TextIOWrapper(io.BufferedReader(raw), "utf-8", "surrogateescape")
        text.mode = "r"  # type: ignore[misc]
        sys.stdin = sys.__stdin__ = text  # type: ignore[misc]
    prctl(PR_SET_DUMPABLE, 1)
    pids = (number.to_bytes(4, sys.byteorder) for number in (asked["stands"], os.getppid()))
    lines = asked["filters"][os.uname().machine].replace(*pids)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, 2, _ctypes.byref(Filter(len(lines) // 8, lines)))
    _signal.setitimer(_signal.ITIMER_PROF, asked["cpu_s"])
    if asked["entry_point"] is None:
        return lambda: run(asked)
    return lambda: called(asked, argument, out)


def test(asked: dict[str, Any], requests: io.BufferedReader, replies: int) -> Callable[[], None] | bool:
    """One test. Returns whether the next one may follow; in the process of the test itself, what goes on as the program."""
    given = binascii.a2b_base64(requests.readline())
    path = "stdin-" + os.urandom(8).hex()  # no earlier test can stand in its way
    if asked["entry_point"] is None:
        stdin = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        write(stdin, given)
        os.close(stdin)
        given = b""
    reading, writing = os.pipe()
    told, tell = os.pipe()
    begun = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            goes_on = become_test(asked, given, writing, path)
            os.write(tell, b"+")
        except BaseException as error:
            os.write(tell, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
            os._exit(1)
        requests.close()
        kept = writing if asked["entry_point"] is not None else 3
        os.closerange(3, kept)
        os.closerange(kept + (kept == writing), 1 << 20)
        return goes_on
    del given
    os.close(writing)
    os.close(tell)
    ready = os.read(told, 1000)
    os.close(told)
    if ready != b"+":
        raise OSError(f"a test could not begin: {ready.decode(errors='replace')}")
    over, size, status, used, pause_s = "", 0, -1, None, 0.01
    held = b""  # many small parts would take more room as lines than what they say, and a limit is the program's
    while True:
        if time.monotonic() - begun > asked["wall_s"]:
            over = "wall"
        elif select.select([reading], [], [], min(pause_s, max(0.0, begun + asked["wall_s"] - time.monotonic())))[0]:
            pause_s = 0.01
            part = os.read(reading, 1 << 16)
            if not part:
                break
            size += len(part)
            over = "output" if size > asked["reply_bytes"] else ""
            held += part
            if len(held) >= LINE_BYTES and not over:
                write(replies, binascii.b2a_base64(held))
                held = b""
        elif used is None and asked["entry_point"] is not None:
            # It may have left processes that hold the pipe: its value is there as soon as it has ended.
            ended, status, used = os.wait4(pid, os.WNOHANG)
            used = used if ended else None
        elif used is not None and asked["entry_point"] is not None:
            break
        if over:
            break
        pause_s = min(1.5 * pause_s, LOOK_S)
    os.close(reading)
    pause_s = 0.0005
    while used is None:  # it may have closed the pipe and live on
        if not over and time.monotonic() - begun > asked["wall_s"]:
            over = "wall"
        if over:
            os.kill(pid, _signal.SIGKILL)
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if not ended:
            used = None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S)
    if asked["entry_point"] is None:
        try:
            os.unlink(path)  # noqa: PTH108
        except OSError:  # the program has moved it
            path = ""
    if held and not over:
        write(replies, binascii.b2a_base64(held))
    cpu_s = used.ru_utime + used.ru_stime
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == _signal.SIGPROF:
        over = "cpu"
    if over:
        say(replies, over=over, cpu_s=cpu_s)
        return False
    say(replies, status=os.waitstatus_to_exitcode(status), cpu_s=cpu_s)
    return True


def main() -> Callable[[], None] | None:
    """Run the tests that stdin asks for. In the process of a test, returns what goes on as the program."""
    requests, replies = open(os.dup(0), "rb"), os.dup(1)  # noqa: SIM115, PTH123
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        asked = marshal.loads(binascii.a2b_base64(requests.readline()))  # noqa: S302 (from outside the sandbox)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        prctl(PR_SET_DUMPABLE, 0)
        with open("program.py", "wb") as file:  # noqa: PTH123
            file.write(source(asked))
        say(replies, tests=asked["count"])
        for _ in range(asked["count"]):
            found = test(asked, requests, replies)
            if not isinstance(found, bool):
                return found
            if not found:
                break
    except Exception as error:
        say(replies, failed=f"{type(error).__name__}: {error}")
    return None


go_on = main()
if go_on is not None:
    go_on()
