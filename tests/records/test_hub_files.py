"""`-i hf://datasets/...`: files of datasets on the hub, read as files on this machine are.

Downloads run in processes of their own, as huggingface_hub reads its settings when it is imported.
"""

import gzip
import io
from pathlib import Path

import pytest
from fake_hub import clear_hub_variables
from front import TINY, bad, call, good, json_in, process, struck
from hub_cache import COMMIT, put_dataset, put_files

import bertcli
from bertcli.errors import InputError

ONLINE = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
REVIEWS = "hf://datasets/me/reviews"
CSV = b"id,text,label\na,It rains.,wet\nb,It rains!,wet\nc,The sun shines.,dry\nd,Tea.,dry\n"
JSONL = b'{"id": "e", "text": "A lovely film."}\n'
FILES = {"data/train.csv": CSV, "data/test.jsonl.gz": gzip.compress(JSONL), "README.md": b"# card"}
COUNT = ("tokenize", "-q", "--count")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    clear_hub_variables(monkeypatch)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fetched(*argv):
    """Run a command that may use the network, and check that it succeeds without messages."""
    done = process(*argv, env=ONLINE)
    assert (done.code, done.err) == (0, ""), done
    return done


def refused(*argv):
    done = process(*argv, env=ONLINE)
    assert (done.code, done.out) == (1, "")
    assert done.hint
    return done


def parquet(rows) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    file = io.BytesIO()
    write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


# --- from the hub -------------------------------------------------------------------------------


def test_every_format_is_read_as_the_same_file_on_this_machine(hub, tmp_path):
    files = FILES | {"p.parquet": parquet([{"text": "one two", "id": "p"}]), "t.txt": b"x\ny\n"}
    commit = hub.add("datasets/me/reviews", files)
    names = [name for name in files if name != "README.md"]
    put_files(tmp_path / "local", files)
    ids = ("tokenize", "-q", "--keep-fields", "--no-attention-mask")
    local_inputs = [word for name in names for word in ("-i", tmp_path / "local" / name)]
    hub_inputs = [word for name in names for word in ("-i", f"{REVIEWS}/{name}")]
    local = good(*ids, *local_inputs).out
    there = f"{REVIEWS}@{commit}"
    assert fetched(*ids, *hub_inputs).out == local.replace(str(tmp_path / "local"), there)
    assert local.count("\n") == 8
    assert hub.fetched() == {*names}


def test_one_file_is_fetched_once_and_has_no_location(hub):
    hub.add("datasets/me/reviews", FILES)
    first = fetched("tokenize", "-q", "-i", f"{REVIEWS}/data/train.csv")
    assert [*first.rows[0]] == ["id", "input_ids", "token_type_ids", "attention_mask"]
    assert hub.fetched() == {"data/train.csv"}
    hub.asked.clear()
    assert fetched("tokenize", "-q", "-i", f"{REVIEWS}/data/train.csv").out == first.out
    assert not hub.fetched()  # the hub is asked whether the branch has moved
    hub.asked.clear()
    assert (
        fetched("tokenize", "-q", "-i", f"{REVIEWS}/data/train.csv", "--offline").out == first.out
    )
    assert not hub.asked


def test_a_branch_that_moves_is_followed_and_a_commit_is_not_asked_for(hub):
    old = hub.add("datasets/me/reviews", FILES)
    assert fetched(*COUNT, "-i", f"{REVIEWS}/data/train.csv").out.count("\n") == 4
    hub.add("datasets/me/reviews", {"data/train.csv": b"text\nnew\n"})
    assert fetched(*COUNT, "-i", f"{REVIEWS}/data/train.csv").out == "3\n"
    hub.asked.clear()
    assert fetched(*COUNT, "-i", f"{REVIEWS}@{old}/data/train.csv").out.count("\n") == 4
    assert not hub.asked


def test_a_new_file_of_a_branch_is_fetched_though_the_cached_listing_lacks_it(hub):
    hub.add("datasets/me/reviews", FILES)
    fetched(*COUNT, "-i", f"{REVIEWS}/data/train.csv")
    assert "no such file" in bad(*COUNT, "--offline", "-i", f"{REVIEWS}/data/new.csv").error
    hub.add("datasets/me/reviews", FILES | {"data/new.csv": b"text\nnew\n"})
    assert fetched(*COUNT, "-i", f"{REVIEWS}/data/new.csv").out == "3\n"


@pytest.mark.parametrize("pattern", ["data", "data/*.csv"])
def test_a_commit_without_a_cached_listing_is_read_completely(hub, cache, pattern):
    files = {"data/a.csv": b"text\none\n", "data/b.csv": b"text\ntwo\n"}
    commit = hub.add("datasets/me/reviews", files)
    url = f"{REVIEWS}@{commit}"
    fetched(*COUNT, "-i", f"{url}/data/a.csv")
    for listing in cache.glob("datasets--*/trees/*.json"):  # older huggingface_hub writes none
        listing.unlink()
    hub.asked.clear()
    fetched(*COUNT, "-i", f"{url}/data/a.csv")
    assert not hub.asked
    assert len(fetched(*COUNT, "-i", f"{url}/{pattern}").out.splitlines()) == 2
    assert "data/b.csv" in hub.fetched()


@pytest.mark.parametrize("revision", ["v1", "feature%2Fx", "refs/convert/parquet", "refs/pr/3"])
def test_a_revision_is_in_the_url_as_in_that_of_huggingface_hub(hub, revision):
    hub.add("datasets/me/reviews", FILES)
    hub.add("datasets/me/reviews", {"a.csv": b"text\nTea.\n"}, revision.replace("%2F", "/"))
    assert fetched(*COUNT, "-i", f"{REVIEWS}@{revision}/a.csv").out == "4\n"


def test_a_private_dataset_needs_a_token(hub, monkeypatch):
    hub.add("datasets/me/reviews", FILES)
    hub.models["datasets/me/reviews"].token = "hf_secret"
    answer = refused(*COUNT, "-i", f"{REVIEWS}/data/train.csv")
    assert "is private or gated" in answer.error and "HF_TOKEN" in answer.hint
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert fetched(*COUNT, "-i", f"{REVIEWS}/data/train.csv").out.count("\n") == 4


def test_what_is_not_on_the_hub(hub):
    hub.add("datasets/me/reviews", FILES)
    answer = refused(*COUNT, "-i", f"{REVIEWS}/data/trian.csv")
    assert answer.error == f"{REVIEWS}/data/trian.csv: no such file in the dataset"
    assert answer.hint == "did you mean data/train.csv?"
    answer = refused(*COUNT, "-i", f"{REVIEWS}/*.zip")
    assert answer.hint == "its files: README.md, data/test.jsonl.gz, data/train.csv"
    answer = refused(*COUNT, "-i", f"{REVIEWS}@v9/data/train.csv")
    assert answer.error.startswith(f"dataset 'me/reviews' at revision 'v9' is not on {hub.url}")
    answer = refused(*COUNT, "-i", "hf://datasets/me/none/a.csv")
    assert answer.error.startswith(f"dataset 'me/none' is not on {hub.url}")
    assert f"{hub.url}/datasets/me/none" in answer.hint
    assert not hub.fetched()


def test_a_hub_that_cannot_be_reached(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    answer = refused(*COUNT, "-i", f"{REVIEWS}/a.csv")
    assert "dataset 'me/reviews' cannot be fetched from http://127.0.0.1:9: " in answer.error
    assert "--offline uses a cached copy" in answer.hint


def test_a_download_that_is_cut_off_leaves_nothing(hub):
    hub.add("datasets/me/reviews", FILES)
    hub.cut.add("data/train.csv")
    assert "cannot be fetched" in refused(*COUNT, "-i", f"{REVIEWS}/data/train.csv").error
    assert "not in the cache" in bad(*COUNT, "--offline", "-i", f"{REVIEWS}/data/train.csv").error
    hub.cut.clear()
    assert fetched(*COUNT, "-i", f"{REVIEWS}/data/train.csv").out.count("\n") == 4


# --- from the cache, without the network --------------------------------------------------------


@pytest.fixture
def reviews(cache):
    return put_dataset(cache, "me/reviews", FILES, others=["data/more.csv", ".gitattributes"])


def test_offline_reads_what_is_cached_and_nothing_else(reviews):
    assert good(*COUNT, "--offline", "-i", f"{REVIEWS}/data/train.csv").out.count("\n") == 4
    answer = bad(*COUNT, "--offline", "-i", f"{REVIEWS}/data/more.csv")
    assert "more.csv: not in the cache" in answer.error and "network is off" in answer.error
    assert answer.hint == "run once without HF_HUB_OFFLINE=1 to fetch it"
    online = {"HF_HUB_OFFLINE": "0"}
    answer = bad(*COUNT, "--offline", "-i", f"{REVIEWS}/data/*.csv", **online)  # 1 of 2 is cached
    assert answer.hint == "run once without --offline to fetch it"
    assert "no such file" in bad(*COUNT, "--offline", "-i", f"{REVIEWS}/none.csv").error
    assert "not in the cache" in bad(*COUNT, "--offline", "-i", f"{REVIEWS}@v1/a.csv").error


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [("", 7), ("/", 7), ("/data", 6), ("/data/*.csv", 5), ("/*/*[nt].csv", 4), ("/**/*.csv", 5)],
)
def test_folders_and_globs(cache, pattern, texts):
    put_dataset(cache, "me/reviews", FILES | {"data/b.csv": b"text\nx\n", "c/d.txt": b"x\n"})
    rows = good("tokenize", "-q", "-i", f"{REVIEWS}{pattern}").rows
    assert len(rows) == texts
    assert {Path(row["file"]).name for row in rows} <= {
        "train.csv",
        "test.jsonl.gz",
        "b.csv",
        "d.txt",
    }
    assert all(row["file"].startswith(f"{REVIEWS}@{COMMIT}/") for row in rows)


def test_names_with_marks_of_globs_and_spaces(cache):
    put_dataset(cache, "me/reviews", {"a [1].csv": b"text\nTea.\n", "a 1.csv": b"text\nx y\n"})
    assert good(*COUNT, "-i", f"{REVIEWS}/a [1].csv").out == "4\n"


@pytest.mark.parametrize(
    "url", ["hf://me/reviews/a.csv", "hf://datasets/reviews", "hf://", "hf://datasets/a/b@/c.csv"]
)
def test_other_urls_are_refused(url):
    assert bad(*COUNT, "-i", url).hint.startswith("give hf://datasets/OWNER/NAME/FILE")


def test_a_url_as_a_text_is_refused():
    answer = bad("embed", f"{REVIEWS}/a.csv", code=2)
    assert answer.error == f"{REVIEWS}/a.csv is a file on the hub; -i reads it"


def test_a_cluster_has_no_cache(tmp_path):
    ray = ("tokenize", "--engine", "ray", "-i", f"{REVIEWS}/a.csv", "-o", tmp_path / "out")
    assert "not from a cache" in bad(*ray, "--offline", code=2).error


def test_errors_name_the_url(cache):
    put_dataset(cache, "me/reviews", {"a.jsonl": b'{"text": 1}\n', "ids.npy": b""})
    there = f"{REVIEWS}@{COMMIT}"
    assert bad(*COUNT, "-i", f"{REVIEWS}/a.jsonl").error.startswith(f"{there}/a.jsonl:1: ")
    assert bad(*COUNT, "-i", f"{REVIEWS}/ids.npy").error.startswith(f"{there}/ids.npy: npy holds")


TINY_MODEL = ("-q", "-m", TINY)
COMMANDS = [
    ("chunk", "--max-length", "8"),
    ("embed",),
    ("similar", "tea", "--corpus"),
    ("duplicates",),
    ("map", "-f", "csv"),
    ("decode",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_reads_them(reviews, tmp_path, command):
    files = {"train.csv": CSV, "ids.jsonl": b'{"input_ids": [101, 102]}\n'}
    put_dataset(reviews.parent, "me/reviews", files)
    put_files(tmp_path / "local", files)
    name = "ids.jsonl" if command == ("decode",) else "train.csv"
    option = () if "--corpus" in command else ("-i",)
    local = good(*command, *option, tmp_path / "local" / name, *TINY_MODEL)
    assert good(*command, *option, f"{REVIEWS}/{name}", *TINY_MODEL).out == local.out != ""


def test_a_head_is_trained_on_one_file_and_evaluated_on_another(cache, tmp_path):
    put_dataset(cache, "me/reviews", {"train.csv": CSV, "test.csv": CSV})
    good("train", f"{REVIEWS}/train.csv", "--eval", f"{REVIEWS}/test.csv", "--steps", "2", "-q",
         "-o", tmp_path / "m")  # fmt: skip
    good("evaluate", "-i", f"{REVIEWS}/test.csv", "-q", "-m", tmp_path / "m")


def test_a_vocabulary_and_instances_are_made_of_them(cache, tmp_path):
    put_dataset(cache, "me/reviews", {"a.txt": b"It rains. \nThe sun shines.\n\nTea.\nMilk.\n" * 9})
    good("pretrain", "vocab", f"{REVIEWS}/a.txt", "--size", "130", "-q", "-o", tmp_path / "vocab")
    good("pretrain", "prepare", f"{REVIEWS}/a.txt", "-q", "-o", tmp_path / "made")


def test_files_and_pairs_may_be_listed(cache, tmp_path):
    put_dataset(cache, "me/reviews", {"pairs.tsv": b"a\tb\n", "a.csv": b"text\nTea.\n"})
    (tmp_path / "list").write_text(f"{REVIEWS}/a.csv\n")
    assert good(*COUNT, "--files-from", tmp_path / "list").out == "4\n"
    assert good(*COUNT, "--pairs", f"{REVIEWS}/pairs.tsv").out == "5\n"


def test_from_python(reviews):
    rows = bertcli.tokenize(f"{REVIEWS}/data/train.csv", offline=True, quiet=True)
    assert len(rows) == 4
    with pytest.raises(InputError, match="not in the cache") as caught:
        bertcli.tokenize(f"{REVIEWS}/data/more.csv", offline=True)
    assert "without offline" in caught.value.hint


# --- runs ---------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_and_its_manifest_names_the_commit(cache, tmp_path):
    body = b"text\n" + b"Tea.\nMilk.\n" * 40
    put_dataset(cache, "me/reviews", {"a.csv": body})
    put_files(tmp_path, {"local.csv": body})
    output = tmp_path / "a.jsonl"
    options = ("--window", "16", "--backend", "torch", "-m", TINY)
    run = ("embed", "-o", output, "--resume", *options, "-i")
    assert struck("SIGKILL", *run, f"{REVIEWS}/a.csv") != 0
    assert not output.exists()
    assert call(*run, f"{REVIEWS}/a.csv").code == 0
    assert output.read_text() == good("embed", "-q", *options, "-i", tmp_path / "local.csv").out
    (file,) = json_in(tmp_path / "a.jsonl.manifest.json")["inputs"]
    assert file["name"] == f"{REVIEWS}@{COMMIT}/a.csv"
    assert "already complete" in call(*run, f"{REVIEWS}/a.csv").err
    moved = COMMIT[::-1]
    put_dataset(cache, "me/reviews", {"a.csv": b"text\nMilk.\n"}, commit=moved)
    error = bad(*run, f"{REVIEWS}/a.csv").error  # names the commit with which it goes on
    assert f"{REVIEWS}@{COMMIT}/a.csv" in error and f"{REVIEWS}@{moved}/a.csv" in error
    assert "already complete" in call(*run, f"{REVIEWS}@{COMMIT}/a.csv").err


def test_an_index_follows_a_dataset(cache, tmp_path):
    put_dataset(cache, "me/reviews", {"a.csv": b"text\nTea.\nMilk.\n"})
    search = ("similar", "tea", "--corpus", f"{REVIEWS}/a.csv", "--index", tmp_path / "i", "-q")
    assert len(good(*search).rows[0]["hits"]) == 2
    put_dataset(cache, "me/reviews", {"a.csv": b"text\nTea.\nMilk.\nWine.\n"}, commit=COMMIT[::-1])
    assert len(good(*search).rows[0]["hits"]) == 3
