"""Small things that were wrong: names that are empty or folders, tabs, -q with -v, completion."""

import pytest
from front import TINY, bad, call, good
from terminal import at_terminal

import bertcli
from bertcli import versions
from bertcli.cli.app import main
from bertcli.errors import UsageError


def test_an_empty_name_of_an_input_is_called_so():
    refused = bad("embed", "-i", "")
    assert refused.error == "the name of an input file is empty"
    assert refused.hint == "give the name of a file; - is stdin"


def test_a_folder_as_output_is_called_so(tmp_path):
    assert bad("tokenize", "hi", "-o", tmp_path).error == f"{tmp_path} is a folder"


@pytest.mark.parametrize(
    ("argv", "known"),
    [
        (["map", "x.txt"], ".html, .jsonl, .ndjson, .json, .csv, .tsv, .parquet"),
        (["embed", "hi"], ".jsonl, .ndjson, .json, .csv, .npy, .npz, .safetensors, .parquet"),
        (["compare", "a.npy", "b.npy"], ".jsonl, .ndjson, .json"),
    ],
)
def test_a_hint_has_the_suffixes_that_the_command_writes(argv, known):
    hint = bad(*argv, "-o", "x.pkl").hint
    assert hint == f"known: {known}; or give --format"


def test_a_tab_may_be_written_as_in_python(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("n\ttext\n1\ta, b\n")
    argv = ("tokenize", "--text", "-m", TINY, "-i", path, "--delimiter")
    assert good(*argv, r"\t").rows[0]["text"] == "a, b"
    assert good(*argv, "\t").rows[0]["text"] == "a, b"


def test_quiet_and_verbose_exclude_each_other():
    refused = bad("tokenize", "hi", "-q", "-v", code=2)
    assert refused.error == "--quiet cannot be combined with --verbose"
    assert "note: " in call("tokenize", "hi", "-v", BERTCLI_QUIET="1").err


def test_zsh_completes_when_the_script_is_loaded(monkeypatch, capsys):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    main(["--show-completion", "zsh"])
    script = capsys.readouterr().out
    assert "loadautofunc ]]; then\n  _bertcli_completion" in script


def test_the_hint_for_torch_names_the_cpu_first_with_sizes(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    hint = versions.install_command("torch")
    cpu = hint.index("for a CPU (750 MB)")
    cuda = hint.index("CUDA (several GB)")
    assert cpu < hint.index("--index-url https://download.pytorch.org/whl/cpu") < cuda
    assert "bertcli[torch]" in hint[cuda:]
    assert "CPU" not in versions.install_command("map")


def test_a_wrong_field_of_queries_names_the_option_for_it(tmp_path):
    (queries := tmp_path / "q.csv").write_text("q\nlate\n")
    (corpus := tmp_path / "c.txt").write_text("one\n")
    argv = ("similar", "-i", queries, "--corpus", corpus, "-m", TINY)
    for more in ((), ("--query-field", "x")):
        assert bad(*argv, *more).hint == "available: q; choose with --query-field"
    assert good(*argv, "-q", "--query-field", "q").rows[0]["query"] == "late"


def test_a_folder_or_file_behind_the_query_is_meant_as_the_corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my notes").mkdir()
    (tmp_path / "t.txt").write_text("one\n")
    done = bad("similar", "tea", "my notes", code=2)
    assert (done.error, done.hint) == (
        "nothing to search",
        "--corpus 'my notes' searches that folder",
    )
    assert bad("similar", "tea", "t.txt", code=2).hint == "--corpus t.txt searches that file"


def test_a_question_without_its_option_or_context_says_what_is_needed():
    done = bad("answer", "Where is it?", "-m", TINY, code=2)
    assert done.hint == "give --question 'Where is it?' --context TEXT"
    code, screen = at_terminal("answer", "--question", "Where?", "-m", TINY, stdin=None)
    assert code == 2
    assert b"no context" in screen and b"--context TEXT" in screen


@pytest.mark.parametrize("command", ["embed", "classify", "train"])
def test_a_gpu_is_named_by_its_type(command, tmp_path):
    """Also where torch is missing: no install would make `gpu` a device."""
    (file := tmp_path / "t.jsonl").write_text('{"text":"a","label":"b"}\n')
    argv = (file, "-o", tmp_path / "m") if command == "train" else ("hi",)
    done = bad(command, *argv, "-m", TINY, "--device", "gpu", code=2)
    assert done.error == "device 'gpu' not found"
    assert done.hint == "--device cuda is a GPU of NVIDIA or AMD, mps of Apple, xpu of Intel"


@pytest.mark.parametrize("name", ["Classifier", "MaskFiller", "Reranker", "Tagger"])
def test_a_task_is_loaded_from_python_with_a_name_only(name):
    with pytest.raises(UsageError, match=f"{name}.load needs the name of a ") as refused:
        getattr(bertcli, name).load()
    assert "or on the hub for example" in refused.value.hint


def test_an_embedder_without_a_name_is_the_default_model():
    assert bertcli.Embedder.load().encode("hi").shape == (384,)
