"""`bertcli train` on words with tags: the step of transformers, and what loads the result."""

import gzip

import pytest
import torch
import transformers
from example_files import tagged, written
from front import (
    bad,
    call,
    good,
    json_in,
)
from pretrain_folders import STILL
from train_steps import argv, check_step, opened, standing

from bertcli.records.input import Input
from bertcli.records.reader import Reader
from bertcli.tasks.examples import examples_source, read_examples
from bertcli.training.fine_tuning import head_task


def their_step(task, base, rows):
    """Loss and gradients of transformers with its own tokenizer and the usual alignment."""
    names = task.identity["labels"]
    config = transformers.BertConfig.from_pretrained(base, num_labels=len(names), **STILL)
    theirs = transformers.BertForTokenClassification(config)
    theirs.load_state_dict(task.build(None).state_dict())
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    words = [row["words"] for row in rows]
    batch = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
    labels = torch.full_like(batch["input_ids"], -100)
    for at, row in enumerate(rows):
        before = None
        for place, word in enumerate(batch.word_ids(at)):
            if word is not None and word != before:
                labels[at, place] = names.index(row["tags"][word])
            before = word
    loss = theirs(**batch, labels=labels).loss
    loss.backward()
    return loss.item(), {name: one.grad for name, one in theirs.named_parameters()}


@pytest.mark.parity
@pytest.mark.parametrize("parts", [1, 3])
def test_a_step_is_that_of_transformers(parts, base, tmp_path):
    rows = tagged(20)
    task = opened(head_task, rows, tmp_path, base)
    training = standing(task, parts)
    check_step(training, lambda some: their_step(task, base, [rows[at] for at in some]))


def test_a_rule_is_learnt_and_used(base, tmp_path):
    file = written(tmp_path / "words.jsonl", tagged(200))
    assert call(*argv(file, tmp_path / "out", base, "--steps", 150, "--eval-every", 50)).code == 0
    metrics = json_in(tmp_path / "out" / "manifest.json")["metrics"]
    assert metrics["f1"] > 0.99, metrics
    other = written(tmp_path / "other.jsonl", tagged(50, seed=8))
    (found,) = good("evaluate", other, "-m", tmp_path / "out").rows
    assert found["task"] == "tag" and found["f1"] > 0.99
    (row,) = good("tag", "-m", tmp_path / "out", "--aggregation", "first", "a lovely film").rows
    assert [(one["entity_group"], one["word"]) for one in row["entities"]] == [("good", "lovely")]
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "out")
    assert sorted(theirs.config.id2label.values()) == ["B-LOC", "B-bad", "B-good", "O"]


def long_sentences(count, seed=0):
    """Sentences of several windows of 12 tokens, with words of several tokens at their ends."""
    rows = tagged(10 * count, seed)
    both = [rows[at::count] for at in range(count)]
    names = ("words", "tags")
    return [{name: [one for row in some for one in row[name]] for name in names} for some in both]


def test_long_sentences_are_learnt_and_judged_in_windows(base, tmp_path):
    file = written(tmp_path / "words.jsonl", long_sentences(30))
    more = ["--steps", 150, "--eval-every", 50, "--max-length", 12]
    done = call(*argv(file, tmp_path / "out", base, *more))
    assert done.code == 0
    assert "truncated" not in done.err
    metrics = json_in(tmp_path / "out" / "manifest.json")["metrics"]
    assert metrics["rows"] == 3 and metrics["f1"] > 0.99, metrics
    other = written(tmp_path / "other.jsonl", long_sentences(30, seed=8))
    done = good("evaluate", other, "-m", tmp_path / "out", "--max-length", 12)
    assert done.rows[0]["n"] == 30 and done.rows[0]["f1"] > 0.99


def test_conll_files_are_words_with_tags(base, tmp_path):
    text = "-DOCSTART- -X- O O\n\nAngela NNP B-NP B-PER\nlives VBZ B-VP O\n\nHello UH O O\n"
    (tmp_path / "a.conll").write_text(text)
    (found,) = read_examples(Reader(examples_source(str(tmp_path / "a.conll"), Input()))).examples[
        :1
    ]
    assert (found.record.text, found.target) == (["Angela", "lives"], ["B-PER", "O"])
    assert found.record.line == 3
    more = ["--steps", 1, "--eval-fraction", 0]
    assert call(*argv(tmp_path / "a.conll", tmp_path / "out", base, *more)).code == 0
    (tmp_path / "b.bio.gz").write_bytes(gzip.compress(text.encode()))
    (packed,) = read_examples(
        Reader(examples_source(str(tmp_path / "b.bio.gz"), Input()))
    ).examples[:1]
    assert packed.target == found.target
    (tmp_path / "bad.conll").write_text("Angela B-PER\nlives\n")
    given = argv(tmp_path / "bad.conll", tmp_path / "other", base)
    assert "bad.conll:2: a word without a tag" in bad(*given).error
