"""One trajectory is found: in the archive, and in a store that its owner has open and writes to."""

import random
import subprocess
import sys

import pytest

from tailrace.trajstore import StoreBusyError, StoreFormatError, TrajectoryStore, read_trained
from tailrace.trajstore.archive import find_trained
from tailrace.trajstore.peek import peek

from .test_store_packed import write


def names(count):
    return [f"{number}.{number % 3}" for number in range(count)]


@pytest.mark.parametrize("name", ["trained.jsonl", "trained.packed"])
def test_the_archive_gives_the_row_that_reading_all_of_it_gives(tmp_path, name):
    path = tmp_path / name
    with TrajectoryStore(tmp_path / "store.db", mixed_versions=True) as store:
        for each in names(20):
            write(store, each, random.Random(each), prompt=(1, 2))
            store.consume([each], 1)
        store.export(path)
    rows = {row["trajectory"]: row for row in read_trained(path)}
    assert len(rows) == 20
    for each in rows:
        assert find_trained(path, each) == rows[each]
    assert find_trained(path, "99.9") is None


def test_a_record_that_is_half_written_hides_none_before_it(tmp_path):
    path = tmp_path / "trained.packed"
    with TrajectoryStore(tmp_path / "store.db", mixed_versions=True) as store:
        for each in names(3):
            write(store, each, random.Random(each), prompt=(1,))
            store.consume([each], 1)
        store.export(path)
    path.write_bytes(path.read_bytes()[:-3])
    assert find_trained(path, "1.1")["trajectory"] == "1.1"
    with pytest.raises(StoreFormatError, match="record 3"):
        find_trained(path, "9.9")


def test_a_store_that_is_open_is_read_beside_its_owner(tmp_path):
    path = tmp_path / "store.db"
    with TrajectoryStore(path, mixed_versions=True) as store:
        for each in names(12):
            write(store, each, random.Random(each), prompt=(7, 8, 9), rewarded=each != "5.2")
            (known,) = store.experiences([each])
            found = peek(path, each)
            parts = [(segment.version, segment.tokens, segment.observation) for segment in known.segments]
            assert found["prompt"] == [7, 8, 9]
            assert found["tokens"] == [token for _, tokens, _ in parts for token in tokens]
            assert found["versions"] == [version for version, tokens, _ in parts for _ in tokens]
            assert found["generated"] == sum(len(tokens) for _, tokens, observed in parts if not observed)
            seen = [token for start, end in found["observations"] for token in found["tokens"][start:end]]
            assert seen == [token for _, tokens, observed in parts if observed for token in tokens]
        assert peek(path, "99.9") is None
        assert peek(path, "5.2")["reward"] is None
        store.consume(["1.1"], 2)  # the reader holds nothing up
    assert peek(path, "2.2")["trajectory"] == "2.2"  # its owner has closed it


def test_another_process_reads_what_this_one_writes(tmp_path):
    path = tmp_path / "store.db"
    with TrajectoryStore(path, mixed_versions=True) as store:
        write(store, "1.0", random.Random(3), prompt=(1,))
        code = "import sys; from pathlib import Path; from tailrace.trajstore.peek import peek\n"
        code += "print(peek(Path(sys.argv[1]), '1.0')['tokens'])"
        ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=60)
        assert ran.stdout == f"{peek(path, '1.0')['tokens']}\n"


def test_no_store_has_nothing_and_another_file_is_told(tmp_path):
    assert peek(tmp_path / "none.db", "1.0") is None
    (tmp_path / "other.db").write_bytes(b"x" * 5000)
    with pytest.raises(StoreBusyError, match="expected a trajectory store"):
        peek(tmp_path / "other.db", "1.0")
