"""The table of formats: its entries lead to functions, and names and suffixes are unique."""

from dataclasses import fields

import pytest

from bertcli.formats.registry import (
    ARRAYS,
    FORMATS,
    INPUT_SUFFIXES,
    PARQUET,
    FileFormat,
    load,
)
from bertcli.records.reader import READERS

FUNCTIONS = ("encoder", "writer", "reader", "vector_writer", "vector_reader")


@pytest.mark.parametrize("name", FORMATS)
def test_functions_of_an_entry_are_there(name):
    assert {*FUNCTIONS} <= {field.name for field in fields(FileFormat)}
    entry = FORMATS[name]
    for function in filter(None, (getattr(entry, field) for field in FUNCTIONS)):
        assert callable(load(function))
    assert bool(entry.vector_reader) == bool(entry.vector_writer)
    assert entry.ragged_writer in ("", *FORMATS)
    assert entry.written_as in ("", *FORMATS)


def test_formats_that_are_read_in_blocks_have_a_reader_of_records():
    in_blocks = {name for name, entry in FORMATS.items() if entry.is_read_in_blocks}
    with_seeking = {name for name in in_blocks if FORMATS[name].needs_seek}
    assert in_blocks == READERS.keys() | with_seeking
    assert with_seeking == {*ARRAYS, PARQUET}


def test_a_suffix_is_of_one_format():
    suffixes = [suffix for entry in FORMATS.values() for suffix in entry.suffixes]
    suffixes += [suffix for entry in FORMATS.values() for suffix in entry.input_suffixes]
    assert len({*suffixes}) == len(suffixes) == len(INPUT_SUFFIXES)
