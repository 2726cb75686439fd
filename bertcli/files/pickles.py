"""Pickles of tensors, read without running anything: the opcodes that torch.save writes.

    content = read_pickle(io.BytesIO(raw))   # dicts, lists, numbers, and Tensors for tensors

Nothing of a pickle is called or imported. Names that torch's weights-only reader knows stand for
themselves; any other is refused, as loading the file elsewhere would run it. What a pickle can cost
is bounded by its size and by OPCODES: the memo is a dict, no key of a dict has parts, and nothing
is expanded. Source of the opcodes: pickletools; of the names: torch/_weights_only_unpickler.py.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple

OPCODES = 1 << 21  # of a pickle; a model with the state of its training has fewer than 100,000
DIGITS = 16  # bytes of a whole number
DIMENSIONS = 64  # more than any tensor has

STORAGES = {
    "FloatStorage": "F32",
    "DoubleStorage": "F64",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
_TORCH = re.compile(
    r"(Size|device|Tensor|per_\w+|\w+Storage|\w+Tensor"
    r"|(b?float|double|half|q?u?int|complex|bool|bits)[\w]*)"
)
_KNOWN = {
    "collections.OrderedDict",
    "collections.Counter",
    "collections.defaultdict",
    "torch.nn.parameter.Parameter",
    "torch.nn.Parameter",
    "torch.serialization._get_layout",
    "torch.storage.TypedStorage",
    "torch.storage.UntypedStorage",
    "torch.storage._LegacyStorage",
    "torch._tensor._rebuild_from_type_v2",
    "_codecs.encode",
    *(f"{module}.{name}" for module in ("builtins", "__builtin__") for name in (
        "bytearray", "set", "complex", "dict", "list", "int", "float", "bool", "str",
    )),
}  # fmt: skip
_DICTS = ("collections.OrderedDict", "collections.Counter", "collections.defaultdict")
_TENSORS = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2")
_PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")


class BadPickle(Exception):
    """A pickle that cannot be read, and why."""


class AsksToRun(BadPickle):
    """A pickle that names what no weights need."""


class Name(str):
    """A class or a function that a pickle names, "module.name"."""


class Storage(NamedTuple):
    """Numbers that lie elsewhere in the file, under a key."""

    dtype: str  # as safetensors calls it, or the name of the class when it is none of STORAGES
    key: str
    numbers: int


class Tensor(NamedTuple):
    """A view of a storage; all counted in numbers."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Other:
    """What else a pickle makes: of interest is only of which kind it is."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def read_pickle(file: IO[bytes]) -> Any:
    """Return what a pickle describes, and leave the file behind it. Raises BadPickle."""
    from pickletools import genops  # loaded by hardly any command

    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(genops(file)):
            if count == OPCODES:
                raise BadPickle(f"it has more than {OPCODES:,} opcodes")
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error) as broken:
        raise BadPickle(f"its opcodes make no sense: {broken}") from None
    raise BadPickle("it is truncated")


class _Machine:
    """The stack and memo of a pickle that is read."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.numbered: dict[int, Any] = {}  # what pickle calls the memo
        self.pairs = 0  # that were copied

    def step(self, opcode: str, argument: Any) -> None:
        """Do what an opcode says."""
        if opcode in _PUSHED:
            if isinstance(argument, int) and argument.bit_length() > 8 * DIGITS:
                raise ValueError("a number is too long")
            self.stack.append(argument)
        elif opcode in _MADE:
            self.stack.append(_MADE[opcode]())
        elif opcode in _PUT:
            self.numbered[len(self.numbered) if argument is None else argument] = self.stack[-1]
        elif opcode in _GET:
            self.stack.append(self.numbered[argument])
        elif opcode in _STEPS:
            _STEPS[opcode](self, argument)
        elif opcode not in ("PROTO", "FRAME"):
            raise ValueError(f"{opcode} is not written by torch")

    def mark(self, _: Any) -> None:
        """Remember the height of the stack."""
        self.marks.append(len(self.stack))

    def marked(self) -> list[Any]:
        """Take what stands above the last mark."""
        at = self.marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def pack(self, count: int | None) -> None:
        """Make a tuple of the last few, or of those above the mark."""
        items = self.marked() if count is None else [self.stack.pop() for _ in range(count)][::-1]
        self.stack.append(tuple(items))

    def append(self, items: list[Any]) -> None:
        """Extend the list, or what stands for a set, on the stack."""
        found = self.stack[-1]
        if isinstance(found, list):
            found.extend(items)
        elif not isinstance(found, Other):
            raise ValueError(f"items for a {kind_of(found)}")

    def set_items(self, items: list[Any]) -> None:
        """Add keys and values to the dict on the stack. A key with parts stands for itself."""
        found = self.stack[-1]
        if not isinstance(found, dict):
            raise ValueError(f"keys for a {kind_of(found)}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            plain = key is None or isinstance(key, str | int | float | bytes)
            found[key if plain else Other(kind_of(key))] = value

    def name(self, module: str, name: str) -> None:
        """Push a name that torch writes. Raises AsksToRun for any other."""
        full = f"{module}.{name}"
        rebuilds = module == "torch._utils" and name.startswith("_rebuild_")
        if not (full in _KNOWN or rebuilds or (module == "torch" and _TORCH.fullmatch(name))):
            raise AsksToRun(full.removeprefix("builtins.").removeprefix("__builtin__."))
        self.stack.append(Name(full))

    def call(self, _: Any) -> None:
        """Describe what a function would make of its arguments."""
        arguments, function = self.stack.pop(), self.stack.pop()
        self.stack.append(self._made(function, arguments))

    def _made(self, function: Any, arguments: Any) -> Any:
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise ValueError("what is called is not a name")
        if function in _DICTS:
            return self._dict(arguments)
        if function in _TENSORS:
            return _tensor(*arguments[:4])
        if function in _PARAMETERS:
            return arguments[0]
        if function == "torch._tensor._rebuild_from_type_v2":
            return self._made(arguments[0], arguments[2])
        return Other("Tensor" if "._rebuild_" in function else function.rpartition(".")[2])

    def _dict(self, arguments: tuple[Any, ...]) -> dict[Any, Any]:
        """Make an OrderedDict; Python 2 gave its pairs as arguments."""
        pairs = arguments[0] if arguments and isinstance(arguments[0], list) else []
        self.pairs += len(pairs)
        if self.pairs > OPCODES:
            raise ValueError("a list of pairs is used again and again")
        return {key: value for key, value in pairs if isinstance(key, str)}

    def stored(self, _: Any) -> None:
        """Describe the storage that an id speaks of."""
        kind, storage, key, _, numbers, *view = self.stack.pop()
        if view not in ([], [None]):
            raise ValueError("a storage that is part of another")
        if kind != "storage" or not isinstance(storage, Name) or type(numbers) is not int:
            raise ValueError("a persistent id that is not of a storage")
        name = storage.rpartition(".")[2]
        self.stack.append(Storage(STORAGES.get(name, name), str(key), numbers))


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> Tensor:
    if max(len(shape), len(strides)) > DIMENSIONS:
        raise ValueError("a tensor has too many dimensions")
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, Storage) or not all(type(one) is int for one in numbers):
        raise ValueError("a tensor without a storage or a shape")
    return Tensor(storage, offset, tuple(shape), tuple(strides))


def kind_of(value: Any) -> str:
    """Return the name of a value's class, as a user of torch knows it."""
    return value.kind if isinstance(value, Other) else type(value).__name__


_PUSHED = frozenset((
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "SHORT_BINSTRING", "BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
))  # fmt: skip
_MADE: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": lambda: Other("set"),
}
_PUT = ("BINPUT", "LONG_BINPUT", "MEMOIZE")
_GET = ("BINGET", "LONG_BINGET")
_STEPS: Mapping[str, Callable[[_Machine, Any], Any]] = {
    "MARK": _Machine.mark,
    "TUPLE": lambda machine, _: machine.pack(None),
    "TUPLE1": lambda machine, _: machine.pack(1),
    "TUPLE2": lambda machine, _: machine.pack(2),
    "TUPLE3": lambda machine, _: machine.pack(3),
    "APPEND": lambda machine, _: machine.append([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.marked()),
    "ADDITEMS": lambda machine, _: machine.append(machine.marked()),
    "SETITEM": lambda machine, _: machine.set_items([machine.stack.pop() for _ in "kv"][::-1]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.marked()),
    "GLOBAL": lambda machine, both: machine.name(*both.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(
        *[str(machine.stack.pop()) for _ in "mn"][::-1]
    ),
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "BUILD": lambda machine, _: machine.stack.pop(),  # attributes, of which no tensor has any
    "BINPERSID": _Machine.stored,
}
