"""The network as an OpenVINO graph, built from a config and mapped weights.

The operations are those of `models`. Differences of a family come from the same `Structure`, and
weights have their canonical names.

The tokens of a batch are packed, [T], or padded, [B, L], as in exported graphs. Their hidden states
are [T, hidden] or [B, L, hidden], here [..., hidden]. Attention pads packed tokens: each text has
`K` slots, in a padded graph `K` = `L`. Other letters: `B` texts, `H` heads, `D` head size, `n`
tokens or texts whose states are read.

    network = OpenvinoNetwork(read_weights(folder, "BertModel", pooler=False), is_packed=True)
    graph = build_graph(network, spec)     # openvino.Model, not compiled
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
from bertcli.models.distance_tables import distance_buckets, distance_rows, rotary_frequencies
from bertcli.tokenizing.batch import EXTRA

if TYPE_CHECKING:
    from bertcli.engines.engine import ModelSpec
    from bertcli.families.structure import Convolution, Disentangled, TextHead
    from bertcli.model_folder.weights import Weights

Node: TypeAlias = Any  # an output of an operation of OpenVINO
Numbers: TypeAlias = "np.ndarray | list[int] | int | float"  # a constant

OPERATIONS = "opset15"
MASKED_SCORE = -1e30  # for padding: its attention probability is 0
ELEMENT_TYPES = {"float32": "f32", "float16": "f16", "uint16": "bf16"}  # NumPy -> OpenVINO
# In names of the matrix products that stay float32 in a model of 8 bits: those of outlier channels.
OUTLIERS = "loud."
DEFAULT_ATTRIBUTES: Mapping[str, Mapping[str, Any]] = {  # of operations
    "Reshape": {"special_zero": True},  # 0 keeps the size of the axis
    "MatMul": {"transpose_a": False, "transpose_b": True},
    "MVN": {"normalize_variance": True, "eps_mode": "inside_sqrt"},
    "ShapeOf": {"output_type": "i64"},
    "Range": {"output_type": "i64"},
    "ReduceSum": {"keep_dims": False},
    "ReduceMax": {"keep_dims": False},
    "ReduceMean": {"keep_dims": False},
    "ReduceProd": {"keep_dims": False},
}
# Names of the inputs of a graph, int64. Those of tokens are [T], or [B, L] if padded.
IDS = "input_ids"
TYPES = "token_type_ids"
MASK = "attention_mask"  # [B, L]: not 0 for tokens; of a padded graph
READ = "read"  # [n]: indices of the tokens whose states are read, in [T] or [B * L]
# Of packed graphs only:
POSITIONS = "positions"  # [T]
SLOTS = "slots"  # [B, K]: the index of the token in each slot, any index in an empty slot
SLOTS_OF_TOKENS = "slots_of_tokens"  # [T]: the index of each token's slot in [B * K]
ATTENDED = "attended"  # [B]: number of tokens per text, from the first, that are attended to
# Names of the outputs of exported graphs.
STATES = "last_hidden_state"
LOGITS = "logits"


@dataclass
class OpenvinoNetwork:
    """Creates the nodes of a model's graph. OpenVINO merges equal nodes when it compiles."""

    weights: Weights
    is_packed: bool = False
    wide_activations: dict[int, Node] = field(
        default_factory=dict
    )  # layer -> activations [..., units]
    constants: dict[str, Node] = field(default_factory=dict)  # tensors of the file, by name

    def __post_init__(self) -> None:
        self.core = openvino_core()
        self.config = self.weights.config
        self.structure = self.config.structure
        self.factory = self.core.NodeFactory(OPERATIONS)
        self.inputs: dict[str, Any] = {}
        self.ids = self.token_parameter(IDS)
        self.types: Node | None = None
        if self.structure.token_types:
            self.types = self.token_parameter(TYPES)
        if self.is_packed:
            self.slots = self.parameter(SLOTS, 2)
            self.slots_of_tokens = self.parameter(SLOTS_OF_TOKENS, 1)
            self.positions = self.parameter(POSITIONS, 1)
            attended = self("Unsqueeze", self.parameter(ATTENDED, 1), 1)
            self.is_attended = self("Less", self.slot_positions, attended)
        else:
            self.positions = self.slot_positions
            self.is_attended = self("Greater", self.parameter(MASK, 2), 0)

    def __call__(self, operation: str, *inputs: Node | Numbers, **attributes: object) -> Node:
        """Return the output of an operation; inputs that are numbers become constants."""
        nodes = [
            value if isinstance(value, self.core.Output) else self.constant(value)
            for value in inputs
        ]
        attributes = dict(DEFAULT_ATTRIBUTES.get(operation, {})) | attributes
        return self.factory.create(operation, nodes, attributes).output(0)

    def constant(self, value: Numbers) -> Node:
        """Return a constant: float32, or int64 for integers."""
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        return self.core.op.Constant(array).output(0)

    def token_parameter(self, name: str) -> Node:
        """Return a new input of the graph with a number for each token."""
        return self.parameter(name, 1 if self.is_packed else 2)

    def parameter(self, name: str, axes: int) -> Node:
        """Return a new input of the graph, int64 with this number of axes."""
        shape = self.core.PartialShape([-1] * axes)
        self.inputs[name] = self.core.op.Parameter(self.core.Type.i64, shape)
        return named_node(self.inputs[name].output(0), name)

    def model(self, *outputs: Node) -> Any:
        """Return the graph with these outputs, an openvino.Model that is not compiled."""
        return self.core.Model(list(outputs), list(self.inputs.values()))

    # --- weights ---

    def has(self, name: str) -> bool:
        """Return True if the model has this tensor."""
        return name in self.weights.arrays

    def stored(self, name: str) -> Node:
        """Return a tensor in the number format of the file, whose mapped memory it shares."""
        if name not in self.constants:
            array = self.weights.arrays[name]
            element_type = getattr(self.core.Type, ELEMENT_TYPES[array.dtype.name])
            tensor = self.core.Tensor(array, self.core.Shape(array.shape), element_type)
            self.constants[name] = self.core.op.Constant(tensor, shared_memory=True).output(0)
        return self.constants[name]

    def float32(self, node: Node) -> Node:
        """Convert a node to float32, unless it is."""
        if node.get_element_type() == self.core.Type.f32:
            return node
        return self("Convert", node, destination_type="f32")

    def weight(self, name: str) -> Node:
        """Return a tensor as float32."""
        return self.float32(self.stored(name))

    # --- texts of a batch ---

    def in_slots(self, x: Node) -> Node:
        """Return the values of tokens [...] by text, [B, K, ...]; those of empty slots are any."""
        return self("Gather", x, self.slots, 0) if self.is_packed else x

    def by_token(self, x: Node) -> Node:
        """Return the values [B, K, ...] of slots by token: [T, ...], or [B, L, ...] if padded."""
        if not self.is_packed:
            return x
        return self("Gather", without_text_axis(self, x), self.slots_of_tokens, 0)

    @cached_property
    def slot_positions(self) -> Node:
        """The positions of slots in their text, 0 to K-1: [K]."""
        size = self("Gather", self("ShapeOf", self.slots if self.is_packed else self.ids), 1, 0)
        return self("Range", 0, size, 1)

    @cached_property
    def distances(self) -> Node:
        """The position of each query minus that of each key, [K, K]."""
        return self("Subtract", self("Unsqueeze", self.slot_positions, 1), self.slot_positions)

    def lookup_by_distance(self, table: np.ndarray | Node, furthest: int) -> Node:
        """Return the entry of a table for the distance of each query and key, [K, K, ...].

        The table has an entry for each distance from -``furthest`` to ``furthest``. Greater
        distances have the entries at its ends.
        """
        clipped = self("Maximum", self("Minimum", self.distances, furthest), -furthest)
        return self("Gather", table, self("Add", clipped, furthest), 0)

    @cached_property
    def bucket_bias(self) -> Node:
        """The bias of each distance, [H, K, K], from the table that layers share."""
        weight = self.weight("bert.encoder.relative_attention_bias.weight")
        buckets = distance_buckets()
        rows = self.lookup_by_distance(buckets, len(buckets) // 2)
        biases = self("Gather", weight, rows, 0)
        return self("Transpose", biases, [2, 0, 1])


def named_node(node: Node, name: str) -> Node:
    """Set the name of an input or an output of a graph, and return it."""
    node.get_tensor().set_names({name})
    node.get_node().set_friendly_name(name)
    return node


def without_text_axis(net: OpenvinoNetwork, x: Node) -> Node:
    """Return [B, K, ...] as [B * K, ...]."""
    sizes = [size.get_length() for size in list(x.get_partial_shape())[2:]]
    return net("Reshape", x, [-1, *sizes])


# --- layers that work on the last axis ---


def linear(net: OpenvinoNetwork, x: Node, name: str) -> Node:
    """Map [..., in] to [..., out]."""
    y = net("MatMul", x, net.weight(f"{name}.weight"))
    if OUTLIERS in name:
        y.get_node().set_friendly_name(name)
    if not net.has(f"{name}.bias"):
        return y
    return net("Add", y, net.weight(f"{name}.bias"))


def layer_norm(net: OpenvinoNetwork, x: Node, name: str) -> Node:
    """Normalise each vector [..., hidden].

    Source: Layer Normalization, equation 4; Root Mean Square Layer Normalization, equation 4.
    """
    eps = net.config.layer_norm_eps
    if net.structure.rms_norm:
        mean_square = net("ReduceMean", net("Multiply", x, x), [-1], keep_dims=True)
        x = net("Divide", x, net("Sqrt", net("Add", mean_square, eps)))
        weight = net.weight(f"{name}.weight")
        if net.structure.norm_offset:
            weight = net("Add", weight, net.structure.norm_offset)
        return net("Multiply", x, weight)
    x = net("MVN", x, [-1], eps=eps)
    x = net("Multiply", x, net.weight(f"{name}.weight"))
    if not net.has(f"{name}.bias"):
        return x
    return net("Add", x, net.weight(f"{name}.bias"))


def apply_activation(net: OpenvinoNetwork, x: Node, name: object) -> Node:
    """Apply the function that config.json calls `hidden_act`."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise OpenvinoError(f"the CPU engine has no function {name!r} (hidden_act)")
    return ACTIVATIONS[name].openvino(net, x)


# --- embeddings ---


def lookup(net: OpenvinoNetwork, name: str, ids: Node) -> Node:
    """Return the rows of a table for ids [...] as float32; the table is not converted."""
    return net.float32(net("Gather", net.stored(f"{name}.weight"), ids, 0))


def embeddings(net: OpenvinoNetwork) -> Node:
    """Return the normalised sum of word, token type, position and extra embeddings."""
    prefix = "bert.embeddings"
    config = net.config
    structure = net.structure
    x = lookup(net, f"{prefix}.word_embeddings", net.ids)
    if structure.embedding_scale != 1:
        x = net("Multiply", x, structure.embedding_scale)
    if structure.token_types:
        x = net("Add", x, lookup(net, f"{prefix}.token_type_embeddings", net.types))
    if structure.absolute_positions:
        match config.position_embedding_type:
            case "absolute":
                rows = position_rows(net)
                x = net("Add", x, lookup(net, f"{prefix}.position_embeddings", rows))
            case "sinusoidal":
                waves = sinusoids(config.table_size, config.most_tokens)
                x = net("Add", x, net("Gather", waves, net.positions, 0))
    for name in config.extra_embeddings:
        ids = net.token_parameter(f"{EXTRA}{name}")
        x = net("Add", x, lookup(net, f"{prefix}.extra.{name}", ids))
    if structure.embedding_norm:
        x = layer_norm(net, x, f"{prefix}.LayerNorm")
    if structure.embedding_size is None:
        return x
    return linear(net, x, f"{prefix}.project")


def position_rows(net: OpenvinoNetwork) -> Node:
    """Return the row of each token in the table of positions; padding tokens are not counted.

    Like `rows_after_padding` in models/positions.py.
    """
    if not net.structure.first_position:
        return net.positions
    padding = net.structure.first_position - 1
    is_counted = net("Select", net("Equal", net.in_slots(net.ids), padding), 0, 1)
    count = net("CumSum", is_counted, 1, exclusive=False, reverse=False)
    return net.by_token(net("Add", net("Multiply", count, is_counted), padding))


def sinusoids(width: int, positions: int) -> np.ndarray:
    """Return the vectors of positions, [positions, width]: sines and cosines alternate."""
    dimensions = np.arange(width)
    exponents = (dimensions // 2 * 2).astype(np.float32) / np.float32(width)
    angles = np.arange(positions, dtype=np.float32)[:, None] / np.float32(10000) ** exponents
    return np.where(dimensions % 2, np.cos(angles), np.sin(angles))


# --- attention ---


def self_attention(net: OpenvinoNetwork, layer: int, x: Node) -> Node:
    """Attend from x [..., hidden] to the tokens of the same texts; return [..., H*D]."""
    name = f"bert.encoder.layer.{layer}.attention.self"
    heads = net.config.heads(layer)
    key_value_heads = net.config.key_value_heads(layer)
    size = net.config.head_size

    def projected(projection: str, count: int) -> Node:  # [B, count, K, D]
        of_slots = net.in_slots(linear(net, x, f"{name}.{projection}"))
        split = net("Reshape", of_slots, [0, 0, count, size])
        if net.structure.norm_heads and projection != "value":
            split = layer_norm(net, split, f"{name}.{projection}_LayerNorm")
        return net("Transpose", split, [0, 2, 1, 3])

    def for_queries(shared: Node) -> Node:  # [B, H, K, D]
        if key_value_heads == heads:
            return shared
        return net("Gather", shared, np.arange(heads) // (heads // key_value_heads), 1)

    q = projected("query", heads)
    k = projected("key", key_value_heads)
    v = for_queries(projected("value", key_value_heads))
    q, k, distance_bias = apply_positions(net, layer, q, k)
    k = for_queries(k)
    bias = attention_bias(net, layer, distance_bias)
    output = net("ScaledDotProductAttention", q, k, v, bias, causal=False)
    output = net("Reshape", net("Transpose", output, [0, 2, 1, 3]), [0, 0, heads * size])
    return net.by_token(output)


def attention_bias(net: OpenvinoNetwork, layer: int, distance_bias: Node | float) -> Node:
    """Return the bias of the scores, [B, H, K, K]: that of distances, or MASKED_SCORE.

    The penalty replaces the bias of distances, because in 8 bits their sum would be rounded.
    There is always a bias: OpenVINO 2026.4 computes attention without one wrongly from 16 tokens.
    """
    windows = net.structure.windows
    reach = windows[layer] if windows else None
    visible = net("Unsqueeze", net.is_attended, [1, 2])  # [B, 1, 1, K]
    if net.config.is_decoder:
        visible = net("LogicalAnd", visible, net("GreaterEqual", net.distances, 0))
    if reach is not None:
        in_window = net("LessEqual", net("Abs", net.distances), reach)
        visible = net("LogicalAnd", visible, in_window)
    return net("Select", visible, distance_bias, MASKED_SCORE)


def apply_positions(
    net: OpenvinoNetwork, layer: int, q: Node, k: Node
) -> tuple[Node, Node, Node | float]:
    """Return queries and keys [B, H, K, D], rotated or scaled, and the bias of their distances.

    Like the classes of `Distance` in models/positions.py.
    """
    structure = net.structure
    config = net.config
    name = f"bert.encoder.layer.{layer}.attention.self.distance_embedding"
    if structure.disentangled:
        scores = disentangled_scores(net, structure.disentangled, name, q, k)
        scaled = net("Multiply", q, 1 / math.sqrt(structure.disentangled.score_count))
        return scaled, k, scores
    if structure.buckets:
        return q, k, net.bucket_bias
    if structure.rotary:
        turns = rotary_frequencies(config.head_size, structure.rotary[layer])
        return rotate(net, q, turns), rotate(net, k, turns), 0.0
    if config.position_embedding_type in ("relative_key", "relative_key_query"):
        furthest = config.max_position_embeddings - 1
        vectors = net.lookup_by_distance(net.weight(f"{name}.weight"), furthest)
        vectors = net("Divide", vectors, math.sqrt(config.head_size))  # [K, K, D]
        scores = net("Einsum", q, vectors, equation="bhid,ijd->bhij")
        if config.position_embedding_type == "relative_key_query":
            key_scores = net("Einsum", k, vectors, equation="bhjd,ijd->bhij")
            scores = net("Add", scores, key_scores)
        return q, k, scores
    return q, k, 0.0


def rotate(net: OpenvinoNetwork, x: Node, turns: np.ndarray) -> Node:
    """Rotate x [B, H, K, D] by angles proportional to the position; `turns` is [D / 2]."""
    half = net.config.head_size // 2
    positions = net.float32(net("Unsqueeze", net.slot_positions, 1))
    angles = net("Multiply", positions, np.tile(turns, 2)[None])  # [K, D]
    signs = np.repeat([-1.0, 1.0], half)
    cos = net("Cos", angles)
    sin = net("Multiply", net("Sin", angles), signs)
    swapped = net("Gather", x, np.roll(np.arange(2 * half), half), 3)
    return net("Add", net("Multiply", x, cos), net("Multiply", swapped, sin))


def disentangled_scores(
    net: OpenvinoNetwork,
    disentangled: Disentangled,
    name: str,
    q: Node,
    k: Node,
) -> Node:
    """Return the scores of queries and keys with their distance, [B, H, K, K]."""
    table = distance_rows(disentangled)
    rows = net.lookup_by_distance(table, len(table) // 2)  # [K, K]
    total: Node = 0.0
    if disentangled.word_to_distance:
        vectors = distance_vectors(net, disentangled, name, "key")
        total = net("Add", total, scores_at_rows(net, q, vectors, rows))
    if disentangled.distance_to_word:
        vectors = distance_vectors(net, disentangled, name, "query")
        scores = scores_at_rows(net, k, vectors, net("Transpose", rows, [1, 0]))
        total = net("Add", total, net("Transpose", scores, [0, 1, 3, 2]))
    return net("Multiply", total, 1 / math.sqrt(net.config.head_size * disentangled.score_count))


def scores_at_rows(net: OpenvinoNetwork, x: Node, vectors: Node, rows: Node) -> Node:
    """Return the scores of x [B, H, K, D] with the vectors [H, 2 span, D] in `rows` [K, K]."""
    scores = net("MatMul", x, vectors)  # [B, H, K, 2 span]
    batch_and_heads = net("Gather", net("ShapeOf", scores), [0, 1], 0)
    shape = net("Concat", batch_and_heads, net("ShapeOf", rows), axis=0)
    return net("GatherElements", scores, net("Broadcast", rows, shape), axis=3)


def distance_vectors(
    net: OpenvinoNetwork, disentangled: Disentangled, name: str, projection: str
) -> Node:
    """Return the keys or queries (`projection`) of distances, [H, 2 span, D]."""
    table = "bert.encoder.relative_attention_bias"
    x = net.weight(f"{table}.table.weight")
    if disentangled.norm:
        x = layer_norm(net, x, f"{table}.LayerNorm")
    owner = name.rpartition(".")[0] if disentangled.shared else name
    x = net("Reshape", linear(net, x, f"{owner}.{projection}"), [0, -1, net.config.head_size])
    return net("Transpose", x, [1, 0, 2])


# --- layers ---


def feed_forward(net: OpenvinoNetwork, layer: int, x: Node) -> Node:
    """Run the feed-forward block of a layer, [..., hidden]; outlier channels are added, if any."""
    name = f"bert.encoder.layer.{layer}"
    act = net.config.hidden_act

    def block(channels: str) -> Node:
        wide = linear(net, x, f"{name}.{channels}intermediate.dense")
        if net.structure.gated:
            gate = linear(net, x, f"{name}.{channels}intermediate.gate")
            wide = net("Multiply", apply_activation(net, gate, act), wide)
        else:
            wide = apply_activation(net, wide, act)
        net.wide_activations[layer] = wide
        return linear(net, wide, f"{name}.{channels}output.dense")

    output = block("")
    if net.has(f"{name}.{OUTLIERS}output.dense.weight"):
        output = net("Add", output, block(OUTLIERS))
    return output


def encoder_layer(net: OpenvinoNetwork, layer: int, x: Node) -> Node:
    """Run a layer for x [..., hidden]; return [..., hidden]."""
    name = f"bert.encoder.layer.{layer}"
    structure = net.structure
    norm_first = structure.norm_first

    def norm_if(has_norm: bool, y: Node, module: str) -> Node:
        return layer_norm(net, y, f"{name}.{module}") if has_norm else y

    is_normed = structure.embedding_norm and layer == 0
    normed = norm_if(norm_first and not is_normed, x, "attention.LayerNorm")
    attended = self_attention(net, layer, normed)
    attended = linear(net, attended, f"{name}.attention.output.dense")
    attended = norm_if(structure.norm_last, attended, "attention.output.branch_LayerNorm")
    x = net("Add", attended, x)
    x = norm_if(not norm_first, x, "attention.output.LayerNorm")
    output = feed_forward(net, layer, norm_if(norm_first, x, "LayerNorm"))
    output = norm_if(structure.norm_last, output, "output.branch_LayerNorm")
    return norm_if(not norm_first, net("Add", output, x), "output.LayerNorm")


def parallel_convolution(
    net: OpenvinoNetwork, x: Node, output: Node, convolution: Convolution
) -> Node:
    """Add the convolution of x, the embeddings, to the ``output`` of a layer: [..., hidden].

    Source: ConvLayer in transformers' modeling_deberta_v2.py.
    """
    name = "bert.encoder.conv"
    groups = convolution.groups
    pad = convolution.size // 2
    x = net("Select", net("Unsqueeze", net.is_attended, 2), net.in_slots(x), 0.0)
    weight = net.weight(f"{name}.conv.weight")  # [hidden, hidden / groups, size]
    group_width = net.config.hidden_size // groups
    weight = net("Reshape", weight, [groups, group_width, group_width, convolution.size])
    attributes = {"strides": [1], "pads_begin": [pad], "pads_end": [pad], "dilations": [1]}
    x = net("Transpose", x, [0, 2, 1])
    x = net("GroupConvolution", x, weight, auto_pad="explicit", **attributes)
    x = net.by_token(net("Transpose", x, [0, 2, 1]))
    x = net("Add", x, net.weight(f"{name}.conv.bias"))
    x = apply_activation(net, x, convolution.activation)
    return layer_norm(net, net("Add", output, x), f"{name}.LayerNorm")


def hidden_states(net: OpenvinoNetwork, layers: Sequence[int]) -> list[Node]:
    """Return the hidden states of these layers, each [..., hidden]; 0 is the embeddings.

    Layers above the last of these are not part of the graph.
    """
    order = net.structure.layer_groups or range(net.config.num_hidden_layers)
    convolution = net.structure.convolution
    x = embeddings(net)
    all_states = [x]
    for step in range(max(layers)):
        layer_input = x
        x = encoder_layer(net, order[step], layer_input)
        if convolution and step == 0:
            x = parallel_convolution(net, layer_input, x, convolution)
        all_states.append(x)
    if net.structure.norm_first and max(layers) == len(order):
        all_states[-1] = layer_norm(net, x, "bert.encoder.LayerNorm")
    return [all_states[layer] for layer in layers]


# --- pooling and heads ---


def token_means(net: OpenvinoNetwork, x: Node) -> Node:
    """Return the mean over the attended tokens of each text, [B, hidden], of x [..., hidden]."""
    is_attended = net("Unsqueeze", net.is_attended, 2)
    total = net("ReduceSum", net("Select", is_attended, net.in_slots(x), 0.0), [1])
    lengths = net("ReduceSum", net("Select", is_attended, 1.0, 0.0), [1])
    return net("Divide", total, lengths)


def pooler(net: OpenvinoNetwork, x: Node) -> Node:
    """Apply the pooler to the states of first tokens [n, hidden]. BERT, section 3.1."""
    return net("Tanh", linear(net, x, "bert.pooler.dense"))


def word_scores(net: OpenvinoNetwork, x: Node) -> Node:
    """Return the scores of every token of the vocabulary, [..., vocabulary]."""
    name = "cls.predictions"
    head = net.structure.word_head
    if head.transform:
        x = linear(net, x, f"{name}.transform.dense")
        x = apply_activation(net, x, head.activation or net.config.hidden_act)
        x = layer_norm(net, x, f"{name}.transform.LayerNorm")
    return linear(net, x, f"{name}.decoder")


def head_layer(net: OpenvinoNetwork, x: Node, head: TextHead) -> Node:
    """Apply the dense layer of a head, [..., hidden]."""
    x = apply_activation(net, linear(net, x, "classifier_head.dense"), head.activation)
    return layer_norm(net, x, "classifier_head.LayerNorm") if head.norm else x


def before_mean(net: OpenvinoNetwork, x: Node) -> Node:
    """Return the vectors of tokens [..., hidden] whose mean is classified, from their states."""
    head = net.structure.head_layer(HEAD_PARTS[net.weights.architecture])
    return head_layer(net, x, head) if head and head.late else x


def logits(net: OpenvinoNetwork, x: Node) -> Node:
    """Return the logits of a head, [..., n], from the states x [..., hidden] that it classifies.

    If the head classifies a mean, x is that of `before_mean`.
    """
    architecture = net.weights.architecture
    parts = HEAD_PARTS[architecture]
    if parts.words:
        return word_scores(net, x)
    head = net.structure.head_layer(parts)
    if head:
        x = x if head.late else head_layer(net, x, head)
    elif parts.pooler:
        x = pooler(net, x)
    if architecture == "BertForReplacedTokens":
        x = linear(net, x, "discriminator_predictions.dense")
        x = apply_activation(net, x, net.config.hidden_act)
    if parts.scores:
        x = linear(net, x, parts.scores)
    return net("Squeeze", x, [-1]) if parts.outputs == 1 else x


# --- the graph ---


def build_graph(net: OpenvinoNetwork, spec: ModelSpec, file_output: Node | None = None) -> Any:
    """Return the graph of a model, with one output [n, ...] per layer that `spec` reads.

    ``file_output`` is the output of a graph that was read from a file: the last hidden states, or
    the logits. Without it, the graph is built from the weights.
    """
    selection = spec.selection
    outputs: list[Node] = [file_output]
    if file_output is None:
        outputs = hidden_states(net, selection.layer_indices(net.config.num_hidden_layers))
    is_of_texts = selection.one_row_per_text and not selection.one_given
    is_text_logits = file_output is not None and is_of_texts and spec.architecture != "BertModel"
    if not is_text_logits and selection.token_mean:
        outputs = [token_means(net, before_mean(net, x)) for x in outputs]
    elif not is_text_logits:
        outputs = select_tokens(net, outputs)
    if spec.pooler:
        outputs = [pooler(net, x) for x in outputs]
    if file_output is None:
        outputs = [logits(net, x) for x in outputs]
    return net.model(*outputs)


def select_tokens(net: OpenvinoNetwork, outputs: Sequence[Node]) -> list[Node]:
    """Return the rows [n, ...] of outputs [T, ...] or [B, L, ...] that the input READ selects."""
    indices = net.parameter(READ, 1)
    if not net.is_packed:
        outputs = [without_text_axis(net, x) for x in outputs]
    return [net("Gather", x, indices, 0) for x in outputs]
