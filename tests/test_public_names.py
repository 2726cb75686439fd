"""What `from bertcli import ...` gives: every name, and nothing heavy before one is used."""

import subprocess
import sys

import pytest
from front import PACKAGE, environment

import bertcli

HEAVY = ("torch", "numpy", "tokenizers", "typer", "rich", "huggingface_hub")
MODEL = PACKAGE / "samples" / "tiny-bert"


@pytest.mark.parametrize("name", bertcli.__all__)
def test_every_public_name_is_there(name):
    assert getattr(bertcli, name) is not None
    assert name in dir(bertcli)


def test_the_heads_are_all_public():
    from bertcli.models.heads import ARCHITECTURES

    assert {name for name in bertcli.__all__ if name.startswith("BertFor")} <= {*ARCHITECTURES}
    assert {*ARCHITECTURES} <= {*bertcli.__all__}


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Bert'"):
        _ = bertcli.Bert


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("import bertcli; dir(bertcli)", set()),
        ("from bertcli import Record, find_model, BertConfig", set()),
        ("from bertcli import Tokenizer", set()),
        (f"from bertcli import Tokenizer; Tokenizer.load({str(MODEL)!r})('hi')", {"tokenizers"}),
    ],
)
def test_a_name_imports_what_it_needs(code, needed):
    code += f"; import sys; print(*(n for n in {HEAVY!r} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True)
    assert {*done.stdout.decode().split()} == needed, done.stderr


def test_a_model_is_loaded_by_folder_path_and_name(default_folder):
    import torch

    found = [bertcli.load(name)[0] for name in (str(MODEL), MODEL)]
    assert {type(model) for model in found} == {bertcli.BertModel}
    with torch.inference_mode():
        one, other = (model(torch.tensor([[2, 5, 3]]), torch.ones(1, 3)) for model in found)
    assert one.shape == (1, 3, found[0].config.hidden_size)
    assert torch.equal(one, other)
    model, report = bertcli.load("sentence-transformers/all-MiniLM-L6-v2", offline=True)
    assert report.folder == default_folder
    assert model.config.hidden_size == 384


def test_a_model_is_saved_and_loaded_again(tmp_path):
    import torch

    model, _ = bertcli.load(MODEL, bertcli.BertModel)
    bertcli.save(model, model.config, str(tmp_path / "mine"))
    again, report = bertcli.load(str(tmp_path / "mine"))
    assert report.complete
    assert all(
        torch.equal(*both) for both in zip(again.parameters(), model.parameters(), strict=True)
    )


@pytest.mark.parametrize("name", ["no/such", "./nowhere"])
@pytest.mark.parametrize("load", [bertcli.load, bertcli.Tokenizer.load])
def test_what_is_not_found_has_the_message_of_the_command(load, name):
    from front import bad

    said = bad("tokenize", "a", "-m", name, "--offline")
    with pytest.raises(bertcli.BertcliError) as failed:
        load(name, offline=True)
    assert (str(failed.value), failed.value.hint) == (said.error, said.hint)
