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
from bertcli.embedding.sentence_config import read_sentence
from bertcli.embedding.sentence_modules import SentenceParts
from bertcli.errors import ModelError, UsageError
from bertcli.evaluation.metrics import ScorePredictions
from bertcli.inference.runtime import refuse_extra
from bertcli.models.bert import BertModel
from bertcli.records.examples import CONTRAST
from bertcli.records.records import Record
from bertcli.training.batches import Columns, TokenRows, in_batches, token_batch
from bertcli.training.fine_tuning import FullTask, tokenized
from bertcli.training.labelled_texts import LabelledTexts
from bertcli.training.loop import Objective, Ranks, states, tensor
from bertcli.training.options import FineTuningJob, TrainingOptions

SCALE = 20.0  # of cosines, in both losses
BLOCK = 1024  # texts that are compared with all others together
NONE = -1  # the number of a negative text that is not there
GRADIENTS, LOSS = "gradients", "loss"  # of a part whose step has others: of its vectors; its share


@dataclass(frozen=True, kw_only=True)
class PairObjective(Objective):
    """Vectors of pairs, and the loss of their cosines."""

    data: TokenRows  # of all texts
    texts: Any  # [n, 3] the texts of each example: one, the other, a negative or NONE
    scores: Any  # [n], or None: the pairs belong together
    modes: tuple[str, ...]  # of pooling

    def read(self, numbers: Any) -> Columns:
        """Return pairs by their numbers."""
        texts = self.texts[numbers]
        sizes = np.diff(self.data.starts)[texts] * (texts != NONE)
        rows = {"texts": texts, "lengths": sizes.sum(1), "places": np.arange(len(texts))}
        return rows if self.scores is None else {**rows, "scores": self.scores[numbers]}

    def counts(self, rows: Columns) -> Sequence[float]:
        """Return the number of pairs of a step."""
        return (len(rows["texts"]),)

    def sums(self, model: BertModel, part: Columns, device: torch.device) -> Sequence[Tensor]:
        """Return the loss of some pairs, times their number."""
        texts = part["texts"].T
        vectors = self.vectors(model, texts[texts != NONE], device)
        if GRADIENTS not in part:
            return (self._loss(vectors, part),)
        product = (vectors * part[GRADIENTS]).sum()  # its gradients are those of the step's loss
        return (product - product.detach() + part[LOSS],)

    def joined(
        self,
        model: BertModel,
        rows: Columns,
        own: list[Columns],
        seeds: Sequence[int],
        ranks: Ranks,
    ) -> list[Columns]:
        """Return the parts of this process with the gradients of their vectors, as GradCache."""
        device, exists = ranks.device, rows["texts"].T != NONE
        places = np.cumsum(exists.ravel()).reshape(exists.shape) - 1  # of each text's vector
        width = model.config.hidden_size * len(self.modes)
        vectors = torch.zeros(int(exists.sum()), width, device=device)
        inside = []
        for part, seed in zip(own, seeds, strict=True):
            texts = part["texts"].T
            inside.append(tensor(places[:, part["places"]][texts != NONE], device))
            torch.manual_seed(seed)
            with torch.no_grad():
                vectors[inside[-1]] = self.vectors(model, texts[texts != NONE], device)
        loss = self._loss(ranks.sum(vectors).requires_grad_(), rows)
        (gradients,) = torch.autograd.grad(loss, vectors)
        share = loss.detach() / len(rows["texts"])
        return [
            {**part, GRADIENTS: gradients[places], LOSS: share * len(part["texts"])}
            for part, places in zip(own, inside, strict=True)
        ]

    def _loss(self, vectors: Tensor, rows: Columns) -> Tensor:
        """Return the loss of rows, times their number; the vectors of negatives come last."""
        count = len(rows["texts"])
        left, right, negative = vectors.split([count, count, len(vectors) - 2 * count])
        return self.loss(left, right, negative, rows.get("scores")) * count

    def vectors(self, model: BertModel, texts: Any, device: torch.device) -> Tensor:
        """Return the vectors of texts by their numbers, each of length 1, [B, D]."""
        order = np.argsort(np.diff(self.data.starts)[texts], kind="stable")
        tokens = token_batch(self.data.rows(texts[order]))
        hidden = states(model, tokens, device)
        pooled = pool(hidden, tokens.lengths.tolist(), self.modes)
        back: Tensor = pooled[tensor(np.argsort(order), device)]
        return F.normalize(back.float(), dim=-1)

    def loss(self, left: Tensor, right: Tensor, negative: Tensor, scores: Any) -> Tensor:
        """Return the mean loss of pairs of vectors, [B, D] each, in float32."""
        device = left.device
        with torch.autocast(device.type, enabled=False):  # 20 cosines: half precision is coarse
            if scores is None:
                cosines = left @ torch.cat([right, negative]).T
                return F.cross_entropy(SCALE * cosines, torch.arange(len(left), device=device))
            cosines, truth = SCALE * (left * right).sum(-1), tensor(scores, device)
            wrong = cosines[:, None] - cosines  # [i, j]: how much more alike i is than j
            wrong = wrong[truth[:, None] < truth]
            return torch.cat([wrong.new_zeros(1), wrong]).logsumexp(0)

    def outputs(self, model: BertModel, rows: Columns, device: torch.device) -> Sequence[Any]:
        """Return the vectors of each example, [3, D]; 0 for a negative that is not there."""
        texts = rows["texts"]
        vectors = torch.zeros(*texts.shape, model.config.hidden_size * len(self.modes))
        vectors[texts != NONE] = self.vectors(model, texts[texts != NONE], device).cpu()
        return list(vectors)

    def metrics(self, outputs: Sequence[Any], batch_size: int) -> dict[str, Any]:
        """Return the loss by batches, and correlations, or how many find their own pair."""
        sides, count, total = torch.stack([*outputs], 1), len(self.held), 0.0
        for rows in in_batches(np.arange(count), batch_size):
            part = self.read(self.held[rows])
            total += self._loss(sides[:, rows][part["texts"].T != NONE], part).item()
        left, right = (side.double().numpy() for side in sides[:2])
        if self.scores is None:
            best = [(block @ right.T).argmax(1) for block in in_batches(left, BLOCK)]
            metrics = {"accuracy": float((np.concatenate(best) == np.arange(count)).mean())}
        else:
            truth = self.scores[self.held].astype(np.float64)
            all_metrics = ScorePredictions(truth, (left * right).sum(1)).metrics()
            metrics = {name: all_metrics[name] for name in ("spearman", "pearson")}
        return {"eval_loss": total / count, **metrics, "rows": count}


def pair_task(
    job: FineTuningJob, options: TrainingOptions, texts: LabelledTexts, folder: Path
) -> FullTask:
    """Return the task of a BERT whose pooled vectors are trained on pairs.

    Raises ModelError for a model with layers of its own behind the BERT.
    """
    if job.frozen:
        raise UsageError("--frozen cannot train vectors", "leave it out, or give --full")
    sentence = read_sentence(folder)
    if modules := (*sentence.of_tokens, *sentence.of_texts):
        names = ", ".join(module.kind for module in modules)
        raise ModelError(f"{folder}: has modules that train cannot train: {names}")
    bert = bert_folder(folder)
    start, _ = load(bert, BertModel, dtype=torch.float32)
    config = start.config
    refuse_extra(bert, config)
    chosen = settled(EmbedOptions(), sentence)
    alone: list[Record] = []
    numbers = np.full((len(texts.records), 3), NONE, np.int64)
    for row, (record, target) in enumerate(texts.examples.examples):
        negative = target if isinstance(target, str) else None
        for side, text in enumerate((record.text, record.pair, negative)):
            if text is not None:
                numbers[row, side] = len(alone)
                alone.append(record._replace(text=text, pair=None))
    records = prepared(alone, "", lower=sentence.lower_case)
    items, limit, tally = tokenized(job, "embed", records, bert, config, sentence.max_length)
    objective = PairObjective(
        data=TokenRows.of(items),
        held=texts.held,
        texts=numbers,
        scores=None if texts.examples.form == CONTRAST else texts.targets,
        modes=chosen.modes,
    )
    normalize = bool(chosen.normalize)
    return FullTask(
        options=job.settled(options, len(texts.train), frozen=False),
        objective=objective,
        rows=texts.train,
        job=job,
        texts=texts,
        base=folder,
        max_length=limit,
        tally=tally,
        start=start,
        config=config,
        parts=SentenceParts(chosen.modes, normalize, limit, config.hidden_size, sentence),
    )
