"""`bertcli tag` against transformers' pipeline, `bertcli answer` against its algorithm."""

import json

import numpy as np
import pytest
import torch
import transformers
from front import bad, call, good
from model_reference import randomise
from task_models import ENTITIES, LENGTH, agree, labels, texts, tokenizer
from tokenizers_made import MADE

pytestmark = pytest.mark.parity

TAGGER, READER = "BertForTokenClassification", "BertForQuestionAnswering"
TAGS = labels(*ENTITIES)


# --- tag ----------------------------------------------------------------------------------------


def pipeline(models, **options):
    model = models.theirs(TAGGER, **TAGS)
    found = transformers.pipeline("token-classification", model=model, tokenizer=tokenizer())
    return lambda text: plain(found(text, **options))


def plain(entities):
    """Their numbers as Python's own."""
    return [
        {key: it.item() if isinstance(it, np.generic) else it for key, it in one.items()}
        for one in entities
    ]


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_entities_are_those_of_transformers(models, aggregation):
    argv = ["tag", *texts(), "-m", models(TAGGER, **TAGS), "--aggregation", aggregation, "-q"]
    theirs = pipeline(models, aggregation_strategy=aggregation)
    seen, words = set(), set()
    for text, row in zip(texts(), good(*argv).rows, strict=True):
        agree(row["entities"], theirs(text), text)
        seen |= {one.get("entity", one.get("entity_group")) for one in row["entities"]}
        words |= {one["word"] for one in row["entities"]}
    assert len(seen) >= 2
    assert any(" " in word for word in words) == (aggregation != "none")


@pytest.mark.parametrize("stride", [0, 5, 40])
@pytest.mark.parametrize("aggregation", ["simple", "average"])
def test_long_texts_in_windows(models, aggregation, stride):
    given = texts(8, 90)
    theirs = pipeline(models, aggregation_strategy=aggregation, stride=stride)
    argv = ["tag", *given, "-m", models(TAGGER, **TAGS), "--aggregation", aggregation]
    rows = good(*argv, "--stride", stride, "-q").rows
    for text, row in zip(given, rows, strict=True):
        agree(row["entities"], theirs(text) if text else [], text)
    assert all("truncated" not in row for row in rows)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("family", ["roberta", "xlm_roberta", "mpnet", "camembert"])
def test_words_and_masks_of_other_tokenizers(tmp_path, family):
    """Each word is marked as one where the text is split, and a mask in the text is a token."""
    folder = MADE[family](tmp_path / "m")
    prefix = {"xlm_roberta": "XLMRoberta", "mpnet": "MPNet"}.get(family, family.title())
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = getattr(transformers, f"{prefix}Config")(
        **sizes, **TAGS, vocab_size=2000, intermediate_size=16, pad_token_id=1
    )
    model = getattr(transformers, f"{prefix}ForTokenClassification")(config).eval()
    randomise(model, seed=3)
    model.save_pretrained(folder)
    words, text = ["Paris", "is", "the", "capital"], "Paris is the <mask> of France, the<mask>"
    for aggregation in ("none", "first", "average"):
        argv = ["tag", "-m", folder, "--aggregation", aggregation, "-q"]
        for given, more in ((words, {"is_split_into_words": True}), (text, {})):
            options = {"add_prefix_space": True} if more else {}
            reader = transformers.AutoTokenizer.from_pretrained(folder, **options)
            pipe = transformers.pipeline("token-classification", model=model, tokenizer=reader)
            expected = pipe([given] if more else given, aggregation_strategy=aggregation, **more)
            texts = ["--pre-split", json.dumps(given)] if more else [given]
            (row,) = good(*argv, *texts).rows
            agree(row["entities"], plain(expected[0] if more else expected), aggregation)


def test_a_text_that_is_cut_says_how_it_is_not(models):
    done = call("tag", "Paris " * 200, "-m", models(TAGGER, **TAGS))
    assert f"truncated to {LENGTH} tokens" in done.err and "--stride N tags all" in done.err
    assert done.rows[0]["truncated"] > 0


def test_words_that_are_split_already(models):
    words = ["Angela", "Merkel", "in", "Ouagadougou", "(!)"]
    model = models.theirs(TAGGER, **TAGS)
    theirs = transformers.pipeline("token-classification", model=model, tokenizer=tokenizer())
    (expected,) = theirs([words], aggregation_strategy="first", is_split_into_words=True)
    argv = ["tag", "--pre-split", json.dumps(words), "--aggregation", "first"]
    row = good(*argv, "-m", models(TAGGER, **TAGS)).rows[0]
    agree(row["entities"], plain(expected))


def test_entities_are_those_of_the_text_not_of_its_pair(models, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"text": "Ab \\u2603", "pair": "the longer text \\u2603 \\u2603 of both"}\n')
    argv = ("tag", "-i", path, "-m", models(TAGGER, **TAGS), "--aggregation", "none")
    argv += ("--ignore-labels", "")
    for more in ((), ("--pre-split",)):
        (row,) = good(*argv, *more).rows
        assert [(one["start"], one["end"]) for one in row["entities"]] == [(0, 2), (3, 4)]


def test_ignored_labels(models):
    theirs = pipeline(models, aggregation_strategy="simple", ignore_labels=["PER", "MISC"])
    argv = ["tag", texts()[0], "-m", models(TAGGER, **TAGS), "--ignore-labels", "PER,MISC", "-q"]
    agree(good(*argv).rows[0]["entities"], theirs(texts()[0]))


# --- answer -------------------------------------------------------------------------------------

ASKED = [("who lives?", text) for text in texts(8, 20)[:-1]]
ASKED += [("where is it", text) for text in texts(5, 120, seed=8) if text]


def reference(model, question, context, more):
    """Do what transformers 4 documents, a span at a time."""
    top_k, longest = more.get("top_k", 1), more.get("max_answer_length", 15)
    length = more.get("max_length", LENGTH)
    encoded = tokenizer()(
        question,
        context,
        truncation="only_second",
        max_length=length,
        stride=more.get("stride", min(length // 2, 128)),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    answers, nothing = {}, 1e6
    for window, ids in enumerate(encoded["input_ids"]):
        with torch.no_grad():
            output = model(
                input_ids=torch.tensor([ids]),
                token_type_ids=torch.tensor([encoded["token_type_ids"][window]]),
            )
        sequences = encoded.sequence_ids(window)
        inside = [at for at, sequence in enumerate(sequences) if sequence == 1]
        chosen = torch.tensor([0, *inside])
        start, end = (logits[0, chosen].softmax(0) for logits in output.values())
        nothing = min(nothing, float(start[0] * end[0]))
        spans = [
            (float(start[i] * end[j]), inside[i - 1], inside[j - 1])
            for i in range(1, len(chosen))
            for j in range(i, min(i + longest, len(chosen)))
        ]
        for score, first, last in sorted(spans, key=lambda one: -one[0])[: 2 * top_k + 10]:
            begin = encoded.word_to_chars(window, encoded.token_to_word(window, first), 1).start
            stop = encoded.word_to_chars(window, encoded.token_to_word(window, last), 1).end
            text = context[begin:stop]
            known = answers.setdefault(
                text.lower(), {"answer": text, "score": 0.0, "start": begin, "end": stop}
            )
            known["score"] += score
    found = list(answers.values())
    if more.get("no_answer"):
        found.append({"answer": "", "score": nothing, "start": 0, "end": 0})
    return sorted(found, key=lambda one: -one["score"])[:top_k]


def flags(more):
    named = {f"--{key.replace('_', '-')}": value for key, value in more.items()}
    return [
        part for key, value in named.items() for part in ([key] if value is True else [key, value])
    ]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"top_k": 3},
        {"top_k": 20, "no_answer": True},
        {"top_k": 2, "stride": 7, "max_answer_length": 3},
        {"top_k": 2, "max_length": 32, "stride": 0},
    ],
)
def test_answers_are_those_of_the_algorithm(models, more):
    lines = [
        json.dumps({"id": f"q{number}", "question": question, "context": context})
        for number, (question, context) in enumerate(ASKED)
    ]
    argv = ["answer", "-m", models(READER), "-q", *flags(more)]
    rows = good(*argv, stdin="\n".join(lines)).rows
    model = models.theirs(READER)
    for number, ((question, context), row) in enumerate(zip(ASKED, rows, strict=True)):
        assert row.pop("id") == f"q{number}"
        expected = reference(model, question, context, more)
        agree(row.get("answers", [row]), expected, context)
    agree(
        good(*argv, "--batch-tokens", 9, "--window", 2, stdin="\n".join(lines)).rows,
        [{"id": f"q{number}", **row} for number, row in enumerate(rows)],
    )


def test_one_question_to_many_contexts_and_the_other_way(models, tmp_path):
    folder, contexts = models(READER), [context for _, context in ASKED[:4]]
    both = [
        good("answer", "--question", "who?", "--context", context, "-m", folder).rows[0]
        for context in contexts
    ]
    lines = "".join(f"{context}\n" for context in contexts)
    rows = good("answer", "--question", "who?", "-m", folder, stdin=lines).rows
    agree(rows, [answer | {"id": number} for number, answer in enumerate(both)])
    path = tmp_path / "questions.csv"
    path.write_text("id,question\n1,who?\n2,where?\n")
    argv = ["answer", "--context", contexts[0], "-i", path, "-m", folder]
    row = good(*argv).rows[0]
    agree(row, both[0] | {"id": "1"})


def test_contexts_without_answers(models):
    folder = models(READER)
    row = good("answer", "--question", "who?", "--context", "", "-m", folder).rows[0]
    assert row == {"id": 0, "answer": "", "score": 0.0, "start": 0, "end": 0}
    row = good("answer", "--question", "?", "--context", "", "-m", folder, "--top-k", 2).rows[0]
    assert row == {"id": 0, "answers": []}
    said = bad("answer", "-m", folder, stdin='{"question": "who?"}').error
    assert said == "stdin:1: no context"
    long = "word " * 80
    said = bad("answer", "--question", long, "--context", "a", "-m", folder).error
    assert "cannot be truncated to 64 tokens" in said
    given = ("answer", "--question", "word " * 40, "--context", long, "-m", folder)
    assert "use a smaller --stride" in bad(*given).hint
    assert good(*given, "--stride", 4).rows[0]["answer"]


def test_a_question_that_leaves_no_room(models):
    said = bad("answer", "--question", "who " * 99, "--context", "one", "-m", models(READER))
    assert "the first text alone has 99 tokens" in said.error
    assert said.hint == "shorten that text, a larger --max-length, or --on-error skip"
