"""A server that speaks OpenEnv's wire as its documents say it: sessions over a WebSocket, health and schemas over HTTP."""

import contextlib
import http
import json
import threading

from websockets.sync.server import serve

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
EVERY = {"done": {"type": "boolean"}, "reward": {}, "metadata": {"type": "object"}}
SCHEMAS = {
    "action": {"properties": {"metadata": {"type": "object"}, "message": TEXT}},
    "observation": {"properties": {**EVERY, "said": TEXT}},
    "state": {},
}
TWO_FIELDS = {
    "action": {"properties": {"message": TEXT, "times": NUMBER}},
    "observation": {"properties": {**EVERY, "said": TEXT, "length": NUMBER}},
    "state": {},
}


@contextlib.contextmanager
def running(schemas=SCHEMAS, most_sessions=100):
    """The URL of a server that repeats messages; "end" ends the episode, "fail" fails it, "odd" is answered by nonsense."""
    room = threading.Semaphore(most_sessions)

    def serve_http(connection, request):
        pages = {"/health": {"status": "healthy"}, "/schema": schemas}
        if request.path == "/ws":
            return None
        found = pages.get(request.path)
        return connection.respond(http.HTTPStatus.OK if found else http.HTTPStatus.NOT_FOUND, json.dumps(found))

    def session(connection):
        if not room.acquire(blocking=False):
            connection.send(error("full", "CAPACITY_REACHED"))
            return
        try:
            turns = begun = 0
            for line in connection:
                message = json.loads(line)
                data = message.get("data", {})
                if message["type"] == "close":
                    return
                if message["type"] == "reset":
                    turns, begun = 0, data.get("seed", 0)
                    connection.send(observation(f"ready {begun}"))
                elif set(data) - set(schemas["action"]["properties"]) or "message" not in data:
                    connection.send(error("Invalid message", "VALIDATION_ERROR"))
                elif data["message"] == "fail":
                    connection.send(error("out of luck", "EXECUTION_ERROR"))
                elif data["message"] == "odd":
                    connection.send(json.dumps({"type": "observation", "data": {"observation": "text"}}))
                else:
                    turns += 1
                    said = f"{begun + turns} {data['message'] * data.get('times', 1)}"
                    connection.send(observation(said, done=data["message"] == "end", reward=turns / 2))
        finally:
            room.release()

    with serve(session, "127.0.0.1", 0, process_request=serve_http) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


def observation(said, **answer):
    fields = {"said": said, "length": len(said)}
    return json.dumps({"type": "observation", "data": {"observation": fields, "done": False, "reward": None, **answer}})


def error(message, code):
    return json.dumps({"type": "error", "data": {"message": message, "code": code}})
