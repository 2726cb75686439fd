"""Training an embedding model on pairs: contrast with other pairs of a step, or order of scores.

Source: sentence-transformers, MultipleNegativesRankingLoss (Henderson et al., 2017) and CoSENTLoss
(Su, 2022), with their scale. A loss is that of all rows of a step, in however many parts and
processes: the gradients of all vectors come first, those of the weights part by part (Gao et al.,
Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021, known as GradCache).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertcli.checkpoints.load import load
from bertcli.checkpoints.scan import bert_folder
from bertcli.embedding.options import EmbedOptions, prepared, settled
from bertcli.embedding.pooling import pool
from bertcli.embedding.sentence_config import Sentence, read_sentence
from bertcli.embedding.sentence_folder import SentenceParts, write_sentence_parts
from bertcli.errors import ModelError, UsageError
from bertcli.evaluation.scores import ScorePredictions
from bertcli.inference.runtime import refuse_extra, refuse_unfit, token_limit
from bertcli.models.bert import BertModel
from bertcli.records.example_forms import CONTRAST
from bertcli.records.records import Record
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.run import TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.batches import Columns, TokenRows, in_batches, token_batch
from bertcli.training.checkpoints import put_model
from bertcli.training.fine_tuning import FineTuningTask, check_layers, freeze_below
from bertcli.training.labelled_texts import LabelledTexts
from bertcli.training.objective import Objective, StepParts, states, tensor
from bertcli.training.options import FineTuningJob, TrainingOptions
from bertcli.training.ranks import Ranks
from bertcli.training.result import RunSummary

SCALE = 20.0  # of cosines, in both losses
BLOCK = 1024  # texts that are compared with all others together
NONE = -1  # the number of a negative text that is not there
GRADIENTS, LOSS = "gradients", "loss"  # of a part whose step has others: of its vectors; its share


def _there(rows: Columns) -> np.ndarray:
    """Tell which texts of pairs are there, [3, B]."""
    found: np.ndarray = rows["texts"].T != NONE
    return found


@dataclass(frozen=True, kw_only=True)
class PairObjective(Objective):
    """Vectors of pairs, and the loss of their cosines."""

    data: TokenRows  # of all texts
    texts: Any  # [n, 3] the texts of each example: one, the other, a negative or NONE
    scores: Any  # [n], or None: the pairs belong together
    modes: tuple[str, ...]  # of pooling

    def read(self, rows: Any) -> Columns:
        """Return pairs by their numbers."""
        texts = self.texts[rows]
        sizes = np.diff(self.data.starts)[texts] * (texts != NONE)
        found = {"texts": texts, "lengths": sizes.sum(1), "places": np.arange(len(texts))}
        return found if self.scores is None else {**found, "scores": self.scores[rows]}

    def counts(self, found: Columns) -> Sequence[float]:
        """Return the number of pairs of a step."""
        return (len(found["texts"]),)

    def sums(self, model: BertModel, part: Columns, device: torch.device) -> Sequence[Tensor]:
        """Return the loss of some pairs, times their number."""
        vectors = self.vectors(model, part["texts"].T[_there(part)], device)
        if GRADIENTS not in part:
            return (self._loss(vectors, part),)
        known = (vectors * part[GRADIENTS]).sum()  # its gradients are those of the step's loss
        return (known - known.detach() + part[LOSS],)

    def joined(
        self, model: BertModel, step: StepParts, seeds: Sequence[int], ranks: Ranks
    ) -> list[Columns]:
        """Return the parts of this process with the gradients of their vectors, as GradCache."""
        whole, device = _there(step.rows), ranks.device
        places = np.cumsum(whole.ravel()).reshape(whole.shape) - 1  # of each text's vector
        width = model.config.hidden_size * len(self.modes)
        vectors = torch.zeros(int(whole.sum()), width, device=device)
        inside = [places[:, part["places"]][_there(part)] for part in step.own]
        for part, where, seed in zip(step.own, inside, seeds, strict=True):
            torch.manual_seed(seed)
            with torch.no_grad():
                found = self.vectors(model, part["texts"].T[_there(part)], device)
            vectors[tensor(where, device)] = found
        loss = self._loss(ranks.sum(vectors).requires_grad_(), step.rows)
        (gradients,) = torch.autograd.grad(loss, vectors)
        share = loss.detach() / len(step.rows["texts"])
        return [
            {**part, GRADIENTS: gradients[tensor(where, device)], LOSS: share * len(part["texts"])}
            for part, where in zip(step.own, inside, strict=True)
        ]

    def _loss(self, vectors: Tensor, rows: Columns) -> Tensor:
        """Return the loss of rows, times their number; `vectors` are those of `_there`."""
        count = len(rows["texts"])
        one, other, negative = vectors.split([count, count, len(vectors) - 2 * count])
        return self.loss(one, other, negative, rows.get("scores")) * count

    def vectors(self, model: BertModel, texts: Any, device: torch.device) -> Tensor:
        """Return the vectors of texts by their numbers, each of length 1, [B, D]."""
        order = np.argsort(np.diff(self.data.starts)[texts], kind="stable")
        tokens = token_batch(self.data.columns(texts[order]), padded=device.type != "cpu")
        hidden = states(model, tokens, device)
        if tokens.width:
            keep = np.arange(tokens.width) < tokens.lengths[:, None]
            hidden = hidden[tensor(keep.ravel(), device)]
        pooled = pool(hidden, tokens.lengths.tolist(), self.modes)
        back: Tensor = pooled[tensor(np.argsort(order), device)]
        return F.normalize(back.float(), dim=-1)

    def loss(self, one: Tensor, other: Tensor, negative: Tensor, scores: Any) -> Tensor:
        """Return the mean loss of pairs of vectors, [B, D] each, in float32."""
        with torch.autocast(one.device.type, enabled=False):  # 20 cosines: half precision is coarse
            return self._in_full(one, other, negative, scores)

    def _in_full(self, one: Tensor, other: Tensor, negative: Tensor, scores: Any) -> Tensor:
        if scores is None:
            cosines = one @ torch.cat([other, negative]).T
            return F.cross_entropy(SCALE * cosines, torch.arange(len(one), device=one.device))
        cosines, truth = SCALE * (one * other).sum(-1), tensor(scores, one.device)
        wrong = cosines[:, None] - cosines  # [i, j]: how much more alike i is than j
        wrong = wrong[truth[:, None] < truth]
        return torch.cat([wrong.new_zeros(1), wrong]).logsumexp(0)

    def evaluate(self, model: BertModel, ranks: Ranks, batch_size: int) -> dict[str, Any]:
        """Return the loss by batches, and correlations, or how many find their own pair."""
        vectors = {}
        for side, texts in enumerate(self.texts[self.held].T):
            own = np.flatnonzero(texts != NONE)[ranks.index :: ranks.count]
            found = torch.zeros(len(texts), model.config.hidden_size * len(self.modes))
            for some in in_batches(own, batch_size):
                found[some] = self.vectors(model, texts[some], ranks.device).cpu()
            vectors[side] = ranks.total(found)
        return {"eval_loss": self._held_loss(vectors, batch_size), **self._metrics(vectors)}

    def _held_loss(self, vectors: dict[int, Tensor], batch_size: int) -> float:
        total = 0.0
        for some in in_batches(np.arange(len(self.held)), batch_size):
            there = some[self.texts[self.held[some], 2] != NONE]
            scores = None if self.scores is None else self.scores[self.held[some]]
            loss = self.loss(vectors[0][some], vectors[1][some], vectors[2][there], scores)
            total += loss.item() * len(some)
        return total / len(self.held)

    def _metrics(self, vectors: dict[int, Tensor]) -> dict[str, Any]:
        one, other = vectors[0].double().numpy(), vectors[1].double().numpy()
        if self.scores is not None:
            truth = self.scores[self.held].astype(np.float64)
            found = ScorePredictions(truth, (one * other).sum(1)).metrics()
            return {name: found[name] for name in ("spearman", "pearson")} | {"rows": len(one)}
        best = np.concatenate([(some @ other.T).argmax(1) for some in in_batches(one, BLOCK)])
        return {"accuracy": float((best == np.arange(len(one))).mean()), "rows": len(one)}


@dataclass(frozen=True, kw_only=True)
class PairTask(FineTuningTask):
    """A BERT whose pooled vectors are trained on pairs."""

    start: BertModel
    parts: SentenceParts
    tally: TokenCounts

    @classmethod
    def open(
        cls, job: FineTuningJob, options: TrainingOptions, texts: LabelledTexts, folder: Path
    ) -> PairTask:
        """Tokenize the texts, and load the model; ModelError when it has layers of its own."""
        if job.frozen:
            raise UsageError("--frozen cannot train vectors", "leave it out, or give --full")
        options = job.settled(options, len(texts.train), frozen=False)
        sentence = read_sentence(folder)
        if modules := (*sentence.of_tokens, *sentence.of_texts):
            names = ", ".join(module.kind for module in modules)
            raise ModelError(f"{folder}: has modules that train cannot train: {names}")
        bert = bert_folder(folder)
        start, _ = load(bert, BertModel, dtype=torch.float32)
        check_layers(job.layers, start.config)
        tokenizer = Tokenizer.load(bert)
        refuse_extra(bert, start.config)
        refuse_unfit(bert, start.config, tokenizer)
        limit = token_limit(start.config, tokenizer, job.max_length, sentence.max_length)
        chosen = settled(EmbedOptions(), sentence)
        width, normalize = start.config.hidden_size, bool(chosen.normalize)
        parts = SentenceParts(chosen.modes, normalize, limit, width, sentence)
        data, numbers, tally = _tokenized(texts, tokenizer, sentence, limit)
        scores = None if texts.examples.form == CONTRAST else texts.targets
        objective = PairObjective(
            data=data, held=texts.held, texts=numbers, scores=scores, modes=chosen.modes
        )
        return cls(
            options=options,
            objective=objective,
            rows=texts.train,
            job=job,
            texts=texts,
            base=folder,
            start=start,
            parts=parts,
            tally=tally,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the results, beside the numbers of the run."""
        pooling = "+".join(self.parts.modes)
        own = {"method": "full", "layers": self.job.layers, "pooling": pooling}
        return {**super().identity, **own}

    def model(self, checkpoint: Path | None) -> BertModel:
        """Build the model, as before the first step or as it is in a checkpoint."""
        source = self.start if checkpoint is None else load(checkpoint, BertModel)[0]
        has_pooler = any(name.startswith("pooler.") for name in source.state_dict())
        model = BertModel(source.config, has_pooler)
        model.load_state_dict(source.state_dict())
        freeze_below(model, self.job.layers)
        model.pooler.requires_grad_(False)  # no vector is made with it
        return model

    def put(self, folder: Path, model: BertModel) -> None:
        """Write the BERT with its tokenizer."""
        put_model(folder, model, model.config, bert_folder(self.base))

    def publish(self, folder: Path, model: BertModel, summary: RunSummary) -> None:
        """Write the whole sentence model."""
        self.put(folder, model)
        write_sentence_parts(folder, self.parts, self.base)
        self.describe(folder, summary)


def _tokenized(
    texts: LabelledTexts, tokenizer: Tokenizer, sentence: Sentence, limit: int
) -> tuple[TokenRows, np.ndarray, TokenCounts]:
    """Return the tokens of all texts, and the numbers of the texts of each pair, [n, 3]."""
    alone: list[Record] = []
    numbers = np.full((len(texts.records), 3), NONE, np.int64)
    for row, example in enumerate(texts.examples.examples):
        record, target = example
        negative = target if isinstance(target, str) else None
        for side, text in enumerate((record.text, record.pair, negative)):
            if text is not None:
                numbers[row, side] = len(alone)
                alone.append(record._replace(text=text, pair=None))
    layout = Layout(
        columns=("input_ids", "token_type_ids"), max_length=limit, truncation="longest_first"
    )
    items = tokenizer.encode(list(prepared(alone, "", lower=sentence.lower_case)), layout)
    tally = TokenCounts()
    tally.add(items, limit)
    return TokenRows.of(items), numbers, tally
