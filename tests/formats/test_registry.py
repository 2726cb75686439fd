"""The table of formats: its entries lead to functions, and names and suffixes are unique."""

from dataclasses import fields

import pytest

from bertcli.formats.registry import FORMATS, INPUT_SUFFIXES, FileFormat, load

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


def test_a_suffix_is_of_one_format():
    suffixes = [suffix for entry in FORMATS.values() for suffix in entry.suffixes]
    suffixes += [suffix for entry in FORMATS.values() for suffix in entry.input_suffixes]
    assert len({*suffixes}) == len(suffixes) == len(INPUT_SUFFIXES)
