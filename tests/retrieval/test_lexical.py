"""`similar --lexical` and `--hybrid`: BM25 of words as bm25s has it, and fused with cosines."""

import math
import os
import random
import stat

import numpy as np
import pytest
from front import TINY, bad, good

from bertcli import Tokenizer
from bertcli.retrieval import lexical

MODEL = ("-m", TINY, "-q", "-f", "jsonl")
WORDS = "i love nlp the film was great hello world me too 4711 a b c".split()  # noqa: SIM905


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    rng = random.Random(7)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(300)]
    lines[11], lines[40], lines[41] = "", lines[7], lines[7]  # one empty, three equal
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("".join(f"{line}\n" for line in lines))
    return lines


def plain_bm25(query, texts, k1=1.5, b=0.75):
    """Return the score of each text, term by term, as bm25s (its default, "lucene") has it."""
    mean, scores = sum(map(len, texts)) / len(texts), []
    for text in texts:
        score = 0.0
        for term in query:
            holding = sum(term in other for other in texts)
            rarity = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
            count = text.count(term)
            score += rarity * count / (count + k1 * (1 - b + b * len(text) / mean))
        scores.append(score)
    return scores


def hits_of(*argv):
    (answer,) = good("similar", *MODEL, *argv).rows
    return answer["hits"]


def best(scores, count):
    rows = sorted(range(len(scores)), key=lambda row: (-round(scores[row], 9), row))
    return [row for row in rows if scores[row]][:count]


@pytest.mark.parametrize("query", ["love the film", "4711 4711 world", "Great  WORLD", "zebra"])
def test_lexical_scores_are_those_of_a_plain_bm25(query, corpus):
    scores = plain_bm25(query.lower().split(), [line.split() for line in corpus])
    hits = hits_of(query, "--corpus", "corpus.txt", "--lexical", "-k", 20)
    assert [hit["row"] for hit in hits] == best(scores, 20)
    assert np.allclose([hit["score"] for hit in hits], [scores[hit["row"]] for hit in hits])


POOLS = [(0x20, 0x7F), (0, 0x100), (0x100, 0x600), (0x4E00, 0x4E40), (0xAC00, 0xAC40)]
POOLS += [(0x2000, 0x2070), (0xF900, 0xF920), (0x1F300, 0x1F700), (0x900, 0xA00), (0x1E00, 0x2000)]


def test_words_are_those_of_the_basic_tokenization_of_bert():
    legacy = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy")
    basic, tokenizer, rng = legacy.BasicTokenizer(), Tokenizer.load(TINY), random.Random(0)
    texts = ["It's 3.14, O'Neill: C++!", "ÄÖ é\u0301 İ ﬁ \x0b a\x85b 東京は", "a\u2028b\xa0c\ufffd"]
    for _ in range(1000):
        codes = (rng.randrange(*rng.choice(POOLS)) for _ in range(rng.randint(1, 30)))
        texts.append("".join(map(chr, codes)))
    for text in texts:
        text = lexical.UNSEPARATED.sub(" ", text)
        terms = [lexical.terms_of_chunk(chunk, tokenizer) for chunk in lexical.chunks_of(text)]
        assert [word for words, _ in terms for word in words] == basic.tokenize(text), text


def ranks_of(*argv):
    return {hit["row"]: rank for rank, hit in enumerate(hits_of(*argv, "-k", 100), 1)}


@pytest.mark.parametrize(
    ("constant", "weight", "options"),
    [(60, 1, ()), (5, 0.5, ("--rank-constant", 5, "--lexical-weight", 0.5))],
)
def test_hybrid_adds_reciprocal_ranks_and_says_both(corpus, constant, weight, options):
    query = ("love the 4711", "--corpus", "corpus.txt")
    ranks = [ranks_of(*query), ranks_of(*query, "--lexical")]
    scores = {
        row: sum(
            share / (constant + ranked[row])
            for share, ranked in zip((1, weight), ranks, strict=True)
            if row in ranked
        )
        for row in ranks[0] | ranks[1]
    }
    hits = hits_of(*query, "--hybrid", "-k", 10, *options)
    best_rows = sorted(scores, key=lambda row: (-round(scores[row], 9), row))[:10]
    assert [hit["row"] for hit in hits] == best_rows
    for hit in hits:
        assert hit["score"] == pytest.approx(scores[hit["row"]])
        places = [ranked.get(hit["row"]) for ranked in ranks]
        assert [hit["dense_rank"], hit["lexical_rank"]] == places
        assert hit["text"] == corpus[hit["row"]] != ""
    kept = (*query, "--hybrid", "-k", 10, *options, "--vectors", "corpus.npy")
    assert hits_of(*kept) == hits_of(*kept) == hits


SENTENCES = (
    "Part {} is a steel bolt.",
    "Order {}: it was late, again.",
    "{} lives next door (see 1.0).",
)
NAMES = "Ada Bo Cy Dee Eva Flo".split()  # noqa: SIM905


def identifiers(number):
    """Return an identifier, a number and a name that no other number has."""
    first, last = NAMES[number % 6], NAMES[number // 6 % 6]
    digits = f"{number * 7919 % 100_000:05}"
    shapes = (f"ZX{digits}Q", f"ZX-{digits[:2]}-{digits[2:]}/Q", f"{digits[:2]}.{digits[2:]}")
    if number % 5 == 4:
        return f"{first} {last}{'son' * (number // 36 + 1)}"
    return f"{number:,}.{number % 7}" if number % 5 == 3 else shapes[number % 5]


def test_an_identifier_a_number_and_a_name_are_found_with_the_default_model(tmp_path):
    names = [identifiers(number) for number in range(300)]
    assert len({*names}) == 300
    source, queries = tmp_path / "corpus.txt", tmp_path / "queries.txt"
    lines = (SENTENCES[row % 3].format(name) for row, name in enumerate(names))
    source.write_text("".join(f"{line}\n" for line in lines))
    asked = range(0, 300, 7)
    queries.write_text("".join(f"{names[row]}\n" for row in asked))
    argv = ("similar", "-q", "-f", "jsonl", "-i", queries, "--corpus", source, "-k", 3)
    for way, most in (("--lexical", 1), ("--hybrid", 3)):
        answers = good(*argv, way).rows
        found = [[hit["row"] for hit in answer["hits"]] for answer in answers]
        missed = [
            names[row] for row, rows in zip(asked, found, strict=True) if row not in rows[:most]
        ]
        assert not missed, way


def test_scripts_without_blanks_are_found_by_pieces(tmp_path):
    lines = ["ฉันชอบชาเย็นมาก", "วันนี้ฝนตกหนัก", "今日は雨が降る", "お茶が好きです", "그는 차를 마신다"]
    (tmp_path / "c.txt").write_text("".join(f"{line}\n" for line in lines))
    for row, query in enumerate(("ชาเย็น", "ฝนตก", "雨が", "お茶", "차를")):
        hit, *_ = hits_of(query, "--corpus", tmp_path / "c.txt", "--lexical")
        assert hit["row"] == row


@pytest.fixture
def kept(corpus, tmp_path):
    """A search whose index is kept, and its file."""
    argv = ("love the 4711", "--corpus", "corpus.txt", "--hybrid", "--vectors", "corpus.npy")
    return argv, tmp_path / "corpus.npy.terms.npz"


def arrays_in(index):
    with np.load(index) as arrays:
        return dict(arrays)


def is_as_before(index, arrays):
    return {n: a.tolist() for n, a in arrays_in(index).items()} == {
        name: array.tolist() for name, array in arrays.items()
    }


def test_the_index_is_kept_beside_the_vectors_and_made_anew_for_others(corpus, kept, tmp_path):
    argv, index = kept
    hits = hits_of(*argv)
    arrays = arrays_in(index)
    changed = {**arrays, "counts": np.where(arrays["rows"] < 150, 50, arrays["counts"])}
    changed["counts"] = changed["counts"].astype(np.int32)
    np.savez(index, **changed)
    assert hits_of(*argv) != hits  # it is read
    for broken in (b"", index.read_bytes()[:-100], b"no archive"):
        index.write_bytes(broken)
        assert hits_of(*argv) == hits
        assert len(index.read_bytes()) > 100
    np.savez(index, **changed)
    (tmp_path / "corpus.txt").write_text("".join(f"{line}\n" for line in corpus[::-1]))
    assert "made from other texts" in bad("similar", *MODEL, *argv).error
    good("embed", "-q", "-m", TINY, "-i", "corpus.txt", "-o", "corpus.npy", "--overwrite")
    remade = hits_of(*argv)
    index.unlink()
    assert remade == hits_of(*argv) != hits


def damaged(arrays):
    """Yield arrays that are no index, each for another reason."""
    total = arrays["rows"].size
    yield {**arrays, "rows": arrays["rows"] + 1000}
    yield {**arrays, "rows": -arrays["rows"]}
    yield {**arrays, "rows": arrays["rows"][::-1].copy()}
    yield {**arrays, "rows": arrays["rows"].astype(np.float64)}
    yield {**arrays, "rows": arrays["rows"].reshape(1, total)}
    yield {**arrays, "counts": 0 * arrays["counts"]}
    yield {**arrays, "counts": arrays["counts"][:-1]}
    yield {**arrays, "counts": np.full(total, np.nan)}
    yield {**arrays, "offsets": arrays["offsets"][::-1].copy()}
    yield {**arrays, "offsets": arrays["offsets"][:-1]}
    yield {**arrays, "offsets": arrays["offsets"] * 2}
    yield {**arrays, "lengths": arrays["lengths"][:-1]}
    yield {**arrays, "lengths": -arrays["lengths"] - 1}
    yield {**arrays, "terms": arrays["terms"][:-40]}
    yield {**arrays, "terms": np.full_like(arrays["terms"], 255)}
    yield {**arrays, "terms": np.array(["a"], object)}
    yield {name: value for name, value in arrays.items() if name != "offsets"}
    yield {**arrays, "vectors": np.frombuffer(b"0.0.9" + bytes(arrays["vectors"])[5:], np.uint8)}


def test_an_index_that_is_damaged_is_made_again(corpus, kept):
    argv, index = kept
    hits = hits_of(*argv)
    arrays = arrays_in(index)
    for number, broken in enumerate(damaged(arrays)):
        np.savez(index, **broken)
        assert hits_of(*argv) == hits, number
        assert is_as_before(index, arrays), number
    np.savez_compressed(index, **{**arrays, "rows": np.zeros(10_000_000, np.int32)})
    assert hits_of(*argv) == hits
    assert is_as_before(index, arrays)


@pytest.mark.skipif(os.name != "posix", reason="pipes and modes")
def test_what_is_not_ours_has_the_name_of_the_index_and_who_may_read_it(corpus, kept):
    argv, index = kept
    good("embed", "-q", "-m", TINY, "-i", "corpus.txt", "-o", "corpus.npy")
    os.chmod("corpus.npy", 0o600)
    hits_of(*argv)
    assert stat.S_IMODE(index.stat().st_mode) == 0o600
    index.unlink()
    os.mkfifo(index)
    assert "not a regular file" in bad("similar", *MODEL, *argv).error
    index.unlink()
    np.savez(index, mine=np.arange(3))
    before = index.read_bytes()
    assert "not an index of bertcli" in bad("similar", *MODEL, *argv).error
    assert index.read_bytes() == before


def test_what_a_killed_process_left_of_the_index_is_removed(corpus, kept, tmp_path):
    argv, index = kept
    hits_of(*argv)
    (left := tmp_path / f".{index.name}.bertcli.tmp").mkdir()
    (left / "0123").write_bytes(b"some")
    hits_of(*argv)
    assert not left.exists()


def test_the_index_is_of_whole_texts_though_the_vectors_are_not(tmp_path):
    source, vectors = tmp_path / "c.txt", tmp_path / "v.npy"
    for last in ("4711", "hello"):
        source.write_text(f"love the film great world {last}\nme too\n")
        cut = ("--max-length", 5, "--on-truncate", "ignore", "-o", vectors, "--overwrite")
        good("embed", "-q", "-m", TINY, "-i", source, *cut)
        hit, *_ = hits_of(last, "--corpus", source, "--vectors", vectors, "--hybrid")
        assert hit["lexical_rank"] == 1


def test_passages_of_notes_are_found_by_their_words(tmp_path):
    note = "# Trains\n\nThe train to the north stops at 4711.\n\n" + "Love the film. " * 60
    (tmp_path / "note.md").write_text(note)
    for way in ("--lexical", "--hybrid"):
        hit, *_ = hits_of("4711", "--corpus", tmp_path, way)
        assert "4711" in hit["text"] and len(hit["text"]) < len(note)


@pytest.mark.parametrize("way", ["--lexical", "--hybrid"])
def test_an_empty_corpus_and_what_cannot_be_combined(way, tmp_path):
    (tmp_path / "none.txt").touch()
    assert hits_of("a", "--corpus", tmp_path / "none.txt", way) == []
    alone = bad("similar", "a", way, "--vectors", "x.npy", code=2).error
    assert alone.startswith(f"{way} {'requires' if way == '--hybrid' else 'cannot be combined'}")
    argv = ("similar", "a", "--corpus", tmp_path / "none.txt", way)
    for other in ("--sparse", "--token-vectors"):
        assert f"{way} cannot be combined" in bad(*argv, other, code=2).error
    assert "cannot be combined" in bad(*argv, "--threshold", "0.5", code=2).error
    assert "cannot be read twice" in bad("similar", "a", *MODEL, "--corpus", "-", way, code=2).error
