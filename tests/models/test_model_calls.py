"""Calls as a reader of transformers' documentation types them: same arguments, same results."""

import pytest
import torch
import transformers
from model_reference import TINY, close, load, randomise, texts, theirs, tiny

import bertcli
from bertcli import BertcliError, BertConfig, BertModel, Tokenizer
from bertcli.models.heads import ARCHITECTURES

pytestmark = pytest.mark.parity

CLASSES = [name for name in ARCHITECTURES if hasattr(transformers, name)]
DECODER = {"is_decoder": True, "add_cross_attention": True}


def both(name="BertModel", **changes):
    reference = theirs(name, **changes)
    return load(ARCHITECTURES[name](tiny(**changes)), reference), reference


def same(ours, wanted):
    """Two outputs: the same names, in the same order, with the same numbers."""
    names = [key for key in wanted if key != "past_key_values" and wanted[key] != ()]
    assert [key for key, _ in ours.items() if key != "past_key_values"] == names
    for key in names:
        close(ours[key], wanted[key])
        close(getattr(ours, key), wanted[key])


def inputs():
    ids, keep, types = texts()
    return {"input_ids": ids, "attention_mask": keep, "token_type_ids": types}


# --- the result ---


@pytest.mark.parametrize("name", CLASSES)
@torch.no_grad()
def test_every_class_returns_what_it_returns_in_transformers(name):
    model, reference = both(name)
    more = {"output_hidden_states": True, "output_attentions": True}
    batch = inputs()
    if name == "BertForMultipleChoice":  # [1, choices, L]; states are of [choices, L] there
        batch, more = {key: x[None] for key, x in batch.items()}, {}
    same(model(**batch), reference(**batch))
    outputs = model(**batch, **more)
    same(outputs, reference(**batch, **more))
    assert len(outputs) == len([*outputs]) == len(outputs.to_tuple())
    wanted = [x for x in reference(**batch, **more, return_dict=False) if x != ()]
    close(model(**batch, **more, return_dict=False), tuple(wanted))
    close(tuple(outputs), tuple(wanted))
    close(outputs[0], wanted[0])
    close(outputs[-1], wanted[-1])
    close(outputs[:2], tuple(wanted[:2]))


@torch.no_grad()
def test_the_lines_of_the_tutorials():
    model, reference = both()
    ids, keep, types = texts()
    last_hidden_state, pooler_output = model(ids)
    wanted = reference(ids)
    close(last_hidden_state, wanted.last_hidden_state)
    close(pooler_output, wanted.pooler_output)
    close(model(ids)[0], wanted[0])
    close(model(ids, keep)[0][:, 0, :], reference(ids, keep)[0][:, 0, :])
    close(model(ids, attention_mask=keep).last_hidden_state, reference(ids, keep)[0])
    hidden_states = model(ids, keep, types, output_hidden_states=True)[2]
    close(hidden_states, reference(ids, keep, types, output_hidden_states=True)[2])
    token_embeddings = torch.stack(hidden_states, dim=0)
    assert token_embeddings.shape == (4, 3, 12, 32)
    assert "pooler_output" in model(ids) and "hidden_states" not in model(ids)
    assert model(ids).hidden_states is None
    assert dict(model(ids).items()).keys() == {"last_hidden_state", "pooler_output"}


@torch.no_grad()
def test_a_model_without_a_pooler_returns_one_thing():
    model = BertModel(tiny(), add_pooling_layer=False)
    output = model(texts()[0])
    assert output.pooler_output is None and len(output) == 1
    assert model.pooler is None


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda output: output.shape, r"write output\.last_hidden_state\.shape"),
        (lambda output: output.mean(1), r"write output\.last_hidden_state\.mean"),
        (lambda output: output[:, 0], r"write output\.last_hidden_state\[\.\.\.\]"),
        (lambda output: output.loss, r"write loss = torch\.nn\.functional\.cross_entropy\("),
        (lambda output: output.logits, "only last_hidden_state, pooler_output, hidden_states"),
        (lambda output: output["attentions"], "no attentions here; available: last_hidden_state"),
    ],
)
def test_a_result_taken_for_a_tensor_says_what_to_write(wrong, line):
    with pytest.raises((AttributeError, TypeError, KeyError), match=line):
        wrong(BertModel(tiny())(texts()[0]))


def test_the_line_for_a_loss_is_that_of_transformers():
    model, reference = both("BertForTokenClassification")
    ids, keep, types = texts()
    labels = (ids % 2).masked_fill(keep == 0, -100)
    output = model(ids, keep, types)
    loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, -2), labels.flatten())
    close(loss, reference(ids, keep, types, labels=labels).loss)


# --- arguments ---


@torch.no_grad()
def test_positions_and_embeddings_in_place_of_ids():
    model, reference = both()
    ids, keep, types = texts()
    more = {
        "inputs_embeds": model.embeddings.word_embeddings(ids) + 0.1,
        "position_ids": torch.arange(ids.shape[1]).flip(0)[None],
        "attention_mask": keep,
        "token_type_ids": types,
    }
    same(model(**more), reference(**more))
    same(model(None, keep, types, **{**more, "token_type_ids": None, "attention_mask": None}),
         reference(**more))  # fmt: skip
    same(
        model(ids, keep, types, more["position_ids"]),
        reference(ids, keep, types, more["position_ids"]),
    )


@torch.no_grad()
def test_masks_of_queries_and_keys_have_their_maps():
    model, reference = both()
    ids, keep, types = texts()
    square = keep[:, :, None] * keep[:, None, :] + torch.eye(12).long() * (1 - keep[:, None, :])
    ready = torch.zeros(square.shape).masked_fill(square == 0, torch.finfo(torch.float32).min)
    wanted = reference(ids, ready[:, None], types, output_attentions=True)
    for mask in (square, square.bool(), square.float()):
        same(model(ids, mask, types, output_attentions=True), wanted)


@pytest.mark.parametrize("layers", [False, True])
@torch.no_grad()
def test_head_masks_silence_heads(layers):
    """transformers 5 has none; 4.57 multiplied the maps by it, which silences a head."""
    model, _ = both()
    head_mask = torch.ones(3, 4) if layers else torch.ones(4)
    head_mask[..., 1] = 0
    output = model(**inputs(), head_mask=head_mask, output_attentions=True)
    for attention in output.attentions:
        assert attention[:, 1].eq(0).all() and attention[:, 0].ne(0).any()
    for layer in model.encoder.layer:
        layer.attention.output.dense.weight[:, 8:16] = 0
    close(output.last_hidden_state, model(**inputs()).last_hidden_state)


@torch.no_grad()
def test_an_encoder_is_read_by_a_decoder():
    model, reference = both("BertLMHeadModel", **DECODER)
    batch = inputs()
    encoder = BertModel(tiny())
    source, source_keep, _ = texts(length=10)
    more = {
        "encoder_hidden_states": encoder(source, source_keep)[0],
        "encoder_attention_mask": source_keep,
        "output_attentions": True,
        "output_hidden_states": True,
    }
    same(model(**batch, **more), reference(**batch, **more))
    same(model(**batch), reference(**batch))
    del more["encoder_attention_mask"]
    same(model(**batch, **more), reference(**batch, **more))


@pytest.mark.parametrize("steps", [[1] * 12, [5, 1, 6]])
@torch.no_grad()
def test_past_key_values_of_a_decoder(steps):
    model, reference = both("BertLMHeadModel", is_decoder=True)
    ids, keep, types = texts()
    past, their_past, end = None, None, 0
    for new, some in zip(ids.split(steps, 1), types.split(steps, 1), strict=True):
        end += new.shape[1]
        more = {"attention_mask": keep[:, :end], "token_type_ids": some}
        output = model(new, **more, past_key_values=past, use_cache=True, output_attentions=True)
        wanted = reference(new, **more, past_key_values=their_past, output_attentions=True)
        same(output, wanted)
        past, their_past = output.past_key_values, wanted.past_key_values
        for (key, value), layer in zip(past, their_past.layers, strict=True):
            close(key, layer.keys)
            close(value, layer.values)
    assert past[0][0].shape == (3, 4, 12, 8)
    assert output[1] is past


@torch.no_grad()
def test_a_decoder_caches_as_its_config_says():
    ids = texts()[0]
    decoder = randomise(BertModel(tiny(is_decoder=True))).eval()
    assert len(decoder(ids).past_key_values) == 3
    assert decoder(ids, use_cache=False).past_key_values is None
    assert BertModel(tiny(is_decoder=True, use_cache=False))(ids).past_key_values is None
    assert BertModel(tiny())(ids, use_cache=True).past_key_values is None  # as in transformers
    before = decoder(ids[:, :5]).past_key_values
    kept = [[x.clone() for x in pair] for pair in before]
    again = [decoder(ids[:, 5:], past_key_values=before)[0] for _ in range(2)]
    close(again[0], again[1])  # it is not changed
    close([[*pair] for pair in before], kept)


def test_a_decoder_is_trained_with_recomputed_activations():
    model = randomise(BertModel(tiny(is_decoder=True))).train()
    model.encoder.recompute = True
    output = model(texts()[0])
    assert output.past_key_values is None
    output.last_hidden_state.square().sum().backward()
    assert model.encoder.layer[0].attention.self.key.weight.grad.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"labels": 1}, "takes no labels: write loss = torch.nn.functional.cross_entropy("),
        ({"start_positions": 1}, "cross_entropy(output.start_logits, starts)"),
        ({"output_all_encoded_layers": False}, "write output_hidden_states=True"),
        ({"encoder_attention_mask": torch.ones(3, 4)}, "encoder_hidden_states, which are missing"),
        ({"encoder_hidden_states": torch.ones(3, 4, 32)}, "no cross-attention"),
        ({"past_key_values": ((1, 2),)}, "write BertModel(BertConfig(is_decoder=True))"),
        ({"inputs_embeds": torch.ones(3, 12, 32)}, "got inputs_embeds and another value"),
        ({"attention_mask": torch.full((3, 12), -1e4)}, "has the value -10000: write 1 for a to"),
        ({"attention_mask": torch.full((3, 12), 0.5)}, "has the value 0.5: write 1 for a token"),
        ({"attention_mask": [[1] * 12] * 3}, "write torch.tensor(attention_mask)"),
        ({"kernels": 1, "output_attentions": True}, "got kernels and output_attentions"),
    ],
)  # fmt: skip
def test_what_a_model_does_not_take_is_refused_with_the_line_to_write(arguments, line):
    with pytest.raises(BertcliError) as refused:
        BertModel(tiny())(texts()[0], **arguments)
    assert line in str(refused.value)


def test_ids_that_are_no_tensor_are_refused():
    model = BertModel(tiny())
    with pytest.raises(BertcliError, match=r"write model\(\*\*batch\)"):
        model(inputs())
    with pytest.raises(BertcliError, match=r"write torch\.tensor\(input_ids\)"):
        model([[1, 2, 3]])
    with pytest.raises(BertcliError, match="needs input_ids or inputs_embeds"):
        model()
    with pytest.raises(TypeError, match="unexpected keyword argument 'input_idz'"):
        model(texts()[0], input_idz=1)


def test_token_types_in_the_place_of_the_mask_are_refused():
    """Before 2019 the order was ids, types, mask."""
    model = randomise(BertModel(tiny())).eval()
    ids, keep, types = texts()
    for arguments in ((ids, types, keep), (ids, types), (ids, torch.zeros_like(ids), keep)):
        with pytest.raises(BertcliError, match=r"write token_type_ids=\.\.\., attention_mask="):
            model(*arguments)
    close(model(ids, token_type_ids=types, attention_mask=keep)[0], model(ids, keep, types)[0])
    left = torch.flip(ids, (1,))  # padding at the left is no such mistake
    model(left, (left != 0).long())


@pytest.mark.parametrize(
    ("model_type", "line"),
    [("roberta", r"at=position_ids - 4"), ("modernbert", "leave them out")],
)
def test_positions_that_would_not_be_those_of_transformers_are_refused(model_type, line):
    config = BertConfig(
        **{**TINY, "model_type": model_type, "pad_token_id": 3, "layer_norm_eps": 1}
    )
    ids = texts()[0]
    with pytest.raises(BertcliError, match=line):
        BertModel(config)(ids, position_ids=torch.arange(12)[None])
    with pytest.raises(BertcliError, match=line):
        BertModel(config)(ids, None, None, torch.arange(12)[None])


# --- constructors and from_pretrained ---


@torch.no_grad()
def test_a_config_asks_for_states_and_maps(tmp_path):
    said = {"output_hidden_states": True, "output_attentions": True}
    config = BertConfig(**TINY, **said)
    assert config.output_hidden_states and config.output_attentions
    output = BertModel(config)(texts()[0])
    assert len(output.hidden_states) == 4 and len(output.attentions) == 3
    assert len(BertModel(config)(texts()[0], output_attentions=False)) == 3
    BertModel(config).save_pretrained(tmp_path)
    assert BertModel.from_pretrained(tmp_path).config.output_hidden_states
    assert transformers.BertConfig.from_pretrained(tmp_path).output_hidden_states


@torch.no_grad()
def test_from_pretrained_takes_the_options_of_transformers(tmp_path):
    theirs().save_pretrained(tmp_path)
    name = str(tmp_path)
    model = BertModel.from_pretrained(name, output_hidden_states=True, output_attentions=True)
    assert len(model(texts()[0])) == 4
    assert BertModel.from_pretrained(name, add_pooling_layer=False).pooler is None
    assert BertModel.from_pretrained(name, torch_dtype=torch.bfloat16).dtype == torch.bfloat16
    assert BertModel.from_pretrained(name, torch_dtype="float16").dtype == torch.float16
    BertModel.from_pretrained(name, attn_implementation="eager", local_files_only=True)
    config = BertConfig.from_pretrained(name, output_hidden_states=True)
    assert len(BertModel.from_pretrained(name, config=config)(texts()[0]).hidden_states) == 4
    with pytest.raises(BertcliError, match="config= has another hidden_size than the folder"):
        BertModel.from_pretrained(name, config=BertConfig(**{**TINY, "hidden_size": 64}))
    tuples = BertModel.from_pretrained(name, return_dict=False)(texts()[0])
    assert type(tuples) is tuple and len(tuples) == 2
    for option, line in {
        "position_ids": "write model(position_ids=...)",
        "device_map": "device=",
    }.items():
        with pytest.raises(BertcliError) as refused:
            BertModel.from_pretrained(name, **{option: "auto"})
        assert line in str(refused.value)


@torch.no_grad()
def test_a_head_for_a_number_of_labels(tmp_path, messages):
    theirs().save_pretrained(tmp_path / "bert")
    model = bertcli.BertForSequenceClassification.from_pretrained(
        str(tmp_path / "bert"), num_labels=3, output_attentions=False, output_hidden_states=False
    )
    drawn = "drawn at random, to be trained: classifier.weight, classifier.bias"
    assert messages == [drawn]
    assert model.num_labels == model.config.num_labels == 3
    assert model(**inputs()).logits.shape == (3, 3)
    assert [*model.config.id2label.values()] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert model.classifier.weight.std() < 0.05 and model.classifier.bias.eq(0).all()
    named = bertcli.BertForTokenClassification.from_pretrained(
        str(tmp_path / "bert"), id2label={0: "O", 1: "PER"}, label2id={"O": 0, "PER": 1}
    )
    assert named.config.id2label == {0: "O", 1: "PER"}
    config = BertConfig.from_pretrained(tmp_path / "bert", num_labels=4)
    four = bertcli.BertForSequenceClassification.from_pretrained(tmp_path / "bert", config=config)
    assert four.num_labels == 4 and four.classifier.out_features == 4
    with pytest.raises(BertcliError, match="write fresh=True for a head drawn at random"):
        bertcli.BertForSequenceClassification.from_pretrained(tmp_path / "bert")
    reference = theirs("BertForSequenceClassification", num_labels=3)
    reference.save_pretrained(tmp_path / "head")
    kept = bertcli.BertForSequenceClassification.from_pretrained(tmp_path / "head", num_labels=3)
    close(kept(**inputs()).logits, reference(**inputs()).logits)
    assert messages == [drawn] * 3


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"output_attentions": True}, "write BertModel(BertConfig(output_attentions=True))"),
        ({"num_labels": 3}, "write BertModel(BertConfig(num_labels=3))"),
        ({"input_ids": 3}, "write model(input_ids=...)"),
        ({"keep_multihead_output": True}, "write output_attentions=True"),
    ],
)
def test_a_constructor_says_where_an_argument_belongs(arguments, line):
    with pytest.raises(BertcliError) as refused:
        BertModel(tiny(), **arguments)
    assert line in str(refused.value)
    with pytest.raises(BertcliError):
        bertcli.BertForMaskedLM(tiny(), **arguments)
    with pytest.raises(TypeError, match="BertModel has no argument 'poolr'"):
        BertModel(tiny(), poolr=True)


@torch.no_grad()
def test_other_word_embeddings():
    model, reference = both("BertForMaskedLM")
    table = torch.nn.Embedding(120, 32)
    model.set_input_embeddings(table)
    assert model.get_input_embeddings() is table and model.config.vocab_size == 120
    assert model.cls.predictions.decoder.weight is table.weight
    words = reference.get_input_embeddings().weight
    same_table = torch.nn.Embedding.from_pretrained(words.clone())
    bare = load(BertModel(tiny()), reference.bert) if reference.bert.pooler else model.bert
    bare.set_input_embeddings(same_table)
    close(bare(**inputs())[0], reference.bert(**inputs())[0])


@pytest.mark.usefixtures("default_folder")
@torch.no_grad()
def test_the_default_model_by_its_name():
    name = "sentence-transformers/all-MiniLM-L6-v2"
    model, tokenizer = BertModel.from_pretrained(name), Tokenizer.from_pretrained(name)
    batch = tokenizer(["I love NLP!", "Hi"], padding=True, return_tensors="pt").to(model.device)
    output = model(**batch, output_hidden_states=True)
    assert output.last_hidden_state.shape == (2, 7, 384)
    close(output.hidden_states[-1], output[0])
