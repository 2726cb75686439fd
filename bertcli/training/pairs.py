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
from bertcli.embedding.sentence_folder import SentenceParts, write_sentence_parts
from bertcli.errors import ModelError, UsageError
from bertcli.evaluation.metrics import ScorePredictions
from bertcli.inference.runtime import fit_tokenizer, refuse_extra, token_limit
from bertcli.models.bert import BertModel
from bertcli.records.examples import CONTRAST
from bertcli.records.records import Record
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.run import TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.batches import Columns, TokenRows, in_batches, token_batch
from bertcli.training.checkpoints import put_model
from bertcli.training.fine_tuning import FineTuningTask, check_layers, freeze_below
from bertcli.training.labelled_texts import LabelledTexts
from bertcli.training.loop import Objective, Ranks, RunSummary, StepParts, states, tensor
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
        self, model: BertModel, step: StepParts, seeds: Sequence[int], ranks: Ranks
    ) -> list[Columns]:
        """Return the parts of this process with the gradients of their vectors, as GradCache."""
        device, exists = ranks.device, step.rows["texts"].T != NONE
        places = np.cumsum(exists.ravel()).reshape(exists.shape) - 1  # of each text's vector
        width = model.config.hidden_size * len(self.modes)
        vectors = torch.zeros(int(exists.sum()), width, device=device)
        inside = []
        for part, seed in zip(step.own, seeds, strict=True):
            texts = part["texts"].T
            inside.append(tensor(places[:, part["places"]][texts != NONE], device))
            torch.manual_seed(seed)
            with torch.no_grad():
                vectors[inside[-1]] = self.vectors(model, texts[texts != NONE], device)
        loss = self._loss(ranks.sum(vectors).requires_grad_(), step.rows)
        (gradients,) = torch.autograd.grad(loss, vectors)
        share = loss.detach() / len(step.rows["texts"])
        return [
            {**part, GRADIENTS: gradients[own], LOSS: share * len(part["texts"])}
            for part, own in zip(step.own, inside, strict=True)
        ]

    def _loss(self, vectors: Tensor, rows: Columns) -> Tensor:
        """Return the loss of rows, times their number; the vectors of negatives come last."""
        count = len(rows["texts"])
        left, right, negative = vectors.split([count, count, len(vectors) - 2 * count])
        return self.loss(left, right, negative, rows.get("scores")) * count

    def vectors(self, model: BertModel, texts: Any, device: torch.device) -> Tensor:
        """Return the vectors of texts by their numbers, each of length 1, [B, D]."""
        order = np.argsort(np.diff(self.data.starts)[texts], kind="stable")
        tokens = token_batch(self.data.rows(texts[order]), padded=device.type != "cpu")
        hidden = states(model, tokens, device)
        if tokens.width:
            keep = np.arange(tokens.width) < tokens.lengths[:, None]
            hidden = hidden[tensor(keep.ravel(), device)]
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

    def evaluate(self, model: BertModel, ranks: Ranks, batch_size: int) -> dict[str, Any]:
        """Return the loss by batches, and correlations, or how many find their own pair."""
        sides, count, total = [], len(self.held), 0.0
        for texts in self.texts[self.held].T:
            vectors = torch.zeros(count, model.config.hidden_size * len(self.modes))
            own = np.flatnonzero(texts != NONE)[ranks.index :: ranks.count]
            for rows in in_batches(own, batch_size):
                vectors[rows] = self.vectors(model, texts[rows], ranks.device).cpu()
            sides.append(ranks.total(vectors))
        for rows in in_batches(np.arange(count), batch_size):
            negative = rows[self.texts[self.held[rows], 2] != NONE]
            scores = None if self.scores is None else self.scores[self.held[rows]]
            loss = self.loss(sides[0][rows], sides[1][rows], sides[2][negative], scores)
            total += loss.item() * len(rows)
        left, right = (side.double().numpy() for side in sides[:2])
        if self.scores is None:
            best = [(block @ right.T).argmax(1) for block in in_batches(left, BLOCK)]
            metrics = {"accuracy": float((np.concatenate(best) == np.arange(count)).mean())}
        else:
            truth = self.scores[self.held].astype(np.float64)
            all_metrics = ScorePredictions(truth, (left * right).sum(1)).metrics()
            metrics = {name: all_metrics[name] for name in ("spearman", "pearson")}
        return {"eval_loss": total / count, **metrics, "rows": count}


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
        fit_tokenizer(bert, start.config, tokenizer)
        limit = token_limit(start.config, tokenizer, job.max_length, sentence.max_length)
        chosen = settled(EmbedOptions(), sentence)
        width, normalize = start.config.hidden_size, bool(chosen.normalize)
        parts = SentenceParts(chosen.modes, normalize, limit, width, sentence)
        examples = texts.examples.examples
        alone: list[Record] = []
        numbers = np.full((len(examples), 3), NONE, np.int64)
        for row, (record, target) in enumerate(examples):
            negative = target if isinstance(target, str) else None
            for side, text in enumerate((record.text, record.pair, negative)):
                if text is not None:
                    numbers[row, side] = len(alone)
                    alone.append(record._replace(text=text, pair=None))
        layout = Layout(
            columns=("input_ids", "token_type_ids"), max_length=limit, truncation="longest_first"
        )
        records = prepared(alone, "", lower=sentence.lower_case)
        items, tally = tokenizer.encode_records(list(records), layout), TokenCounts()
        tally.add(items, limit)
        objective = PairObjective(
            data=TokenRows.of(items),
            held=texts.held,
            texts=numbers,
            scores=None if texts.examples.form == CONTRAST else texts.targets,
            modes=chosen.modes,
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
