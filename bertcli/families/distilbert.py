"""DistilBERT: half of BERT's layers, no token types and no pooler.

Source: DistilBERT, a distilled version of BERT, section 2; the classes of this name in
transformers.
"""

from __future__ import annotations

from bertcli.families.family import Family, classes
from bertcli.families.structure import Dropouts, Structure, TextHead, WordHead
from bertcli.io.typed_json import PROBABILITY, JsonObject


def structure(values: JsonObject) -> Structure:
    """Return how DistilBERT differs from BERT."""
    head = TextHead(
        pooler=False, activation="relu", dropout=values.checked("seq_classif_dropout", PROBABILITY)
    )
    return Structure(
        token_types=False,
        pooler=False,
        dropouts=Dropouts(attended=0.0),
        word_head=WordHead(bias_twice=False),
        text_head=head,
        choice_head=head,
        answer_dropout=values.checked("qa_dropout", PROBABILITY) or 0.0,
    )


DISTILBERT = Family(
    model_type="distilbert",
    title="DistilBERT",
    classes=classes("DistilBert"),
    base="distilbert",
    keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    absent_fields=(
        "type_vocab_size",
        "layer_norm_eps",
        "position_embedding_type",
        "classifier_dropout",
        "is_decoder",
        "add_cross_attention",
        "use_cache",
    ),
    defaults={"n_layers": 6, "seq_classif_dropout": 0.2, "qa_dropout": 0.1},
    structure=structure,
    tensors=(
        ("transformer.layer.#.attention.q_lin", "encoder.layer.#.attention.self.query"),
        ("transformer.layer.#.attention.k_lin", "encoder.layer.#.attention.self.key"),
        ("transformer.layer.#.attention.v_lin", "encoder.layer.#.attention.self.value"),
        ("transformer.layer.#.attention.out_lin", "encoder.layer.#.attention.output.dense"),
        ("transformer.layer.#.sa_layer_norm", "encoder.layer.#.attention.output.LayerNorm"),
        ("transformer.layer.#.ffn.lin1", "encoder.layer.#.intermediate.dense"),
        ("transformer.layer.#.ffn.lin2", "encoder.layer.#.output.dense"),
        ("transformer.layer.#.output_layer_norm", "encoder.layer.#.output.LayerNorm"),
        ("vocab_transform", "cls.predictions.transform.dense"),
        ("vocab_layer_norm", "cls.predictions.transform.LayerNorm"),
        ("vocab_projector", "cls.predictions.decoder"),
        ("pre_classifier", "classifier_head.dense"),
    ),
)
