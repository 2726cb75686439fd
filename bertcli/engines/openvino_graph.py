"""The network in OpenVINO's own operations, made of a config and mapped weights; parts first.

It is the one of `models`, operation by operation: what a family has in place of BERT's parts is
told by the same `Structure`, and weights have their canonical names. Letters: `B` texts, `L` the
length of their rows, `H` heads, `D` the size of a head, `n` tokens or texts that are read. A hidden
state is [B, L, hidden].

    network = OpenvinoNetwork(read_weights(folder, "BertModel", pooler=False))
    graph = built(network, spec)     # a Model of OpenVINO, not compiled
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bertcli.engines.compute import OpenvinoError, openvino_core
from bertcli.families.structure import HEAD_PARTS
from bertcli.models.activations import ACTIVATIONS
from bertcli.models.distance_tables import distance_buckets, distance_rows, rotary_turns
from bertcli.tokenizing.batch import EXTRA

if TYPE_CHECKING:
    from bertcli.engines.engine import ModelSpec
    from bertcli.families.structure import Convolution, Disentangled
    from bertcli.model_folder.weights import Weights

Node: TypeAlias = Any  # an output of an operation of OpenVINO
Numbers: TypeAlias = "np.ndarray | list[int] | int | float"  # a constant

OPERATIONS = "opset15"
HIDDEN = -1e30  # added to the score of what is no token: its share of attention is 0
STORED_TYPES = {"float32": "f32", "float16": "f16", "uint16": "bf16"}  # NumPy's -> OpenVINO's
LOUD = "loud."  # in names of products that stay float32 where others are 8 bits
USUAL: Mapping[str, Mapping[str, Any]] = {  # attributes, unless others are given
    "Reshape": {"special_zero": True},  # 0 is the size that the axis has
    "MatMul": {"transpose_a": False, "transpose_b": True},
    "MVN": {"normalize_variance": True, "eps_mode": "inside_sqrt"},
    "ShapeOf": {"output_type": "i64"},
    "Range": {"output_type": "i64"},
    "ReduceSum": {"keep_dims": False},
    "ReduceMax": {"keep_dims": False},
    "ReduceMean": {"keep_dims": False},
    "ReduceProd": {"keep_dims": False},
}
# What a graph is given, int64 [B, L], and what those of others give.
IDS, MASK, TYPES = INPUTS = ("input_ids", "attention_mask", "token_type_ids")
STATES, LOGITS = "last_hidden_state", "logits"
READ = "read"  # a further input: which places of all rows are read, [n]


@dataclass
class OpenvinoNetwork:
    """What nodes are made with, of one model. Equal ones are made one by OpenVINO."""

    weights: Weights
    widened: dict[int, Node] = field(default_factory=dict)  # layer -> its units, [1, T, units]
    constants: dict[str, Node] = field(default_factory=dict)  # tensors of the file

    def __post_init__(self) -> None:
        self.core = openvino_core()
        self.config, self.structure = self.weights.config, self.weights.config.structure
        self.factory = self.core.NodeFactory(OPERATIONS)
        self.inputs: dict[str, Any] = {}
        names = INPUTS if self.structure.token_types else INPUTS[:2]
        inputs = {name: self.parameter(name, 2) for name in names}
        self.ids, self.mask, self.types = inputs[IDS], inputs[MASK], inputs.get(TYPES)
        self.real = self("Greater", self.mask, 0)  # whether others attend to a token, [B, L]

    def __call__(self, operation: str, *inputs: Node | Numbers, **attributes: object) -> Node:
        """Return the result of an operation; numbers among its inputs become constants."""
        nodes = [
            value if isinstance(value, self.core.Output) else self.constant(value)
            for value in inputs
        ]
        attributes = {**USUAL.get(operation, {}), **attributes}
        return self.factory.create(operation, nodes, attributes).output(0)

    def constant(self, value: Numbers) -> Node:
        """Return a constant: float32, or int64 for whole numbers."""
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        return self.core.op.Constant(array).output(0)

    def parameter(self, name: str, axes: int) -> Node:
        """Return an input of whole numbers."""
        shape = self.core.PartialShape([-1] * axes)
        self.inputs[name] = self.core.op.Parameter(self.core.Type.i64, shape)
        return named(self.inputs[name].output(0), name)

    def model(self, *outputs: Node) -> Any:
        """Return a model of OpenVINO, not compiled."""
        return self.core.Model([*outputs], [*self.inputs.values()])

    # --- weights ---

    def has(self, name: str) -> bool:
        """Tell whether the model has this tensor."""
        return name in self.weights.arrays

    def stored(self, name: str) -> Node:
        """Return a tensor as the file has it: its memory is that of the mapped file."""
        if name not in self.constants:
            array = self.weights.arrays[name]
            kind = getattr(self.core.Type, STORED_TYPES[array.dtype.name])
            tensor = self.core.Tensor(array, self.core.Shape(array.shape), kind)
            self.constants[name] = self.core.op.Constant(tensor, shared_memory=True).output(0)
        return self.constants[name]

    def float32(self, node: Node) -> Node:
        """Return numbers of any format as float32."""
        if node.get_element_type() == self.core.Type.f32:
            return node
        return self("Convert", node, destination_type="f32")

    def weight(self, name: str) -> Node:
        """Return a tensor as float32."""
        return self.float32(self.stored(name))

    # --- of a batch ---

    @cached_property
    def row(self) -> Node:
        """The places in a row, [L]."""
        size = self("Gather", self("ShapeOf", self.ids), 1, 0)
        return self("Range", 0, size, 1)

    @cached_property
    def apart(self) -> Node:
        """How far each query stands behind each key, [L, L]."""
        return self("Subtract", self("Unsqueeze", self.row, 1), self.row)

    def of_distances(self, table: np.ndarray) -> Node:
        """Return what a table has for each query and key, [L, L]; its middle is the distance 0.

        Those that are further apart than it says are as the furthest that it has.
        """
        furthest = len(table) // 2
        near = self("Maximum", self("Minimum", self.apart, furthest), -furthest)
        return self("Gather", table, self("Add", near, furthest), 0)

    @cached_property
    def bucket_scores(self) -> Node:
        """The score of each distance, [H, L, L], from the table that layers share."""
        weight = self.weight("bert.encoder.relative_attention_bias.weight")
        scores = self("Gather", weight, self.of_distances(distance_buckets()), 0)
        return self("Transpose", scores, [2, 0, 1])


def named(node: Node, name: str) -> Node:
    """Name an input or an output of a graph."""
    node.get_tensor().set_names({name})
    node.get_node().set_friendly_name(name)
    return node


# --- operations on the last axis ---


def linear(net: OpenvinoNetwork, x: Node, name: str) -> Node:
    """Map [..., in] to [..., out]."""
    y = net("MatMul", x, net.weight(f"{name}.weight"))
    if LOUD in name:
        y.get_node().set_friendly_name(name)
    return net("Add", y, net.weight(f"{name}.bias")) if net.has(f"{name}.bias") else y


def layer_norm(net: OpenvinoNetwork, x: Node, name: str) -> Node:
    """Normalise each vector. Source: Layer Normalization, equation 4."""
    eps = net.config.layer_norm_eps
    x = net("MVN", x, [-1], eps=eps)
    x = net("Multiply", x, net.weight(f"{name}.weight"))
    return net("Add", x, net.weight(f"{name}.bias")) if net.has(f"{name}.bias") else x


def activated(net: OpenvinoNetwork, x: Node, name: object) -> Node:
    """Apply the function that config.json calls `hidden_act`."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise OpenvinoError(f"the CPU engine has no function {name!r} (hidden_act)")
    return ACTIVATIONS[name].openvino(net, x)


# --- embeddings ---


def lookup(net: OpenvinoNetwork, name: str, ids: Node) -> Node:
    """Return the rows of a table for ids [..., L]; the table stays as it is stored."""
    return net.float32(net("Gather", net.stored(f"{name}.weight"), ids, 0))


def embeddings(net: OpenvinoNetwork) -> Node:
    """Sum the embeddings of words, token types, places and extra ids, and normalise."""
    start, config, structure = "bert.embeddings", net.config, net.structure
    x = lookup(net, f"{start}.word_embeddings", net.ids)
    if structure.token_types:
        x = net("Add", x, lookup(net, f"{start}.token_type_embeddings", net.types))
    if structure.absolute_positions:
        match config.position_embedding_type:
            case "absolute":
                places = table_places(net)
                x = net("Add", x, lookup(net, f"{start}.position_embeddings", places))
            case "sinusoidal":
                waves = sinusoids(config.table_size, config.most_tokens)
                x = net("Add", x, net("Gather", waves, net.row, 0))
    for name in config.extra_embeddings:
        ids = net.parameter(f"{EXTRA}{name}", 2)
        x = net("Add", x, lookup(net, f"{start}.extra.{name}", ids))
    x = layer_norm(net, x, f"{start}.LayerNorm")
    return x if structure.embedding_size is None else linear(net, x, f"{start}.project")


def table_places(net: OpenvinoNetwork) -> Node:
    """Return the rows of the table of positions, [L] or [B, L]; padding ids do not count.

    As `after_padding` in models/positions.py.
    """
    if not net.structure.first_position:
        return net.row
    padding = net.structure.first_position - 1
    real = net("Select", net("Equal", net.ids, padding), 0, 1)
    place = net("Multiply", net("CumSum", real, 1, exclusive=False, reverse=False), real)
    return net("Add", place, padding)


def sinusoids(width: int, places: int) -> np.ndarray:
    """Return the waves of each place, [places, width], sine and cosine alternating."""
    number, place = np.arange(width), np.arange(places, dtype=np.float32)[:, None]
    exponent = (number // 2 * 2).astype(np.float32) / np.float32(width)
    angles = place / np.float32(10000) ** exponent
    return np.where(number % 2, np.cos(angles), np.sin(angles))


# --- attention ---


def self_attention(net: OpenvinoNetwork, layer: int, x: Node) -> Node:
    """Attend from x [B, L, hidden] to the tokens of the same texts, [B, L, H*D]."""
    name = f"bert.encoder.layer.{layer}.attention.self"
    heads, size = net.config.heads(layer), net.config.head_size

    def of_heads(part: str) -> Node:  # -> [B, H, L, D]
        split = net("Reshape", linear(net, x, f"{name}.{part}"), [0, 0, heads, size])
        return net("Transpose", split, [0, 2, 1, 3])

    q, k, v = map(of_heads, ("query", "key", "value"))
    q, k, near = placed(net, layer, q, k)
    bias = attention_bias(net, layer, near)
    mixed = net("ScaledDotProductAttention", q, k, v, bias, causal=False)
    return net("Reshape", net("Transpose", mixed, [0, 2, 1, 3]), [0, 0, heads * size])


def attention_bias(net: OpenvinoNetwork, layer: int, near: Node | float) -> Node:
    """Return what is added to scores [B, H, L, L]: that of distances, and HIDDEN for no token.

    The latter is not added to that of distances, but stands in for it: 8 bits would round what is
    added. Attention without a bias is computed wrongly from 16 tokens on (OpenVINO 2026.4).
    """
    windows = net.structure.windows
    reach = windows[layer] if windows else None
    seen = net("Unsqueeze", net.real, [1, 2])  # [B, 1, 1, L]
    if net.config.is_decoder:
        seen = net("LogicalAnd", seen, net("GreaterEqual", net.apart, 0))
    if reach is not None:
        close = net("LessEqual", net("Abs", net.apart), reach)
        seen = net("LogicalAnd", seen, close)
    return net("Select", seen, near, HIDDEN)


def placed(net: OpenvinoNetwork, layer: int, q: Node, k: Node) -> tuple[Node, Node, Node | float]:
    """Return queries and keys [B, H, L, D] as places turn them, and what is added to their scores.

    As in models/positions.py.
    """
    structure, config = net.structure, net.config
    name = f"bert.encoder.layer.{layer}.attention.self.distance_embedding"
    if structure.disentangled:
        scores = disentangled_scores(net, structure.disentangled, name, q, k)
        return net("Multiply", q, 1 / math.sqrt(structure.disentangled.parts)), k, scores
    if structure.buckets:
        return q, k, net.bucket_scores
    if structure.rotary:
        turns = rotary_turns(config.head_size, structure.rotary[layer])
        return rotated(net, q, turns), rotated(net, k, turns), 0.0
    if config.position_embedding_type in ("relative_key", "relative_key_query"):
        rows = net("Add", net.apart, config.max_position_embeddings - 1)
        between = net("Gather", net.weight(f"{name}.weight"), rows, 0)
        between = net("Divide", between, math.sqrt(config.head_size))  # [L, L, D]
        scores = net("Einsum", q, between, equation="bhid,ijd->bhij")
        if config.position_embedding_type == "relative_key_query":
            of_keys = net("Einsum", k, between, equation="bhjd,ijd->bhij")
            scores = net("Add", scores, of_keys)
        return q, k, scores
    return q, k, 0.0


def rotated(net: OpenvinoNetwork, x: Node, turns: np.ndarray) -> Node:
    """Turn [B, H, L, D] by angles that grow with the place."""
    half = net.config.head_size // 2
    places = net.float32(net("Unsqueeze", net.row, 1))
    angles = net("Multiply", places, np.tile(turns, 2)[None])
    signs = np.repeat([-1.0, 1.0], half)
    cos, sin = net("Cos", angles), net("Multiply", net("Sin", angles), signs)  # [L, D]
    swapped = net("Gather", x, np.roll(np.arange(2 * half), half), 3)
    return net("Add", net("Multiply", x, cos), net("Multiply", swapped, sin))


def disentangled_scores(
    net: OpenvinoNetwork,
    disentangled: Disentangled,
    name: str,
    q: Node,
    k: Node,
) -> Node:
    """Return the scores of queries and keys with the distances between them, [B, H, L, L]."""
    rows = net.of_distances(distance_rows(disentangled))  # [L, L]
    total: Node = 0.0
    for part, x, used in (
        ("key", q, disentangled.word_to_distance),
        ("query", k, disentangled.distance_to_word),
    ):
        if not used:
            continue
        vectors = distance_vectors(net, disentangled, name, part)  # [H, 2 span, D]
        met = net("MatMul", x, vectors)  # [B, H, L, 2 span]
        index = rows if part == "key" else net("Transpose", rows, [1, 0])
        sizes = net("Gather", net("ShapeOf", met), [0, 1], 0), net("ShapeOf", index)
        shape = net("Concat", *sizes, axis=0)
        scores = net("GatherElements", met, net("Broadcast", index, shape), axis=3)
        if part == "query":
            scores = net("Transpose", scores, [0, 1, 3, 2])
        total = net("Add", total, scores)
    return net("Multiply", total, 1 / math.sqrt(net.config.head_size * disentangled.parts))


def distance_vectors(
    net: OpenvinoNetwork, disentangled: Disentangled, name: str, part: str
) -> Node:
    """Return the keys or queries of distances, [H, 2 span, D]."""
    table = "bert.encoder.relative_attention_bias"
    x = net.weight(f"{table}.table.weight")
    if disentangled.norm:
        x = layer_norm(net, x, f"{table}.LayerNorm")
    maker = name.rpartition(".")[0] if disentangled.shared else name
    x = net("Reshape", linear(net, x, f"{maker}.{part}"), [0, -1, net.config.head_size])
    return net("Transpose", x, [1, 0, 2])


# --- layers ---


def feed_forward(net: OpenvinoNetwork, layer: int, x: Node) -> Node:
    """Expand [..., hidden], activate, project back; loud units apart, where some are."""
    name, act = f"bert.encoder.layer.{layer}", net.config.hidden_act

    def through(units: str) -> Node:
        wide = linear(net, x, f"{name}.{units}intermediate.dense")
        if net.structure.gated:
            gate = linear(net, x, f"{name}.{units}intermediate.gate")
            wide = net("Multiply", activated(net, gate, act), wide)
        else:
            wide = activated(net, wide, act)
        net.widened[layer] = wide
        return linear(net, wide, f"{name}.{units}output.dense")

    apart = net.has(f"{name}.{LOUD}output.dense.weight")
    return net("Add", through(""), through(LOUD)) if apart else through("")


def encoder_layer(net: OpenvinoNetwork, layer: int, x: Node) -> Node:
    """Run a layer for x [B, L, hidden]."""
    name, before = f"bert.encoder.layer.{layer}", net.structure.norm_first

    def normed(y: Node, part: str, here: bool) -> Node:
        return layer_norm(net, y, f"{name}.{part}") if here else y

    inner = normed(x, "attention.LayerNorm", before and layer > 0)
    mixed = self_attention(net, layer, inner)
    x = net("Add", linear(net, mixed, f"{name}.attention.output.dense"), x)
    x = normed(x, "attention.output.LayerNorm", not before)
    fed = feed_forward(net, layer, normed(x, "LayerNorm", before))
    return normed(net("Add", fed, x), "output.LayerNorm", not before)


def convolved(net: OpenvinoNetwork, x: Node, after: Node, beside: Convolution) -> Node:
    """Add what the neighbours of a token in x [B, L, hidden] say to ``after``, the layer's result.

    Source: ConvLayer in transformers' modeling_deberta_v2.py.
    """
    name, pad = "bert.encoder.conv", beside.size // 2
    x = net("Select", net("Unsqueeze", net.real, 2), x, 0.0)
    weight = net.weight(f"{name}.conv.weight")  # [hidden, hidden / groups, size]
    hidden = net.config.hidden_size // beside.groups
    grouped = net("Reshape", weight, [beside.groups, hidden, hidden, beside.size])
    attributes = {"strides": [1], "pads_begin": [pad], "pads_end": [pad], "dilations": [1]}
    mixed = net("Transpose", x, [0, 2, 1])
    mixed = net("GroupConvolution", mixed, grouped, auto_pad="explicit", **attributes)
    mixed = net("Add", net("Transpose", mixed, [0, 2, 1]), net.weight(f"{name}.conv.bias"))
    mixed = activated(net, mixed, beside.activation)
    return layer_norm(net, net("Add", after, mixed), f"{name}.LayerNorm")


def states(net: OpenvinoNetwork, layers: Sequence[int]) -> list[Node]:
    """Return the states of layers, counted from 0, the embeddings: [B, L, hidden].

    Layers above the last one that is asked for are not run.
    """
    order = net.structure.layer_groups or range(net.config.num_hidden_layers)
    x, beside = embeddings(net), net.structure.convolution
    of_layers = [x]
    for place in range(max(layers)):
        whole, x = x, encoder_layer(net, order[place], x)
        if beside and not place:
            x = convolved(net, whole, x, beside)
        of_layers.append(x)
    if net.structure.norm_first and max(layers) == len(order):
        of_layers[-1] = layer_norm(net, x, "bert.encoder.LayerNorm")
    return [of_layers[layer] for layer in layers]


# --- what is read off the model ---


def means(net: OpenvinoNetwork, x: Node) -> Node:
    """Return the mean of each text's tokens, [B, D], of [B, L, D]."""
    real = net("Unsqueeze", net.real, 2)
    total = net("ReduceSum", net("Select", real, x, 0.0), [1])
    lengths = net("ReduceSum", net.mask, [1])
    return net("Divide", total, net.float32(net("Unsqueeze", lengths, 1)))


def pooler(net: OpenvinoNetwork, x: Node) -> Node:
    """Apply a tanh layer to first tokens [n, hidden]. Section 3.1 of BERT."""
    return net("Tanh", linear(net, x, "bert.pooler.dense"))


def word_scores(net: OpenvinoNetwork, x: Node) -> Node:
    """Score every word of the vocabulary, [..., vocabulary]."""
    name, words = "cls.predictions", net.structure.word_head
    x = linear(net, x, f"{name}.transform.dense")
    x = activated(net, x, words.activation or net.config.hidden_act)
    x = layer_norm(net, x, f"{name}.transform.LayerNorm")
    return linear(net, x, f"{name}.decoder")


def logits(net: OpenvinoNetwork, x: Node) -> Node:
    """Turn the states [..., hidden] of what is judged into what the class scores, [..., n]."""
    kind = net.weights.kind
    parts = HEAD_PARTS[kind]
    if parts.words:
        return word_scores(net, x)
    if own := net.structure.own_layer(parts):
        x = activated(net, linear(net, x, "classifier_head.dense"), own.activation)
        x = layer_norm(net, x, "classifier_head.LayerNorm") if own.norm else x
    elif parts.pooler:
        x = pooler(net, x)
    if kind == "BertForReplacedTokens":
        x = linear(net, x, "discriminator_predictions.dense")
        x = activated(net, x, net.config.hidden_act)
    x = linear(net, x, parts.scores) if parts.scores else x
    return net("Squeeze", x, [-1]) if parts.outputs == 1 else x


# --- the whole ---


def built(net: OpenvinoNetwork, spec: ModelSpec, stored: Node | None = None) -> Any:
    """Return the graph of a model and what is read off each layer, as it is in `spec`: [n, ...].

    ``stored`` are the last states, or the logits, where a file has the graph and not the weights.
    """
    reading = spec.reading
    layers: list[Node] = [stored]
    if stored is None:
        layers = states(net, reading.indices(net.config.num_hidden_layers))
    if stored is None or not reading.single or spec.kind == "BertModel":  # no logits of texts
        if reading.mean:
            layers = [means(net, x) for x in layers]
        else:
            places = net.parameter(READ, 1)
            width = [size.get_length() for size in list(layers[0].get_partial_shape())[2:]]
            layers = [net("Gather", net("Reshape", x, [-1, *width]), places, 0) for x in layers]
    if spec.pooler:
        layers = [pooler(net, x) for x in layers]
    return net.model(*layers if stored is not None else (logits(net, x) for x in layers))
