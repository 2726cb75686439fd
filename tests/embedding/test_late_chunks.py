"""`embed --on-truncate late-chunk`: chunks pooled from the token vectors of their text."""

import numpy as np
import pytest
import torch
import transformers
from front import TINY, bad, call, good, json_in, jsonl, rows_in
from model_reference import randomise
from sentence_folders import dense, saved, sentence_model, st
from task_models import SIZES
from tokenizers_made import MADE

import bertcli

TEXTS = [
    "Berlin is the capital of Germany. It has 3.85 million inhabitants. The city is a state, too.",
    "I love NLP!",
    "",
    "Straße   café 世界 is 🎉🎉 ok…\n\nunfathomably  large. " * 2,
]
LATE = ("--on-truncate", "late-chunk", "--at", "sentence")
POOLINGS = {
    "mean": lambda states: states.mean(0),
    "max": lambda states: states.max(0),
    "mean_sqrt_len": lambda states: states.sum(0) / len(states) ** 0.5,
    "weightedmean": lambda states: np.average(states, 0, np.arange(len(states)) + 1),
}
POOLINGS["mean+max"] = lambda states: np.concatenate([states.mean(0), states.max(0)])


def random_model(family, folder, positions):
    """Write a small random model with a tokenizer of its kind."""
    name = {"modernbert": "ModernBert", "roberta": "Roberta"}[family]
    MADE[family](folder, model_max_length=positions)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    padding = tokenizer.pad_token_id
    first_position = padding + 1 if family == "roberta" else 0
    sizes = SIZES | {"max_position_embeddings": positions + first_position}
    sizes |= {"vocab_size": len(tokenizer), "pad_token_id": padding}
    config = getattr(transformers, f"{name}Config")(**sizes)
    randomise(getattr(transformers, f"{name}Model")(config)).save_pretrained(folder)
    return folder


def matrix(rows, field="embedding"):
    return np.array([row[field] for row in rows], np.float32)


def token_vectors(model, texts, *options):
    """Return the token vectors of texts, and the last character of each token (0: special)."""
    argv = ("embed", "-q", *model, "--token-vectors", *options, "-f", "jsonl")
    rows = good(*argv, *texts).rows
    return [
        (np.array(row["vectors"], np.float32), [end for _, end in row["offsets"]]) for row in rows
    ]


def pooled_by_hand(states, ends, chunks, pool):
    """Return the pooled states of each chunk; ``chunks`` are all characters of the states."""
    vectors = []
    for number, (start, end) in enumerate(chunks):
        tokens = [at for at, last in enumerate(ends) if start < last <= end]
        first = min(tokens, default=0)
        stop = max(tokens, default=-1) + 1
        first = 0 if number == 0 else first
        stop = len(ends) if number == len(chunks) - 1 else stop
        vectors.append(pool(states[first:stop]))
    return np.array(vectors)


def spans_of(rows):
    return [(row["start"], row["end"]) for row in rows]


@pytest.mark.parametrize("backend", ["openvino", "torch"])
@pytest.mark.parametrize("family", ["default", "modernbert", "roberta"])
def test_it_is_the_pooling_of_token_vectors_by_hand(tmp_path, backend, family):
    model = ()
    if family != "default":
        model = ("-m", random_model(family, tmp_path / family, 256))
    size = ("--max-length", 16 if family == "default" else 30, "--overlap", 3)
    chunks = good("chunk", "-q", *model, *size, "--at", "sentence", *TEXTS).rows
    states_of_texts = token_vectors((*model, "--backend", backend), TEXTS, "--max-length", 256)
    for pooling, pool in POOLINGS.items():
        rows = good(
            *("embed", "-q", *model, "--backend", backend, *LATE, *size, "--pooling", pooling),
            *("--no-normalize", "-f", "jsonl", *TEXTS),
        ).rows
        names = ("id", "chunk", "start", "end", "n_tokens")
        assert [[row[name] for name in names] for row in rows] == [
            [chunk[name] for name in names] for chunk in chunks
        ]
        for number, (states, ends) in enumerate(states_of_texts):
            own = [row for row in rows if row["id"] == number]
            assert number in (1, 2) or len(own) > 2
            wanted = pooled_by_hand(states, ends, spans_of(own), pool)
            assert np.abs(matrix(own) - wanted).max() < 1e-5


@pytest.mark.parametrize("stride", [0, 9])
def test_a_text_longer_than_the_positions_is_read_in_windows_of_whole_chunks(tmp_path, stride):
    model = ("--backend", "openvino", "-m", random_model("roberta", tmp_path / "m", 64))
    text = " ".join(f"The city {n} is large. It has {n * n} inhabitants." for n in range(20))
    done = call(
        *("embed", *model, *LATE, "--max-length", 20, "--stride", stride),
        *("--no-normalize", "-f", "jsonl", text, "no"),
    )
    assert done.code == 0
    note = "note: 1 text is longer than 64 tokens: encoded in several windows\n"
    assert note in done.err
    rows = [row for row in done.rows if row["id"] == 0]
    spans = spans_of(rows)
    (encoded,) = good("tokenize", *model[2:], text, "--offsets", "--no-special-tokens", "-q").rows
    starts = [start for start, _ in encoded["offset_mapping"]]
    first = 0
    windows = 0
    while first < len(spans):
        start = spans[first][0]
        if first:
            before = [at for at in starts if at < start]
            start = before[-stride] if stride else start
        tried = [text[start:end] for _, end in spans[first:]]
        counts = good("tokenize", *model[2:], "-q", "--count", *tried).out.split()
        fit = first + sum(int(count) <= 64 for count in counts)
        ((states, ends),) = token_vectors(model, [text[start : spans[fit - 1][1]]])
        own = [(chunk_start - start, end - start) for chunk_start, end in spans[first:fit]]
        if own[0][0]:  # the tokens of the window before them belong to no chunk
            own = [(0, own[0][0]), *own]
        wanted = pooled_by_hand(states, ends, own, POOLINGS["mean"])[first - fit :]
        assert np.abs(matrix(rows[first:fit]) - wanted).max() < 1e-5
        first = fit
        windows += 1
    assert 3 < windows < len(rows)


def test_dense_modules_and_unit_length_come_after_the_pooling(tmp_path):
    modules = [st.Pooling(32, "mean"), dense(32, 20, torch.nn.Tanh()), st.Normalize()]
    model = sentence_model(*modules)
    folder = saved(model, tmp_path / "m")
    chosen = ("-m", folder, *LATE, "--max-length", 9)
    rows = good("embed", "-q", *chosen, "-f", "jsonl", TEXTS[0]).rows
    ((states, ends),) = token_vectors(("-m", folder), TEXTS[:1])
    pooled = pooled_by_hand(states, ends, spans_of(rows), POOLINGS["mean"])
    with torch.no_grad():
        wanted = modules[1]({"sentence_embedding": torch.from_numpy(pooled)})["sentence_embedding"]
    wanted = torch.nn.functional.normalize(wanted)
    assert len(rows) > 2
    assert np.abs(matrix(rows) - wanted.numpy()).max() < 1e-5
    plain = good("embed", "-q", *chosen, "--no-normalize", "--dim", 7, "-f", "jsonl", TEXTS[0])
    assert matrix(plain.rows).shape == (len(rows), 7)


@pytest.mark.parametrize("include", [True, False])
def test_a_prompt_is_before_each_window_and_pooled_with_the_first_chunk(tmp_path, include):
    folder = saved(sentence_model(st.Pooling(32, "mean", include_prompt=include)), tmp_path / "m")
    prompt = "paris is: "
    rows = good(
        *("embed", "-q", "-m", folder, *LATE, "--max-length", 14, "--prompt", prompt),
        *("-f", "jsonl", TEXTS[0]),
    ).rows
    ((states, ends),) = token_vectors(("-m", folder), [f"{prompt}{TEXTS[0]}"])
    spans = [(start + len(prompt), end + len(prompt)) for start, end in spans_of(rows)]
    wanted = pooled_by_hand(states, ends, spans, POOLINGS["mean"])
    if not include:
        skipped = 1 + sum(0 < end <= len(prompt) for end in ends)
        own = sum(spans[0][0] < end <= spans[0][1] for end in ends)
        wanted[0] = states[skipped : skipped + own].mean(0)
    assert len(rows) > 2
    assert np.abs(matrix(rows) - wanted).max() < 1e-5


# --- the same bits ---


@pytest.fixture
def docs(tmp_path):
    """Return a file of documents with ids, empty, short, and longer than the model's positions."""
    path = tmp_path / "docs.jsonl"
    texts = [f"The fox {n} is quick. Paris is a b c. NLP? " * n * n for n in range(8)]
    path.write_text(jsonl({"id": f"d{n}", "text": text} for n, text in enumerate(texts)), "utf-8")
    return path


@pytest.mark.usefixtures("usual_engine")
def test_a_vector_depends_on_its_text_alone(docs, tmp_path):
    options = ("embed", "-q", "-m", TINY, *LATE, "--max-length", 12, "--overlap", 2, "--stride", 5)
    rows = good(*options, "-i", docs, "-f", "jsonl").rows
    other = good(
        *(*options, "-i", docs, "-f", "jsonl", "--batch-tokens", 128),
        *("--window", 3, "--threads", 1),
    )
    assert rows == other.rows
    lines = docs.read_text("utf-8").splitlines()
    docs.write_text("\n".join(reversed(lines)), "utf-8")
    backward = good(*options, "-i", docs, "-f", "jsonl").rows
    assert sorted(map(str, rows)) == sorted(map(str, backward))


@pytest.mark.usefixtures("usual_engine")
def test_a_text_of_one_chunk_has_the_vector_of_embed():
    argv = ("embed", "-q", "-f", "jsonl", *TEXTS[1:3])
    assert matrix(good(*argv, *LATE).rows).tolist() == matrix(good(*argv).rows).tolist()


# --- outputs ---


@pytest.mark.usefixtures("usual_engine")
def test_python_returns_the_chunks_of_each_text():
    options = {"max_length": 12, "at": "sentence"}
    embedder = bertcli.Embedder.load(TINY, on_truncate="late-chunk", **options)
    argv = ("embed", "-q", "-m", TINY, *LATE, "--max-length", 12, "-f", "jsonl")
    rows = good(*argv, *TEXTS).rows
    found = embedder.encode(TEXTS)
    assert [len(vectors) for vectors in found] == [
        sum(row["id"] == number for row in rows) for number in range(len(TEXTS))
    ]
    assert np.array_equal(np.concatenate(found), matrix(rows))
    other = bertcli.Embedder.load(TINY)
    assert np.array_equal(other.encode(TEXTS[0], on_truncate="late-chunk", **options), found[0])


def test_long_texts_are_counted_in_the_manifest(docs, tmp_path):
    out = tmp_path / "out.npy"
    done = call("embed", "-m", TINY, *LATE, "--max-length", 12, "-i", docs, "-o", out)
    counts = json_in(tmp_path / "out.npy.manifest.json")["counts"]
    assert (counts["records"], counts["too_long"], counts["truncated"]) == (len(np.load(out)), 4, 0)
    assert "note: 4 texts are longer than 128 tokens: encoded in several windows\n" in done.err


@pytest.mark.usefixtures("usual_engine")
def test_an_update_makes_the_chunks_of_a_changed_text_anew(docs, tmp_path):
    """Also the chunks whose own characters are unchanged: they see another text around them."""
    out = tmp_path / "out.npy"
    argv = ("embed", "-m", TINY, *LATE, "--max-length", 12, "-i", docs, "--update", "-o")
    good(*argv, out, "-q")
    rows = docs.read_text("utf-8").splitlines()
    rows[2] = rows[2].replace("NLP?", "NLP!", 1)
    docs.write_text("\n".join(rows), "utf-8")
    updated = call(*argv, out)
    total = len(np.load(out))
    of_text = (tmp_path / "out.npy.index.jsonl").read_text("utf-8").count('"d2"')
    assert f"note: {total - of_text:,} of {total:,} vectors reused\n" in updated.err
    good(*argv, tmp_path / "fresh.npy", "-q")
    assert out.read_bytes() == (tmp_path / "fresh.npy").read_bytes()


@pytest.mark.usefixtures("usual_engine")
def test_stored_vectors_are_searched_and_not_explained(docs, tmp_path):
    out = tmp_path / "out.npy"
    options = ("-m", TINY, *LATE, "--max-length", 12)
    good("embed", "-q", *options, "-i", docs, "-o", out)
    argv = ("similar", "-q", "The fox", "-m", TINY, "--corpus", docs, "--vectors", out)
    (answer,) = good(*argv, "-f", "jsonl").rows
    vectors = np.load(out) / np.linalg.norm(np.load(out), axis=1, keepdims=True)
    query = bertcli.Embedder.load(TINY).encode("The fox", normalize=True)
    best = answer["hits"][0]
    assert abs(best["score"] - (vectors @ query).max()) < 1e-5
    text = next(row["text"] for row in rows_in(docs) if row["id"] == best["id"])
    assert best["text"] == text[best["start"] : best["end"]]
    assert "window" not in best
    found = bertcli.search("The fox", docs, model=str(TINY), vectors=out, quiet=True)
    assert found == [answer]
    refused = bad(*argv, "--explain", code=2).error
    assert refused == "--explain cannot be combined with --on-truncate late-chunk"


def test_a_table_of_token_vectors_has_no_context(tmp_path):
    from static_folders import model2vec_folder

    done = bad("embed", "-m", model2vec_folder(tmp_path / "m"), *LATE, "a", code=2)
    assert done.error.startswith("--on-truncate late-chunk is not possible: this model is a table")
