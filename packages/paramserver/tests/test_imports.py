import subprocess
import sys


def test_the_package_imports_nothing_heavy():
    code = (
        "import sys, tailrace.paramserver, tailrace.paramserver.relay;"
        "print(sorted({'torch', 'numpy', 'ray', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "[]"


def test_reading_without_torch_does_not_import_it():
    code = """
import os, sys
from tailrace.paramserver import Publisher, RelayReader, RelayServer, new_token
token = new_token()
relay = RelayServer(f"imports-{os.getpid()}", token=token)
with relay, Publisher(relay.address, token=token) as publisher:
    publisher.publish(0, [("w", b"abc")])
    with RelayReader(relay.address, token=token) as reader, reader.lease(0) as weights:
        print(bytes(weights.raw()["w"].data), "torch" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "b'abc' False"
