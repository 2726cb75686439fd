"""The manners of the commands for task heads: formats, files, pipes, errors."""

import csv
import io
import json
import shutil
import subprocess
import sys
from functools import partial

import pyarrow.parquet
import pytest
import torch
from front import (
    TINY,
    bad,
    call,
    good,
    json_in,
    jsonl,
    on_torch,
    put_json,
    rows_in,
    start,
)
from task_models import ENTITIES, LENGTH, agree, labels, texts

import bertcli
from bertcli.cli.options import common
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.errors import ModelError
from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.model_folder.load import load, save
from bertcli.models.config import BertConfig
from bertcli.models.heads import ARCHITECTURES, BertForSequenceClassification
from bertcli.models.initial_weights import initialise
from bertcli.ray.run import EmbedJob
from bertcli.records.input import Input

pytestmark = pytest.mark.parity

CALLS = {
    "fill-mask": ("BertForMaskedLM", ["a [MASK] and", "[MASK] [MASK]"]),
    "score": ("BertForMaskedLM", ["I love NLP!", "one"]),
    "next-sentence": ("BertForNextSentencePrediction", ["one", "two"]),
    "classify": ("BertForSequenceClassification", ["one", "two", "one"]),
    "tag": ("BertForTokenClassification", ["Angela lives in Berlin.", "one"]),
    "answer": ("BertForQuestionAnswering", ["--question", "who?", "--context", "one of them"]),
    "choose": ("BertForMultipleChoice", ["one", "two", "three"]),
}
LISTS = ("predictions", "labels", "entities", "answers", "choices")


def folder_of(models, command):
    name = CALLS[command][0]
    return models(name, **(labels(*ENTITIES) if command == "tag" else {}))


def calling(models, command):
    return [command, *CALLS[command][1], "-m", folder_of(models, command)]


def flat(rows):
    """What a table has for JSON lines: a row for each item."""
    for number, row in enumerate(rows):
        items = next((row[name] for name in LISTS if name in row), [{}])
        single = {key: it for key, it in row.items() if key not in LISTS}
        for item in items:
            yield {"id": number, **single, **item, "truncated": 0}


PYTHON = {  # a class, what it is called with, and the arguments of its command that mean the same
    "fill-mask": ("MaskFiller", ["a [MASK] and"], {"top_k": 2}, ["--top-k", "2"]),
    "score": ("MaskedLMScorer", ["I love NLP!"], {"per_token": True}, ["--per-token"]),
    "next-sentence": ("NextSentencePredictor", [("one", "two")], {}, ["--pair", "two"]),
    "classify": ("Classifier", ["one", "two"], {"all_scores": True}, ["--scores", "all"]),
    "tag": (
        "Tagger",
        ["Angela lives in Berlin."],
        {"aggregation": "first"},
        ["--aggregation=first"],
    ),
    "answer": (
        "Answerer",
        ["one of them"],
        {"question": "who?", "top_k": 2},
        ["--question=who?", "--top-k=2"],
    ),
    "choose": ("Chooser", ["one"], {"choices": ["two", "three"]}, ["two", "three"]),
}


@pytest.mark.parametrize("command", PYTHON)
def test_a_class_gives_the_rows_of_its_command(models, command):
    name, given, options, argv = PYTHON[command]
    folder = folder_of(models, command)
    model = getattr(bertcli, name).load(folder, max_length=LENGTH, backend="torch")
    texts = [text if isinstance(text, str) else text[0] for text in given]
    shown = [] if command == "answer" else texts
    ask = ["--context", texts[0]] if command == "answer" else []
    if command == "next-sentence":
        argv = ["two"]
    fixed = ("-m", folder, "--max-length", LENGTH, "-f", "jsonl")
    rows = call(command, *shown, *argv, *ask, *fixed).rows
    agree(rows, model(given, **options))
    if command != "next-sentence":
        agree(rows[0], model(given[0], **options))
    with pytest.raises(bertcli.BertcliError, match="unknown option 'no_such'"):
        getattr(bertcli, name).load(folder, no_such=1)


def test_a_class_refuses_what_it_does_not_know(models):
    tagger = bertcli.Tagger.load(folder_of(models, "tag"), backend="torch")
    for options, error in (({"top": 1}, "option 'top'"), ({"aggregation": "x"}, "aggregation 'x'")):
        with pytest.raises(bertcli.BertcliError, match=f"unknown {error}") as refused:
            tagger("a", **options)
        assert refused.value.hint.startswith("one of ")


@pytest.mark.parametrize("command", ["classify", "tag"])
def test_no_label_and_no_entity_is_an_empty_table(models, command, tmp_path):
    """And not the file of an earlier run."""
    none = ["--threshold", 2] if command == "classify" else ["--ignore-labels", "O,PER,MISC"]
    argv = calling(models, command)
    full = [good(*argv, "-f", form).out.partition("\n")[0] for form in ("csv", "tsv")]
    if command == "classify":  # a table of labels has the columns of their JSON objects
        assert full == ["id,label,score,truncated", "id\tlabel\tscore\ttruncated"]
    for form, header in zip(("csv", "tsv"), full, strict=True):
        path = tmp_path / f"out.{form}"
        path.write_text("of an earlier run")
        good(*argv, *none, "-o", path, "--overwrite")
        assert path.read_text() == good(*argv, *none, "-f", form).out == f"{header}\n"
    tables = []
    for name, more in (("none", none), ("some", [])):
        good(*argv, *more, "-o", tmp_path / f"{name}.parquet")
        tables.append(pyarrow.parquet.read_table(tmp_path / f"{name}.parquet"))
    assert tables[0].num_rows == 0 < tables[1].num_rows
    assert tables[0].schema == tables[1].schema


FIELDS = {"answer": ("question", "context"), "choose": ("prompt", "choices")}
SAME_FIELDS = ("next-sentence", "classify", "answer", "score")  # in JSON and in tables


@pytest.mark.parametrize("command", CALLS)
def test_an_empty_input_makes_an_empty_table(models, command, tmp_path):
    argv = calling(models, command)
    header = good(*argv, "-f", "csv").out.partition("\n")[0]
    good(*argv, "-o", tmp_path / "full.parquet")
    empty = [command, "-m", argv[-1], "-i", tmp_path / "in.jsonl"]
    (tmp_path / "in.jsonl").touch()
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        (tmp_path / name).write_text("of an earlier run")
        done = call(*empty, "-o", tmp_path / name, "--overwrite")
        assert (done.code, done.err) == (0, "note: no records: the input is empty\n")
    assert (tmp_path / "a.csv").read_text() == f"{header}\n"
    assert (tmp_path / "a.jsonl").read_text() == ""
    schemas = [pyarrow.parquet.read_schema(tmp_path / f"{name}.parquet") for name in ("a", "full")]
    assert schemas[0] == schemas[1]
    (tmp_path / "in.csv").write_text(",".join(["x", "id", *FIELDS.get(command, ("text", "pair"))]))
    done = call(*empty[:3], "-i", tmp_path / "in.csv", "--keep-fields", "x", "-f", "csv", "-q")
    assert done.out == f"{header},x\n"


def test_words_are_whole_in_a_narrow_table(models):
    text = "a [MASK] and one and two and three"
    argv = ["fill-mask", text, "-q", "-m", folder_of(models, "fill-mask"), "-f"]
    words = [row["token_str"] for row in csv.DictReader(io.StringIO(good(*argv, "csv").out))]
    shown = good(*argv, "table", COLUMNS="60").out
    assert [word for word in ("token_str", *words) if f"  {word} " not in shown] == []


@pytest.mark.parametrize("command", CALLS)
def test_a_kept_field_named_as_one_of_the_output(models, command, tmp_path):
    argv, path = calling(models, command), tmp_path / "in.jsonl"
    text = {"fill-mask": "a [MASK]"}.get(command, "a")
    fields = FIELDS.get(command, ("text", "pair"))
    row = dict(zip(fields, (text, ["a", "b"] if command == "choose" else "b"), strict=True))
    if command == "fill-mask":
        del row["pair"]
    (found,) = good(*argv).rows[:1]
    names = {"jsonl": {*found, "truncated"} - {"id", *row}}
    names["csv"] = {*good(*argv, "-f", "csv").out.partition("\n")[0].split(",")} - {"id", *row}
    assert names["jsonl"] != names["csv"] or command in SAME_FIELDS
    for form, taken in names.items():
        for name in (sorted(taken)[0], "truncated"):
            put_json(path, row | {name: "precious"})
            done = call(command, "-m", argv[-1], "-i", path, "--keep-fields", "-f", form, "-q")
            assert f"{path}:1: field '{name}' cannot be kept" in done.error
    free = sorted(names["csv"] - names["jsonl"])
    put_json(path, row | dict.fromkeys(free, "precious"))
    (kept,) = good(command, "-m", argv[-1], "-i", path, "--keep-fields", "-q").rows
    assert [kept[name] for name in free] == ["precious"] * len(free)


@pytest.mark.parametrize("command", CALLS)
def test_formats_hold_the_same(models, command, tmp_path):
    argv = calling(models, command)
    expected = list(flat(good(*argv).rows))
    written = [{key: str(it) for key, it in row.items()} for row in expected]
    for form, tabs in (("csv", ","), ("tsv", "\t")):
        out = good(*argv, "-f", form).out
        assert list(csv.DictReader(io.StringIO(out), delimiter=tabs)) == written
    path = tmp_path / "out.parquet"
    good(*argv, "-o", path)
    agree(pyarrow.parquet.read_table(path).to_pylist(), expected)
    assert "already exists" in bad(*argv, "-o", path).error
    shown = good(*argv, "-f", "table", COLUMNS="200").out
    assert all(name in shown for name in expected[0] if name not in ("id", "truncated"))
    assert "this command cannot write npy" in bad(*argv, "-f", "npy", code=2).error


@pytest.mark.parametrize("command", CALLS)
@pytest.mark.parametrize("model", [None, DEFAULT_MODEL, "all-MiniLM-L6-v2"])
def test_the_default_model_has_no_head(command, model, monkeypatch):
    """That is said before anything is loaded, with where to get a model that has one."""
    monkeypatch.setattr(common, "find_model", None)
    named = ["-m", model] if model else []
    done = bad(command, *CALLS[command][1], *named, code=2)
    said = f"{model or 'the default model'} only makes vectors; {command} needs a"
    assert done.error.startswith(said)
    assert done.hint.startswith("give -m MODEL: a folder ")
    assert ", or on the hub for example " in done.hint
    assert bad(command, *CALLS[command][1], code=2, BERTCLI_MODEL=DEFAULT_MODEL).error


@pytest.mark.parametrize("command", [*sorted(CALLS.keys() - {"score"}), "rerank"])
def test_help_shows_no_default_model_where_it_cannot_work(command):
    for option in ("-h", "--help"):
        shown = " ".join(call(command, option).out.split())
        assert "-m, --model MODEL Folder, or hub id, of a model for this task; required." in shown
        assert DEFAULT_MODEL not in shown


@pytest.mark.parametrize("command", CALLS)
def test_another_head_is_refused_and_said(models, command):
    for other in CALLS:
        if CALLS[other][0] != CALLS[command][0]:
            done = bad(command, *CALLS[command][1], "-m", folder_of(models, other))
            assert "BertFor" in done.error
            assert (
                "choose a checkpoint" in done.hint
                or f"bertcli {other} is for this model" in done.hint
            )


def test_records_keep_their_ids_fields_and_order(models, tmp_path):
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given = [{"id": n, "text": text, "more": n % 3} for n, text in enumerate(texts(200, 9))]
    path.write_text(jsonl(given))
    argv = ["classify", "-i", path, "-m", folder_of(models, "classify"), "--keep-fields", "more"]
    good(*argv, "-q", "-o", out)
    rows = rows_in(out)
    assert [(row["id"], row["more"]) for row in rows] == [(r["id"], r["more"]) for r in given]
    alone = call("classify", given[7]["text"], "-m", folder_of(models, "classify")).rows[0]
    agree({key: rows[7][key] for key in alone}, alone | {"id": 7})
    piped = jsonl(given)
    same = good(*argv[:1], "-i", "-", "--input-format", "jsonl", *argv[3:], "-q", stdin=piped)
    agree(same.rows, rows)


def test_cut_texts_are_counted(models):
    done = call("classify", "one " * 100, "two", "-m", folder_of(models, "classify"))
    assert [row.get("truncated") for row in done.rows] == [102 - LENGTH, None]
    assert done.err == (
        f"warning: 1 of 2 texts truncated to {LENGTH} tokens ({102 - LENGTH} dropped)\n"
    )
    argv = ["classify", "one two three", "-m", folder_of(models, "classify")]
    shorter = call(*argv, "--max-length", 4)
    assert shorter.rows[0]["truncated"] == 1
    wrong = bad(*argv, "--max-length", 65, code=2)
    assert wrong.error == "--max-length 65 is more than the 64 positions of this model"


def test_a_record_that_cannot_be_read(models, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a"}\n{"text": 3}\n{"text": "b"}\n')
    argv = ["classify", "-i", path, "-m", folder_of(models, "classify")]
    assert f"{path}:2: the text is 3, not a string" in call(*argv).err
    done = call(*argv, "--on-error", "skip")
    assert (done.code, len(done.rows)) == (1, 2)
    empty = call("classify", "-m", folder_of(models, "classify"), stdin="")
    assert (empty.code, empty.err) == (0, "note: no records: the input is empty\n")


def test_results_that_are_not_numbers(models, monkeypatch):
    original = BertForSequenceClassification.logits
    monkeypatch.setattr(
        BertForSequenceClassification, "logits", lambda self, x: original(self, x) * float("inf")
    )
    done = bad("classify", "a", "-m", folder_of(models, "classify"))
    assert done.error == "text 1: its logits contain NaN or infinity"


def test_devices_types_and_threads(models):
    argv = ["classify", "one", "two", "-m", folder_of(models, "classify")]
    assert "device 'cuda:77' not found" in bad(*argv, "--device", "cuda:77", code=2).error
    half = call(*argv, "--dtype", "bfloat16", "--device", "cpu", "-q").rows
    whole = good(*argv, "--threads", 1, "--offline").rows
    for one, other in zip(half, whole, strict=True):
        assert abs(one["score"] - other["score"]) < 0.1 and one != other


def test_the_first_lines_come_early_and_head_ends_it(models, tmp_path):
    """Of an endless input: 64 records are enough for the first results."""
    argv = ["classify", "-m", str(folder_of(models, "classify"))]
    code = "import itertools\nfor n in itertools.count(): print('text', n)"
    with (
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as endless,
        start(*argv, stdin=endless.stdout) as running,
    ):
        endless.stdout.close()
        assert json.loads(running.stdout.readline())["label"]
        running.stdout.close()
        assert running.wait(60) == 0
        assert running.stderr.read() == b""
        endless.kill()


# --- models that their tokenizer does not fit ---


def small(folder, command, **changes):
    """A folder of a small random model with the head of a command, and the sample's tokenizer."""
    shutil.copytree(TINY, folder)
    name = CALLS[command][0] if command in CALLS else "BertModel"
    config = BertConfig.from_dict(json_in(TINY / "config.json") | changes)
    model = ARCHITECTURES[name](config)
    initialise(model, 0.2)
    save(model, config, folder)
    return folder


def reading(command, folder, tmp_path):
    """A call of a command that runs this model over texts without anything unusual."""
    (tmp_path / "corpus.txt").write_text("one\ntwo\n")
    others = {
        "embed": ["one", "two"],
        "similar": ["one", "--corpus", tmp_path / "corpus.txt"],
        "inspect": ["--attention", "one"],
    }
    return [command, *(others[command] if command in others else CALLS[command][1]), "-m", folder]


ALL = [*CALLS, "embed", "similar", "inspect"]
READ_IDS = ("classify", "tag", "fill-mask", "score", "next-sentence", "embed", "inspect")


@pytest.mark.parametrize("command", ALL)
def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused_before_any_text(command, tmp_path):
    folder = small(tmp_path / "model", command)
    call_of = reading(command, folder, tmp_path)
    assert call(*call_of).code == 0
    (folder / "added_tokens.json").write_text('{"foo": 347, "bar": 348}')
    done = bad(*call_of)
    assert str(folder) in done.error and "'foo' has id 347" in done.error
    assert "347 word embeddings" in done.error
    assert "resize" in done.hint
    ids = good("tokenize", "foo", "-m", folder).rows[0]["input_ids"]
    assert ids[1:-1] == [347]
    assert "foo" in good("decode", *ids, "-m", folder).out
    warnings = good("inspect", "-m", folder, "--json").rows[0]["warnings"]
    assert any("349 tokens, but only 347 word embeddings" in one for one in warnings)


def test_a_token_beyond_the_embeddings_is_refused_where_an_id_is_left_out(tmp_path):
    """A token that stands there twice has the later id: there are no more tokens than rows."""
    folder = small(tmp_path / "model", "embed")
    last = (folder / "vocab.txt").read_text().split()[-1]
    with (folder / "vocab.txt").open("a") as file:
        file.write(f"{last}\n")
    done = call("embed", "a", "-m", folder)
    assert done.code == 1
    assert f"error: {folder}: token {last!r} has id 347, but" in done.err


@pytest.mark.parametrize("command", ALL)
def test_a_model_with_extra_embeddings_is_refused_by_name(command, tmp_path):
    folder = small(tmp_path / "model", command, extra_embeddings={"emotion": 3})
    done = bad(*reading(command, folder, tmp_path))
    if command in READ_IDS:
        assert "text 1: field 'emotion_ids': expected a list of integers" in done.error
    else:
        assert "extra embeddings (emotion)" in done.error and "emotion_ids" in done.error
        assert "embed, classify, tag" in done.hint
    assert good("tokenize", "one", "-m", folder).ids
    warnings = good("inspect", "-m", folder, "--json").rows[0]["warnings"]
    assert any("extra embeddings (emotion)" in one for one in warnings)
    assert call("inspect", "-m", folder, "--verify").code == 0
    model, _ = load(folder)
    ids = torch.tensor([[2, 5, 3]])
    output = getattr(model, "bert", model)(ids, extra={"emotion": torch.ones_like(ids)})
    assert output.last_hidden_state.isfinite().all()


@pytest.mark.parametrize("command", ALL)
def test_pairs_for_a_model_of_one_token_type(command, tmp_path):
    """Single texts are fine; a pair is refused by the place it came from."""
    folder = small(tmp_path / "model", command, type_vocab_size=1)
    singles = reading(command, folder, tmp_path)
    pair = {
        "classify": ["classify", "one", "--pair", "two", "-m", folder],
        "embed": ["embed", "one", "--pair", "two", "-m", folder, "-q"],
        "inspect": ["inspect", "--attention", "one", "--pair", "two", "-m", folder],
        "tag": None,
        "similar": None,
        "fill-mask": None,
        "score": None,
    }.get(command, singles)
    if pair is not singles:
        assert call(*singles).code == 0
    if pair is not None:
        error = bad(*pair).error
        assert "token type 1" in error and "1 of them (type_vocab_size)" in error


def test_opened_from_python_such_a_model_is_refused_too(tmp_path):
    folder = small(tmp_path / "model", "embed")
    (folder / "added_tokens.json").write_text('{"foo": 347}')
    found = find_model(str(folder), files=MODEL_FILES)
    with pytest.raises(ModelError, match="'foo' has id 347, but the model has 347"):
        RecordEmbedder.open(found, on_torch())
    with pytest.raises(ModelError, match="'foo' has id 347, but the model has 347"):
        EmbedJob(
            partial(find_model, str(folder)), Input(), on_torch(), "npy"
        ).open()  # a worker of Ray


@pytest.mark.parametrize("command", [*CALLS, "embed"])
def test_texts_of_any_length_fit_the_positions(command, tmp_path):
    folder = small(tmp_path / "model", command, max_position_embeddings=16)
    long = " ".join(["a b c d"] * 40)
    if command == "answer":
        argv = ["--question", "a b", "--context", long]
    elif command in ("next-sentence", "choose"):
        argv = [long] * (2 if command == "next-sentence" else 3)
    else:
        argv = [f"[MASK] {long}"]
    done = call(command, *argv, "-m", folder)
    assert (done.code, len(done.rows)) == (0, 1), done


@pytest.mark.parametrize("files", ["config", "bert_config", "sentence"])
def test_the_smallest_limit_of_any_file_counts(tmp_path, files):
    """For tokenize and for embed, of short texts and of long ones."""
    folder = small(tmp_path / "model", "embed", max_position_embeddings=64)
    if files == "bert_config":
        (folder / "config.json").rename(folder / "bert_config.json")
        (folder / "tokenizer_config.json").unlink()
    if files == "sentence":
        (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    assert len(good("tokenize", "one", "--padding", "max_length", "-m", folder).ids[0]) == 64
    long = "a b c d " * 24
    done = call("tokenize", long, "-m", folder)
    assert "longer than the model's limit of 64 tokens" in done.err
    assert len(done.ids[0]) == 98
    quiet = ["--pooling", "mean", "-m", folder]
    assert good("embed", "one", *quiet).rows[0]["n_tokens"] == 5
    done = call("embed", long, *quiet)
    assert (done.code, done.rows[0]["n_tokens"], done.rows[0]["truncated"]) == (0, 64, 34)
    warnings = good("inspect", "-m", folder, "--json").rows[0]["warnings"]
    assert (files == "sentence") == any("max_seq_length is 128" in one for one in warnings)
    assert "64 positions" in bad("embed", "one", *quiet, "--max-length", 65, code=2).error


@pytest.mark.parametrize("several", [(), ("long " * 30,)])
def test_a_text_without_tokens(models, tmp_path, several):
    """Where a tokenizer adds no special ones, an empty text has no first token to judge."""
    folder = shutil.copytree(models("BertForSequenceClassification"), tmp_path / "m")
    bertcli.Tokenizer.load(folder).save(tmp_path / "t")
    tokenizer = json_in(tmp_path / "t" / "tokenizer.json") | {"post_processor": None}
    put_json(folder / "tokenizer.json", tokenizer)
    put_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    given = ("classify", *several, "one", "", "-m", folder)
    assert bad(*given).error.endswith(": has no tokens")
    assert len(call(*given, "--skip-empty").rows) == 1 + len(several)
