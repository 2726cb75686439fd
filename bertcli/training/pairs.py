"""Training an embedding model on pairs of texts, as a task of the loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertcli.checkpoints.load import load
from bertcli.checkpoints.scan import bert_folder
from bertcli.embedding.options import EmbedOptions, prepared, settled
from bertcli.embedding.sentence_config import Sentence, read_sentence
from bertcli.embedding.sentence_folder import SentenceParts, write_sentence_parts
from bertcli.errors import ModelError, UsageError
from bertcli.inference.runtime import refuse_extra, refuse_unfit, token_limit
from bertcli.models.bert import BertModel
from bertcli.records.example_forms import CONTRAST
from bertcli.records.records import Record
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.run import TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.batches import TokenRows
from bertcli.training.checkpoints import put_model
from bertcli.training.fine_tuning import FineTuningTask, check_layers, freeze_below
from bertcli.training.labelled_texts import LabelledTexts
from bertcli.training.options import FineTuningJob, TrainingOptions
from bertcli.training.pair_objective import NONE, PairObjective
from bertcli.training.result import RunSummary


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
        width, said = start.config.hidden_size, (sentence.lower_case, sentence.include_prompt)
        parts = SentenceParts(chosen.modes, bool(chosen.normalize), limit, width, *said)
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
        put_model(folder, model, model.config, self.base)

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
