"""bertcli: BERT tokens and BERT vectors at the shell, and from Python.

The names below are imported when they are first used, so that `import bertcli` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertcli.errors import BertcliError
    from bertcli.files.versions import __version__
    from bertcli.hub import find_model
    from bertcli.records.reader import Reader
    from bertcli.records.records import Record
    from bertcli.records.source import Source
    from bertcli.tokenizing.columns import Encoded, Layout
    from bertcli.tokenizing.tokenizer import Tokenizer

_PLACES = {
    "__version__": "bertcli.files.versions",
    "BertcliError": "bertcli.errors",
    "Encoded": "bertcli.tokenizing.columns",
    "Layout": "bertcli.tokenizing.columns",
    "Reader": "bertcli.records.reader",
    "Record": "bertcli.records.records",
    "Source": "bertcli.records.source",
    "Tokenizer": "bertcli.tokenizing.tokenizer",
    "find_model": "bertcli.hub",
}
__all__ = [
    "BertcliError",
    "Encoded",
    "Layout",
    "Reader",
    "Record",
    "Source",
    "Tokenizer",
    "__version__",
    "find_model",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'bertcli' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)
