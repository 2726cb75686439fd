"""BERT: the layers first, then the model.

Letters as in attention.py: a hidden state is `[..., hidden]`, where `...` is `[B, L]` (padded) or
`[T]` (packed). Every attribute that holds parameters has the checkpoint's name, so a checkpoint's
names are the map of this file. Source: BERT: Pre-training of Deep Bidirectional Transformers, and
the classes of the same names in transformers' modeling_bert.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertcli.errors import LOG, ModelError
from bertcli.families.structure import Convolution
from bertcli.models.activation_layer import activation
from bertcli.models.attention import TO_ALL, Attend, bidirectional, causal, masked
from bertcli.models.calls import (
    LayerKernels,
    call_arguments,
    constructor_pooler,
    loading_options,
    refuse_other_config,
)
from bertcli.models.config import BertConfig
from bertcli.models.initial_weights import initialise, normal
from bertcli.models.norms import RMSNorm
from bertcli.models.outputs import EncoderOutput, ModelOutput, PastKeyValues
from bertcli.models.positions import (
    Distance,
    layer_distance,
    nothing_added,
    position_embeddings,
    rows_after_padding,
    shared_table,
)

if TYPE_CHECKING:
    from typing_extensions import Self

KV: TypeAlias = tuple[Tensor, Tensor]  # keys and values, each [..., H, D]
Kernels: TypeAlias = Attend | Sequence[Attend]  # one for all layers, or one per layer


# --- layers ---


def layer_norm(config: BertConfig, width: int | None = None) -> nn.Module:
    """Return the model's norm of vectors of this width, by default the hidden size."""
    structure = config.structure
    size = width or config.hidden_size
    if structure.rms_norm:
        return RMSNorm(size, config.layer_norm_eps, structure.norm_offset)
    return nn.LayerNorm(size, eps=config.layer_norm_eps, bias=structure.norm_bias)


def unchanged(x: Tensor) -> Tensor:
    """Return x: a layer that does nothing. As a function it is not shown by `print(model)`."""
    return x


def norm_if(
    has_norm: bool, config: BertConfig, width: int | None = None
) -> Callable[[Tensor], Tensor]:
    """Return a norm, by default of hidden states; `unchanged` if the model has none here."""
    return layer_norm(config, width) if has_norm else unchanged


def dropout(config: BertConfig, rate: float | None) -> nn.Dropout:
    """Return a dropout layer; a rate of None is that of hidden states."""
    return nn.Dropout(config.hidden_dropout_prob if rate is None else rate)


def absent(name: str) -> Callable[..., Tensor]:
    """Return a stand-in for a layer that the model lacks: a call raises ModelError."""

    def refuse(*inputs: object) -> Tensor:
        raise ModelError(f"this model has no {name}")

    return refuse


class CrossAttentionMemory(NamedTuple):
    """The encoder's keys and values for the cross-attention of one layer, and the kernel."""

    kv: KV
    attend: Attend


def extra_tables(sizes: Mapping[str, int], width: int) -> dict[str, nn.Module] | nn.ModuleDict:
    """Return an embedding table [size, width] for each name.

    Raises ModelError for a name that torch does not accept.
    """
    if not sizes:
        return {}
    tables: dict[str, nn.Module] = {}
    for name, size in sizes.items():
        tables[name] = nn.Embedding(size, width)
    try:
        return nn.ModuleDict(tables)
    except KeyError as error:  # an attribute of nn.ModuleDict has the name
        raise ModelError(f"invalid name in extra_embeddings: {error}") from None


class BertEmbeddings(nn.Module):
    """The sum of word, token type, position and any extra embeddings, normalised. Section 3.2."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.table_size
        structure = config.structure
        self.word_embeddings = nn.Embedding(config.vocab_size, width, config.pad_token_id)
        self.scale = structure.embedding_scale
        self.position_embeddings = position_embeddings(config)
        self.first_position = structure.first_position
        self.token_type_embeddings: Callable[[Tensor], Any] = nothing_added
        if structure.token_types:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.extra = extra_tables(config.extra_embeddings, width)
        self.LayerNorm = norm_if(structure.embedding_norm, config, width)
        self.dropout = dropout(config, structure.dropouts.embeddings)
        self.project: Callable[[Tensor], Tensor] = unchanged
        if structure.embedding_size is not None:
            self.project = nn.Linear(width, config.hidden_size)

    def forward(
        self,
        ids: Tensor,
        types: Tensor | None = None,
        at: Tensor | None = None,
        extra: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Embed ids [..., L], or use vectors [..., L, width] in place of the word embeddings.

        `types` (token types, by default 0), `at` (positions in the text, by default 0 to L-1) and
        each tensor of `extra` are [..., L]. `width` is that of the tables, in most models the
        hidden size. Raises ValueError unless `extra` has the names of the extra tables.
        """
        extra = extra or {}
        if set(extra) != set(self.extra):
            raise ValueError(f"extra ids for {sorted(self.extra)} expected, got {sorted(extra)}")
        words = ids if ids.is_floating_point() else self.words(ids)
        if types is None:
            types = torch.zeros((), dtype=torch.long, device=words.device)
        if at is None:
            at = torch.arange(words.shape[-2], device=words.device)
        if self.first_position:
            at = rows_after_padding(self.first_position - 1, ids, at)
        total = words + self.token_type_embeddings(types) + self.position_embeddings(at)
        for name, table in self.extra.items():
            total = total + table(extra[name])
        return self.project(self.dropout(self.LayerNorm(total.to(words.dtype))))

    def words(self, ids: Tensor) -> Tensor:
        """Return the word embeddings of ids [..., L], scaled in models that do so."""
        words: Tensor = self.word_embeddings(ids)
        if self.scale == 1:
            return words
        return words * torch.tensor(self.scale, dtype=words.dtype)  # rounded as the weights are


class BertSelfAttention(nn.Module):
    """Queries, keys and values of every head. Attention Is All You Need, section 3.2.2."""

    def __init__(
        self, config: BertConfig, heads: int | None = None, distance: Distance | None = None
    ) -> None:
        """Create the attention of this number of heads, by default that of the config."""
        super().__init__()
        structure = config.structure
        size = config.head_size
        bias = structure.attention_bias
        query_heads = config.num_attention_heads if heads is None else heads
        key_value_heads = structure.key_value_heads or query_heads
        self.head_size = size
        self.queries_per_key = query_heads // key_value_heads
        self.query = nn.Linear(config.hidden_size, query_heads * size, bias)
        self.key = nn.Linear(config.hidden_size, key_value_heads * size, bias)
        self.value = nn.Linear(config.hidden_size, key_value_heads * size, bias)
        self.query_LayerNorm = norm_if(structure.norm_heads, config, size)
        self.key_LayerNorm = norm_if(structure.norm_heads, config, size)
        self.distance_embedding = distance or Distance()
        self.distance_embedding.projections = {"query": self.query, "key": self.key}
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def heads(self, x: Tensor) -> Tensor:
        """Split [..., H*D] into [..., H, D]; H is computed, because pruning changes it."""
        return x.unflatten(-1, (-1, self.head_size))

    def kv(self, x: Tensor) -> KV:
        """Return the keys and the values of x [..., hidden], each [..., H, D]."""
        keys = self.key_LayerNorm(self.heads(self.key(x)))
        values = self.heads(self.value(x))
        return self.for_queries(keys), self.for_queries(values)

    def for_queries(self, x: Tensor) -> Tensor:
        """Repeat keys or values that several queries share: one per head, [..., H, D]."""
        if self.queries_per_key == 1:
            return x
        return x.repeat_interleave(self.queries_per_key, -2)

    def forward(self, x: Tensor, attend: Attend = TO_ALL, kv: KV | None = None) -> Tensor:
        """Attend from the tokens of x to `kv`, by default those of x; return [..., H*D]."""
        k, v = self.kv(x) if kv is None else kv
        drop = self.dropout.p if self.training else 0.0
        q = self.query_LayerNorm(self.heads(self.query(x)))
        return attend(q, k, v, self.distance_embedding, drop).flatten(-2)


class Residual(nn.Module):
    """A projection to the hidden size, a residual connection, and a norm if norms come last.

    Some models with norms before their blocks also have one of the projection.
    """

    def __init__(self, config: BertConfig, width: int, bias: bool, drop: float | None) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size, bias)
        self.branch_LayerNorm = norm_if(config.structure.norm_last, config)
        self.LayerNorm = norm_if(not config.structure.norm_first, config)
        self.dropout = dropout(config, drop)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """Project y [..., width] and add it to x [..., hidden]."""
        return self.LayerNorm(self.branch_LayerNorm(self.dropout(self.dense(y))) + x)


class BertSelfOutput(Residual):
    """The projection of the heads' output; `heads` is by default that of the config."""

    def __init__(self, config: BertConfig, heads: int | None = None) -> None:
        structure = config.structure
        width = (config.num_attention_heads if heads is None else heads) * config.head_size
        super().__init__(config, width, structure.attention_bias, structure.dropouts.attended)


class BertAttention(nn.Module):
    """An attention block: attend, project, add, normalise; or normalise first."""

    def __init__(
        self,
        config: BertConfig,
        heads: int | None = None,
        distance: Distance | None = None,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        self.LayerNorm = norm_if(norm_first, config)
        self.self = BertSelfAttention(config, heads, distance)
        self.output = BertSelfOutput(config, heads)

    def forward(self, x: Tensor, attend: Attend = TO_ALL, kv: KV | None = None) -> Tensor:
        """Map [..., hidden] to [..., hidden]."""
        return self.output(self.self(self.LayerNorm(x), attend, kv), x)


class BertIntermediate(nn.Module):
    """The first matrix of a feed-forward block, in some models with a gate.

    Source: GLU Variants Improve Transformer, equation 6.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        structure = config.structure
        sizes = (config.hidden_size, config.intermediate_size)
        bias = structure.feed_forward_bias[0]
        self.dense = nn.Linear(*sizes, bias)
        self.gate: nn.Linear | None = None
        if structure.gated:
            self.gate = nn.Linear(*sizes, bias)
            self.dropout = nn.Dropout(structure.dropouts.gated)
        self.intermediate_act_fn = activation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., hidden] to [..., intermediate]."""
        if self.gate is None:
            return self.intermediate_act_fn(self.dense(x))
        return self.dropout(self.intermediate_act_fn(self.gate(x)) * self.dense(x))


class BertOutput(Residual):
    """The second matrix of a feed-forward block."""

    def __init__(self, config: BertConfig) -> None:
        structure = config.structure
        bias = structure.feed_forward_bias[1]
        super().__init__(config, config.intermediate_size, bias, structure.dropouts.fed)


class BertLayer(nn.Module):
    """Attention, cross-attention in some decoders, feed-forward. Section 3."""

    def __init__(self, config: BertConfig, index: int = 0, table: nn.Module | None = None) -> None:
        """Create layer `index`; `table` is the table of distances that layers share, if any."""
        super().__init__()
        structure = config.structure
        norm_first = structure.norm_first and not (structure.embedding_norm and index == 0)
        distance = layer_distance(config, index, table)
        self.attention = BertAttention(config, config.heads(index), distance, norm_first)
        self.crossattention: Any = absent("cross-attention")
        if config.add_cross_attention:
            self.crossattention = BertAttention(config)
        self.LayerNorm = norm_if(structure.norm_first, config)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config)
        self.chunk_size = config.chunk_size_feed_forward  # tokens at a time, to save memory; 0: all

    def forward(
        self, x: Tensor, attend: Attend = TO_ALL, memory: CrossAttentionMemory | None = None
    ) -> Tensor:
        """Map [..., hidden] to [..., hidden]."""
        x = self.attention(x, attend)
        if memory is not None:
            x = self.crossattention(x, memory.attend, memory.kv)
        if not self.chunk_size:
            return self.feed_forward(x)
        return torch.cat([self.feed_forward(tokens) for tokens in x.split(self.chunk_size, -2)], -2)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Expand, activate, project, add; [..., hidden]."""
        return self.output(self.intermediate(self.LayerNorm(x)), x)


class ParallelConvolution(nn.Module):
    """A convolution over the embeddings, added to the output of the first layer.

    Source: ConvLayer in transformers' modeling_deberta_v2.py.
    """

    def __init__(self, config: BertConfig, convolution: Convolution) -> None:
        super().__init__()
        size = config.hidden_size
        self.conv = nn.Conv1d(size, size, convolution.size, groups=convolution.groups)
        self.LayerNorm = layer_norm(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.activation = activation(convolution.activation)

    def forward(self, output: Tensor, x: Tensor, at: Tensor | None, keep: Tensor | None) -> Tensor:
        """Add the convolution of x, the embeddings, to the `output` of the layer: [..., hidden].

        `at` and `keep` are as in `BertModel.states`; only tokens of the same text are convolved.
        """
        size = self.conv.kernel_size[0]
        tokens = torch.arange(x.shape[-2], device=x.device)
        at = tokens if at is None else at
        steps = torch.arange(size, device=x.device) - size // 2
        neighbours = (tokens[:, None] + steps).clamp(0, len(tokens) - 1)  # [L, size]
        in_same_text = at[..., neighbours] == at[..., None] + steps
        windows = x[..., neighbours, :] * in_same_text[..., None]  # [..., L, size, hidden]
        convolved = self.conv(windows.flatten(0, -3).transpose(-1, -2)).view(x.shape)
        mask = 1.0 if keep is None else keep[..., None].to(x.dtype)
        return self.LayerNorm(output + self.activation(self.dropout(convolved * mask))) * mask


class BertEncoder(nn.Module):
    """The stack of layers, and a last norm if norms come first.

    `order` has the index of the layer for each step, as layers may be repeated. `recompute = True`
    saves memory in training: activations are recomputed for the gradient.
    Source: Training Deep Nets with Sublinear Memory Cost, known as gradient checkpointing.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.order = config.structure.layer_groups or range(config.num_hidden_layers)
        table = shared_table(config)
        if table is not None:
            self.relative_attention_bias = table
        layers = (BertLayer(config, i, table) for i in range(config.distinct_layers))
        self.layer: Any = nn.ModuleList(layers)  # of BertLayer, which the type cannot express
        self.LayerNorm = norm_if(config.structure.norm_first, config)
        convolution = config.structure.convolution
        self.conv: ParallelConvolution | None = None
        if convolution:
            self.conv = ParallelConvolution(config, convolution)
        self.recompute = False

    def states(
        self,
        x: Tensor,
        kernels: Kernels,
        memories: Sequence[CrossAttentionMemory | None] | None = None,
        at: Tensor | None = None,
        keep: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Yield x and then the output of each layer. A layer runs when its output is requested.

        `at` and `keep` are as in `BertModel.states`; only the parallel convolution uses them.
        """
        attends = [kernels] * len(self.order) if callable(kernels) else kernels
        memories = [None] * len(self.order) if memories is None else memories
        yield x
        embeddings = x
        last_step = len(self.order) - 1
        for step, (index, attend, memory) in enumerate(
            zip(self.order, attends, memories, strict=True)
        ):
            layer = self.layer[index]
            if self.recompute:
                x = checkpoint(layer, x, attend, memory, use_reentrant=False)
            else:
                x = layer(x, attend, memory)
            if self.conv is not None and step == 0:
                x = self.conv(x, embeddings, at, keep)
            yield self.LayerNorm(x) if step == last_step else x


class BertPooler(nn.Module):
    """A tanh layer over the first token of a text, [CLS]. Section 3.1."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()

    def forward(self, hidden: Tensor) -> Tensor:
        """Map the states of texts [..., L, hidden] to [..., hidden].

        Raises ValueError for states [n, hidden], which are ambiguous: the tokens of one text, or
        the first tokens of several, which `pool_first` takes.
        """
        if hidden.ndim < 3:
            raise ValueError(
                f"states {[*hidden.shape]} are not [batch, length, hidden]: write "
                "pooler(states[None]) for one text, pooler.pool_first(states) for first tokens"
            )
        return self.pool_first(hidden[..., 0, :])

    def pool_first(self, first: Tensor) -> Tensor:
        """Map the states of first tokens [..., hidden] to [..., hidden]."""
        return self.activation(self.dense(first))


# --- models ---

VOCABULARY_PARAMETERS = (  # parameters with a row for each token of the vocabulary
    "word_embeddings.weight",
    "predictions.bias",
    "predictions.decoder.weight",
    "predictions.decoder.bias",
)


class Network(nn.Module):
    """The base of all models: they are called, loaded and saved as those of transformers."""

    config: BertConfig

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Call `forward`. Arguments have the names of `forward`, or those of transformers.

        Raises UsageError for an unsupported argument of transformers, with the line to write.
        """
        as_output = options.pop("return_dict", None)
        if as_output is None:
            as_output = self.config.other.get("return_dict", True)
        arguments = call_arguments(self.config, inputs, options, type(self).__name__)
        output: ModelOutput = super().__call__(**arguments)
        return output if as_output else output.to_tuple()

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> Self:
        """Load a model of this class, by the name of the model or the path of its folder.

        Options are those of `bertcli.load` or of transformers. `num_labels=3` loads a head with
        3 labels, initialised at random if the folder has none.
        """
        import bertcli

        config: BertConfig | None = options.pop("config", None)
        load_options, flags = loading_options(options, config, cls.__name__)
        loaded, report = bertcli.load(name, cls, **load_options)  # type: ignore[type-var]
        if report.fresh:
            LOG.warn(f"drawn at random, to be trained: {', '.join(report.fresh)}")
        if config is not None:
            refuse_other_config(config, loaded.config, cls.__name__)
        if flags:
            bert = getattr(loaded, "bert", loaded)
            use_cache = flags.pop("use_cache", bert.config.use_cache)
            other = dict(bert.config.other) | flags
            bert.config = replace(bert.config, use_cache=use_cache, other=other)
        return loaded

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the files of the model, as `bertcli.save` does."""
        import bertcli

        bertcli.save(self, self.config, folder)  # type: ignore[arg-type]

    def num_parameters(self, only_trainable: bool = False) -> int:
        """Return the number of weights; tied weights count once."""
        return sum(
            weight.numel()
            for weight in self.parameters()
            if weight.requires_grad or not only_trainable
        )

    @property
    def device(self) -> torch.device:
        """The device of the first weight."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The number format of the first weight."""
        return next(self.parameters()).dtype

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the word embeddings."""
        bert: Any = getattr(self, "bert", self)
        return bert.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the word embeddings, and set `config.vocab_size` to their number."""
        bert: Any = getattr(self, "bert", self)
        bert.embeddings.word_embeddings = value
        bert.config = replace(bert.config, vocab_size=value.num_embeddings)
        self.tie()

    @torch.no_grad()
    def resize_token_embeddings(self, size: int) -> nn.Embedding:
        """Resize the vocabulary; new rows are random, as before training."""
        bert: Any = getattr(self, "bert", self)
        for path, weight in list(self.named_parameters(remove_duplicate=False)):
            module_path, _, name = path.rpartition(".")
            if path.endswith(VOCABULARY_PARAMETERS):
                resized = weight.new_zeros(size, *weight.shape[1:])
                if weight.ndim > 1:
                    resized.normal_(std=self.config.initializer_range)
                resized[: len(weight)] = weight[:size]
                setattr(self.get_submodule(module_path), name, nn.Parameter(resized))
        bert.config = replace(bert.config, vocab_size=size)
        self.tie()
        word_embeddings = self.get_input_embeddings()
        word_embeddings.num_embeddings = size
        return word_embeddings

    def tie(self) -> None:
        """Tie weights again after they were replaced; models without tied weights do nothing."""


class BertModel(Network):
    """BERT: ids to hidden states, and the pooled state of [CLS]."""

    def __init__(self, config: BertConfig, pooler: bool = True, **options: Any) -> None:
        """Create a model with random weights; `pooler` is also called `add_pooling_layer`."""
        super().__init__()
        if options:
            pooler = constructor_pooler(pooler, options, type(self).__name__)
        config.refuse_unbuildable()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler: BertPooler | None = None
        if pooler and config.structure.pooler:
            self.pooler = BertPooler(config)
        self.direction = causal if config.is_decoder else bidirectional
        initialise(self, config.initializer_range, normal)

    def states(
        self,
        ids: Tensor,
        keep: Tensor | None = None,
        types: Tensor | None = None,
        at: Tensor | None = None,
        extra: Mapping[str, Tensor] | None = None,
        kernels: Kernels | None = None,
        memories: Sequence[CrossAttentionMemory | None] | None = None,
    ) -> Iterator[Tensor]:
        """Yield the embeddings, then the hidden states of each layer, [..., hidden], lazily.

        `ids`, `types`, `at` and `extra` are as in BertEmbeddings. `keep` [B, L] is 1 for tokens and
        0 for padding; `keep` [B, L, L] is 1 where a token may attend to another, and replaces the
        causal mask of a decoder. `kernels` replace the kernel for `keep`; ValueError for both.
        `memories` are for cross-attention, one per layer.
        """
        kernels_of = partial(masked, direction=self.direction)
        return self._states(ids, keep, types, at, extra, kernels, memories, kernels_of)

    def _states(
        self,
        ids: Tensor,
        keep: Tensor | None,
        types: Tensor | None,
        at: Tensor | None,
        extra: Mapping[str, Tensor] | None,
        kernels: Kernels | None,
        memories: Sequence[CrossAttentionMemory | None] | None,
        kernels_of: Callable[[Tensor | None], Kernels],
    ) -> Iterator[Tensor]:
        """Yield as `states` does; `kernels_of` returns the kernels for a mask if none are given."""
        if kernels is not None and keep is not None:
            raise ValueError("kernels have their own mask: pass `keep` to the kernel")
        x = self.embeddings(ids, types, at, extra)
        mask = keep
        if self.config.structure.blank_padding and keep is not None and keep.ndim < x.ndim:
            x = x * keep[..., None].to(x.dtype)
            mask = keep[..., None] * keep[..., None, :]  # padding attends to nothing
        kernels = kernels_of(mask) if kernels is None else kernels
        return self.encoder.states(x, kernels, memories, at, keep)

    def hidden(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the last hidden states, [..., hidden]; arguments as in `states`."""
        for state in self.states(*inputs, **options):
            last = state
        return last

    def pool_first(self, first: Tensor) -> Tensor:
        """Map the states of first tokens [..., hidden] to [..., hidden].

        Raises ModelError if the model has no pooler.
        """
        if self.pooler is None:
            raise ModelError("this model has no pooler")
        return self.pooler.pool_first(first)

    def forward(
        self,
        ids: Tensor,
        keep: Tensor | None = None,
        types: Tensor | None = None,
        at: Tensor | None = None,
        extra: Mapping[str, Tensor] | None = None,
        kernels: Kernels | None = None,
        memories: Sequence[CrossAttentionMemory | None] | None = None,
        *,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        head_mask: Tensor | None = None,
        past_key_values: PastKeyValues | None = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
    ) -> EncoderOutput:
        """Run all layers and the pooler.

        Arguments before the asterisk are as in `states`, the others as in transformers. Packed
        texts, [T, hidden], are not pooled.
        """
        layer_kernels = LayerKernels(
            len(self.encoder.order),
            self.direction,
            head_mask=head_mask,
            past_key_values=past_key_values,
            use_cache=use_cache and not (self.encoder.recompute and self.training),
            output_attentions=output_attentions,
        )
        if encoder_hidden_states is not None:
            kernel = layer_kernels.cross_kernel(encoder_attention_mask)
            memories = self.memories_of(encoder_hidden_states, kernel)
        if at is None and layer_kernels.past_length:
            at = torch.arange(ids.shape[1], device=ids.device) + layer_kernels.past_length
        states: list[Tensor] = []
        for state in self._states(ids, keep, types, at, extra, kernels, memories, layer_kernels):
            last = state
            if output_hidden_states:
                states.append(state)
        pooled = self.pooler(last) if self.pooler and last.ndim > 2 else None
        return EncoderOutput(
            last_hidden_state=last,
            pooler_output=pooled,
            hidden_states=tuple(states) or None,
            past_key_values=layer_kernels.past_key_values,
            attentions=layer_kernels.attentions,
            cross_attentions=layer_kernels.cross_attentions,
        )

    def memories_of(
        self, states: Tensor, kernel: Attend | None = None
    ) -> list[CrossAttentionMemory]:
        """Return the memory of each layer's cross-attention to an encoder's states [B, S, hidden].

        `kernel` has the mask of the encoder, as `padded(keep)` does. Raises ModelError if the model
        has no cross-attention.
        """
        if not self.config.add_cross_attention:
            raise ModelError(
                "this model has no cross-attention to read an encoder with",
                "write BertConfig(is_decoder=True, add_cross_attention=True)",
            )
        attend = kernel or TO_ALL
        blocks = (self.encoder.layer[index].crossattention.self for index in self.encoder.order)
        return [CrossAttentionMemory(block.kv(states), attend) for block in blocks]
