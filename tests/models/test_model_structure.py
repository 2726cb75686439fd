"""Places where encoders differ from BERT, each against the model of transformers that has it."""

from dataclasses import replace

import pytest
import torch
import transformers
from model_reference import TINY, close, randomise, texts, tiny

from bertcli.errors import ModelError
from bertcli.families.structure import Disentangled, Rotary, Structure
from bertcli.models.attention import packed, padded, recording
from bertcli.models.bert import BertModel
from bertcli.models.decoder import Decoder
from bertcli.models.forward_passes import positions
from bertcli.models.surgery import prepare

THREE = (Rotary(100.0), Rotary(10_000.0, 2.0), Rotary(7.0))
SCHEMES = {
    "rotary": Structure(rotary=THREE, absolute_positions=False),
    "windows": Structure(rotary=THREE, windows=(None, 2, 0), absolute_positions=False),
    "buckets": Structure(buckets=32),
}


FUSED = {
    "attn.Wqkv": [("attn.Wqkv", f"attention.self.{part}") for part in ("query", "key", "value")],
    "mlp.Wi": [("mlp.Wi", f"intermediate.{part}") for part in ("gate", "dense")],
}
PROJECTIONS = [("self_attn.q_proj", "attention.self.query")]
PROJECTIONS += [("self_attn.k_proj", "attention.self.key")]
PROJECTIONS += [("self_attn.v_proj", "attention.self.value")]
PROJECTIONS += [("self_attn.o_proj", "attention.output.dense"), ("layers.", "encoder.layer.")]
PROJECTIONS += [("post_attention_layernorm", "attention.output.LayerNorm")]
PROJECTIONS += [("post_mlp_layernorm", "output.LayerNorm")]
GATED = [("mlp.gate_proj", "intermediate.gate"), ("mlp.up_proj", "intermediate.dense")]
GATED += [("mlp.down_proj", "output.dense")]


def model_of(structure, seed=0, **changes):
    return randomise(BertModel(replace(tiny(**changes), structure=structure)), seed).eval()


def theirs(name, **changes):
    """A random model of transformers without BERT's names, and what is the same in its config."""
    config = getattr(transformers, f"{name}Config")(**{**TINY, **changes})
    config._attn_implementation = "eager"
    return randomise(getattr(transformers, f"{name}Model")(config)).eval()


def copied(ours, their, names):
    """Load their weights into ours: `names` are (their part, our part) of names."""
    state = {}
    for name, weight in their.state_dict().items():
        for old, new in names:
            name = name.replace(old, new)
        parts = [one for key in sorted(FUSED) if key in name for one in FUSED[key]]
        for part, rows in zip(parts, weight.chunk(max(1, len(parts))), strict=False):
            state[name.replace(*part)] = rows
        if not parts:
            state[name] = weight
    missing = {name for name in set(ours.state_dict()) - set(state) if "pooler" not in name}
    assert missing <= {"embeddings.token_type_embeddings.weight"}, missing
    ours.load_state_dict(state, strict=False)
    ours.embeddings.token_type_embeddings.weight.data *= not missing
    return ours


def same(ours, their, ids, keep, at=None):
    """Compare hidden states and attentions, padded, alone and packed."""
    found = their(ids, keep, output_hidden_states=True, output_attentions=True)
    maps = []
    real = keep.bool()
    states = list(ours.states(ids, at=at, kernels=recording(maps, keep)))
    for mine, other in zip(states, found.hidden_states, strict=True):
        close(mine[real], other[real])
    for mine, other in zip(maps, found.attentions, strict=True):
        close(mine.transpose(1, 2)[real], other.transpose(1, 2)[real])
    close(ours(ids, keep, at=at)[real], states[-1][real])
    lengths = keep.sum(1).tolist()
    shifted = positions(lengths) + (0 if at is None else at[0, 0])
    close(ours(ids[real], at=shifted, kernels=packed(lengths)), states[-1][real])


def first_of(model, ids, keep):
    """Compare the first token alone."""
    *_, x, last = model.states(ids, keep)
    first = model.encoder.some(2, x[:, :1], padded(keep, at=0), x)
    close(first, last[:, :1], 1e-6)


@torch.no_grad()
def test_buckets_of_distances_are_those_of_mpnet():
    ids, keep, _ = texts(3, 300)
    at = torch.arange(300).expand(3, -1) + 2
    ids = ids.clamp(min=2) * keep + 1 - keep
    their = theirs("MPNet", max_position_embeddings=310, pad_token_id=1)
    ours = model_of(Structure(buckets=32), max_position_embeddings=310)
    names = [("attention.attn.q.", "attention.self.query."), (".attn.k.", ".self.key.")]
    names += [(".attn.v.", ".self.value."), (".attn.o.", ".output.dense.")]
    names += [("attention.LayerNorm", "attention.output.LayerNorm")]
    same(copied(ours, their, names), their, ids, keep, at)


@pytest.mark.parametrize("scaling", [1.0, 3.0])
@torch.no_grad()
def test_rotary_positions_are_those_of_jina(scaling):
    kind = {"rope_type": "default"} if scaling == 1 else {"rope_type": "linear", "factor": scaling}
    rope = {**kind, "rope_theta": 500.0}
    their = theirs("JinaEmbeddingsV3", rope_parameters=rope, pad_token_id=0)
    rotary = (Rotary(500.0, scaling),) * 3
    ours = model_of(Structure(rotary=rotary, absolute_positions=False), layer_norm_eps=1e-5)
    names = [*PROJECTIONS, ("mlp.fc1", "intermediate.dense"), ("mlp.fc2", "output.dense")]
    ids, keep, _ = texts(3, 200)
    same(copied(ours, their, names), their, ids.clamp(1) * keep, keep)


@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_norms_first_and_gates_are_those_of_modernbert(bias):
    more = {"norm_bias": bias, "attention_bias": bias, "mlp_bias": bias, "layer_norm_eps": 1e-5}
    more |= {"local_attention": 8, "global_rope_theta": 300.0, "local_rope_theta": 20.0}
    their = theirs("ModernBert", pad_token_id=0, **more)
    structure = Structure(
        absolute_positions=False,
        norm_first=True,
        norm_bias=bias,
        attention_bias=bias,
        gated=True,
        feed_forward_bias=(bias, bias),
        rotary=(Rotary(300.0), Rotary(20.0), Rotary(20.0)),
        windows=(None, 4, 4),
    )
    ours = model_of(structure, layer_norm_eps=1e-5)
    names = [("layers.", "encoder.layer."), ("tok_embeddings", "word_embeddings")]
    names += [("embeddings.norm", "embeddings.LayerNorm"), ("attn.Wo", "attention.output.dense")]
    names += [("attn_norm", "attention.LayerNorm"), ("mlp_norm", "LayerNorm")]
    names += [("mlp.Wo", "output.dense"), ("final_norm", "encoder.LayerNorm")]
    ids, keep, _ = texts(3, 40)
    ids = ids.clamp(1) * keep
    ours = copied(ours, their, names)
    same(ours, their, ids, keep)
    first_of(ours, ids, keep)
    before = ours(ids, keep)
    prepare(ours, torch.device("cpu"))
    close(ours(ids, keep), before)


@pytest.mark.parametrize("name", ["NomicBert", "Gte"])
@torch.no_grad()
def test_gates_behind_norms_are_those_of_nomic_and_gte(name):
    their = theirs(name, rope_parameters={"rope_type": "default", "rope_theta": 80.0})
    nomic = name == "NomicBert"
    structure = Structure(
        absolute_positions=False,
        attention_bias=not nomic,
        gated=True,
        feed_forward_bias=(False, not nomic),
        rotary=(Rotary(80.0),) * 3,
    )
    ours = model_of(structure, layer_norm_eps=1e-12, hidden_act=their.config.hidden_act)
    ids, keep, _ = texts(3, 40)
    ids = ids.clamp(1) * keep
    ours = copied(ours, their, PROJECTIONS + GATED)
    same(ours, their, ids, keep)
    before = ours(ids, keep)
    prepare(ours, torch.device("cpu"))
    close(ours(ids, keep), before)


@pytest.mark.parametrize("buckets", [0, 8])
@pytest.mark.parametrize("kinds", [["c2p", "p2c"], ["c2p"], ["p2c"], []])
@pytest.mark.parametrize("shared", [False, True])
@torch.no_grad()
def test_disentangled_scores_are_those_of_deberta(buckets, kinds, shared):
    more = {"position_buckets": buckets or -1, "pos_att_type": kinds, "share_att_key": shared}
    more |= {"norm_rel_ebd": "layer_norm" if buckets else "none", "relative_attention": True}
    more |= {"position_biased_input": False, "max_relative_positions": 20}
    their = theirs("DebertaV2", layer_norm_eps=1e-7, **more)
    word, distance = "c2p" in kinds, "p2c" in kinds
    said = Disentangled(buckets or 20, 20, bool(buckets), word, distance, shared, bool(buckets))
    structure = Structure(absolute_positions=False, disentangled=said)
    ours = model_of(structure, layer_norm_eps=1e-7)
    own = "self.distance_embedding"
    names = [("encoder.rel_embeddings", "encoder.relative_attention_bias.table")]
    names += [("encoder.LayerNorm", "encoder.relative_attention_bias.LayerNorm")]
    names += [("self.pos_key_proj", f"{own}.key"), ("self.pos_query_proj", f"{own}.query")]
    names += [("_proj", "")]
    ids, keep, _ = texts(3, 60)
    ids = ids.clamp(1) * keep
    ours = copied(ours, their, names)
    same(ours, their, ids, keep)
    first_of(ours, ids, keep)
    before = ours(ids, keep)
    prepare(ours, torch.device("cpu"))
    close(ours(ids, keep), before)


@torch.no_grad()
def test_a_window_is_the_mask_of_its_neighbours():
    model = model_of(SCHEMES["windows"])
    ids, keep, _ = texts()
    near = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    kernels = [padded(keep)]
    kernels += [padded(keep[:, None] * (near <= reach)) for reach in (2, 0)]
    whole = model_of(SCHEMES["rotary"])
    close(model(ids, keep)[keep.bool()], whole(ids, kernels=kernels)[keep.bool()])


@pytest.mark.parametrize("scheme", SCHEMES)
@torch.no_grad()
def test_the_first_token_alone_and_step_by_step(scheme):
    model = model_of(SCHEMES[scheme])
    ids, keep, _ = texts()
    first_of(model, ids, keep)
    model = model_of(SCHEMES[scheme], is_decoder=True)
    decode = Decoder(model)
    close(torch.cat([decode(one) for one in ids.split(1, dim=1)], 1), model(ids))


def test_odd_heads_cannot_be_turned():
    with pytest.raises(ModelError, match="even head size, not 3"):
        model_of(SCHEMES["rotary"], hidden_size=12)
