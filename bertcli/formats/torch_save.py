"""Files written by torch.save: locate their tensors, without torch.

    for tensor in read_torch(path):
        print(tensor.name, tensor.shape, tensor.start)

Since torch 1.6 such a file is a zip: `data.pkl` describes the tensors, `data/<key>` contains the
bytes of a storage. Before, it was four pickles (a magic number, a version, system information, the
content) and a list of keys, followed for each key by the count of numbers and the numbers. Source:
torch/serialization.py.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

from bertcli.errors import ModelError
from bertcli.formats.arrays import ARCHIVE_ERRORS, ZIP_STORED, BadZipFile, ZipFile
from bertcli.formats.safetensors import BYTES_PER_NUMBER, StoredTensor
from bertcli.io.typed_json import DOWNLOAD_AGAIN, is_text

MAX_PICKLE_BYTES = 1 << 22  # bytes of the pickles of an old file; 60 KB for BERT
# Keys under which a training checkpoint may store its tensors.
TENSOR_KEYS = ("state_dict", "model_state_dict", "model", "module")
MAX_NESTING = 4  # nested dicts; a dict may contain itself
STORAGE_DTYPES = {
    "FloatStorage": "F32", "DoubleStorage": "F64", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C  # of the old format
VERSION = 1001  # of the old format
BROKEN_FILE_ERRORS = (
    *(*ARCHIVE_ERRORS, pickle.UnpicklingError, LookupError, ValueError, TypeError),
    *(AttributeError, ArithmeticError, RecursionError),
)
StorageRegions = Mapping[str, tuple[int, int]]  # storage key -> (first byte, length)
# Names besides torch's own that state dicts and training checkpoints refer to, without harm.
HARMLESS_NAMES = {
    "_codecs.encode", "torch.nn.parameter.Parameter", "torch.serialization._get_layout",
    "builtins.set", "builtins.complex", "__builtin__.set", "__builtin__.complex",
}  # fmt: skip


class Storage(NamedTuple):
    """Numbers stored elsewhere in the file, under a key."""

    class_name: str  # such as FloatStorage
    key: str
    numbers: int


class Tensor(NamedTuple):
    """A view of a storage; all fields count numbers."""

    storage: Storage
    offset: int
    shape: Sequence[int]
    strides: Sequence[int]


class Opaque(NamedTuple):
    """A placeholder for a class, a function or its result, of which only the name is kept."""

    class_name: str

    def __call__(self, *arguments: Any) -> Opaque:
        """Return a placeholder for the result of a call."""
        return self


def _tensor(
    storage: Storage, offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any
) -> Tensor:
    return Tensor(storage, offset, shape, strides)


def _parameter(tensor: Tensor, *_: Any) -> Tensor:
    return tensor


def _dict(pairs: Iterable[tuple[Any, Any]] = ()) -> dict[Any, Any]:
    """Return the dict of these pairs.

    Raises ValueError for a key that is not a text or a number. Hashing deeply shared tuples, which
    a small pickle can contain, may take years, in C, where no signal interrupts it.
    """
    content = {}
    for key, value in pairs:
        content[checked_key(key)] = value
    return content


def _default_dict(_: Any = None, pairs: Iterable[tuple[Any, Any]] = ()) -> dict[Any, Any]:
    return _dict(pairs)


def checked_key(key: Any) -> Any:
    """Return a dict key. Raises ValueError unless it is a text, a number or a class name."""
    if type(key) not in KEY_TYPES:
        raise ValueError(f"a key in its pickle is a {type(key).__name__}, not a text or a number")
    return key


def _from_type(function: Callable[..., Any], _: Any, arguments: Any, *__: Any) -> Any:
    return function(*arguments)


KEY_TYPES = (str, bytes, bool, int, float, type(None), Opaque)
# name in the file -> function that is called instead
REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "collections.defaultdict": _default_dict,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _from_type,
}


class PickleReader(pickle._Unpickler):
    """Reads a pickle with a `Tensor` for each tensor. Raises ModelError for code that it would run.

    Nothing is imported, and nothing is called except `REPLACEMENTS`. It is based on Python's own
    reader instead of C's, so that attributes can be skipped.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]  # removes and returns the items above the last mark

    def __init__(self, file: IO[bytes], path: Path) -> None:
        super().__init__(file, encoding="utf-8")
        self.path = path
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement of a class or a function."""
        full_name = f"{module}.{name}"
        is_of_torch = module in ("torch", "torch._utils", "torch._tensor")
        if is_of_torch or full_name in REPLACEMENTS or full_name in HARMLESS_NAMES:
            return REPLACEMENTS.get(full_name, Opaque(name))
        raise ModelError(
            f"{self.path}: asks to run {full_name.removeprefix('builtins.')}: refused, and nothing "
            "was run",
            f"""if you trust where it comes from: load it in Python with
            torch.load({self.path.name!r}, weights_only=False) and save its tensors as
            model.safetensors""",
        )

    def persistent_load(self, pid: Any) -> Storage:
        """Return the storage that an id refers to."""
        _, dtype, key, _, numbers, *view = pid
        if any(view):
            raise ValueError("an id that is not of a whole storage")
        return self.storages.setdefault(checked_key(key), Storage(dtype.class_name, key, numbers))

    def _set_item(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self.stack[-1][checked_key(key)] = value

    def _set_items(self) -> None:
        items = self.pop_mark()
        target = self.stack[-1]
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[checked_key(key)] = value

    def _make_dict(self) -> None:
        items = self.pop_mark()
        self.stack.append(_dict(zip(items[::2], items[1::2], strict=True)))

    def _make_set(self) -> None:
        self.stack.append(Opaque("set"))

    def _make_frozenset(self) -> None:
        self.pop_mark()
        self._make_set()

    def _add_items(self) -> None:
        self.pop_mark()  # items of a set, which contains no tensors

    def _build(self) -> None:
        self.stack.pop()  # attributes, which contain no tensors

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.BUILD[0]: _build,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
        pickle.DICT[0]: _make_dict,
        pickle.EMPTY_SET[0]: _make_set,
        pickle.FROZENSET[0]: _make_frozenset,
        pickle.ADDITEMS[0]: _add_items,
    }


def read_torch(path: Path) -> list[StoredTensor]:
    """Return the tensors of a file, optionally nested in a training checkpoint.

    Raises ModelError if the file is broken, or would run code.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(2)
            if magic not in (b"PK", b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5"):
                raise ValueError("it is neither a zip nor a pickle")
            read = _read_zip if magic == b"PK" else _read_old
            content, regions = read(path, file)
    except OSError as failed:
        raise ModelError(f"{path}: {failed.strerror or failed}", DOWNLOAD_AGAIN) from None
    except BROKEN_FILE_ERRORS as broken:
        reason = broken if isinstance(broken, BadZipFile | ValueError) else "its pickle is broken"
        raise ModelError(
            f"{path}: not a whole file of tensors that torch.save wrote: {reason}", DOWNLOAD_AGAIN
        ) from None
    for _ in range(MAX_NESTING):
        if isinstance(content, dict):
            inner = (content[key] for key in TENSOR_KEYS if isinstance(content.get(key), dict))
            content = next(inner, content)
    if not isinstance(content, dict) or not all(map(is_text, content)):
        raise ModelError(f"{path}: expected tensors by name")
    return [_stored_tensor(path, name, tensor, regions) for name, tensor in content.items()]


def _stored_tensor(path: Path, name: str, tensor: Any, regions: StorageRegions) -> StoredTensor:
    """Return a tensor with its location. Raises ModelError if its bytes are not all there."""
    if not isinstance(tensor, Tensor) or not isinstance(tensor.storage, Storage):
        value = tensor.storage if isinstance(tensor, Tensor) else tensor
        class_name = getattr(value, "class_name", type(value).__name__)
        raise ModelError(f"{path}: {name} is a {class_name}, not a plain tensor")
    storage = tensor.storage
    if storage.class_name not in STORAGE_DTYPES:
        raise ModelError(f"{path}: {name} is a {storage.class_name}, not a plain tensor")
    dtype = STORAGE_DTYPES[storage.class_name]
    offset = tensor.offset
    shape = tensor.shape
    strides = tensor.strides
    width = BYTES_PER_NUMBER[dtype]
    start, length = regions.get(storage.key, (0, -1))
    if not (_are_counts(shape) and _are_counts(strides) and _are_counts((storage.numbers, offset))):
        raise ModelError(f"{path}: {name} has no shape that a tensor can have", DOWNLOAD_AGAIN)
    steps = zip(shape, strides, strict=False)
    last_number = offset + sum((count - 1) * stride for count, stride in steps)
    inside = prod(shape) <= storage.numbers and (last_number < storage.numbers or not prod(shape))
    if len(shape) != len(strides) or not inside or length != storage.numbers * width:
        raise ModelError(f"{path}: {name} has fewer bytes than its shape needs", DOWNLOAD_AGAIN)
    nbytes = prod(shape) * width
    first_byte = start + offset * width
    return StoredTensor(name, dtype, tuple(shape), nbytes, path, first_byte, tuple(strides))


def _are_counts(values: Any) -> bool:
    return (
        isinstance(values, tuple)
        and len(values) <= 64
        and all(type(value) is int and 0 <= value < 2**63 for value in values)
    )


def _read_zip(path: Path, file: IO[bytes]) -> tuple[Any, StorageRegions]:
    """Return the content of a file of torch 1.6 and later, and where its storages are."""
    pickled = b""
    regions = {}
    with ZipFile(file) as archive:
        for member in archive.infolist():
            _, _, path_in_archive = member.filename.partition("/")
            if member.compress_type != ZIP_STORED:
                raise BadZipFile(f"{member.filename} is compressed, which torch never does")
            with archive.open(member) as opened:
                regions[path_in_archive.removeprefix("data/")] = file.tell(), member.file_size
                if path_in_archive == "data.pkl":
                    pickled = opened.read()
    return PickleReader(io.BytesIO(pickled), path).load(), regions


def _read_old(path: Path, file: IO[bytes]) -> tuple[Any, StorageRegions]:
    """Return the content of a file of torch before 1.6, and where its storages are."""
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    pickles = io.BytesIO(file.read(MAX_PICKLE_BYTES))
    readers = [PickleReader(pickles, path) for _ in range(5)]
    magic, version, _, content, keys = (reader.load() for reader in readers)
    if magic != MAGIC_NUMBER or version != VERSION:
        raise ValueError("it does not begin as torch's files do")
    regions = {}
    position = pickles.tell()
    for key in keys:
        width = BYTES_PER_NUMBER[STORAGE_DTYPES[readers[3].storages[checked_key(key)].class_name]]
        file.seek(position)
        length = int.from_bytes(file.read(8), "little") * width
        position += 8
        if length > size - position:
            raise ValueError("its storages are truncated")
        regions[key] = position, length
        position += length
    return content, regions
