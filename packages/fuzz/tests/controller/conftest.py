import sys
from pathlib import Path

import pytest

PART = 0.12
"""The worlds of a test that are played without --deep."""

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _more_worlds(deep, monkeypatch):
    import worlds

    monkeypatch.setattr(worlds, "WORLDS", worlds.WORLDS * (4 if deep else PART))
