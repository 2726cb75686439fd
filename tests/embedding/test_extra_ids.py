"""Extra embeddings: `embed` and `inspect --attention` read ids of words from fields of records."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from example_files import written
from front import bad, call, good
from model_reference import close, randomise
from pretrain_folders import STILL

from bertcli import Embedder
from bertcli.model_folder.load import load, save
from bertcli.models.bert import BertModel
from bertcli.models.surgery import add_extra_embeddings
from bertcli.records.record import Record
from bertcli.tokenizing.tokenizer import Tokenizer

FIELDS = {"emotion": "emotion_ids", "tone": "tones"}
ROWS = [
    {"text": "a good film", "emotion_ids": [1, 2, 3], "tones": [0, 1, 2]},
    {"text": "a good film", "emotion_ids": [3, 2, 1], "tones": 1},
    {"text": "Ouagadougou is  big.", "emotion_ids": [4, 0, 2], "tones": [2, 2, 0]},
    {"text": "how", "pair": "was it", "emotion_ids": [1, 2, 3], "tones": [2, 1, 0]},
    {"text": "word " * 30, "emotion_ids": [at % 4 for at in range(30)], "tones": 2},
]
FIXED = ["--threads", 1, "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(models, tmp_path_factory):
    base, place = models("BertForMaskedLM", **STILL), tmp_path_factory.mktemp("extra") / "model"
    shutil.copytree(base, place)
    bert, _ = load(base, BertModel, pooler=False)
    add_extra_embeddings(bert, FIELDS, {"emotion": 5, "tone": 3})
    save(randomise(bert), bert.config, place)
    return place


@pytest.fixture
def file(tmp_path):
    return written(tmp_path / "a.jsonl", ROWS)


def argv(file, folder, *more):
    return ["embed", "-q", "-i", file, "-m", folder, *FIXED, *more]


def vectors(*given):
    rows = good(*argv(*given)).rows
    return [torch.tensor(row.get("embedding", row.get("vectors"))) for row in rows]


def states(folder, row):
    """The last states of a text, its ids put to each of its tokens by hand; special ones have 0."""
    bert, tokens = load(folder, BertModel)[0], Tokenizer.load(folder).core
    texts = [row["text"].split(), *([row["pair"].split()] if "pair" in row else [])]
    found = tokens.encode(*texts, is_pretokenized=True)
    before, extra = len(texts[0]), {}
    for name, field in FIELDS.items():
        given = row[field] if isinstance(row[field], list) else [row[field]] * 99
        words = zip(found.word_ids, found.sequence_ids, strict=True)
        ids = [0 if word is None else given[word + before * which] for word, which in words]
        extra[name] = torch.tensor([ids])
    ids, types = torch.tensor([found.ids]), torch.tensor([found.type_ids])
    return bert.hidden(ids, types=types, extra=extra)[0]


def test_a_vector_is_that_of_the_model_with_the_ids(engine, folder, file):
    for vector, row in zip(vectors(file, folder), ROWS, strict=True):
        close(vector, states(folder, row).mean(0))
    for vector, row in zip(vectors(file, folder, "--token-vectors"), ROWS, strict=True):
        close(vector, states(folder, row))


def test_windows_and_truncation_keep_ids_with_their_words(engine, folder, file):
    """A text of 30 equal words is read in three windows of 10, or truncated to the first."""
    more, row = ["--max-length", 12], ROWS[-1]
    parts = [
        states(folder, {"text": "word " * 10, "emotion_ids": ids, "tones": 2}).mean(0)
        for ids in (row["emotion_ids"][at : at + 10] for at in (0, 10, 20))
    ]
    close(vectors(file, folder, *more)[-1], parts[0])
    whole = vectors(file, folder, *more, "--on-truncate", "window", "--stride", 0)[-1]
    close(whole, torch.stack(parts).mean(0))
    assert not torch.allclose(whole, parts[0], atol=1e-2)


def test_an_id_for_each_token_gives_the_same_bits(folder, file, tmp_path):
    """In windows as well, and for both texts of a pair."""
    tokens, rows, own = Tokenizer.load(folder).core, [], []
    for row in [*ROWS, {**ROWS[-1], "text": "Ouagadougou " * 30}]:
        texts = [row["text"].split(), *([row["pair"].split()] if "pair" in row else [])]
        found = tokens.encode(*texts, is_pretokenized=True, add_special_tokens=False)
        words = zip(found.word_ids, found.sequence_ids, strict=True)
        ids = [row["emotion_ids"][word + len(texts[0]) * which] for word, which in words]
        rows.append(row)
        own.append({**row, "emotion_ids": ids})
    assert len(own[-1]["emotion_ids"]) > 60
    given = written(tmp_path / "words.jsonl", rows), written(tmp_path / "tokens.jsonl", own)
    for more in ([], ["--max-length", 12, "--on-truncate", "window", "--stride", 2]):
        ours, theirs = (vectors(one, folder, *more) for one in given)
        assert all(map(torch.equal, ours, theirs))


def test_parquet_and_other_orders_give_the_same_bits(usual_engine, folder, file, tmp_path):
    rows = [{**row, "tones": row["tones"]} for row in ROWS if isinstance(row["tones"], list)]
    pq.write_table(pa.Table.from_pylist(rows[::-1]), tmp_path / "a.parquet")
    assert good(*argv(file, folder, "-o", tmp_path / "a.npy")).code == 0
    assert good(*argv(tmp_path / "a.parquet", folder, "-o", tmp_path / "b.npy")).code == 0
    kept = [at for at, row in enumerate(ROWS) if isinstance(row["tones"], list)]
    found = np.load(tmp_path / "a.npy")[kept[::-1]]
    assert np.array_equal(np.load(tmp_path / "b.npy"), found)


def test_processes_are_given_the_ids_as_well(folder, file, tmp_path):
    one = ["-o", tmp_path / "one.npy", "--backend", "torch"]
    two = ["-o", tmp_path / "two.npy", "--device", "cpu,cpu", "--threads", 2]
    assert call(*argv(file, folder, *one)).code == call(*argv(file, folder, *two)).code == 0
    assert np.array_equal(np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy"))


def test_ids_are_not_written_unless_they_are_asked_for(folder, file):
    rows = good(*argv(file, folder)).rows
    assert {*rows[0]} == {"id", "n_tokens", "embedding"}
    rows = good(*argv(file, folder, "--keep-fields", "tones")).rows
    assert [row["tones"] for row in rows] == [row["tones"] for row in ROWS]
    assert "emotion_ids" not in rows[0]


def test_update_computes_texts_with_other_ids_again(usual_engine, folder, file, tmp_path):
    more = ["--update", "-o", tmp_path / "out.npy"]
    assert call(*argv(file, folder, *more)).code == 0
    written(tmp_path / "a.jsonl", [ROWS[0] | {"tones": 2}, *ROWS[1:]])
    assert call(*argv(file, folder, *more)).code == 0
    assert call(*argv(file, folder, "-o", tmp_path / "new.npy")).code == 0
    assert np.array_equal(np.load(tmp_path / "out.npy"), np.load(tmp_path / "new.npy"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "a"}, "field 'emotion_ids' not found"),
        (
            {"text": "a", "emotion_ids": 1, "tones": None},
            "field 'tones': expected a list of integers",
        ),
        ({"text": "a", "emotion_ids": [1, 1], "tones": 1}, "'emotion_ids' has 2 ids, but the text"),
        ({"text": "a", "emotion_ids": 1, "tones": 3}, "'tones' holds an id that is not 0 to 2"),
    ],
)
def test_a_record_without_its_ids_is_named(row, said, folder, tmp_path):
    done = bad(*argv(written(tmp_path / "b.jsonl", [*ROWS, row]), folder))
    assert f"b.jsonl:{len(ROWS) + 1}: " in done.error and said in done.error
    done = bad("embed", "a", "-m", folder)
    assert "text 1: field 'emotion_ids': expected a list of integers" in done.error


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["embed", "a", "--prompt", "query: "], "this model needs an id for each word"),
        (["embed", "a", "--on-truncate", "chunk"], "this model needs an id for each word"),
        (["similar", "a", "--corpus", "x.txt"], "emotion_ids, tones"),
    ],
)
def test_what_cannot_have_ids_is_refused(argv, said, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("a\n")
    done = call(*argv, "-m", folder)
    assert done.code in (1, 2) and said in done.err


def test_python_gives_ids_in_records(folder):
    embedder = Embedder.load(folder, device="cpu")
    rows = [row for row in ROWS if "pair" not in row]
    records = [Record(row["text"], extra=row) for row in rows]
    for vector, row in zip(embedder.encode(records), rows, strict=True):
        close(torch.from_numpy(vector), states(folder, row).mean(0))


# --- attention ---


def test_attention_of_words_with_ids(folder):
    text = ["inspect", "--json", "-m", folder, "--attention", "a good film"]
    one, other = (
        json.loads(good(*text, "--extra", f"emotion={ids}", "--extra", "tone=1").out)
        for ids in ("1,2,3", "3,2,1")
    )
    assert one["tokens"] == other["tokens"] and one != other
    done = bad(*text)
    assert "text 1: field 'emotion_ids': expected a list of integers" in done.error
    assert "--extra" in bad(*text, "--extra", "mood=1", code=2).error
