"""BERT with the layers of one task on top: hidden states in, logits out.

`logits` takes any hidden states [..., L, hidden]: a caller may pass only the first tokens, or only
the masked ones. Losses are in training/. Names, and which heads have a pooler, are those of the
classes of the same names in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bertcli.families.structure import HEAD_PARTS, HeadParts, TextHead
from bertcli.models.activation_layer import Activation, activation
from bertcli.models.bert import BertModel, Network, dropout, layer_norm, unchanged
from bertcli.models.calls import constructor_pooler
from bertcli.models.config import BertConfig
from bertcli.models.initial_weights import initialise, normal
from bertcli.models.outputs import (
    AnswerOutput,
    EncoderOutput,
    HeadOutput,
    ModelOutput,
    PretrainingOutput,
)


def _head_dropout(config: BertConfig, rate: float | None) -> nn.Dropout:
    """Return a dropout layer; a rate of None is that of the config."""
    return dropout(config, config.classifier_dropout if rate is None else rate)


# --- predicting words ---


class HeadLayer(nn.Module):
    """A dense layer of the head, before the last one.

    Source: RobertaClassificationHead and ModernBertPredictionHead of transformers.
    """

    def __init__(
        self,
        config: BertConfig,
        width: int,
        act: str | Activation,
        *,
        bias: bool,
        norm: bool = True,
        before: Callable[[Tensor], Tensor] = unchanged,
    ) -> None:
        super().__init__()
        self.before = before
        self.dense = nn.Linear(config.hidden_size, width, bias)
        self.transform_act_fn = activation(act)
        self.LayerNorm: Callable[[Tensor], Tensor] = unchanged
        if norm:
            self.LayerNorm = layer_norm(config, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., hidden] to [..., width]."""
        return self.LayerNorm(self.transform_act_fn(self.dense(self.before(x))))


class BertPredictionHeadTransform(HeadLayer):
    """The dense layer before the scores of the vocabulary."""

    def __init__(self, config: BertConfig) -> None:
        head = config.structure.word_head
        act = head.activation or config.hidden_act
        super().__init__(config, config.table_size, act, bias=head.dense_bias)


class BertLMPredictionHead(nn.Module):
    """Scores of every token of the vocabulary. Section 3.1, Task #1."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        head = config.structure.word_head
        self.transform: Callable[[Tensor], Tensor] = unchanged
        if head.transform:
            self.transform = BertPredictionHeadTransform(config)
        self.decoder = nn.Linear(config.table_size, config.vocab_size, head.bias)
        if head.bias_twice:
            self.bias = nn.Parameter(
                torch.zeros(config.vocab_size)
            )  # twice in checkpoints: also decoder.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., hidden] to [..., vocabulary]."""
        return self.decoder(self.transform(x))


# --- classifying texts ---


def mean_token(hidden: Tensor, keep: Tensor | None) -> Tensor:
    """Return the mean over the tokens of states [..., L, hidden]: [..., 1, hidden]."""
    if keep is None:
        return hidden.mean(-2, keepdim=True)
    total = (hidden * keep.unsqueeze(-1)).sum(-2, keepdim=True)
    return total / keep.sum(-1, keepdim=True).unsqueeze(-1)


# --- the heads ---

GROUP_NAMES = {  # modules of a group of heads -> its name in `print(model)`
    ("predictions",): "BertOnlyMLMHead",
    ("seq_relationship",): "BertOnlyNSPHead",
    ("predictions", "seq_relationship"): "BertPreTrainingHeads",
}


class HeadGroup(nn.ModuleDict):
    """Heads with a common prefix, such as `cls.predictions` and `cls.seq_relationship`."""

    def _get_name(self) -> str:
        return GROUP_NAMES.get(tuple(self), "HeadGroup")


class BertWithHead(Network):
    """The base of all heads; `parts` lists the modules of one.

    `forward` returns the `logits` of BERT's last hidden states, and further tensors on request.
    """

    parts: HeadParts
    output: Callable[..., ModelOutput] = HeadOutput
    cls: Any  # the group of heads that score the vocabulary or pairs

    def __init__(self, config: BertConfig, **options: Any) -> None:
        super().__init__()
        constructor_pooler(True, options, type(self).__name__)
        config.refuse_unbuildable(type(self).__name__)
        parts = self.parts
        head = config.structure.head_layer(parts)
        self.bert = BertModel(config, parts.pooler and head is None)
        self.means = head is not None and head.mean  # the mean of all tokens, not the first
        self.late = head is not None and head.late
        self.classifier_head: nn.Module | None = None
        if head:
            before = _head_dropout(config, head.drop_first)
            self.classifier_head = HeadLayer(
                config,
                config.hidden_size,
                head.activation,
                bias=head.bias,
                norm=head.norm,
                before=before,
            )
        self.dropout = self.dropout_before_scores(config, head)
        path, _, name = parts.scores.rpartition(".")
        group = HeadGroup()
        if parts.words:
            group["predictions"] = BertLMPredictionHead(config)
        if parts.scores:
            scores = nn.Linear(config.hidden_size, parts.outputs or config.num_labels)
            owner = group if path else self
            owner.add_module(name, scores)
        if group:
            self.add_module(path or "cls", group)
        for name, module in self.named_children():
            if name != "bert":  # BertModel initialises itself
                initialise(module, config.initializer_range, normal)
        self.tie()

    def dropout_before_scores(
        self, config: BertConfig, head: TextHead | None
    ) -> Callable[[Tensor], Tensor]:
        """Return the dropout before the scores; `head` describes the layer before, if any."""
        if not self.parts.layer_field:
            return unchanged
        return _head_dropout(config, head and head.dropout)

    @property
    def config(self) -> BertConfig:  # type: ignore[override]
        """The config of the model, with the changes of surgery.py."""
        return self.bert.config

    def tie(self) -> None:
        """Share the word embeddings with the decoder, unless the config disables it."""
        if self.parts.words and self.config.tie_word_embeddings:
            head = self.cls.predictions
            head.decoder.weight = self.bert.embeddings.word_embeddings.weight
            if hasattr(head, "bias"):
                head.decoder.bias = head.bias

    def forward(self, ids: Tensor, keep: Tensor | None = None, **options: Any) -> ModelOutput:
        """Return the logits; arguments as in `BertModel.forward`."""
        # nn.Module.__call__, because Network.__call__ has translated the arguments already.
        encoded: EncoderOutput = nn.Module.__call__(self.bert, ids, keep, **options)
        hidden = encoded.last_hidden_state
        if self.means:
            hidden = mean_token(self.before_mean(hidden), keep)
        logits = self.logits(hidden)
        tensors = logits if isinstance(logits, tuple) else (logits,)
        return self.output(
            *tensors,
            past_key_values=encoded.past_key_values,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
            cross_attentions=encoded.cross_attentions,
        )

    @property
    def num_labels(self) -> int:
        """Number of labels in the config."""
        return self.config.num_labels

    def before_mean(self, hidden: Tensor) -> Tensor:
        """Return the vectors of tokens [..., hidden] whose mean is classified."""
        if self.late and self.classifier_head is not None:
            return self.classifier_head(hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Any:
        """Return the logits of hidden states [..., L, hidden].

        Those of texts are [..., n], of tokens [..., L, n], of the vocabulary [..., L, vocabulary].
        A head with logits of the vocabulary and of texts returns both as a tuple.
        """
        parts = self.parts
        if not parts.scores:
            return self.cls.predictions(hidden)
        x = hidden
        layer: Callable[[Tensor], Tensor] | None = self.classifier_head
        if parts.pooler:
            x = hidden[..., 0, :]
            layer = layer or self.bert.pool_first
        if layer and not self.late:
            x = layer(x)
        scores = self.get_submodule(parts.scores)(self.dropout(x))
        if parts.words:
            return self.cls.predictions(hidden), scores
        return scores.squeeze(-1) if parts.outputs == 1 else scores

    def packed_logits(self, states: Tensor) -> Tensor:
        """Return the logits [n, ...] of the packed states [n, hidden] of classified tokens."""
        logits = self.logits(states.unsqueeze(-2) if self.parts.pooler else states)
        return logits if isinstance(logits, Tensor) else torch.stack(logits, -1)


class BertForMaskedLM(BertWithHead):
    """Predicts masked tokens. Section 3.1, Task #1."""

    parts = HEAD_PARTS["BertForMaskedLM"]


class BertLMHeadModel(BertForMaskedLM):
    """Predicts the next token; causal if the config has `is_decoder`."""


class BertForPreTraining(BertWithHead):
    """Predicts masked tokens, and if the second sentence follows the first."""

    parts = HEAD_PARTS["BertForPreTraining"]
    output = PretrainingOutput


class BertForNextSentencePrediction(BertWithHead):
    """Predicts if the second sentence follows the first. Section 3.1, Task #2."""

    parts = HEAD_PARTS["BertForNextSentencePrediction"]


class BertForSequenceClassification(BertWithHead):
    """Scores the classes of a text or pair, or predicts one number. Section 4.1."""

    parts = HEAD_PARTS["BertForSequenceClassification"]


class BertForMultipleChoice(BertWithHead):
    """Scores the choices of a question: ids are [B, choices, L]. Section 4.4."""

    parts = HEAD_PARTS["BertForMultipleChoice"]


class BertForTokenClassification(BertWithHead):
    """Scores the classes of each token. Section 5.3."""

    parts = HEAD_PARTS["BertForTokenClassification"]


class BertForQuestionAnswering(BertWithHead):
    """Scores the start and the end of an answer in the second sentence. Section 4.2."""

    parts = HEAD_PARTS["BertForQuestionAnswering"]
    output = AnswerOutput

    def __init__(self, config: BertConfig, **options: Any) -> None:
        config.refuse_unbuildable("BertForQuestionAnswering")
        super().__init__(config, **options)

    def dropout_before_scores(
        self, config: BertConfig, head: TextHead | None
    ) -> Callable[[Tensor], Tensor]:
        """Return the dropout before the scores; most families have none."""
        rate = config.structure.answer_dropout
        return nn.Dropout(rate) if rate else unchanged

    def logits(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of each token as the start and as the end, each [..., L]."""
        start, end = super().logits(hidden).unbind(-1)
        return start, end


class BertForReplacedTokens(BertWithHead):
    """Detects tokens that a generator replaced. Source: ELECTRA."""

    parts = HEAD_PARTS["BertForReplacedTokens"]
    discriminator_predictions: Any

    def __init__(self, config: BertConfig, **options: Any) -> None:
        super().__init__(config, **options)
        width = config.hidden_size
        dense = nn.Linear(width, width)
        initialise(dense, config.initializer_range, normal)
        self.discriminator_predictions.add_module("dense", dense)
        self.activation = activation(config.hidden_act)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the scores of tokens, [..., L]; above 0 means replaced."""
        dense = self.discriminator_predictions.dense
        return super().logits(self.activation(dense(hidden)))


ARCHITECTURES: Mapping[str, type[BertModel] | type[BertWithHead]] = {
    name: globals()[name] for name in HEAD_PARTS
}
