"""Large files are read without copies: the same numbers, whatever is kept, in little memory."""

import errno
import hashlib
import os
import threading
from unittest import mock

import numpy as np
import pytest
from front import bad

from bertcli.errors import InputError
from bertcli.formats.vector_files import read_vectors
from bertcli.io.mapped_file import MappedFile
from bertcli.io.paths import sha256
from bertcli.io.system_calls import BusErrors


@pytest.fixture(autouse=True)
def _mapped(monkeypatch):
    """Files are mapped as in the process of a command."""
    monkeypatch.setattr(BusErrors, "explained", True)
    monkeypatch.setattr(BusErrors, "handler", "no new handler in the process of the tests")


@pytest.fixture
def vectors(tmp_path):
    array = np.random.default_rng(0).normal(size=(5000, 96)).astype(np.float32)
    np.save(tmp_path / "v.npy", array)
    return array


def test_blocks_that_are_kept_stay_the_same(vectors, tmp_path):
    blocks = [*read_vectors(str(tmp_path / "v.npy"))]
    assert len(blocks) > 3
    assert np.array_equal(np.concatenate(blocks), vectors)
    (tmp_path / "v.npy").unlink()
    assert np.array_equal(np.concatenate(blocks), vectors)


@pytest.mark.parametrize("size", [0, 1, 4096, 3_000_000])
def test_the_digest_of_a_file_of_any_size(size, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    assert sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_pages_that_were_read_leave_memory(tmp_path):
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(300 << 20)
    with path.open("rb") as file:
        mapped = MappedFile(file)
    resident = []
    while block := mapped.read(1 << 20):
        assert sum(block[::4096]) == 0  # touches each page
        with open("/proc/self/statm") as statm:
            resident.append(int(statm.read().split()[2]) * os.sysconf("SC_PAGESIZE"))
    assert max(resident) - resident[0] < 64 << 20


def test_a_pipe_of_vectors_is_opened_once(vectors, tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    data = (tmp_path / "v.npy").read_bytes()
    writer = threading.Thread(target=(tmp_path / "pipe.npy").write_bytes, args=(data,))
    writer.start()
    read = np.concatenate([*read_vectors(str(tmp_path / "pipe.npy"))])
    writer.join()
    assert np.array_equal(read, vectors)


def test_in_python_a_file_that_is_shortened_meanwhile_is_an_error(vectors, tmp_path, monkeypatch):
    monkeypatch.setattr(BusErrors, "explained", False)
    blocks = read_vectors(str(tmp_path / "v.npy"))
    next(blocks)
    os.truncate(tmp_path / "v.npy", 300_000)
    with pytest.raises(InputError, match="ends after row"):
        list(blocks)


def test_a_file_that_cannot_be_mapped_is_read(vectors, tmp_path, monkeypatch):
    monkeypatch.setattr("mmap.mmap", mock.Mock(side_effect=OSError(errno.ENODEV, "no device")))
    assert np.array_equal(np.concatenate([*read_vectors(str(tmp_path / "v.npy"))]), vectors)


def test_a_file_that_ends_too_early_is_named_with_its_last_row(vectors, tmp_path):
    path = tmp_path / "v.npy"
    with path.open("r+b") as file:
        file.truncate(128 + 96 * 4 * 3000 + 7)
    assert "ends after row 3,000 of 5,000" in bad("inspect", path).error
