"""`bertcli score`: how likely texts are, and how similar the texts of pairs are (BERTScore)."""

from bertcli.cli.commands.tasks import TruncationOptions, run_task
from bertcli.cli.options.common import (
    ComputeOptions,
    ConsoleOptions,
    HeadModelOptions,
    InputOptions,
    RowOutput,
    given_field_options,
)
from bertcli.cli.options.completion import complete_model
from bertcli.cli.options.groups import MODEL, OptionGroup, flag, option
from bertcli.errors import UsageError
from bertcli.model_folder.hub_cache import DEFAULT_MODEL

PAIR_OPTIONS = "--pairs, --pair or --pair-field"


class ScoreModelOptions(HeadModelOptions, panel=MODEL):
    """The masked language model, or the encoder that compares pairs."""

    model = option(
        "Folder, or hub id, of a masked language model; required. With --pairs, of any encoder "
        f"(default: {DEFAULT_MODEL}).",
        "MODEL",
        "--model",
        "-m",
        envvar="BERTCLI_MODEL",
        complete=complete_model,
    )


class LikelihoodOptions(OptionGroup, panel="Likelihood of texts"):
    """The likelihood of texts."""

    per_token = flag("Also return the log probability of each token.")
    within_word = flag("Mask the later tokens of the same word, too, as minicons' within_word_l2r.")

    def refuse_with_pairs(self) -> None:
        """Raise UsageError for options of texts beside pairs."""
        for name, is_given in {
            "--per-token": self.per_token,
            "--within-word": self.within_word,
        }.items():
            if is_given:
                raise UsageError(
                    f"{name} cannot be combined with {PAIR_OPTIONS}",
                    "pairs have the scores of BERTScore",
                )


class BertScoreOptions(OptionGroup, panel="Similarity of pairs (BERTScore)"):
    """The similarity of the texts of pairs."""

    layers = option(
        "Layer whose vectors are compared: -1 is the last, 0 the embeddings. bert-score chooses 9 "
        "for bert-base-uncased, 17 for roberta-large.",
        "N",
        default=-1,
        annotation=int,
    )
    idf = flag("Rare tokens of the references weigh more. Reads all pairs first.")

    def refuse_without_pairs(self) -> None:
        """Raise UsageError for options of pairs beside texts."""
        for name, is_given in {"--layers": self.layers != -1, "--idf": self.idf}.items():
            if is_given:
                raise UsageError(f"{name} requires {PAIR_OPTIONS}")


def has_pairs(source: InputOptions) -> bool:
    """Return True if the input consists of pairs."""
    has_field = "--pair-field" in given_field_options([source])  # not only in the environment
    return source.pairs is not None or bool(source.pair) or has_field


def score(
    source: InputOptions,
    model: ScoreModelOptions,
    likelihood: LikelihoodOptions,
    similarity: BertScoreOptions,
    length: TruncationOptions,
    compute: ComputeOptions,
    output: RowOutput,
    console: ConsoleOptions,
) -> None:
    """Score how likely texts are, or how similar pairs of texts are (BERTScore).

    $ bertcli score 'He saw her.' 'He heard she.' -m bert-base-uncased
    $ bertcli score -i texts.txt --per-token -m bert-base-uncased
    $ bertcli score --pairs pairs.tsv --layers 9 --idf -m bert-base-uncased

    The score of a text is the sum of the log probabilities of its tokens, each masked in turn and
    predicted from all others; perplexity is the exponential of their negative mean. The two columns
    of --pairs are a candidate and its reference.
    """
    if has_pairs(source):
        likelihood.refuse_with_pairs()
        model = model.changed(model=model.model or DEFAULT_MODEL)
        reader = source.reader()
        run_task("BertScorer", [similarity], reader, model, length, compute, output, console)
        return
    similarity.refuse_without_pairs()
    run_task(
        "MaskedLMScorer",
        [likelihood],
        source.reader(no_pairs=True, pair_field=None),
        model,
        length,
        compute,
        output,
        console,
        view="token_scores_view" if likelihood.per_token else "results_view",
    )
