"""`bertcli pretrain prepare`: every token of every instance is traced back to its document."""

import gzip
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from chances import likely
from front import (
    NO_BYTECODE,
    bad,
    call,
    good,
    json_in,
    jsonl,
    process,
    put_json,
)
from nested_models import inside_a_sentence_model
from tokenizers_made import roberta, wordpiece_folder

from bertcli.errors import BertcliError
from bertcli.io.paths import unfinished_path
from bertcli.io.publish import replaced_folder
from bertcli.training.instances import Instances

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
DOCUMENTS, SENTENCES, WORDS = 40, 12, 6
CLS, SEP, MASK = 2, 3, 4
ROWS = "instances.bin"


def word(document, at):
    """Return a word that stands once in the corpus, spelt with letters."""
    return "w" + "".join(chr(97 + int(digit)) for digit in f"{document:03}{at:04}")


CORPUS = [
    [
        " ".join(word(document, sentence * WORDS + at) for at in range(WORDS))
        for sentence in range(SENTENCES)
    ]
    for document in range(DOCUMENTS)
]
TEXT = "\n\n".join("\n".join(document) for document in CORPUS) + "\n"
TOKENS = [*SPECIAL, *TEXT.split()]  # so that the corpus is the ids 5, 6, 7, ...
PER_DOCUMENT = SENTENCES * WORDS


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the corpus and a tokenizer, and instances of them in `made`."""
    folder = tmp_path_factory.mktemp("pretrain")
    write_tokenizer(folder / "tokenizer", TOKENS)
    (folder / "corpus.txt").write_text(TEXT)
    assert prepare(folder, "corpus.txt", "-o", folder / "made").code == 0
    return folder


def write_tokenizer(folder, tokens, **settings):
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    config = {"do_lower_case": True, "model_max_length": 64, **settings}
    put_json(folder / "tokenizer_config.json", config)


def prepare(place, *argv, stdin=""):
    files = [place / name if str(name).startswith("corpus") else name for name in argv]
    chosen = () if "-m" in argv else ("-m", place / "tokenizer")
    length = () if "--max-length" in argv else ("--max-length", 48)
    return call("pretrain", "prepare", *files, *chosen, *length, stdin=stdin)


def refused(place, *argv, stdin=""):
    done = prepare(place, *argv, stdin=stdin)
    assert done.out == "" and done.error
    return done


def files_of(folder, pattern="*"):
    return {path.name: path.read_bytes() for path in Path(folder).glob(pattern)}


def rows_of(folder):
    stored = Instances(folder)
    return [*stored.rows], stored


def restored(row):
    ids = row["input_ids"].copy()
    count = row["masked_lm_counts"]
    ids[row["masked_lm_positions"][:count]] = row["masked_lm_ids"][:count]
    return ids


def segments(row):
    """Return both segments with what was masked put back."""
    ids, length = restored(row)[: row["lengths"]], row["lengths"]
    first = int(length - row["token_type_ids"].sum())
    return ids[1 : first - 1], ids[first : length - 1]


# --- what is in the folder ----------------------------------------------------------------------


def test_rows_are_sequences_of_bert(place):
    rows, stored = rows_of(place / "made")
    assert (stored.max_length, stored.max_predictions, stored.vocab_size) == (48, 20, len(TOKENS))
    assert len(rows) == stored.index["statistics"]["instances"] > 300
    for row in rows:
        ids, length, count = restored(row), row["lengths"], row["masked_lm_counts"]
        assert ids.dtype == np.int32 and row["token_type_ids"].dtype == np.uint8
        a, b = segments(row)
        assert [*ids] == [CLS, *a, SEP, *b, SEP, *[0] * (48 - length)]
        assert [*row["token_type_ids"]] == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (
            48 - length
        )
        positions = row["masked_lm_positions"]
        assert 1 <= count == min(20, max(1, round(float(length) * 0.15)))
        assert (np.diff(positions[:count]) > 0).all() and not positions[count:].any()
        assert not row["masked_lm_ids"][count:].any()
        assert min(len(a), len(b)) >= 1 and min(*a, *b) > MASK


def test_segments_come_from_the_documents_they_should(place):
    rows, _ = rows_of(place / "made")
    for row in rows:
        a, b = segments(row)
        of_a, of_b = ({(id - 5) // PER_DOCUMENT for id in part} for part in (a, b))
        assert len(of_a) == len(of_b) == 1
        assert (np.diff(a) == 1).all() and (np.diff(b) == 1).all()
        assert (of_a != of_b) == row["next_sentence_labels"]
        if not row["next_sentence_labels"]:
            assert b[0] > a[-1]


def test_random_tokens_are_words(place):
    rows, _ = rows_of(place / "made")
    stands = [
        id
        for row in rows
        for id in row["input_ids"][row["masked_lm_positions"][: row["masked_lm_counts"]]]
    ]
    assert set(stands) - {MASK} <= set(range(5, len(TOKENS)))
    assert likely(stands.count(MASK), len(stands), 0.8)


def test_the_index_says_what_is_there(place):
    rows, stored = rows_of(place / "made")
    stored.verify()
    said, tokens = stored.index["statistics"], sum(int(row["lengths"]) for row in rows)
    assert (said["documents"], said["sentences"]) == (DOCUMENTS, DOCUMENTS * SENTENCES)
    assert said["tokens"] == tokens
    labels = [int(row["next_sentence_labels"]) for row in rows]
    assert said["random_next_share"] == round(sum(labels) / len(rows), 6)
    counts = sum(int(row["masked_lm_counts"]) for row in rows)
    assert said["predictions"] == counts
    assert said["predicted_share"] == round(counts / tokens, 6)
    assert set(stored.index["sha256"]) == {ROWS, "vocab.txt", "tokenizer_config.json"}
    assert (place / "made" / "vocab.txt").read_bytes() == (
        place / "tokenizer" / "vocab.txt"
    ).read_bytes()


def test_what_is_said(place, tmp_path):
    done = prepare(place, "corpus.txt", "-o", tmp_path / "a")
    assert re.match(
        r"note: \d+ instances, [\d,]+ tokens, 1\d\.\d% of them masked; second sentence random in "
        r"5\d\.\d% of the pairs\n$",
        done.err,
    )


# --- the same again -----------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(place, tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        prepare(place, "corpus.txt", "-o", tmp_path / name, "--seed", seed)
    assert files_of(tmp_path / "a") == files_of(place / "made")
    assert files_of(tmp_path / "b")[ROWS] != files_of(place / "made")[ROWS]


def test_a_process_of_its_own_gives_the_same_bytes(place, tmp_path):
    argv = ["pretrain", "prepare", place / "corpus.txt", "-m", place / "tokenizer"]
    done = process(*argv, "--max-length", 48, "-o", tmp_path / "a", env={"PYTHONHASHSEED": "7"})
    assert done.code == 0
    assert files_of(tmp_path / "a") == files_of(place / "made")


JSON_TEXTS = jsonl({"text": "\n".join(document)} for document in CORPUS)
JSON_LISTS = jsonl({"text": document} for document in CORPUS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("corpus-a.jsonl", JSON_TEXTS),
        ("corpus-b.jsonl", JSON_LISTS),
        ("corpus-e.jsonl", JSON_TEXTS.replace("}\n", ', "pair": ["no", "document"]}\n')),
        ("corpus-c.txt", "\n \n" + TEXT.replace("\n\n", "\n  \n\n\n").replace("\n", "\r\n")),
        ("corpus-d.txt.gz", TEXT),
    ],
)
def test_every_form_of_the_corpus_gives_the_same_rows(place, tmp_path, name, content):
    data = content.encode()
    (place / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert prepare(place, name, "-o", tmp_path / "a").code == 0
    assert files_of(tmp_path / "a") == files_of(place / "made")


def test_stdin_and_several_files(place, tmp_path):
    assert prepare(place, "-o", tmp_path / "a", stdin=TEXT).code == 0
    names = []
    for number, document in enumerate(CORPUS):  # the end of a file ends a document
        (place / f"corpus{number}.txt").write_text("\n".join(document))
        names.append(f"corpus{number}.txt")
    assert prepare(place, *names, "-o", tmp_path / "b").code == 0
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b") == files_of(place / "made")


def test_the_rows_of_a_document_lie_together(place):
    """So that what is held out from the end is of other documents."""
    documents = [(segments(row)[0][0] - 5) // PER_DOCUMENT for row in rows_of(place / "made")[0]]
    assert documents == sorted(documents)


def test_options_change_what_they_say(place, tmp_path):
    def index(*options):
        prepare(place, "corpus.txt", "-o", tmp_path / "a", "--overwrite", *options)
        return Instances(tmp_path / "a").index

    base = index("--dupe-factor", 1)["statistics"]
    twice = index("--dupe-factor", 2)["statistics"]
    assert 1.8 < twice["instances"] / base["instances"] < 2.2
    assert index("--masked-lm-prob", 0.5)["statistics"]["predicted_share"] > 0.4
    few = index("--masked-lm-prob", 0.5, "--max-predictions", 3)
    assert few["max_predictions"] == 3 and few["statistics"]["predicted_share"] < 0.1
    short = index("--short-seq-prob", 1)["statistics"]
    assert short["tokens"] / short["instances"] < base["tokens"] / base["instances"]


def test_whole_words_are_masked_whole(tmp_path):
    tokens = [*SPECIAL, "ab", "##cd", "##ef", "x"]
    write_tokenizer(tmp_path / "tokenizer", tokens)
    (tmp_path / "corpus.txt").write_text("abcdef x abcdef x x abcd x\n\n" * 40)
    done = prepare(tmp_path, "corpus.txt", "-o", tmp_path / "a", "--whole-word")
    assert done.code == 0
    rows, _ = rows_of(tmp_path / "a")
    for row in rows:
        ids, length = restored(row), row["lengths"]
        chosen = set(row["masked_lm_positions"][: row["masked_lm_counts"]].tolist())
        starts = {1, int(length - row["token_type_ids"].sum())}
        for at in set(range(1, length)) - starts:
            if ids[at] in (6, 7):
                assert (at in chosen) == (at - 1 in chosen)


def test_special_tokens_in_the_text_are_text(place, tmp_path):
    text = TEXT.replace(word(0, 3), f"[MASK] {word(0, 3)} [SEP]")
    assert prepare(place, "-o", tmp_path / "a", stdin=text).code == 0
    rows, _ = rows_of(tmp_path / "a")
    for row in rows:
        assert (restored(row) == SEP).sum() == 2 and (restored(row) != MASK).all()


# --- what can go wrong --------------------------------------------------------------------------


def test_a_tokenizer_that_instances_cannot_be_made_with(place, tmp_path):
    folder = wordpiece_folder(tmp_path / "none", sep_token="[NEW]")
    done = refused(place, "corpus.txt", "-m", folder, "-o", tmp_path / "out")
    assert done.error == "the vocabulary has no [NEW], which instances are made with"
    done = refused(place, "corpus.txt", "-o", tmp_path / "out", "--whole-word")
    assert done.error.startswith("no token begins with ##: --whole-word cannot tell")


def test_a_vocabulary_without_a_mask(place, tmp_path):
    write_tokenizer(tmp_path / "t", [token for token in TOKENS if token != "[MASK]"])
    done = refused(place, "corpus.txt", "-m", tmp_path / "t", "-o", tmp_path / "a")
    assert done.error == "the vocabulary has no [MASK], which instances are made with"
    assert "pretrain vocab" in done.hint


def test_a_vocabulary_without_words(place, tmp_path):
    write_tokenizer(tmp_path / "t", SPECIAL)
    done = refused(place, "corpus.txt", "-m", tmp_path / "t", "-o", tmp_path / "a")
    assert done.error == "the vocabulary has only special tokens"


def test_folders_that_are_there(place, tmp_path):
    target = tmp_path / "a"
    target.mkdir()
    assert prepare(place, "corpus.txt", "-o", target).code == 0  # an empty folder is no folder yet
    before = files_of(target)
    assert refused(place, "corpus.txt", "-o", target).error == f"{target}: already exists"
    assert prepare(place, "corpus.txt", "-o", target, "--overwrite", "--seed", 1).code == 0
    assert files_of(target) != before
    (target / "thesis.doc").write_text("")
    done = refused(place, "corpus.txt", "-o", target, "--overwrite")
    assert done.error == f"{target}: holds thesis.doc, which this command did not write"
    done = refused(place, "corpus.txt", "-o", target / "vocab.txt", "--overwrite")
    assert done.error == f"{target / 'vocab.txt'}: already exists, and is not a folder"
    done = refused(place, "corpus.txt", "-o", tmp_path / "b" / "c")
    assert "No such file or directory" in done.error and "first" in done.hint
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


def test_what_killed_runs_left(place, tmp_path):
    """A corpus half read, and a folder that was just to be replaced."""
    out = tmp_path / "a"
    half, old = unfinished_path(out), replaced_folder(out)
    (half / "spool").mkdir(parents=True)
    (half / "spool" / "documents").write_bytes(b"half")
    assert prepare(place, "corpus.txt", "-o", out).code == 0
    assert [*tmp_path.iterdir()] == [out]
    out.rename(old)  # between the two moves
    assert refused(place, "corpus.txt", "-o", out, "--seed", 1).error == f"{out}: already exists"
    assert [*tmp_path.iterdir()] == [out] and files_of(out) == files_of(place / "made")
    shutil.copytree(out, old)  # behind them
    assert prepare(place, "corpus.txt", "-o", out, "--overwrite").code == 0
    assert [*tmp_path.iterdir()] == [out]


def test_a_failed_run_leaves_the_old_folder(place, tmp_path):
    assert prepare(place, "corpus.txt", "-o", tmp_path / "a").code == 0
    refused(place, "-o", tmp_path / "a", "--overwrite", stdin="one\n")
    assert files_of(tmp_path / "a") == files_of(place / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on files")
def test_a_full_disk(place, tmp_path):
    from resource import RLIM_INFINITY, RLIMIT_FSIZE, setrlimit

    argv = ["pretrain", "prepare", place / "corpus.txt", "-m", place / "tokenizer"]
    done = process(
        *argv,
        *("--max-length", 48, "-o", tmp_path / "a"),
        env=NO_BYTECODE,
        preexec_fn=lambda: setrlimit(RLIMIT_FSIZE, (100_000, RLIM_INFINITY)),
    )
    assert done.code == 1 and done.error == f"{tmp_path / 'a'}: cannot be written: File too large"
    assert done.hint.startswith("free disk space")
    assert [*tmp_path.iterdir()] == []


def test_wrong_usage(place):
    assert call("pretrain", "prepare", place / "corpus.txt").code == 2
    assert call("pretrain", "prepare", "-o", "a", "--max-length", 4).code == 2
    assert call("pretrain", "prepare", "-o", "a", "--masked-lm-prob", 1.5).code == 2
    assert (
        bad("pretrain", "prepare", "nowhere.txt", "-o", "a").error == "nowhere.txt: file not found"
    )
    assert "prepare" in good("pretrain", "--help").out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "instances.json").unlink(), "no instances of version 3"),
        (lambda folder: (folder / "instances.json").write_text("{}"), "no instances of version 3"),
        (lambda folder: edited(folder, version=1), "no instances of version 3 found"),
        (lambda folder: edited(folder, statistics={}), "statistics.instances: expected a whole"),
        (lambda folder: edited(folder, max_length=47), "has not the .* bytes that instances.json"),
        (lambda folder: (folder / ROWS).unlink(), "has not the .* bytes that instances.json"),
        (lambda folder: (folder / ROWS).write_bytes(b"x" * 99), "has not the .* bytes"),
        (lambda folder: flipped(folder / ROWS), "was changed after it was made"),
    ],
)
def test_folders_that_are_broken(place, tmp_path, change, said):
    prepare(place, "corpus.txt", "-o", tmp_path / "a")
    change(tmp_path / "a")
    with pytest.raises(BertcliError, match=said):
        Instances(tmp_path / "a").verify()


def edited(folder, **changes):
    index = json_in(folder / "instances.json")
    put_json(folder / "instances.json", index | changes)


def flipped(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_the_tokenizer_may_lie_inside_a_sentence_model(place, tmp_path):
    model = inside_a_sentence_model(place / "tokenizer", tmp_path / "sbert")
    assert prepare(place, "corpus.txt", "-m", model, "-o", tmp_path / "made").code == 0
    text = CORPUS[0][0]
    assert (
        good("tokenize", text, "-m", tmp_path / "made").rows
        == good("tokenize", text, "-m", place / "tokenizer").rows
    )


def test_a_tokenizer_of_older_files_comes_along(place, tmp_path):
    model = json.loads(roberta().to_str())["model"]
    folder = tmp_path / "older"
    folder.mkdir()
    words = {**model["vocab"], "<mask>": len(model["vocab"])}
    put_json(folder / "vocab.json", words)
    pairs = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text("".join(f"{pair}\n" for pair in pairs))
    assert prepare(place, "corpus.txt", "-m", folder, "-o", tmp_path / "made").code == 0
    found = [good("tokenize", CORPUS[0][0], "-m", one).rows for one in (folder, tmp_path / "made")]
    assert found[0] == found[1]
