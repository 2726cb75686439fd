"""`bertcli fill-mask` against transformers' pipeline."""

import pytest
import torch
import transformers
from front import (
    bad,
    call,
    good,
    jsonl,
)
from model_reference import randomise
from task_models import LENGTH, agree, texts, tokenizer
from tokenizers_made import MADE

pytestmark = pytest.mark.parity


@pytest.fixture(params=["BertForMaskedLM", "BertForPreTraining"])
def name(request):
    return request.param


def pipeline(models, name):
    theirs = models.theirs(name)
    if name == "BertForPreTraining":  # their pipeline takes the first of several logits
        theirs = transformers.BertForMaskedLM.from_pretrained(models(name)).eval()
    return transformers.pipeline("fill-mask", model=theirs, tokenizer=tokenizer())


def nested(row):
    """Our list in their form: a list a mask, unless there is one mask only."""
    found = [dict(one) for one in row["predictions"]]
    masks = [one.pop("mask") for one in found]
    lists = [
        [one for one, at in zip(found, masks, strict=True) if at == mask]
        for mask in sorted(set(masks))
    ]
    return lists[0] if len(lists) == 1 else lists


MASKED = [
    "Paris is the [MASK] of France.",
    "[MASK] is [MASK], and unbelievably [MASK]!",
    "a [MASK]",
    "Paris is the [MASK] of France.",
    *(f"{text} [MASK]" for text in texts(12, 8)),
]


@pytest.mark.parametrize("more", [{}, {"top_k": 2}, {"targets": ["city", "Paris", "city"]}])
def test_predictions_are_those_of_transformers(models, name, more):
    options = [f"--{key.replace('_', '-')}={value}" for key, value in more.items()]
    if "targets" in more:
        options = ["--targets", ",".join(more["targets"])]
    done = good("fill-mask", *MASKED, "-m", models(name), *options)
    theirs = pipeline(models, name)
    for text, row in zip(MASKED, done.rows, strict=True):
        agree(nested(row), theirs(text, **more), text)


def test_a_model_of_more_embeddings_than_tokens(models):
    folder = models("BertForMaskedLM", vocab_size=30522 * 2)
    done = good("fill-mask", *MASKED[:4], "-m", folder)
    model = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    theirs = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer())
    assert any(one["token_str"] == "" for row in done.rows for one in row["predictions"])
    for text, row in zip(MASKED, done.rows, strict=False):
        agree(nested(row), theirs(text), text)


def test_long_texts_are_cut_and_counted(models, name):
    text = f"one [MASK] {'and another ' * 60}"
    done = call("fill-mask", text, "-m", models(name))
    expected = pipeline(models, name)(text, tokenizer_kwargs={"truncation": True})
    agree(nested(done.rows[0]), expected)
    assert done.rows[0]["truncated"] == len(tokenizer()(text)["input_ids"]) - LENGTH
    assert f"1 of 1 texts truncated to {LENGTH} tokens" in done.err


def test_a_pair_is_filled_as_one_text(models):
    folder = models("BertForMaskedLM")
    row = good("fill-mask", "one [MASK]", "--pair", "two", "-m", folder, "-k", 1).rows[0]
    ids = tokenizer()("one [MASK]", "two", return_tensors="pt")
    with torch.no_grad():
        logits = models.theirs("BertForMaskedLM")(**ids).logits[0, 2].softmax(-1)
    (found,) = row["predictions"]
    assert found["token"] == int(logits.argmax())
    assert abs(found["score"] - float(logits.max())) < 1e-5
    filled = ids["input_ids"][0].tolist()
    filled[2] = found["token"]
    assert found["sequence"] == tokenizer().decode(filled, skip_special_tokens=True)


def test_a_text_without_a_mask_is_named(models, tmp_path):
    path = tmp_path / "in.jsonl"
    lines = [{"id": 1, "text": "a [MASK]"}, {"id": 2, "text": "b"}, {"id": 3, "text": "[MASK]"}]
    path.write_text(jsonl(lines))
    argv = ["fill-mask", "-i", path, "-m", models("BertForMaskedLM")]
    done = call(*argv)
    assert done.code == 1 and f"{path}:2: no [MASK]" in done.err
    done = call(*argv, "--on-error", "skip")
    assert (done.code, [row["id"] for row in done.rows]) == (1, [1, 3])
    assert done.err.count(f"{path}:2") == 1 and "1 record was skipped" in done.err
    cut = bad("fill-mask", f"{'one ' * 80} [MASK]", "-m", models("BertForMaskedLM"))
    assert cut.error == f"text 1: no [MASK] in its first {LENGTH} tokens"


def test_batches_do_not_matter(models):
    argv = ["fill-mask", *MASKED, "-m", models("BertForMaskedLM")]
    agree(good(*argv, "--batch-tokens", 16, "--window", 3).rows, good(*argv).rows)


@pytest.mark.parametrize("family", ["roberta", "xlm_roberta", "mpnet"])
def test_masks_of_other_tokenizers(tmp_path, family):
    """A mask takes in the blank before it, and words come with theirs."""
    made, kind = MADE[family](tmp_path / "m"), {"xlm_roberta": "XLMRoberta", "mpnet": "MPNet"}
    name = kind.get(family, "Roberta")
    words = transformers.AutoTokenizer.from_pretrained(made)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = getattr(transformers, f"{name}Config")(
        **sizes, vocab_size=len(words), intermediate_size=16, pad_token_id=1
    )
    model = getattr(transformers, f"{name}ForMaskedLM")(config).eval()
    randomise(model, seed=3)
    model.save_pretrained(made)
    theirs = transformers.pipeline("fill-mask", model=model, tokenizer=words)
    masked = ["Paris is the <mask> of France.", "a<mask> b <mask>", "<mask>"]
    done = good("fill-mask", *masked, "-m", made)
    for text, row in zip(masked, done.rows, strict=True):
        agree(nested(row), theirs(text), text)
