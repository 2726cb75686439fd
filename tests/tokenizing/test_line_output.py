"""The short way from lines to output: the same bytes as through records, ids and rows."""

import json

import hostile
import pytest
from front import call
from hypothesis import given
from hypothesis import strategies as st

from bertcli.records.records import TextBlock
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.line_output import LineMaker, Task
from bertcli.tokenizing.tokenizer import Tokenizer

IDS, TYPES, MASK = "input_ids", "token_type_ids", "attention_mask"
TEXTS = [*hostile.composed(21, 500), *hostile.english(21, 200), "", " ", "[MASK]", "word " * 700]

columns = st.sampled_from([(IDS,), (IDS, TYPES), (IDS, MASK), (IDS, TYPES, MASK)])
layouts = st.builds(
    Layout,
    columns,
    special_tokens=st.booleans(),
    max_length=st.integers(2, 12),
    truncation=st.sampled_from(["do_not_truncate", "longest_first", "only_first"]),
    truncation_side=st.sampled_from([None, "left", "right"]),
)
tasks = st.builds(
    Task,
    layouts,
    extra=st.sampled_from([(), ("length",)]),
    form=st.just("jsonl"),
    only_count=st.booleans(),
)


@pytest.fixture(scope="module")
def default(default_folder):
    return Tokenizer.load(default_folder)


def both_ways(tokenizer, texts, task):
    """Return the part that lines make, and the one that the same records make."""
    scribe, lines = LineMaker(tokenizer, task), TextBlock(texts, "x.txt", 1)
    assert scribe.short
    return scribe(lines), scribe(list(lines))


@given(st.lists(hostile.texts.map(lambda text: text.replace("\n", "")), max_size=20), tasks)
def test_any_lines(default, texts, task):
    short, long = both_ways(default, texts, task)
    assert short == long


@pytest.mark.parametrize("only_count", [False, True])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("length", [None, 2, 40])
@pytest.mark.parametrize("name", hostile.VOCABULARIES)
def test_many_lines(tmp_path, name, length, special, only_count):
    tokenizer = Tokenizer.load(hostile.copy_vocabulary(name, tmp_path))
    cut = "longest_first" if length else "do_not_truncate"
    layout = Layout(special_tokens=special, max_length=length, truncation=cut)
    short, long = both_ways(tokenizer, TEXTS, Task(layout, only_count=only_count))
    assert short == long
    assert short.tally.records == len(TEXTS)
    assert short.tally.literals > 0 < short.tally.empty


def test_counts_as_text(default):
    task = Task(Layout((IDS,)), form="txt", only_count=True)
    short, long = both_ways(default, TEXTS, task)
    assert short == long
    right = [len(encoding.ids) for encoding in default.core.encode_batch(TEXTS)]
    assert [*map(int, short.data.split())] == right


def test_ids_are_those_of_tokenizers(default):
    """Every line through the command: blocks, line ends and all."""
    texts = [text.replace("\n", "").replace("\r", "") for text in TEXTS] * 5
    right = [encoding.ids for encoding in default.core.encode_batch(texts)]
    for end in ("\n", "\r\n"):
        data = "\ufeff" + "".join(text + end for text in texts)
        done = call("tokenize", "-q", stdin=data)
        assert done.code == 0
        assert done.ids == right


@pytest.mark.parametrize(
    "task",
    [
        Task(Layout((IDS, "tokens"))),
        Task(Layout(padding="max_length", max_length=9)),
        Task(Layout(truncation="only_second", max_length=9)),
        Task(Layout(truncation="longest_first", overflowing=True)),
        Task(Layout(), extra=("text",)),
    ],
)
def test_what_takes_the_long_way(default, task):
    assert LineMaker(default, task).short is None


def test_lines_are_records():
    lines = TextBlock(["a", "b", "c"], "x.txt", 7)
    assert [record.where for record in lines] == ["x.txt:7", "x.txt:8", "x.txt:9"]
    assert list(lines) == [lines[at] for at in range(3)]
    assert list(lines[1:]) == list(lines)[1:] == [lines[-2], lines[-1]]


def test_a_line_without_an_end(default):
    """JSON is valid up to the last brace where there are no special tokens and no tokens."""
    task = Task(Layout((IDS,), special_tokens=False))
    data = LineMaker(default, task)(TextBlock(["", "a"], "x.txt", 1)).data
    assert [json.loads(line) for line in data.splitlines()] == [{IDS: []}, {IDS: [1037]}]
