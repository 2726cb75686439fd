"""How the model of a family differs from BERT: a record whose defaults are BERT.

Pages of families derive it from the keys of their config.json. `models` uses it to choose the
modules of a model.

Every command imports this module; named tuples are defined four times as fast as dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Rotary(NamedTuple):
    """Rotary positions of queries and keys. Source: RoFormer, section 3.2.2."""

    theta: float
    scaling: float  # positions are divided by it; 1 for none


class Disentangled(NamedTuple):
    """Disentangled attention between contents and relative positions.

    Source: DeBERTa, section 3.1.
    """

    span: int  # rows of the table on each side: distances or buckets
    longest: int  # maximum distance: greater ones share a vector
    buckets: bool  # distant positions share vectors in logarithmic buckets
    word_to_distance: bool  # c2p: score of a query and the vector of the distance
    distance_to_word: bool  # p2c: score of a key and the vector of the distance
    shared: bool  # projections of queries and keys are also used for distances
    norm: bool  # layer norm of the vectors of distances

    @property
    def score_count(self) -> int:
        """The number of scores that are added, including that of two contents."""
        return 1 + self.word_to_distance + self.distance_to_word


class Convolution(NamedTuple):
    """A convolution over tokens, added to the output of the first layer (DeBERTa v2)."""

    size: int  # kernel size in tokens, odd
    groups: int
    activation: str


class Dropouts(NamedTuple):
    """Dropout rates in training. None means the config's `hidden_dropout_prob`."""

    embeddings: float | None = None
    attended: float | None = None  # after the output projection of attention
    gated: float = 0.0  # before the output projection of a gated feed-forward block
    fed: float | None = None  # after a feed-forward block


class TextHead(NamedTuple):
    """The layers between the first token and the scores of a text's classes.

    BERT uses its pooler (`bert.pooler`). Other families have layers in the head: dropout,
    `classifier_head.dense`, an activation, `classifier_head.norm`. In all families, dropout and
    `classifier` come last.
    """

    pooler: bool = True  # use the model's pooler instead of layers in the head
    activation: str = "tanh"
    drop_first: float | None = 0.0  # dropout before the dense layer; None: the config's
    norm: bool = False  # layer norm after the activation
    bias: bool = True
    mean: bool = False  # use the mean of all tokens instead of the first
    late: bool = False  # the mean is computed after the layers in the head, not before
    dropout: float | None = None  # None: the config's


class WordHead(NamedTuple):
    """The layers between a token and the scores of the vocabulary: `cls.predictions`."""

    activation: str | None = None  # None: the config's hidden_act
    dense_bias: bool = True
    bias: bool = True  # bias of the scores
    bias_twice: bool = True  # saved as `bias` and `decoder.bias`; False: only as `decoder.bias`
    transform: bool = True  # a dense layer, an activation and a norm before the scores


class HeadParts(NamedTuple):
    """The modules of a class on top of BERT, in the order of the forward pass."""

    pooler: bool = False  # BERT's pooler, unless the family has a layer in the head
    layer_field: str = ""  # field of `Structure` that describes this layer
    words: bool = False  # `cls.predictions`, which scores words
    scores: str = ""  # name of the last layer
    outputs: int = 0  # number of its outputs; 0: the number of labels


HEAD_PARTS: Mapping[str, HeadParts] = {
    "BertModel": HeadParts(),
    "BertForMaskedLM": HeadParts(words=True),
    "BertLMHeadModel": HeadParts(words=True),
    "BertForPreTraining": HeadParts(True, words=True, scores="cls.seq_relationship", outputs=2),
    "BertForNextSentencePrediction": HeadParts(True, scores="cls.seq_relationship", outputs=2),
    "BertForSequenceClassification": HeadParts(True, "text_head", scores="classifier"),
    "BertForMultipleChoice": HeadParts(True, "choice_head", scores="classifier", outputs=1),
    "BertForTokenClassification": HeadParts(layer_field="token_head", scores="classifier"),
    "BertForQuestionAnswering": HeadParts(layer_field="token_head", scores="qa_outputs", outputs=2),
    "BertForReplacedTokens": HeadParts(  # after `discriminator_predictions.dense`
        scores="discriminator_predictions.dense_prediction", outputs=1
    ),
}


class Structure(NamedTuple):
    """How an encoder differs from BERT. Layers are counted from 0.

    The identity of a run contains the `repr` of this record: a renamed field, also in the records
    above, would keep an interrupted run from being resumed.
    """

    # --- embeddings ---
    embedding_size: int | None = None  # size of the tables, if projected to hidden_size
    absolute_positions: bool = True  # a table of positions is added to the words
    # Position of a text's first token. In some families positions start after the padding id, and
    # padding tokens inside a text are not counted.
    first_position: int = 0
    token_types: bool = True  # a table of token types is added to the words
    embedding_scale: float = 1.0  # word embeddings are multiplied by it
    embedding_norm: bool = True
    pooler: bool = True  # the model may have a pooler
    blank_padding: bool = False  # states of masked tokens are 0 and attend to nothing (DeBERTa)
    # --- layers ---
    convolution: Convolution | None = None  # beside the first layer
    layer_groups: tuple[int, ...] | None = None  # per layer: index of its weights (ALBERT)
    # Pre-norm, and a norm after the last layer. The first block has none after `embedding_norm`.
    norm_first: bool = False
    norm_last: bool = False  # with `norm_first`: a norm of each block's output before it is added
    norm_bias: bool = True
    rms_norm: bool = False  # vectors are scaled to a root mean square of 1, not centred
    norm_offset: float = 0.0  # added to the weights of an RMSNorm
    attention_bias: bool = True
    gated: bool = False  # act(`gate`) * `dense`, two linear layers
    feed_forward_bias: tuple[bool, bool] = (True, True)  # of the input and the output layer
    dropouts: Dropouts = Dropouts()
    # --- attention ---
    head_size: int | None = None  # if it is not the hidden size divided by the heads
    key_value_heads: int | None = None  # if fewer than heads: each is shared by several queries
    norm_heads: bool = False  # a norm of each head's queries and keys
    rotary: tuple[Rotary, ...] = ()  # per layer; () for none
    windows: tuple[int | None, ...] = ()  # per layer: maximum distance of attention on each side
    buckets: int = 0  # number of distance buckets, with a learned score per head (MPNet)
    disentangled: Disentangled | None = None  # (DeBERTa)
    # --- heads ---
    word_head: WordHead = WordHead()
    text_head: TextHead = TextHead()
    choice_head: TextHead = TextHead()  # for multiple choice
    token_head: TextHead | None = None  # before the scores of tokens and answers
    answer_dropout: float = 0.0  # before the scores of an answer's start and end

    def head_layer(self, parts: HeadParts) -> TextHead | None:
        """Return the layer that replaces the pooler in a head with these parts, or None."""
        head: TextHead | None = getattr(self, parts.layer_field, None)
        return None if head is None or head.pooler else head


BERT = Structure()
