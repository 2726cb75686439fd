"""Files that torch.save wrote: where each of their tensors lies, without torch.

    for tensor in read_torch(path, nested=("state_dict",)):
        print(tensor.name, tensor.shape, tensor.start)

Since torch 1.6 such a file is a zip: `data.pkl` describes the tensors, `data/<key>` holds the bytes
of a storage. Before, it was four pickles (a magic number, a version, facts of the machine, the
content) and a list of keys, and then for each key the count of numbers and the numbers themselves.
Source: torch/serialization.py.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, NoReturn

from bertcli.errors import ModelError
from bertcli.files.safetensors import BITS, DIMENSIONS, TensorInfo
from bertcli.files.typed_json import AGAIN, is_text
from bertcli.files.zips import UNREADABLE, ZIP_STORED, BadZipFile, ZipFile, open_zip

ZIP = b"PK\x03\x04"  # how torch.save has begun its files since torch 1.6
LARGEST = 1 << 22  # bytes of a pickle, whose objects take up to 90 times as many; BERT's have 60 KB
ARGUMENTS = 16  # of a call; torch's have 7 at most
DEPTH = 4  # dicts in dicts; a dict may hold itself
STORAGES = {
    "FloatStorage": "F32", "DoubleStorage": "F64", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_BROKEN = (*UNREADABLE, pickle.UnpicklingError, LookupError, ValueError, TypeError, AttributeError,
           ArithmeticError, RuntimeError, struct.error)  # fmt: skip
Regions = Mapping[str, tuple[int, int]]  # key of a storage -> its first byte and its length


class Storage(NamedTuple):
    """Numbers that lie elsewhere in the file, under a key."""

    dtype: str  # as safetensors calls it, or the name of the class where it is none of STORAGES
    key: str
    numbers: int


class Tensor(NamedTuple):
    """A view of a storage; all counted in numbers."""

    storage: Storage
    offset: int
    shape: Sequence[int]
    strides: Sequence[int]


class Opaque:
    """What is no plain tensor, whatever it is called with: of interest is only its kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, *_: Any) -> Opaque:
        """Return the same."""
        return self


class Contents(dict[Any, Any]):
    """A dict of a pickle. A key that is not text is replaced: its hash could take for ever."""

    __slots__ = ()
    kind = "dict"

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key if type(key) is str else Opaque(type(key).__name__), value)


def _ordered_dict(pairs: Any = ()) -> Contents:
    contents = Contents()
    for key, value in pairs:  # of Python 2
        contents[key] = value
    if pairs:
        pairs.clear()  # a list that was given again and again would take the memory of each time
    return contents


# What the content of a file is made of. Nothing else is called, and nothing is imported.
NAMES: Mapping[str, Any] = {
    "collections.OrderedDict": _ordered_dict,
    "collections.defaultdict": lambda *_: Contents(),
    "torch._utils._rebuild_tensor": lambda *view: Tensor(*view[:4]),
    "torch._utils._rebuild_tensor_v2": lambda *view: Tensor(*view[:4]),
    "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    "torch._utils._rebuild_parameter_with_state": lambda tensor, *_: tensor,
    "torch._tensor._rebuild_from_type_v2": lambda build, _, arguments, *__: _call(build, arguments),
    **{f"torch.{name}": dtype for name, dtype in STORAGES.items()},
}
OPAQUE = {
    "_codecs.encode", "torch.nn.parameter.Parameter", "torch.serialization._get_layout",
    *(f"{module}.{name}" for module in ("builtins", "__builtin__") for name in ("set", "complex")),
}  # fmt: skip
OPCODES = """
PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE
SHORT_BINUNICODE BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES EMPTY_LIST EMPTY_TUPLE TUPLE
TUPLE1 TUPLE2 TUPLE3 BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET APPEND APPENDS SETITEM SETITEMS
GLOBAL STACK_GLOBAL BINPERSID
""".split()  # noqa: SIM905 - a list of names reads best as lines


def _code_of(opcode: str) -> int:
    return int(getattr(pickle, opcode)[0])


def _call(function: Any, arguments: tuple[Any, ...]) -> Any:
    if not isinstance(arguments, tuple) or len(arguments) > ARGUMENTS:
        raise ValueError("a call that torch does not write")
    return function(*arguments)


class _Content(pickle._Unpickler):
    """Reads what was saved, with a Tensor for each tensor. ModelError for what asks to run.

    Python's own reader, not C's: its memo is a dict, where C's has room for the highest number that
    16 bytes may ask for, 4 GB; and opcodes that torch does not write can be left out.
    """

    stack: list[Any]

    def __init__(self, file: IO[bytes], path: Path) -> None:
        super().__init__(file, encoding="utf-8")
        self.path = path
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a class or a function."""
        full = f"{module}.{name}"
        if full in NAMES:
            return NAMES[full]
        if module == "torch" and name.endswith("Storage"):
            return name
        if full.startswith("torch._utils._rebuild_"):  # sparse, quantised, ...
            return Opaque("Tensor")
        if module == "torch" or full in OPAQUE:
            return Opaque(name)
        raise ModelError(
            f"{self.path}: asks to run {full.removeprefix('builtins.')}: refused, and nothing was "
            "run",
            f"""if you trust where it comes from: load it in Python with
            torch.load({self.path.name!r}, weights_only=False) and save its tensors as
            model.safetensors""",
        )

    def persistent_load(self, pid: Any) -> Storage:
        """Describe the storage that an id speaks of."""
        kind, dtype, key, _, numbers, *view = pid
        if kind != "storage" or type(dtype) is not str or type(key) is not str or any(view):
            raise ValueError("an id that is not of a whole storage")
        return self.storages.setdefault(key, Storage(dtype, key, numbers))

    def _dict(self) -> None:
        self.stack.append(Contents())

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = _call(self.stack[-1], arguments)

    def _build(self) -> None:
        self.stack.pop()  # attributes, of which no tensor has any

    dispatch: ClassVar[dict[int, Any]] = {
        **{code: pickle._Unpickler.dispatch[code] for code in map(_code_of, OPCODES)},
        pickle.EMPTY_DICT[0]: _dict,
        pickle.REDUCE[0]: _reduce,
        pickle.BUILD[0]: _build,
    }


def read_torch(path: Path, nested: Sequence[str]) -> list[TensorInfo]:
    """Return the tensors of a file, perhaps ``nested`` under such a key in the state of a training.

    ModelError when the file is broken, or asks to run something.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(ZIP))
            file.seek(257)
            if file.read(5) == b"ustar":
                _refuse_code(path, "legacy .tar")
            if start != ZIP and start[:1] != b"\x80":  # how pickles of protocol 2 and later begin
                raise ValueError("it is neither a zip nor a pickle")
            content, regions = (_read_zip if start == ZIP else _read_legacy)(path, file)
    except OSError as failed:
        raise ModelError(f"{path}: {failed.strerror or failed}", AGAIN) from None
    except _BROKEN as broken:
        why = broken if isinstance(broken, BadZipFile | ValueError) else "its pickle is broken"
        raise ModelError(
            f"{path}: not a whole file of tensors that torch.save wrote: {why}", AGAIN
        ) from None
    for _ in range(DEPTH):
        if isinstance(content, dict):
            inner = (content[key] for key in nested if isinstance(content.get(key), dict))
            content = next(inner, content)
    if not isinstance(content, dict) or not all(is_text(name) for name in content):
        raise ModelError(f"{path}: expected tensors by name")
    return [_located(path, name, tensor, regions) for name, tensor in content.items()]


def _located(path: Path, name: str, tensor: Any, regions: Regions) -> TensorInfo:
    """Return where a tensor lies. ModelError when it is not all there."""
    if isinstance(tensor, Tensor) and isinstance(tensor.storage, Storage):
        kind = tensor.storage.dtype
    else:
        kind = getattr(tensor, "kind", type(tensor).__name__)
    if kind not in STORAGES.values():
        raise ModelError(f"{path}: {name} is a {kind}, not a plain tensor")
    (_, key, numbers), offset, shape, strides = tensor
    width, (start, length) = BITS[kind] // 8, regions.get(key, (0, -1))
    if not (_are_counts(shape) and _are_counts(strides) and _are_counts((numbers, offset))):
        raise ModelError(f"{path}: {name} has no shape that a tensor can have", AGAIN)
    last = offset + sum((count - 1) * step for count, step in zip(shape, strides, strict=False))
    inside = prod(shape) <= numbers and (last < numbers or not prod(shape))
    if len(shape) != len(strides) or not inside or length != numbers * width:
        raise ModelError(f"{path}: {name} has fewer bytes than its shape needs", AGAIN)
    nbytes, first = prod(shape) * width, start + offset * width
    return TensorInfo(name, kind, tuple(shape), nbytes, first, tuple(strides))


def _are_counts(values: Any) -> bool:
    return (
        isinstance(values, tuple)
        and len(values) <= DIMENSIONS
        and all(type(value) is int and 0 <= value < 2**63 for value in values)
    )


def _refuse_code(path: Path, what: str) -> NoReturn:
    raise ModelError(
        f"{path}: {what} files can run code: refused, nothing was run",
        "load it in Python and save its tensors as model.safetensors",
    )


def _read_zip(path: Path, file: IO[bytes]) -> tuple[Any, Regions]:
    """Read a file of torch 1.6 and later."""
    with open_zip(path) as archive:
        members = {member.filename: member for member in archive.infolist()}
        described = next((name for name in members if name.endswith("/data.pkl")), None)
        if described is None:
            raise BadZipFile("there is no data.pkl in the zip")
        folder = described.removesuffix("data.pkl")
        if f"{folder}constants.pkl" in members:
            _refuse_code(path, "TorchScript")
        if f"{folder}byteorder" in members and _member(archive, f"{folder}byteorder") == b"big":
            raise BadZipFile("its numbers are big-endian")
        content = _Content(io.BytesIO(_member(archive, described)), path).load()
    regions, size = {}, os.fstat(file.fileno()).st_size
    for name, member in members.items():
        if name.startswith(f"{folder}data/"):
            if member.compress_type != ZIP_STORED or member.compress_size != member.file_size:
                raise BadZipFile(f"{name} is compressed, which torch never does")
            start = _first_byte(file, member.header_offset)
            if start + member.file_size > size:
                raise BadZipFile(f"{name} is truncated")
            regions[name.removeprefix(f"{folder}data/")] = start, member.file_size
    return content, regions


def _member(archive: ZipFile, name: str) -> bytes:
    member = archive.getinfo(name)
    if member.compress_type != ZIP_STORED:
        raise BadZipFile(f"{name} is compressed, which torch never does")
    if member.file_size > LARGEST:
        raise BadZipFile(f"{name} has {member.file_size:,} bytes, and {LARGEST:,} is the limit")
    return archive.read(name)


def _first_byte(file: IO[bytes], header: int) -> int:
    """Return where the bytes of a member begin: after its own header, a name and extra fields."""
    file.seek(header)
    head = file.read(30)
    if head[:4] != ZIP or len(head) < 30:
        raise BadZipFile("a member is not where the directory says")
    name, extra = struct.unpack("<HH", head[26:30])
    return int(header + 30 + name + extra)


def _read_legacy(path: Path, file: IO[bytes]) -> tuple[Any, Regions]:
    """Read a file of torch before 1.6."""
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    head = io.BytesIO(file.read(LARGEST))
    readers = [_Content(head, path) for _ in range(5)]
    magic, version, machine, content, keys = (reader.load() for reader in readers)
    if magic != _MAGIC or version != _VERSION or not isinstance(machine, dict):
        raise ValueError("it does not begin as torch's files do")
    if machine.get("little_endian") is False:
        raise ValueError("its numbers are big-endian")
    regions, at = {}, head.tell()
    for key in keys:
        storage = readers[3].storages[key]
        file.seek(at)
        numbers = struct.unpack("<q", file.read(8))[0]
        length = numbers * BITS[storage.dtype] // 8
        if not 0 <= length <= size - at - 8:
            raise ValueError("its storages are truncated")
        regions[key] = at + 8, length
        at += 8 + length
    return content, regions
