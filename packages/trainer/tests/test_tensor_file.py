"""Files of tensors beside safetensors itself: what is written is read by it, and any part that is read is checked."""

import random

import pytest
import torch
import xxhash
from safetensors.torch import load_file, save_file

from tailrace.trainer import CheckpointError
from tailrace.trainer.checkpoint_files import CHUNK_BYTES, fingerprint, verify_file
from tailrace.trainer.tensor_file import CheckedFile, HostCopy, bytes_of, spec_of, write_tensors


def tensors(seed):
    """Some of several MiB, some of a few bytes, one without rows."""
    torch.manual_seed(seed)
    found = {
        f"t{n}": torch.randn(rows, width)
        for n, (rows, width) in enumerate([(700, 1000), (1, 3), (0, 5), (513, 1023), (7, 1)])
    }
    return found | {
        "half": torch.randn(300, 999).to(torch.bfloat16),
        "bytes": torch.randint(0, 256, (5000,)).to(torch.uint8),
    }


def filled(copy, content):
    return copy.fill(content.items())


def test_what_is_written_is_what_safetensors_reads(tmp_path):
    copy, content = HostCopy(pinned=False), tensors(1)
    specs = filled(copy, content)
    written = write_tensors(tmp_path / "state", specs, copy.blocks(specs))
    found = load_file(tmp_path / "state")
    assert found.keys() == content.keys()
    for name, tensor in content.items():
        assert torch.equal(found[name], tensor), name
        assert found[name].dtype == tensor.dtype
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    data = (tmp_path / "state").read_bytes()
    assert written == fingerprint(tmp_path / "state")
    assert written["bytes"] == len(data)
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    assert len(chunks) > 4
    assert written["xxh3"] == "".join(xxhash.xxh3_64_hexdigest(chunk) for chunk in chunks)


def test_tensors_of_another_dtype_are_written_one_after_the_other(tmp_path):
    content = {name: tensor for name, tensor in tensors(2).items() if tensor.dtype == torch.float32}
    specs = [spec_of(name, tensor.shape, torch.bfloat16) for name, tensor in content.items()]
    write_tensors(tmp_path / "w", specs, (bytes_of(tensor.to(torch.bfloat16)) for tensor in content.values()))
    for name, tensor in load_file(tmp_path / "w").items():
        assert torch.equal(tensor, content[name].to(torch.bfloat16)), name


def test_rows_are_those_of_the_file_and_cost_little_more_than_their_bytes(tmp_path):
    content = tensors(3)
    save_file(content, str(tmp_path / "state"))  # another writer, with an order of its own
    expected = fingerprint(tmp_path / "state")
    whole = CheckedFile(tmp_path / "state", expected)
    copy = HostCopy(pinned=False)
    for name, tensor in whole.read_all(copy).items():
        assert torch.equal(tensor, content[name]), name
    assert whole.read_bytes == expected["bytes"]
    draw = random.Random(4)
    for _ in range(60):
        file = CheckedFile(tmp_path / "state", expected)
        name = draw.choice([name for name, tensor in content.items() if len(tensor)])
        start = draw.randrange(len(content[name]))
        stop = draw.randint(start, len(content[name]))
        part = torch.empty_like(content[name][start:stop])
        before = file.read_bytes  # the header
        file.read_rows(name, slice(start, stop), part)
        assert torch.equal(part, content[name][start:stop]), (name, start, stop)
        assert file.read_bytes - before <= part.nbytes + 2 * CHUNK_BYTES


def test_a_flipped_bit_is_found_wherever_it_is_read_and_named(tmp_path):
    copy, content = HostCopy(pinned=False), tensors(5)
    specs = filled(copy, content)
    expected = write_tensors(tmp_path / "state", specs, copy.blocks(specs))
    whole, draw = (tmp_path / "state").read_bytes(), random.Random(6)
    for _ in range(20):
        at = draw.randrange(CHUNK_BYTES, len(whole))
        data = bytearray(whole)
        data[at] ^= 1 << draw.randrange(8)
        (tmp_path / "state").write_bytes(data)
        says = f"state: found xxh3 .* of its MiB {at // CHUNK_BYTES}, expected .*; it is damaged"
        with pytest.raises(CheckpointError, match=says):
            verify_file(tmp_path / "state", expected)
        file = CheckedFile(tmp_path / "state", expected)
        with pytest.raises(CheckpointError, match=says):
            file.read_all(HostCopy(pinned=False))
        hit = next(n for n, about in file.tensors.items() if about["data_offsets"][0] <= at < about["data_offsets"][1])
        with pytest.raises(CheckpointError, match=says):
            file.read_tensor(hit)
