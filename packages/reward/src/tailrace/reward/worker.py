"""The process in which verifiers run: one JSON request per line on stdin, one JSON reply per line on stdout.

A verifier can hang, exhaust memory or crash the interpreter. That affects only this process, which the scorer replaces.

Started by the scorer as ``python -m tailrace.reward.worker``.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tailrace.processes import serve
from tailrace.reward.errors import SignatureError, VerdictError
from tailrace.reward.items import TURNS, Turns
from tailrace.reward.verifiers.protocol import Verifier, check_signature, load_verifier, read_verdict
from tailrace.reward.verifiers.reference import load_reference


def resolve(name: str, local: Mapping[str, str]) -> Verifier:
    """The verifier of a name, from the scorer's own references, else from the installed ones."""
    found = load_reference(local[name]) if name in local else load_verifier(name)
    check_signature(found)
    return found


def answer(request: Mapping[str, Any], loaded: dict[str, Verifier], local: Mapping[str, str]) -> dict[str, Any]:
    """The reply to one request: ``{"reward": float, "correct": bool, "seconds": float}``, ``{"loaded": name, "cpu_budget_s":
    seconds}`` or ``{"error": reason}``; to several in one, ``{"replies": [...]}``.

    ``correct`` is missing where the verifier does not say it.
    """
    if "requests" in request:
        return {"replies": [answer(each, loaded, local) for each in request["requests"]]}
    began_s = time.monotonic()
    try:
        if "load" in request:
            verifier = loaded[request["load"]] = resolve(request["load"], local)
            return {"loaded": request["load"], "cpu_budget_s": getattr(verifier, "cpu_budget_s", None)}
        verifier, metadata = loaded[request["verifier"]], request["metadata"]
        if request["turned"]:
            metadata[TURNS] = Turns(metadata[TURNS])
        with _cpu_budget(getattr(verifier, "cpu_budget_s", None)):
            found = verifier(request["response"], request["answer"], metadata)
        reward, correct = read_verdict(found)
    except (SignatureError, VerdictError) as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    verdict = {"reward": reward} if correct is None else {"reward": reward, "correct": correct}
    return verdict | {"seconds": time.monotonic() - began_s}


@contextlib.contextmanager
def _cpu_budget(seconds: float | None) -> Iterator[None]:
    """End this process by SIGPROF, which interrupts even a computation in C, once that much CPU time is used up."""
    if seconds is None:
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    """Serve requests until stdin closes or the scorer's process is gone."""
    local: dict[str, str] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    loaded: dict[str, Verifier] = {}
    serve(lambda request: answer(request, loaded, local))


if __name__ == "__main__":
    main()
