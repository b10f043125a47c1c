"""``tailrace serve``: a model's samples over HTTP."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from tailrace.ranker import LengthRanker
from tailrace.rollout import StreamGenerationService
from tailrace.rollout.serving import listen, serve


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The command line of ``tailrace serve``."""

    target: Path
    host: str = "127.0.0.1"
    port: int = 0
    replicas: int = 2
    engine: str = "auto"
    ranker: Path | None = None
    relays: tuple[str, ...] = ()


def serve_model(options: ServeOptions) -> None:
    """Serve until a signal. Prints one line of JSON when requests are answered.

    Raises:
        TailraceError: the port is in use, or the model, the engine or the ranker is not there. Nothing was started.
    """
    with listen(options.host, options.port) as listener:
        ranker = None if options.ranker is None else LengthRanker.load(options.ranker)
        service = StreamGenerationService(options.target, options.replicas, ranker, engine=options.engine)
        asyncio.run(serve(service, listener, _ready, relays=options.relays))


def _ready(url: str, token_file: Path) -> None:
    print(json.dumps({"url": url, "token_file": str(token_file)}), flush=True)
