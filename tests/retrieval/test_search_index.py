"""`similar --index`: the hits of a search without it, with nothing computed twice."""

import json
import os
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
from front import (
    NO_BYTECODE,
    TINY,
    bad,
    call,
    contents,
    good,
    json_in,
    jsonl,
    left_in,
    put_json,
    shell,
    struck,
)
from terminal import at_terminal

from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.io.output_files import OutputFiles
from bertcli.retrieval import index_update
from bertcli.retrieval.search_index import open_index

pytestmark = pytest.mark.usefixtures("usual_engine")

SIMILAR = ("similar", "-m", TINY, "--device", "cpu", "--threads", 1)
SENTENCES = ["The cat sat.", "Paris is quick.", "Order 4711.", "A fox, a dog and a cat.", "One."]
QUERIES = ("a quick fox", "order 4711")
NOWHERE = ("-o", os.devnull, "-f", "jsonl")
ENDS = [".rows.npz", ".texts.index.jsonl", ".vectors.npy"]


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """A folder of notes, in the present folder."""
    monkeypatch.chdir(tmp_path)
    folder = Path("notes")
    (folder / "old").mkdir(parents=True)
    for number, name in enumerate(("tea.md", "coffee.md", "old/milk.md")):
        (folder / name).write_text(note(number))
    (folder / "words.jsonl").write_text(jsonl([{"id": "w1", "text": "one"}, {"text": "two"}]))
    return folder


def note(seed, paragraphs=4):
    """Return a note of several chunks."""
    random = Random(seed)
    return "\n\n".join(" ".join(random.choices(SENTENCES, k=12)) for _ in range(paragraphs))


def hits(*options, queries=QUERIES):
    return good(*SIMILAR, "-q", *queries, "--top-k", 50, *options).rows


def index_bytes(folder):
    """Return what an index holds, without the times of the files of its corpus and terms."""
    manifest = json_in(folder / "manifest.json")
    for file in manifest["files"]:
        for name in ("mtime_ns", "ctime_ns", "inode", "settled"):
            del file[name]
    files = {name: data for name, data in contents(folder).items() if name.endswith((*ENDS,))}
    return json.dumps(manifest, sort_keys=True), files


def edit(random, folder):
    """Change a folder of notes: add, change, remove, move or copy files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    chosen = random.choice(files)
    fresh = folder / f"new-{random.random()}.md"
    match random.choice(["add", "change", "swap", "remove", "move", "copy"]):
        case "add":
            fresh.write_text(note(random.random(), random.randrange(4)))
        case "change":
            text = chosen.read_text()
            added = '{"text": "Three."}\n' if chosen.suffix == ".jsonl" else "\n\nMore of it."
            chosen.write_text(text + added)
        case "swap":  # of the same size, at the same time
            times = chosen.stat()
            chosen.write_text(chosen.read_text().replace("a", "b").replace("One", "Two"))
            os.utime(chosen, ns=(times.st_atime_ns, times.st_mtime_ns))
        case "remove" if len(files) > 2:
            chosen.unlink()
        case "move":
            chosen.rename(fresh.with_suffix(chosen.suffix))
        case _:
            shutil.copy(chosen, fresh.with_suffix(chosen.suffix))


@pytest.mark.parametrize("seed", range(3))
def test_hits_and_bytes_are_those_of_a_fresh_search_after_any_edits(notes, monkeypatch, seed):
    monkeypatch.setattr(index_update, "SETTLED_NS", 0)
    random = Random(seed)
    corpus = ("--corpus", "notes/")
    for number in range(5):
        for options in ((), ("--hybrid",), ("--lexical",)):
            expected = hits(*corpus, *options)
            assert hits(*corpus, "--index", "notes.index", *options) == expected
            assert hits("--index", "notes.index", *options) == expected
        hits(*corpus, "--index", f"fresh{number}.index")
        assert index_bytes(Path("notes.index")) == index_bytes(Path(f"fresh{number}.index"))
        for _ in range(random.randrange(1, 4)):
            edit(random, notes)


def test_only_what_is_new_or_changed_is_read_and_computed(notes, ran, monkeypatch):
    monkeypatch.setattr(index_update, "SETTLED_NS", 0)
    hashed = []
    original = index_update.sha256
    monkeypatch.setattr(
        index_update, "sha256", lambda path: hashed.append(path.name) or original(path)
    )
    argv = (*SIMILAR, "tea", "--corpus", "notes/", "--index", "notes.index")
    chunks = len(hits("--corpus", "notes/", queries=["tea"])[0]["hits"])
    ran.clear()
    assert call(*argv).err == f"note: notes.index: {chunks} chunks of 4 files indexed\n"
    assert sum(ran) == chunks + 1  # and the query
    ran.clear()
    hashed.clear()
    good(*argv)
    assert (sum(ran), hashed) == (1, [])
    (notes / "tea.md").write_text(note(0) + "\n\n" + "Something else. " * 40)
    (notes / "new.md").write_text("New.")
    (notes / "old" / "milk.md").unlink()
    removed = len(json_in(Path("notes.index/manifest.json"))["files"])
    assert removed == 4
    ran.clear()
    hashed.clear()
    done = call(*argv)
    assert {"tea.md", "new.md"} >= {name for name in hashed if name.endswith(".md")}
    assert done.err.startswith("note: notes.index: ")
    assert " deleted of " in done.err
    assert sum(ran) < chunks
    ran.clear()
    shutil.copy(notes / "tea.md", notes / "copy.md")
    assert " new, 0 changed, 0 deleted of " in call(*argv).err
    assert sum(ran) == 1
    os.utime(notes / "copy.md")  # of the same contents
    hashed.clear()
    good(*argv)
    assert hashed == ["copy.md"]
    hashed.clear()
    good(*argv)
    assert hashed == []
    assert left_in(Path("notes.index")) == sorted(
        ["manifest.json", *(f"{open_index(Path('notes.index')).tag}{end}" for end in ENDS)]
    )


def test_counts_of_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = Path("a.jsonl")
    argv = (*SIMILAR, "one", "--corpus", file, "--index", "i")
    file.write_text(jsonl({"text": text} for text in ("one", "two", "three", "two")))
    assert call(*argv).err == "note: i: 4 texts of 1 file indexed\n"
    file.write_text(jsonl({"text": text} for text in ("zero", "one", "2", "three")))
    assert call(*argv).err == "note: i: 0 new, 2 changed, 0 deleted of 4 texts\n"
    file.write_text(jsonl({"text": text} for text in ("three", "one", "four", "five", "six")))
    assert call(*argv).err == "note: i: 1 new, 2 changed, 0 deleted of 5 texts\n"
    file.write_text("")
    done = call(*argv)
    assert done.err == "note: i: 0 new, 0 changed, 5 deleted of 0 texts\n"
    assert done.rows == [{"query": "one", "hits": []}]
    assert good(*argv, "--hybrid").rows == [{"query": "one", "hits": []}]


def test_without_a_corpus_it_is_searched_as_it_is(notes, ran):
    (notes / "words.jsonl").write_text(jsonl([{"text": "one", "tag": "x"}]))
    kept = ("--keep-fields", "tag", "--corpus", "notes/words.jsonl")
    before = good(*SIMILAR, "-q", "one", *kept, "--index", "i").rows
    assert before[0]["hits"][0]["tag"] == "x"
    (notes / "words.jsonl").unlink()
    ran.clear()
    assert good(*SIMILAR, "one", "--index", "i").rows == before
    assert sum(ran) == 1
    assert good(*SIMILAR, "one", "--index", "i", "--keep-fields", "tag").rows == before
    refused = bad(*SIMILAR, "one", "--index", "i", "--keep-fields", "no")
    assert (refused.error, refused.hint) == ("i: field 'no' not found", "available: tag")
    refused = bad(*SIMILAR, "one", "--index", "none")
    assert (refused.error, refused.hint) == ("none: index not found", "--corpus FILE makes it")


def test_other_fields_are_read_without_computing_anything(notes, ran):
    (notes / "words.jsonl").write_text(jsonl([{"text": "one", "tag": "x", "key": "k"}]))
    argv = ("--corpus", "notes/words.jsonl", "--index", "i")
    hits(*argv)
    ran.clear()
    (answer, _) = hits(*argv, "--keep-fields", "tag", "--id-field", "key")
    assert (answer["hits"][0]["tag"], answer["hits"][0]["id"]) == ("x", "k")
    assert sum(ran) == len(QUERIES)


def test_another_model_and_other_options_are_refused(notes, tmp_path):
    argv = ("similar", "one", "--corpus", "notes/", "--index", "i")
    good(*argv, "-q", "-m", TINY)
    other = bad(*argv)
    assert other.error.startswith("i: was made by another model, ")
    assert other.hint.endswith("or leave out --index")
    prompt = bad(*argv, "-m", TINY, "--corpus-prompt", "text: ")
    assert prompt.error == 'i: was made with other options: prompt was "", now "text: "'
    assert "delete the folder" in prompt.hint
    whole = bad(*argv, "-m", TINY, "--whole")
    assert whole.error == 'i: was made with other options: format was "auto", now "whole"'
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.md").write_text("a")
    elsewhere = bad("similar", "one", "-m", TINY, "--corpus", "other/", "--index", "i")
    assert elsewhere.error == "i: is the index of another corpus, notes/"
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a\n")
    texts = ("similar", "one", "-m", TINY, "--corpus", "texts/", "--index", "t")
    good(*texts, "-q")
    (tmp_path / "texts" / "a.md").write_text("a\n")
    divided = bad(*texts)
    expected = 't: was made with other options: on_truncate was "warn", now "chunk"'
    assert divided.error.startswith(expected)
    usage = bad(*argv, "--vectors", "v.npy", code=2)
    assert "--index cannot be combined with --vectors" in usage.error


def test_what_is_not_an_index_stays(notes):
    argv = ("similar", "one", "-m", TINY, "--corpus", "notes/", "--index")
    before = contents(notes)
    assert bad(*argv, "notes").error == "notes: is not a search index"
    assert bad(*argv, "notes/tea.md").error == "notes/tea.md: is not a folder"
    assert contents(notes) == before
    Path("empty").mkdir()
    good(*argv, "empty", "-q")
    good(*argv, "notes/i", "-q")  # which is no part of the corpus
    good(*argv, "notes/i")


@pytest.mark.parametrize("options", [(), ("--lexical",), ("--corpus", "notes/")])
def test_changed_vectors_are_found_whatever_reads_them(notes, options):
    argv = ("similar", "-m", TINY, "--index", "i")
    good(*argv, "one", "-q", "--corpus", "notes/")
    (file,) = Path("i").glob("*.vectors.npy")
    vectors = np.load(file)
    not_finite = vectors.copy()
    not_finite[0, 0] = np.nan
    for changed in (not_finite, vectors[1:], vectors[0], vectors.astype("<f8"), None):
        np.save(file, vectors if changed is None else changed)
        if changed is None:
            file.write_bytes(b"")
        for query in (("one",), ()):
            done = bad(*argv, *query, *options)
            assert done.error == f"i: {file.name} was changed after it was made"


@pytest.mark.parametrize("end", ENDS)
def test_damaged_files_are_found(notes, end):
    argv = ("similar", "one", "-m", TINY, "--index", "i")
    good(*argv, "-q", "--corpus", "notes/")
    (file,) = Path("i").glob(f"*{end}")
    data = file.read_bytes()
    file.write_bytes(data.replace(b"cat", b"cut") if end == ENDS[1] else data[:-1] + b"\1")
    assert bad(*argv, "-k", 50).error == f"i: {file.name} was changed after it was made"
    file.write_bytes(data[:-1])
    assert bad(*argv).error == f"i: {file.name} was changed after it was made"
    file.unlink()
    missing = bad(*argv)
    assert missing.error == "i: files of the index are missing"
    assert "delete the folder" in missing.hint
    manifest = json_in(Path("i/manifest.json"))
    file.write_bytes(data)
    for broken in (
        3,
        [3],
        {},
        [{}],
        [manifest["files"][0]],
        [{**manifest["files"][0], "rows": ""}],
    ):
        put_json(Path("i/manifest.json"), {**manifest, "files": broken})
        assert bad(*argv, "--corpus", "notes/").error.startswith("i/manifest.json: ")
    put_json(Path("i/manifest.json"), {"search_index": 0})
    assert "not a search index of this version" in bad(*argv).error


def test_a_reader_finds_the_old_or_the_new_index_at_any_instant(notes, monkeypatch):
    argv = (*SIMILAR, "-q", "one", "--corpus", "notes/", "--index", "i", "--hybrid")
    good(*argv)

    def texts():
        index = open_index(Path("i"))
        return [record for records in index.all_records() for record in records]

    states = [texts()]
    for name in ("replace", "unlink", "mkdir", "chmod"):
        original = getattr(os, name)

        def seen(*args, original=original, **options):
            result = original(*args, **options)
            states.append(texts())
            return result

        monkeypatch.setattr(os, name, seen)
    (notes / "tea.md").write_text(note(7))
    good(*argv)
    new = texts()
    assert states[0] != new
    assert all(state in (states[0], new) for state in states)
    assert len(states) > 8


def test_a_slow_reader_opens_the_next_index(notes, monkeypatch):
    from bertcli.retrieval import search_index

    argv = (*SIMILAR, "-q", "one", "--corpus", "notes/", "--index", "i")
    good(*argv)
    read = search_index.read_object
    later = []

    def slow(*args):
        manifest = read(*args)
        if not later:
            later.append(True)
            (notes / "tea.md").write_text("Another text.")
            good(*argv)
        return manifest

    monkeypatch.setattr(search_index, "read_object", slow)
    assert "Another text." in good(*SIMILAR, "one", "--index", "i", "-k", 50).out


def test_a_file_that_changes_while_it_is_read_is_read_again(notes, monkeypatch):
    argv = (*SIMILAR, "-q", "one", "--corpus", "notes/", "--index", "i")
    original = RecordEmbedder._run

    def run(self, tokens):
        (notes / "tea.md").write_text("Changed.")
        return original(self, tokens)

    with monkeypatch.context() as patched:
        patched.setattr(RecordEmbedder, "_run", run)
        done = bad(*argv)
    assert done.error == "notes/tea.md: was changed while it was read"
    assert "Changed." in good(*argv, "-k", 50).out
    assert not Path("i.run").exists()


def test_one_process_writes_and_others_search_what_is_there(notes):
    argv = (*SIMILAR, "-q", "one", "--corpus", "notes/", "--index", "i")
    before = good(*argv).rows
    (notes / "tea.md").write_text(note(7))
    with OutputFiles(Path("i")).locked():
        assert bad(*argv).error == "i: another bertcli is writing it"
        assert good(*SIMILAR, "one", "--index", "i").rows == before
    good(*argv)


def test_two_processes_at_once(notes, forked, tmp_path):
    index = tmp_path / "i"
    corpus = ("--corpus", notes.absolute())
    argv = (*SIMILAR, "--backend", "auto", "-q", "one", *corpus, *NOWHERE)
    codes = forked.together([*argv, "--index", index], [{}, {}])
    assert set(codes) <= {0, 1} and 0 in codes
    assert hits(*corpus, "--index", index) == hits(*corpus)
    assert left_in(tmp_path) == ["i", "notes"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("began", ["nothing", "an index"])
def test_killed_at_random_instants(notes, forked, tmp_path, began):
    corpus = notes.absolute()
    old = tmp_path / "old"
    old.mkdir()
    argv = (*SIMILAR, "--backend", "auto", "-q", "one", "--corpus", corpus, *NOWHERE)
    argv = (*argv, "--window", 4)
    if began == "an index":
        good(*argv, "--index", old / "i", "--hybrid")
    (notes / "tea.md").write_text(note(7, 20))
    (notes / "old" / "milk.md").unlink()

    def begun(out):
        if not out.exists():
            shutil.copytree(old, out)
        return [*argv, "--index", out / "i", "--hybrid"]

    def result(out):
        assert left_in(out) == ["i"]
        return index_bytes(out / "i")

    forked.check(begun, result, tmp_path, kills=8)


def test_vectors_of_a_killed_run_are_reused_though_its_files_changed(notes, ran):
    argv = (*SIMILAR, "-q", "one", "--corpus", "notes/", "--index", "i", "--window", 4)
    (notes / "tea.md").write_text(note(7, 60))
    assert struck("SIGKILL", *argv, journals=3) == -9
    assert Path("i.run/journal").exists()
    assert not Path("i").exists()
    committed = json_in(Path("i.run/journal"))["rows"]
    assert committed > 2
    (notes / "coffee.md").write_text("Other.")
    good(*argv)
    kept = [record for records in open_index(Path("i")).all_records() for record in records]
    assert sum(ran) <= len(kept) - committed + 1 + 4  # chunks of coffee.md, and the query
    assert not Path("i.run").exists()
    assert hits("--corpus", "notes/", "--index", "i") == hits("--corpus", "notes/")


def test_a_killed_run_over_the_same_files_continues(notes, monkeypatch):
    argv = (*SIMILAR, "-q", "one", "--corpus", "notes/", "--index", "i", "--window", 4)
    (notes / "tea.md").write_text(note(7, 60))
    assert struck("SIGKILL", *argv, journals=3) == -9
    committed = json_in(Path("i.run/journal"))["rows"]
    states = []
    original = index_update.IndexWriter.begin

    def begin(self, *args):
        original(self, *args)
        states.append(self.rows)

    monkeypatch.setattr(index_update.IndexWriter, "begin", begin)
    good(*argv)
    assert states == [committed]
    assert hits("--corpus", "notes/", "--index", "i") == hits("--corpus", "notes/")


def test_a_corpus_may_be_named_from_another_folder(notes, ran, monkeypatch):
    argv = (*SIMILAR, "-q", "one", "--top-k", 50)
    good(*argv, "--corpus", "notes/", "--index", "i")
    monkeypatch.chdir(notes)
    ran.clear()
    (answer,) = good(*argv, "--corpus", ".", "--index", "../i").rows
    assert sum(ran) == 1
    assert {hit["file"] for hit in answer["hits"]} >= {"./tea.md", "./old/milk.md"}


def test_a_disk_that_is_full(notes, tmp_path):
    argv = (*SIMILAR, "-q", "one", "--corpus", "notes/", "--index", "i")
    before = good(*argv).rows
    (notes / "tea.md").write_text(note(7, 200))
    command = " ".join(map(str, argv))
    done = shell(f"ulimit -f 8; exec bertcli {command}", cwd=tmp_path, env=NO_BYTECODE)
    assert (done.code, done.out) == (1, "")
    assert "cannot be written: File too large" in done.error
    assert good(*SIMILAR, "one", "--index", "i").rows == before
    assert hits("--corpus", "notes/", "--index", "i") == hits("--corpus", "notes/")


def test_a_corpus_of_csv_files_has_the_types_of_all_files_together(notes, tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "a.csv").write_text("text,n\none,1\n")
    (folder / "b.csv").write_text("text,n\ntwo,2\n")
    argv = ("--corpus", folder, "--keep-fields", "n")
    assert hits(*argv, "--index", "i") == hits(*argv)
    (folder / "b.csv").write_text("text,n\ntwo,many\n")
    assert hits(*argv, "--index", "i") == hits(*argv)


def test_a_prompt_searches_an_index(notes):
    argv = (*SIMILAR, "--backend", "auto", "--corpus", "notes/", "--index", "i", "-k", 1)
    typed = [(b"query> ", b"a fox\n"), (b"query> ", b"\x04")]
    code, screen = at_terminal(*argv, stdin=None, typed=typed)
    assert code == 0
    assert b"chunks of 4 files indexed" in screen
    assert b"score" in screen


def test_a_file_that_is_in_the_corpus_twice(notes):
    argv = ("--corpus", "notes/", "--corpus", "notes/tea.md")
    for text in (note(1), note(2)):
        (notes / "coffee.md").write_text(text)
        for options in ((), ("--hybrid",)):
            assert hits(*argv, *options, "--index", "i") == hits(*argv, *options)


def test_empty_texts_are_hits_as_without_an_index(notes):
    (notes / "words.jsonl").write_text(jsonl([{"text": ""}, {"text": "one"}, {"text": " "}]))
    corpus = ("--corpus", "notes/words.jsonl")
    for options in ((), ("--no-skip-empty",)):
        assert hits(*corpus, *options, "--index", f"i{len(options)}") == hits(*corpus, *options)
    assert hits(*corpus, "--skip-empty", "--index", "left") == hits(*corpus, "--skip-empty")


def test_a_folder_is_the_same_corpus_however_it_is_spelled(notes, ran):
    """Its hits have the spelling that is given, as without an index."""
    first = hits("--corpus", "notes/", "--index", "i")
    Path("other").mkdir()
    for spelling in ("notes", "./notes/", Path.cwd() / "notes", "other/../notes"):
        ran.clear()
        done = call(*SIMILAR, *QUERIES, "-k", 50, "--index", "i", "--corpus", spelling)
        assert (done.code, done.err) == (0, "")
        assert sum(ran) == len(QUERIES)
        assert done.rows == hits("--corpus", spelling)
    (notes / "tea.md").write_text(note(7))
    assert hits("--corpus", "./notes", "--index", "i") == hits("--corpus", "./notes")
    assert hits("--corpus", "notes", "--index", "i") == hits("--corpus", "notes") != first
