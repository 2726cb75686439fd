"""Files of torch.save: read as torch does, and nothing that a crafted one can do harm with."""

import pickle
import shutil
import struct
import tracemalloc
import zipfile
from collections import OrderedDict

import pytest
import torch
from front import (
    TINY,
    bad,
    call,
    good,
)

from bertcli.formats import torch_save
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.tensors import MappedFiles, map_bits, read_tensors

NAME = "pytorch_model.bin"


@pytest.fixture(scope="module", autouse=True)
def libraries():
    """Import what the commands need, so that no test measures its memory."""
    good("embed", "a", "-q", "-m", TINY)
    good("inspect", TINY)


@pytest.fixture
def folder(tmp_path):
    """A model folder without weights."""
    place = tmp_path / "model"
    shutil.copytree(TINY, place)
    (place / "model.safetensors").unlink()
    return place


def weights_in(folder):
    """Read every tensor of a folder; of bfloat16 the bits."""
    files = MappedFiles()
    return {one.name: map_bits(one, files) for one in read_tensors(ModelFolder(folder).weights)}


def zipped(path, raw, *more, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a/data.pkl", raw)
        for name, content in more:
            archive.writestr(name, content)


def state():
    """Tensors of every kind that weights come in."""
    generator = torch.Generator().manual_seed(3)
    whole = torch.randn(6, 8, generator=generator)
    kinds = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16)
    kinds += (torch.int8, torch.uint8, torch.bool)
    return OrderedDict(
        {str(kind): (whole * 9).to(kind)[:, :5].clone() for kind in kinds},
        whole=whole,
        shared=whole,
        turned=whole.t(),
        part=whole[1:, 2:5],
        number=torch.tensor(3.5),
        empty=torch.empty(0, 4),
        parameter=torch.nn.Parameter(whole.clone()),
        text_of_greek=torch.ones(3),
    )


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("new", [True, False])
def test_every_tensor_is_that_of_torch(folder, new, protocol):
    saved = state()
    path = folder / NAME
    torch.save(saved, path, _use_new_zipfile_serialization=new, pickle_protocol=protocol)
    found, described = weights_in(folder), read_tensors(ModelFolder(folder).weights)
    assert list(found) == list(saved)
    for (name, right), stored in zip(saved.items(), described, strict=True):
        right = right.detach()
        right = (right.view(torch.uint16) if right.dtype == torch.bfloat16 else right).numpy()
        assert (found[name].dtype, found[name].shape) == (right.dtype, right.shape), name
        assert stored.nbytes == right.nbytes
        assert (found[name] == right).all(), name
    assert found["whole"].ctypes.data == found["turned"].ctypes.data


def global_(module, name):
    return f"c{module}\n{name}\n".encode()


REBUILD = global_("torch._utils", "_rebuild_tensor_v2")
STORAGE = b"(X\7\0\0\0storage" + global_("torch", "FloatStorage") + b"X\1\0\0\0000X\3\0\0\0cpuK%ctQ"


def tensor(shape=b"K\2\x85", strides=b"K\1\x85", offset=b"K\0", count=2):
    return REBUILD + b"(" + STORAGE % count + offset + shape + strides + b"\x89)tR"


def named(value):
    return b"\x80\2}X\1\0\0\0w" + value + b"s."


NESTED = b"K\1" + b"2\x86" * 60  # a tuple of 2 ** 60 numbers, each level the one below it twice
ORDERED = global_("collections", "OrderedDict")
CRAFTED = {
    "a key of nested tuples": b"\x80\2}" + NESTED + b"K\1s.",
    "keys of nested tuples": b"\x80\2}(" + NESTED + b"K\1u.",
    "a dict by its items": b"\x80\2(" + NESTED + b"K\1d.",
    "an ordered dict by its items": b"\x80\2" + ORDERED + b"]" + NESTED + b"K\1\x86a\x85R.",
    "a default dict by its items": b"\x80\2"
    + global_("collections", "defaultdict")
    + b"N]"
    + NESTED
    + b"K\1\x86a\x86R.",
    "an instance by its items": b"\x80\2(]" + NESTED + b"K\1\x86aicollections\nOrderedDict\n.",
    "a set of nested tuples": b"\x80\4\x8f(" + NESTED + b"\x90.",
    "a frozen set of nested tuples": b"\x80\4(" + NESTED + b"\x91.",
    "the key of a storage": b"\x80\2(X\1\0\0\0s"
    + global_("torch", "FloatStorage")
    + NESTED
    + b"NNtQ.",
    "a memo of gigabytes": b"\x80\2}r" + struct.pack("<L", 1 << 28) + b".",
    "the largest memo": b"\x80\2}r\xff\xff\xff\xff.",
    "an unknown memo": b"\x80\2h\5.",
    "a text of gigabytes": b"\x80\2X\xff\xff\xff\x7fabc.",
    "bytes of gigabytes": b"\x80\4\x8e" + struct.pack("<Q", 1 << 40) + b"abc.",
    "a long number": b"\x80\2\x8b\0\1\0\0" + b"\x7f" * 256 + b".",
    "nothing to call": b"\x80\2)R.",
    "a call of a number": b"\x80\2K\1)R.",
    "a call without arguments": b"\x80\2" + REBUILD + b")R.",
    "a call with None": b"\x80\2" + REBUILD + b"NR.",
    "arguments of a wrong kind": b"\x80\2" + REBUILD + b"(K\1K\1K\1K\1tR.",
    "a build of nothing": b"\x80\2b.",
    "items for a number": b"\x80\2K\1K\2a.",
    "keys for a list": b"\x80\2]K\1K\2s.",
    "odd keys": b"\x80\2}(K\1K\2K\3u.",
    "no mark": b"\x80\2t.",
    "an empty stack": b"\x80\2.",
    "no end": b"\x80\2}",
    "an id of nothing": b"\x80\2NQ.",
    "an id of text": b"\x80\2X\1\0\0\0aQ.",
    "an extension": b"\x80\2\x82\1.",
    "a number as text": b"\x80\2I" + b"9" * 5000 + b"\n.",
    "an instance": b"\x80\2(i__main__\nX\n.",
    "negative shape": named(tensor(shape=b"J\xff\xff\xff\xff\x85")),
    "negative strides": named(tensor(strides=b"J\xff\xff\xff\xff\x85")),
    "negative offset": named(tensor(offset=b"J\xff\xff\xff\xff")),
    "strides beyond the end": named(tensor(strides=b"K\7\x85")),
    "offset beyond the end": named(tensor(offset=b"K\1")),
    "more than is there": named(tensor(shape=b"K\3\x85")),
    "shape without strides": named(tensor(strides=b")")),
    "a shape of text": named(tensor(shape=b"X\1\0\0\0a\x85")),
    "65 dimensions": named(
        tensor(shape=b"(" + b"K\1" * 65 + b"t", strides=b"(" + b"K\1" * 65 + b"t")
    ),
    "more than the file": named(tensor(count=9)),
    "not a tensor": named(b"K\3"),
    "a list": b"\x80\2].",
    "a number as name": b"\x80\2}K\1" + tensor() + b"s.",
}


@pytest.mark.parametrize("form", ["zip", "bare", "old"])
@pytest.mark.parametrize("raw", CRAFTED.values(), ids=CRAFTED)
def test_crafted_pickles_are_one_line(folder, raw, form):
    path = folder / NAME
    if form == "zip":
        zipped(path, raw, ("a/data/0", b"\0" * 8))
    else:
        keys = pickle.dumps(["0"], 2) + struct.pack("<q", 2) + b"\0" * 8
        head = [
            pickle.dumps(one, 2) for one in (torch_save.MAGIC_NUMBER, 1001, {"little_endian": True})
        ]
        path.write_bytes(raw + keys if form == "bare" else b"".join(head) + raw + keys)
    tracemalloc.start()
    try:
        for argv in (["inspect", folder], ["embed", "a", "-m", folder]):
            done = call(*argv)
            if done.code or argv[0] == "embed":
                assert done.code == 1 and str(folder) in done.error, done
            else:
                assert "available heads: none" in done.out  # there are no tensors in it
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("raw", [b"\x80\2}(X\5\0\0\0modelh\0u.", b"\x80\2}q\0X\5\0\0\0modelh\0s."])
def test_a_dict_that_holds_itself(folder, raw):
    zipped(folder / NAME, raw)
    assert call("embed", "a", "-m", folder).code == 1


def test_attributes_are_not_set(folder):
    function = REBUILD + b"}X\x0c\0\0\0__setstate__K\1sb"
    zipped(folder / NAME, b"\x80\2" + function + b".")
    assert "expected tensors by name" in bad("inspect", folder).error


def test_archives_that_torch_does_not_write(folder):
    path = folder / NAME
    whole = named(tensor())
    zipped(path, whole + b"\0" * (50 << 20), compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    assert "data.pkl is compressed, which torch never does" in bad("inspect", folder).error
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", whole)
        archive.writestr("a/data/0", b"\0" * (1 << 20), zipfile.ZIP_DEFLATED)
    for argv in (["inspect", folder], ["embed", "a", "-m", folder]):
        assert "a/data/0 is compressed" in bad(*argv).error
    zipped(path, whole, ("a/data/0", b"\0" * 8))
    raw = path.read_bytes()
    at = raw.index(b"PK\1\2")
    path.write_bytes(raw[: at + 8] + b"\1" + raw[at + 9 :])
    assert "not a whole file" in bad("inspect", folder).error
    path.write_bytes(raw.replace(b"PK\1\2", b"PK\1\7"))
    assert "not a whole file" in bad("inspect", folder).error


def test_a_directory_of_members_that_is_not_there(folder):
    path = folder / NAME
    zipped(path, named(tensor()))
    raw = path.read_bytes()
    path.write_bytes(raw[:-22] + raw[-22:-10] + struct.pack("<L", 1 << 31) + raw[-6:])
    assert "not a whole file" in bad("inspect", folder).error


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_training_with_sets_and_dicts_of_numbers(folder, protocol):
    weights = {"w": torch.arange(3.0)}
    kept = {"state_dict": weights, "seen": {1, 2}, "state": {0: {1.5: 2}}}
    torch.save(kept, folder / NAME, pickle_protocol=protocol)
    assert weights_in(folder)["w"].tolist() == [0, 1, 2]
