"""The HTTP backend against a small server that speaks SandboxFusion's protocol; it runs programs in a local sandbox."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tailrace.reward.sandbox import Limits, NoSandboxError, RunVerdict, probe_sandbox, select_sandbox
from tailrace.reward.sandbox.fusion import fusion_sandbox

pytestmark = pytest.mark.usefixtures("one_probe_of_each_sandbox")


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/run_code"
        assert asked["language"] == "python"
        body = self.server.answer(asked).encode()
        if body.startswith(b"SSH"):
            self.wfile.write(body)
            return
        self.send_response(200 if body.startswith(b"{") else 500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def _run_locally(asked):
    async def run():
        sandbox = select_sandbox()
        try:
            limits = Limits(wall_s=asked["run_timeout"], memory_mib=asked["memory_limit_MB"])
            return await sandbox.run(asked["code"], stdin=asked["stdin"].encode(), limits=limits)
        finally:
            await sandbox.close()

    ran = asyncio.run(run())
    status = "TimeLimitExceeded" if ran.limit else "Finished" if ran.exit_code is not None else "Error"
    result = {"status": status, "execution_time": ran.wall_s, "return_code": ran.exit_code}
    result |= {"stdout": ran.stdout.decode(), "stderr": ran.stderr.decode()}
    overall = "Success" if ran.verdict is RunVerdict.OK else "Failed"
    return json.dumps({"status": overall, "message": "", "compile_result": None, "run_result": result, "files": {}})


@pytest.fixture
def server():
    if not probe_sandbox("sandlock").works and not probe_sandbox("bubblewrap").works:
        pytest.skip("no sandbox for the server's programs")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.answer = _run_locally
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        made.url = f"http://127.0.0.1:{made.server_port}"
        yield made
        made.shutdown()
        thread.join()


def _run(server, program, **options):
    return asyncio.run(fusion_sandbox(server.url).run(program, **options))


@pytest.mark.deep
def test_programs_run_on_the_server(server):
    ran = _run(server, "print(input())", stdin=b"hello\n")
    assert (ran.verdict, ran.exit_code, ran.stdout, ran.isolation) == (RunVerdict.OK, 0, b"hello\n", "sandbox-fusion")
    ran = _run(server, "raise SystemExit(3)")
    assert (ran.verdict, ran.exit_code) == (RunVerdict.ERROR, 3)
    ran = _run(server, "import time; time.sleep(60)", limits=Limits(wall_s=0.5))
    assert (ran.verdict, ran.limit) == (RunVerdict.OVER_BUDGET, "wall")
    ran = _run(server, "print('x' * 3000)", limits=Limits(output_kib=1))
    assert (ran.verdict, ran.limit, len(ran.stdout)) == (RunVerdict.OVER_BUDGET, "output", 1024)


def test_it_is_selected_by_its_url(server):
    assert select_sandbox(f"sandbox-fusion:{server.url}").name == "sandbox-fusion"


@pytest.mark.parametrize(
    "answer",
    [
        "no JSON",
        "{}",
        "SSH-2.0-of another service\n",
        '{"status": "SandboxError", "message": "no pod"}',
        '{"status": "Success", "run_result": {"status": "Finished"}}',
        '{"status": "Success", "run_result": {"status": "Finished", "return_code": 0, "stdout": 7}}',
    ],
)
@pytest.mark.cases(2)
def test_a_failure_of_the_server_is_not_the_programs(server, answer):
    server.answer = lambda _: answer
    ran = _run(server, "print(1)")
    assert ran.verdict is RunVerdict.INFRASTRUCTURE
    assert "SandboxFusion server" in ran.reason


def test_no_server_and_no_address_are_named():
    with pytest.raises(NoSandboxError, match="expected sandbox-fusion:http://HOST:PORT"):
        select_sandbox("sandbox-fusion")
    with pytest.raises(NoSandboxError, match=r"sandbox-fusion:http://127\.0\.0\.1:1: the SandboxFusion server at"):
        select_sandbox("sandbox-fusion:http://127.0.0.1:1")
