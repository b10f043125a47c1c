"""The hosts of real members pass one contract suite."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.pipeline.hosts.local import LocalHost
from tailrace.pipeline.testing.executor_contract import ExecutorContract

pytest.importorskip("torch", reason="a real trainer trains a real model")


class TestLocal(ExecutorContract):
    def make_host(self, started_s):
        return LocalHost(started_s)
