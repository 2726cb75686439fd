"""Folders that commands write: --overwrite removes the files that the command wrote, no others."""

import shutil
import sys
from importlib.util import find_spec

import pytest
from front import NO_BYTECODE, TINY, bad, contents, good, json_in, left_in, process, put_json

STORIES = "one two three\nfour five\n\nsix seven\neight nine ten\n"
COMMANDS = {
    "distil": ["distil", "-m", TINY, "--dim", 8],
    "pretrain prepare": ["pretrain", "prepare", "-m", TINY, "--max-length", 16],
    "pretrain vocab": ["pretrain", "vocab", "--size", 200],
}
if find_spec("openvino"):
    COMMANDS["export"] = ["export", "-m", TINY]
USERS = [  # names that earlier versions took for theirs
    "notes.txt",
    "labels.json",
    "2023_photos/sea.jpg",
    "instances_of_2023/a.txt",
    "openvino/mine.xml",
    "onnx/mine.onnx",
    "empty/",
]


def argv(command, out):
    return [*COMMANDS[command], "-q", "-o", out]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of each command."""
    made = tmp_path_factory.mktemp("folders")
    for command in COMMANDS:
        good(*argv(command, made / command), stdin=STORIES)
    return made


@pytest.fixture(params=COMMANDS)
def command(request):
    return request.param


@pytest.fixture
def out(written, command, tmp_path):
    return shutil.copytree(written / command, tmp_path / "out")


def refused(command, out):
    """Return the error of a command that shall leave an existing folder as it is."""
    before = contents(out)
    done = bad(*argv(command, out), "--overwrite", stdin=STORIES)
    assert contents(out) == before and left_in(out.parent) == [out.name]
    return done.error


def test_the_manifest_lists_the_files(command, out):
    manifest = json_in(out / "manifest.json")
    assert manifest["command"] == command
    sizes = {name: len(data) for name, data in contents(out).items() if name != "manifest.json"}
    assert manifest["files"] == sizes


def test_a_folder_of_the_command_is_replaced(command, out):
    for name in json_in(out / "manifest.json")["files"]:
        (out / name).unlink()
        break  # one that the user removed is no obstacle
    good(*argv(command, out), "--overwrite", stdin=STORIES)
    test_the_manifest_lists_the_files(command, out)
    assert left_in(out.parent) == ["out"]


@pytest.mark.parametrize("name", USERS)
def test_a_folder_with_a_file_of_the_user_is_not(command, out, name):
    mine = out / name
    if name.endswith("/"):
        mine.mkdir()
    else:
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("mine")
    assert (
        refused(command, out) == f"{out}: holds {name.strip('/')}, which this command did not write"
    )


def test_a_link_of_the_user_is_a_file_of_the_user(command, out, tmp_path_factory):
    (photos := tmp_path_factory.mktemp("photos") / "a.jpg").write_text("mine")
    (out / "photos").symlink_to(photos.parent)
    assert "holds photos" in refused(command, out)
    assert photos.read_text() == "mine"


def test_a_file_that_the_user_changed_stays(command, out):
    name = max(json_in(out / "manifest.json")["files"])
    with (out / name).open("ab") as file:
        file.write(b"mine")
    assert refused(command, out) == f"{out}: {name} was changed after this command wrote it"


@pytest.mark.parametrize("listed", [None, [], {}, {"vocab.txt": "1"}, "all"])
def test_a_folder_whose_manifest_lists_no_files_stays(command, out, listed):
    manifest = json_in(out / "manifest.json")
    put_json(out / "manifest.json", manifest | {"files": listed})
    assert "did not write" in refused(command, out)
    (out / "manifest.json").unlink()
    assert "did not write" in refused(command, out)


def test_a_folder_of_another_command_stays(written, command, tmp_path):
    for other in COMMANDS.keys() - {command}:
        out = shutil.copytree(written / other, tmp_path / "out")
        assert "did not write" in refused(command, out)
        shutil.rmtree(out)


def test_names_in_a_manifest_lead_nowhere_else(command, out, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    manifest = json_in(out / "manifest.json")
    manifest["files"] |= {"../mine.txt": 4, str(tmp_path / "mine.txt"): 4}
    put_json(out / "manifest.json", manifest)
    good(*argv(command, out), "--overwrite", stdin=STORIES)
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.skipif(not find_spec("openvino"), reason="needs openvino")
def test_a_model_in_the_output_folder_stays(tmp_path):
    """Its name begins as those of modules do, and may be a link."""
    out = tmp_path / "P"
    model = shutil.copytree(TINY, out / "1_mine")
    (tmp_path / "link").symlink_to(model)
    for name in (model, tmp_path / "link"):
        done = bad("export", "-q", "-m", name, "-o", out, "--overwrite")
        assert done.error == f"{out}: holds 1_mine, which this command did not write"
    assert contents(model) == contents(TINY)


def test_a_folder_is_not_replaced_by_what_is_made_of_it(written):
    out = written / "pretrain prepare"
    given = ("pretrain", "prepare", "-q", "-m", out, "-o", out, "--overwrite")
    assert bad(*given, stdin=STORIES).error == f"{out}: the input {out} would be overwritten"


LIMITS = {  # bytes of a file, fewer than the largest of a folder has
    "distil": 5_000,
    "export": 100_000,
    "export --to onnx": 100_000,
    "pretrain prepare": 20_000,
    "pretrain vocab": 2_000,
}


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on files")
@pytest.mark.parametrize("name", LIMITS)
def test_a_full_disk_is_one_line(name, tmp_path):
    from resource import RLIM_INFINITY, RLIMIT_FSIZE, setrlimit

    command, *to = name.split(" --to ")
    if to and not find_spec("onnx"):
        pytest.skip("needs onnx")
    if command not in COMMANDS:
        pytest.skip("needs openvino")
    out = tmp_path / "out"
    limit = (LIMITS[name], RLIM_INFINITY)
    more = ["--to", *to] if to else []
    done = process(
        *(*argv(command, out), *more),
        stdin=STORIES * 500,
        env=NO_BYTECODE,
        preexec_fn=lambda: setrlimit(RLIMIT_FSIZE, limit),
    )
    assert done.error.startswith(f"{out}: cannot be written: ")
    assert done.hint == "free disk space, or choose another place"
    assert left_in(tmp_path) == []
