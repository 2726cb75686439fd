"""Files and folders that appear whole or not at all, and are on the disk when they do."""

import os

import pytest
from front import left_in

from bertcli.errors import OutputError
from bertcli.io.publish import (
    put_folder,
    replaced_folder,
    replacing_files,
    whole_file,
    whole_folder,
    work_folder,
)


@pytest.fixture
def happened(monkeypatch):
    """Note what is synced and renamed, by name."""
    found, fsync, replace = [], os.fsync, os.replace

    def note(file):
        fsync(file)
        found.append(("sync", os.fstat(file).st_ino))

    def move(source, to):
        found.append(("move", os.stat(source).st_ino))
        replace(source, to)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", move)
    return found


def test_a_file_is_on_the_disk_before_its_name_and_its_folder_after(tmp_path, happened):
    path = tmp_path / "a"
    with whole_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    made, folder = path.stat().st_ino, tmp_path.stat().st_ino
    assert happened[:2] == [("sync", made), ("move", made)]
    assert happened[2:] == ([("sync", folder)] if os.name == "posix" else [])


def test_a_folder_that_cannot_be_moved_gives_its_place_back(tmp_path, monkeypatch):
    target, replace = tmp_path / "a", os.replace
    target.mkdir()
    (target / "old").touch()

    def fail(source, to):
        if to == target and source != replaced_folder(target):
            raise OSError(28, "No space left on device")
        replace(source, to)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"), work_folder(target) as made:
        put_folder(made, target)
    assert (left_in(tmp_path), left_in(target)) == (["a"], ["old"])


def test_an_interrupt_between_two_names_gives_the_place_back(tmp_path, monkeypatch):
    target, replace = tmp_path / "a", os.replace
    target.mkdir()
    (target / "old").touch()

    def strike(source, to):
        replace(source, to)
        if source == target:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", strike)
    with pytest.raises(KeyboardInterrupt), work_folder(target) as made:
        put_folder(made, target)
    assert (left_in(tmp_path), left_in(target)) == (["a"], ["old"])


def test_a_file_that_comes_while_a_folder_is_replaced_stays(tmp_path, monkeypatch):
    """Before the folder is moved away, and afterwards, by a process that is in it."""
    target, replace = tmp_path / "a", os.replace
    with whole_folder(target, "distil") as made:
        (made / "model").touch()

    def strike(source, to):
        if source == target:
            (target / "mine").write_text("mine")
        replace(source, to)

    monkeypatch.setattr(os, "replace", strike)
    with (
        pytest.raises(OutputError, match="holds mine, which this command did not write"),
        whole_folder(target, "distil", overwrite=True),
    ):
        pass
    assert (left_in(tmp_path), left_in(target)) == (["a"], ["manifest.json", "mine", "model"])
    (target / "mine").unlink()
    old = replaced_folder(target)

    def strike_late(source, to):
        if to == target:
            (old / "mine").write_text("mine")
        replace(source, to)

    monkeypatch.setattr(os, "replace", strike_late)
    with (
        pytest.raises(OutputError, match="holds mine, which bertcli did not write"),
        whole_folder(target, "distil", overwrite=True),
    ):
        pass
    assert (left_in(target), left_in(old)) == (["manifest.json"], ["mine"])
    with pytest.raises(OutputError, match="holds mine"), whole_folder(target, "distil"):
        pass
    assert left_in(old) == ["mine"]


@pytest.mark.skipif(os.name != "posix", reason="Windows syncs no folder")
def test_the_other_names_are_on_the_disk_before_the_last(tmp_path, happened):
    (target := tmp_path / "a").mkdir()
    with replacing_files(target, last="config.json") as made:
        for name in ("config.json", "model.safetensors"):
            (made / name).touch()
    folder, last = target.stat().st_ino, (target / "config.json").stat().st_ino
    model = ("move", (target / "model.safetensors").stat().st_ino)
    assert happened[happened.index(model) :] == [
        *(model, ("sync", folder), ("move", last), ("sync", folder))
    ]
