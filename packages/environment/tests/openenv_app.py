"""An app that speaks OpenEnv's wire, for servers that a worker starts: it repeats messages, with its process id."""

import json
import os

TEXT = {"type": "string"}
PAGES = {
    "/health": {"status": "healthy"},
    "/schema": {
        "action": {"properties": {"message": TEXT}},
        "observation": {"properties": {"said": TEXT}},
        "state": {},
    },
}


async def app(scope, receive, send):
    if scope["type"] == "http":
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
        await send(head)
        await send({"type": "http.response.body", "body": json.dumps(PAGES[scope["path"]]).encode()})
    elif scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        turns = 0
        while (event := await receive())["type"] != "websocket.disconnect":
            message = json.loads(event.get("text") or "{}")
            if message.get("type") == "step":
                turns += 1
            if message:
                said = {"said": f"{turns} {os.getpid()}"}
                await send(
                    {
                        "type": "websocket.send",
                        "text": json.dumps({"type": "observation", "data": {"observation": said}}),
                    }
                )
