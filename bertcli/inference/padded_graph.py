"""A model as one graph that others run, from padded ids; and the graphs of others, run here.

    padded = PaddedBatch.of(net)                # input_ids, attention_mask, token_type_ids [B, L]
    states = padded_states(net, padded)         # [B, L, hidden]
    graph = named_model(net, {STATES: states})
    write_graph(graph, Path("DIR/openvino/openvino_model.xml"))

What stands in a folder so, `engine` runs as any other model: `output_of_file`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertcli.errors import ModelError
from bertcli.files.typed_json import AGAIN
from bertcli.inference.graph import Batch, Node, OpenvinoNetwork, logits, means, states
from bertcli.inference.openvino import openvino
from bertcli.inference.runner import Reading

PADDED = ("input_ids", "attention_mask", "token_type_ids")  # int64 [B, L]
STATES, VECTORS, LOGITS = "last_hidden_state", "sentence_embedding", "logits"


# --- for others ---


@dataclass
class PaddedBatch(Batch):
    """Texts that are padded already: the rows are there, and every place in them is a token."""

    mask: Node  # [B, L]

    @classmethod
    def of(cls, net: OpenvinoNetwork) -> PaddedBatch:
        """Make the inputs of a graph as transformers names them."""
        names = PADDED if net.structure.token_types else PADDED[:2]
        inputs = [
            net("Convert", net.parameter(name, 2, "i64"), destination_type="i32") for name in names
        ]
        rows, mask = inputs[:2]
        ids, types = (net("Reshape", x, [1, -1]) for x in (rows, inputs[-1]))
        sizes = net("ShapeOf", rows)
        places = net("ReduceProd", sizes, [0])
        length = net("Gather", sizes, 1, 0)
        back = net("Range", 0, places, 1)
        firsts = net("Range", 0, places, length)
        lengths = net("ReduceSum", mask, [1])
        return cls(
            net, ids, types, back, rows, lengths, firsts, None, net.structure.blank_padding, mask
        )

    @cached_property
    def real(self) -> Node:
        """Whether a token stands in a row there, [B, L]."""
        return self.net("NotEqual", self.mask, 0)

    @property
    def filled(self) -> Node:
        """Where a mask hides a place, no token stands."""
        return self.real

    def in_rows(self, x: Node) -> Node:
        """Return what tokens have, [T, D], in their rows, [B, L, D]."""
        sizes = self.net("ShapeOf", self.rows)
        width = x.get_partial_shape()[1].get_length()
        shape = self.net("Concat", sizes, self.net.constant([width]), axis=0)
        return self.net("Reshape", x, shape)

    def packed(self, x: Node) -> Node:
        """Return what the places of all rows have: they are the tokens."""
        return x


def padded_scores(net: OpenvinoNetwork, batch: PaddedBatch, reading: Reading) -> Node:
    """Return the logits of a head, of each text [B, ...] or of each token [B, L, ...]."""
    (x,) = states(net, batch, [net.config.depth])
    if reading.mean:
        return logits(net, means(net, batch, x, 2))
    if reading.first:
        return logits(net, net("Gather", x, batch.read, 0))
    scores = logits(net, x)
    if len(scores.get_partial_shape()) == 1:  # [T]
        return net("Squeeze", batch.in_rows(net("Unsqueeze", scores, 1)), [2])
    return batch.in_rows(scores)


def named_model(net: OpenvinoNetwork, outputs: Mapping[str, Node]) -> Any:
    """Return a model of OpenVINO with these outputs, and its inputs by name."""
    for name, node in (*outputs.items(), *((n, p.output(0)) for n, p in net.inputs.items())):
        node.get_tensor().set_names({name})
        node.get_node().set_friendly_name(name)
    model = net.core.Model([*outputs.values()], [*net.inputs.values()])
    return openvino().Model(model)  # as the whole library, and NNCF, know it


def write_graph(graph: Any, path: Path) -> None:
    """Write a model of OpenVINO: an .xml, and the .bin of its numbers beside it."""
    path.parent.mkdir(exist_ok=True)
    openvino().save_model(graph, str(path), compress_to_fp16=False)


# --- of others ---


def output_of_file(net: OpenvinoNetwork, batch: Batch, path: Path) -> Node:
    """Return what the graph of a file makes of a batch: states [T, hidden], or logits.

    Logits of whole texts are [B, ...], others [T, ...]. Raises ModelError for a file that is
    broken, or has other inputs, outputs or sizes than this model.
    """
    try:
        graph = net.core.Core().read_model(str(path))
    except RuntimeError as failed:
        reason = str(failed).strip().splitlines()[-1]
        raise ModelError(f"{path}: not a whole graph of OpenVINO: {reason}", AGAIN) from None
    ids, types = (batch.in_rows(net("Squeeze", x, [0])) for x in (batch.ids, batch.types))
    inputs = dict(zip(PADDED, (ids, batch.real, types), strict=True))
    for parameter in graph.get_parameters():
        name = next(iter(parameter.output(0).get_names()), parameter.get_friendly_name())
        if name not in inputs:
            raise _unfit(path, f"it has an unknown input {name} (known: {', '.join(PADDED)})")
        kind = parameter.get_element_type().get_type_name()
        parameter.output(0).replace(net("Convert", inputs[name], destination_type=kind))
    ends = [result.input_value(0) for result in graph.get_results()]
    outputs = {name: end for end in ends for name in end.get_names()}
    name = STATES if net.weights.kind == "BertModel" else LOGITS
    if name not in outputs:
        raise _unfit(path, f"it has no output {name} (but {', '.join(sorted(outputs)) or 'none'})")
    x, config = outputs[name], net.config
    width = (
        config.hidden_size
        if name == STATES
        else {
            "BertForMaskedLM": config.vocab_size,
            "BertForNextSentencePrediction": 2,
            "BertForQuestionAnswering": 2,
        }.get(net.weights.kind, config.num_labels)
    )
    shape = x.get_partial_shape()
    if shape.rank.is_dynamic or not shape[len(shape) - 1].compatible(net.core.Dimension(width)):
        raise _unfit(path, f"config.json says {width} numbers a row, its {name} is {shape}")
    if len(shape) == 2:
        return x
    return batch.packed(net("Reshape", x, [-1, width]))


def _unfit(path: Path, why: str) -> ModelError:
    return ModelError(f"{path}: not the graph of this model: {why}", "export the model again")
