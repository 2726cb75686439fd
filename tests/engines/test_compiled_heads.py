"""The commands with heads on the CPU engine: the numbers of torch, and the same bits."""

import random
from importlib.util import find_spec
from itertools import pairwise

import pytest
from front import (
    bad,
    good,
    jsonl,
)
from task_models import agree, texts
from test_compiled import OPENVINO, without_torch

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino"),
]


def lines(*records):
    return jsonl(records)


TEXTS = [text for text in texts(12, longest=25) if text]
PAIRS = [{"text": one, "pair": other} for one, other in pairwise(TEXTS)]
# The command, the model's class, its records as JSONL, and further options.
TASKS = [
    (
        "fill-mask",
        "BertForMaskedLM",
        [{"text": f"{'[MASK] ' * (1 + at % 3)}{text}"} for at, text in enumerate(TEXTS)],
        (),
    ),
    ("fill-mask", "BertForMaskedLM", [{"text": "a [MASK]"}] * 2, ("--targets", "saw,heard,the")),
    ("score", "BertForMaskedLM", [{"text": text} for text in TEXTS], ("--per-token",)),
    ("score", "BertForMaskedLM", PAIRS, ("--pair-field", "pair", "--layers", 1)),
    ("next-sentence", "BertForNextSentencePrediction", PAIRS, ("--pair-field", "pair")),
    ("classify", "BertForSequenceClassification", [{"text": text} for text in TEXTS], ()),
    ("tag", "BertForTokenClassification", [{"text": text} for text in TEXTS], ()),
    (
        "answer",
        "BertForQuestionAnswering",
        [{"question": "who is it", "context": text * 4} for text in TEXTS],
        ("--max-length", 30, "--stride", 5),
    ),
    (
        "choose",
        "BertForMultipleChoice",
        [
            {"prompt": text, "choices": TEXTS[at % 3 : at % 3 + 2 + at % 2]}
            for at, text in enumerate(TEXTS)
        ],
        (),
    ),
]


@pytest.fixture(params=TASKS, ids=lambda task: " ".join(map(str, (task[0], *task[3]))))
def task(request, models):
    command, kind, records, options = request.param
    chosen = ("--input-format", "jsonl", "-m", models(kind), "-f", "jsonl", "-q", *options)
    return (command, *chosen), [{**record, "id": at} for at, record in enumerate(records)]


def test_the_numbers_are_those_of_torch_alone_and_in_any_batch(task):
    argv, records = task
    records = [
        {"id": at, **record} for at, record in enumerate(records)
    ]  # they keep it in any order
    expected = good(*argv, stdin=lines(*records)).rows
    compiled = (*argv, *OPENVINO)
    found = good(*compiled, stdin=lines(*records))
    assert len(found.rows) == len(records)
    agree(found.rows, expected)
    order = random.Random(3).sample(range(len(records)), len(records))
    shuffled = lines(*(records[at] for at in order))
    wanted = [found.out.splitlines()[at] for at in order]
    for options in (("--window", 1), ("--batch-tokens", 40), ("--threads", 1), ()):
        again = good(*compiled, *options, stdin=shuffled)
        assert again.out.splitlines() == wanted, options


def test_no_torch_is_imported(task, tmp_path):
    argv, records = task
    given = lines(*records)
    compiled = (*argv, *OPENVINO)
    expected = good(*compiled, stdin=given)
    file = tmp_path / "records.jsonl"
    file.write_text(given)
    done = without_torch(*compiled, "-i", file)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", expected.stdout)


def test_a_model_without_the_head_is_refused_as_by_torch(models):
    wrong = ("classify", "a", "-m", models("BertForMaskedLM"))
    done = bad(*wrong, *OPENVINO)
    expected = bad(*wrong)
    assert (done.error, done.hint) == (expected.error, expected.hint)
