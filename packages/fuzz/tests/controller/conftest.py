import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _more_worlds(deep, monkeypatch):
    import worlds

    monkeypatch.setattr(worlds, "WORLDS", worlds.WORLDS * (4 if deep else 1))
