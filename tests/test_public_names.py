"""What `from bertcli import ...` gives: every name, and nothing heavy before one is used."""

import subprocess
import sys

import pytest
from front import TINY, environment

import bertcli

HEAVY = ("torch", "numpy", "tokenizers", "typer", "rich", "huggingface_hub")


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
        (f"from bertcli import Tokenizer; Tokenizer.load({str(TINY)!r})('hi')", {"tokenizers"}),
        (
            f"from bertcli import Classifier, Embedder; Embedder.load({str(TINY)!r}).encode('hi')",
            {"tokenizers", "numpy"},
        ),
    ],
)
def test_a_name_imports_what_it_needs(code, needed):
    code += f"; import sys; print(*(n for n in {HEAVY!r} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True)
    assert {*done.stdout.decode().split()} == needed, done.stderr


def test_a_model_is_loaded_by_folder_path_and_name(default_folder):
    import torch

    found = [bertcli.load(name)[0] for name in (str(TINY), TINY)]
    assert {type(model) for model in found} == {bertcli.BertModel}
    with torch.inference_mode():
        one, other = (model(torch.tensor([[2, 5, 3]]), torch.ones(1, 3))[0] for model in found)
    assert one.shape == (1, 3, found[0].config.hidden_size)
    assert torch.equal(one, other)
    model, report = bertcli.load("sentence-transformers/all-MiniLM-L6-v2", offline=True)
    assert report.folder == default_folder
    assert model.config.hidden_size == 384


@pytest.mark.parity
@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForPreTraining"])
def test_a_model_has_the_calls_and_methods_of_transformers(tmp_path, models, name):
    import torch
    import transformers
    from torch.testing import assert_close

    kind = models("BertForPreTraining" if name == "BertModel" else name)
    theirs = getattr(transformers, name).from_pretrained(kind, attn_implementation="eager").eval()
    ours = getattr(bertcli, name).from_pretrained(kind)
    batch = bertcli.Tokenizer.load(kind)(
        ["I love", "a"], ["NLP!", "b c d"], padding=True, return_tensors="pt"
    )

    def check(ours, theirs):
        with torch.inference_mode():
            said, right = ours(**batch), theirs(**batch)
        assert said.keys() == [*right.keys()]
        for one, other in zip(said, right.to_tuple(), strict=True):
            assert_close(one, other, atol=5e-5, rtol=1e-5)
        assert ours.num_parameters() == theirs.num_parameters()
        words = ours.get_input_embeddings().weight
        assert torch.equal(words, theirs.get_input_embeddings().weight)

    check(ours, theirs)
    ids, keep = batch.input_ids, batch.attention_mask
    maps = []
    ours(ids, kernels=bertcli.Recording(maps, keep), types=batch.token_type_ids)
    for one, other in zip(maps, theirs(**batch, output_attentions=True).attentions, strict=True):
        assert_close(one, other, atol=5e-5, rtol=1e-5)
    ours.save_pretrained(tmp_path / "saved")
    check(ours, getattr(transformers, name).from_pretrained(tmp_path / "saved").eval())
    for size in (ours.config.vocab_size + 5, ours.config.vocab_size - 5):
        theirs.resize_token_embeddings(size, mean_resizing=False)
        resized = ours.resize_token_embeddings(size)
        assert resized.num_embeddings == size == len(theirs.get_input_embeddings().weight)
        theirs.get_input_embeddings().weight.data.copy_(resized.weight)
        check(ours, theirs)
        bertcli.save(ours, ours.config, tmp_path / f"of {size}")
        assert bertcli.load(tmp_path / f"of {size}")[0].config.vocab_size == size


@pytest.mark.parametrize("name", ["no/such", "./nowhere"])
@pytest.mark.parametrize("load", [bertcli.load, bertcli.Tokenizer.load, bertcli.Embedder.load])
def test_what_is_not_found_has_the_message_of_the_command(load, name):
    from front import bad

    said = bad("tokenize", "a", "-m", name, "--offline")
    with pytest.raises(bertcli.BertcliError) as failed:
        load(name, offline=True)
    assert str(failed.value) == said.error
    assert failed.value.hint == said.hint.replace("--", "")
