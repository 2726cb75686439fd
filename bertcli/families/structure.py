"""Where the model of a family differs from BERT: a record whose defaults are BERT.

Nothing here is read from config.json as it is: the page of a family makes it from the keys that its
config.json has. The modules of `models` are chosen by it when a model is built.

Every command defines these, and named tuples are defined in a fourth of a dataclass's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Rotary(NamedTuple):
    """Queries and keys are turned by their position. Source: RoFormer, section 3.2.2."""

    theta: float
    scaling: float  # 1, or linear: positions are divided by it


class Disentangled(NamedTuple):
    """Words and distances have vectors of their own, which attention compares crosswise.

    Source: DeBERTa, section 3.1.
    """

    span: int  # the table has a vector for so many distances, or buckets, on each side
    longest: int  # of distances: those beyond share a vector
    buckets: bool  # far distances share vectors by their logarithm
    word_to_distance: bool  # c2p: a query meets the vector of the distance
    distance_to_word: bool  # p2c: a key meets it
    shared: bool  # a layer's own keys and queries are made of the vectors; or others
    norm: bool  # vectors are normalised before

    @property
    def parts(self) -> int:
        """The scores that are added up, those of words with words among them."""
        return 1 + self.word_to_distance + self.distance_to_word


class Convolution(NamedTuple):
    """What neighbours say of a token is added to what the first layer makes of it (DeBERTa v2)."""

    size: int  # odd: so many tokens, the middle one included
    groups: int
    activation: str


class Dropouts(NamedTuple):
    """What is dropped where, in training; None is the config's `hidden_dropout_prob`."""

    embeddings: float | None = None
    attended: float | None = None  # after the projection of an attention block
    gated: float = 0.0  # between the two halves of a gated feed-forward block
    fed: float | None = None  # after a feed-forward block


class TextHead(NamedTuple):
    """What stands between the first token and the scores of a text's classes.

    BERT has its pooler there, whose names begin with `bert.pooler`; others have layers of their own
    in the head: dropout, `classifier_head.dense`, an activation, `classifier_head.norm`. In all of
    them dropout and `classifier` come last.
    """

    pooler: bool = True  # the model's own pooler, and then one layer
    activation: str = "tanh"
    drop_first: float | None = 0.0  # also before the dense layer; None: as the config says
    norm: bool = False  # after the activation
    bias: bool = True
    mean: bool = False  # of the mean of all tokens, not of the first
    dropout: float | None = None  # None: as the config says


class WordHead(NamedTuple):
    """What stands between a token and the scores of the words: `cls.predictions`."""

    activation: str | None = None  # None: the config's hidden_act
    dense_bias: bool = True
    bias: bool = True  # of the scores
    bias_twice: bool = True  # `bias` and `decoder.bias` are one; without it only the latter is


class HeadParts(NamedTuple):
    """What a class has on top of BERT, in the order in which a state passes it."""

    pooler: bool = False  # of a text: BERT's pooler, unless there is a layer of its own
    own: str = ""  # the field of `Structure` that says of which kind that layer is
    words: bool = False  # `cls.predictions`, which scores words
    scores: str = ""  # the name of the last layer
    outputs: int = 0  # of that one; 0: as many as there are labels


HEAD_PARTS: Mapping[str, HeadParts] = {
    "BertModel": HeadParts(),
    "BertForMaskedLM": HeadParts(words=True),
    "BertLMHeadModel": HeadParts(words=True),
    "BertForPreTraining": HeadParts(True, words=True, scores="cls.seq_relationship", outputs=2),
    "BertForNextSentencePrediction": HeadParts(True, scores="cls.seq_relationship", outputs=2),
    "BertForSequenceClassification": HeadParts(True, "text_head", scores="classifier"),
    "BertForMultipleChoice": HeadParts(True, "choice_head", scores="classifier", outputs=1),
    "BertForTokenClassification": HeadParts(own="token_head", scores="classifier"),
    "BertForQuestionAnswering": HeadParts(own="token_head", scores="qa_outputs", outputs=2),
    "BertForReplacedTokens": HeadParts(  # behind `discriminator_predictions.dense`
        scores="discriminator_predictions.dense_prediction", outputs=1
    ),
}


class Structure(NamedTuple):
    """The places in which an encoder may differ from BERT. Layers are counted from 0."""

    # --- embeddings ---
    embedding_size: int | None = None  # of the tables, when a projection leads to hidden_size
    absolute_positions: bool = True  # a table of positions is added to the words
    # The position of a text's first token: 1 and more are behind that of padding, which has its id
    # and is not counted in a text.
    first_position: int = 0
    token_types: bool = True  # a table of token types is added to the words
    pooler: bool = True  # the model itself may have a pooler
    blank_padding: bool = False  # what no token attends to is 0, and attends to nothing (DeBERTa)
    # --- layers ---
    convolution: Convolution | None = None  # beside the first layer
    layer_groups: tuple[int, ...] | None = None  # of each layer, whose weights it has (ALBERT)
    norm_first: bool = False  # norms before each part but the first, and behind the last layer
    norm_bias: bool = True
    attention_bias: bool = True
    gated: bool = False  # act(`gate`) * `dense`, each with a matrix of its own
    feed_forward_bias: tuple[bool, bool] = (True, True)  # of the wide matrices, of the narrow one
    dropouts: Dropouts = Dropouts()
    # --- attention ---
    rotary: tuple[Rotary, ...] = ()  # of each layer; () is none
    windows: tuple[int | None, ...] = ()  # of each layer: a token sees so many on both sides
    buckets: int = 0  # a learned score a head for each bucket of distances, one table (MPNet)
    disentangled: Disentangled | None = None  # (DeBERTa)
    # --- heads ---
    word_head: WordHead = WordHead()
    text_head: TextHead = TextHead()
    choice_head: TextHead = TextHead()  # of multiple choice
    token_head: TextHead | None = None  # before each token, or its part in an answer, is judged
    answer_dropout: float = 0.0  # before the start and the end of an answer are scored

    def own_layer(self, parts: HeadParts) -> TextHead | None:
        """Return the layer that a head of these parts has in place of the pooler, if any."""
        head: TextHead | None = getattr(self, parts.own, None)
        return None if head is None or head.pooler else head


BERT = Structure()
