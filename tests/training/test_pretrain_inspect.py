"""`bertcli inspect INSTANCES`: training instances as people read them."""

import json

import pytest
from front import bad, good
from pretrain_folders import prepared

from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.instances import Instances


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("instances") / "data", rows=60)


def test_instances_are_shown_as_googles_code_prints_them(folder):
    shown = good("inspect", folder).out
    data, tokenizer = Instances(folder), Tokenizer.load(folder)
    for number, row in enumerate(data.rows[:5]):
        length, masked = int(row["lengths"]), int(row["masked_lm_counts"])
        tokens = tokenizer.convert_ids_to_tokens(row["input_ids"][:length])
        labels = tokenizer.convert_ids_to_tokens(row["masked_lm_ids"][:masked])
        lines = [
            f"instance {number}",
            f"tokens: {' '.join(tokens)}",
            f"segment_ids: {' '.join(map(str, row['token_type_ids'][:length]))}",
            f"is_random_next: {bool(row['next_sentence_labels'])}",
            f"masked_lm_positions: {' '.join(map(str, row['masked_lm_positions'][:masked]))}",
            f"masked_lm_labels: {' '.join(labels)}",
        ]
        assert "\n".join(lines) in shown
        assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]"
    assert f"and {len(data) - 5} more" in shown
    assert "instance 5" not in shown


def test_as_json(folder):
    report = json.loads(good("inspect", folder, "--json", "--verify").out)
    index = json.loads((folder / "instances.json").read_text())
    assert report.items() >= index.items()
    assert report["verify"] == {"ok": True}
    data = Instances(folder)
    assert report["examples"] == [data.example(number)._asdict() for number in range(5)]
    example = report["examples"][0]
    assert len(example["tokens"]) == len(example["segment_ids"])
    assert len(example["masked_lm_positions"]) == len(example["masked_lm_labels"]) > 0


@pytest.mark.parametrize("view", ["--tree", "--config", "--tokenizer", "--tensors"])
def test_views_of_models_are_refused(folder, view):
    assert "require" in bad("inspect", folder, view, code=2).error


def test_changed_files_are_found(folder, tmp_path):
    import shutil

    copy = shutil.copytree(folder, tmp_path / "copy")
    assert "sha256" in good("inspect", copy, "--verify").out
    rows = copy / "instances.bin"
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(content)
    assert "instances.bin" in bad("inspect", copy, "--verify").error
    rows.write_bytes(content[:-1])
    assert "instances.bin" in bad("inspect", copy).error
