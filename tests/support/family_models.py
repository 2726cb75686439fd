"""Random small models of every family. Each row here tests one page of `bertcli.families`.

A row draws the keys that are specific to its config.json; sizes and other keys shared by all
families are drawn for it. Dropout is 0, so that models in train mode can be compared.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from model_reference import randomise

from bertcli.families.family import BASE
from bertcli.families.registry import FAMILIES
from bertcli.models.config import BertConfig
from bertcli.models.heads import ARCHITECTURES, BertWithHead

ACTS = ("gelu", "gelu_new", "relu", "silu", "tanh")
Draw = Callable[[random.Random, dict[str, Any]], dict[str, Any]]


def as_it_is(chance: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    return {}


def distilbert(chance: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    keys = FAMILIES["distilbert"].keys
    own = {theirs: sizes[ours] for ours, theirs in keys.items()} | dict.fromkeys(keys)
    gone = dict.fromkeys(("type_vocab_size", "layer_norm_eps"))
    return {**own, **gone, "seq_classif_dropout": 0.0, "qa_dropout": 0.0}


def electra(chance: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    width = chance.choice((3, 8, sizes["hidden_size"]))
    return {"embedding_size": width, "summary_last_dropout": 0.0}


def albert(chance: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    groups = chance.randint(1, sizes["num_hidden_layers"])
    width = chance.choice((3, 8, sizes["hidden_size"]))
    return {
        "embedding_size": width,
        "num_hidden_groups": groups,
        "classifier_dropout_prob": 0.0,
    }


@dataclass(frozen=True)
class Row:
    """A family and how it is tested."""

    model_type: str
    prefix: str  # prefix of the transformers classes
    draw: Draw = as_it_is  # draws more keys; a value of None removes a shared one
    alike: bool = False  # True if the model equals an earlier row's: fewer configurations suffice
    more: Mapping[str, Any] = field(default_factory=dict)  # keys of models of fixed sizes
    needed: Mapping[str, Any] = field(default_factory=dict)  # keys without which it is refused

    @property
    def classes(self) -> list[str]:
        """The transformers classes on the page, without decoders."""
        page = FAMILIES[self.model_type]
        return [name for name, ours in page.classes.items() if ours != "BertLMHeadModel"]


def buckets(chance: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    return {"relative_attention_num_buckets": chance.choice((32, 40)), "type_vocab_size": None}


def modern(chance: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    layers, heads = sizes["num_hidden_layers"], sizes["num_attention_heads"]
    kinds = ("full_attention", "sliding_attention")
    rope = {"rope_type": chance.choice(("default", "linear")), "factor": 3.0}
    said = {
        "hidden_size": heads * chance.choice((2, 4, 6)),
        "hidden_activation": sizes["hidden_act"],
        "norm_eps": sizes["layer_norm_eps"],
        "local_attention": chance.choice((1, 4, 7, 128)),
        "classifier_pooling": chance.choice(("cls", "mean")),
        "classifier_activation": chance.choice(ACTS),
        "layer_types": chance.choice((None, chance.choices(kinds, k=layers))),
        "global_attn_every_n_layers": chance.choice((1, 2, 3)),
        "global_rope_theta": 200.0,
        "rope_parameters": chance.choice((None, {kinds[0]: {"rope_theta": 30.0, **rope}})),
        "type_vocab_size": None,
        "hidden_dropout_prob": None,
    }
    biases = ("norm", "attention", "mlp", "decoder", "classifier")
    return said | {f"{part}_bias": chance.random() < 0.5 for part in biases}


def turned(chance: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    kind = {"rope_type": chance.choice(("default", "linear")), "factor": 3.0}
    return {
        "hidden_size": sizes["num_attention_heads"] * chance.choice((2, 4, 6)),
        "rope_parameters": chance.choice((None, {**kind, "rope_theta": 30.0})),
    }


def llama(chance: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    heads = sizes["num_attention_heads"]
    size = chance.choice((2, 4, 6))
    return {
        "hidden_size": heads * chance.choice((3, 4, 6)) if size == 4 else heads * size,
        "head_dim": size,
        "num_key_value_heads": chance.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        "rms_norm_eps": sizes["layer_norm_eps"],
        "classifier_pooling": chance.choice(("bos", "mean", "late")),
        "attention_bias": chance.random() < 0.5,
        "mlp_bias": chance.random() < 0.5,
        "rope_parameters": turned(chance, sizes)["rope_parameters"],
        **dict.fromkeys(("type_vocab_size", "layer_norm_eps", "hidden_dropout_prob")),
    }


def gemma(chance: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    said = llama(chance, sizes)
    kinds = ("full_attention", "sliding_attention")
    rope = {"rope_type": chance.choice(("default", "linear")), "factor": 3.0, "rope_theta": 30.0}
    for gone in ("classifier_pooling", "mlp_bias"):
        del said[gone]
    return said | {
        "use_bidirectional_attention": True,
        "hidden_activation": sizes["hidden_act"],
        "query_pre_attn_scalar": said["head_dim"],
        "sliding_window": chance.choice((1, 4, 8, 512)),
        "layer_types": chance.choice((None, chance.choices(kinds, k=sizes["num_hidden_layers"]))),
        "rope_parameters": chance.choice((None, {kinds[0]: rope, kinds[1]: {"rope_theta": 9.0}})),
    }


def typed(chance: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    return {**turned(chance, sizes), "type_vocab_size": chance.choice((0, 1, 2))}


def crosswise(chance: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    convolved = {
        "conv_kernel_size": chance.choice((1, 3, 5)),
        "conv_act": chance.choice(ACTS),
        "conv_groups": chance.choice((1, sizes["hidden_size"])),
    }
    kinds = chance.choice(([], ["c2p"], ["p2c"], ["c2p", "p2c"], "p2c|c2p"))
    relative = bool(kinds) or chance.random() < 0.5
    return {
        "relative_attention": relative,
        "pos_att_type": kinds,
        "position_buckets": chance.choice((-1, 4, 6)),
        "max_relative_positions": chance.choice((-1, 7, 24)),
        "share_att_key": chance.random() < 0.5,
        "norm_rel_ebd": chance.choice(("none", "layer_norm")) if relative else "none",
        "position_biased_input": chance.random() < 0.5,
        "type_vocab_size": chance.choice((0, 1, 2)),
        "pooler_hidden_act": chance.choice(ACTS),
        **(chance.choice(({}, convolved)) if sizes["num_hidden_layers"] > 1 else {}),
    }


BERT = Row("bert", "Bert")
ROWS = (  # all families except BERT
    Row("roberta", "Roberta"),
    Row("xlm-roberta", "XLMRoberta", alike=True),
    Row("camembert", "Camembert", alike=True),
    Row("distilbert", "DistilBert", distilbert),
    Row("electra", "Electra", electra),
    Row("albert", "Albert", albert),
    Row("mpnet", "MPNet", buckets),
    Row("modernbert", "ModernBert", modern),
    Row("deberta-v2", "DebertaV2", crosswise),
    Row("nomic_bert", "NomicBert", turned),
    Row("gte", "Gte", typed),
    Row("jina_embeddings_v3", "JinaEmbeddingsV3", turned),
    Row("eurobert", "EuroBert", llama, more={"num_key_value_heads": 2, "head_dim": 6}),
    Row(
        "gemma3_text",
        "Gemma3Text",
        gemma,
        more={
            "num_key_value_heads": 2,
            "head_dim": 6,
            "query_pre_attn_scalar": 6,
            "use_bidirectional_attention": True,
            "sliding_window": 6,
        },
        needed={"use_bidirectional_attention": True},
    ),
)


def shared(chance: random.Random) -> dict[str, Any]:
    """Draw the keys of config.json that most families share, including odd sizes."""
    heads = chance.choice((1, 2, 3, 4))
    words = chance.randint(12, 50)
    return {
        "vocab_size": words,
        "hidden_size": heads * chance.choice((2, 4, 6, 7)),
        "num_hidden_layers": chance.randint(1, 3),
        "num_attention_heads": heads,
        "intermediate_size": chance.randint(1, 30),
        "max_position_embeddings": 24,
        "type_vocab_size": chance.randint(1, 3),
        "hidden_act": chance.choice(ACTS),
        "layer_norm_eps": chance.choice((1e-12, 1e-5, 1e-2)),
        "pad_token_id": chance.choice((0, 1, 3)),
        "tie_word_embeddings": chance.random() < 0.7,
        "num_labels": chance.choice((1, 2, 5)),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def their_model(row: Row, name: str, seed: int, **changes: Any) -> torch.nn.Module:
    """Return a random model of transformers in eval mode."""
    chance = random.Random(f"{row.model_type} {name} {seed}")
    said = shared(chance)
    said |= row.draw(chance, said) | changes
    if name.endswith(("QuestionAnswering", "ForPreTraining")):
        said["num_labels"] = 2
    kept = {key: value for key, value in said.items() if value is not None}
    config = transformers.AutoConfig.for_model(row.model_type, **kept)
    config._attn_implementation = "eager"
    return randomise(getattr(transformers, name)(config), seed).eval()


def our_model(theirs: torch.nn.Module) -> torch.nn.Module:
    """Convert a model of transformers to ours, checking tensor names in both directions."""
    name = type(theirs).__name__
    config = BertConfig.from_dict({**theirs.config.to_dict(), "architectures": [name]})
    (kind,) = config.architectures
    bare = kind == "BertModel" and getattr(theirs, "pooler", 0) is None
    model = ARCHITECTURES[kind](config, *([False] if bare else []))
    base = "" if isinstance(model, BertWithHead) else BASE
    state = {}
    for key, weight in theirs.state_dict().items():
        parts = config.family.our_names(key, kind)
        assert {config.family.their_name(part, kind) for part in parts} == {key}
        state |= zip(parts, weight.chunk(len(parts)), strict=True)
    model.load_state_dict({key.removeprefix(base): one for key, one in state.items()}, strict=True)
    return model.eval()


def batch(theirs: torch.nn.Module, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw ids, mask and types [3, L] of texts of several lengths, some with padding ids inside."""
    config, chance = theirs.config, torch.Generator().manual_seed(seed)
    lengths = torch.tensor([9, 1 + seed % 8, 5])
    keep = (torch.arange(9) < lengths[:, None]).long()
    ids = torch.randint(0, config.vocab_size, (3, 9), generator=chance)
    pad = config.pad_token_id or 0
    ids = ids.masked_fill(keep == 0, pad)
    types = torch.randint(0, getattr(config, "type_vocab_size", 1) or 1, (3, 9), generator=chance)
    return ids, keep, types * keep
