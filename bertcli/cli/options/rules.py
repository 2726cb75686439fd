"""Rules on which options exclude or require others, for every command.

    Rule("--rerank", EXCLUDES, ("--mine",), "hint")

Options are written as users type them. A rule with a value (`--engine ray`) applies to that value
only. A rule applies to every command that has its options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from bertcli.cli.display.console import say
from bertcli.errors import UsageError


class Relation(Enum):
    """How an option relates to others. The value is the verb of the error message."""

    EXCLUDES = "cannot be combined with"
    REQUIRES = "requires"
    UNUSED_WITH = "has no effect with"
    UNUSED_WITHOUT = "has no effect without"


EXCLUDES = Relation.EXCLUDES
REQUIRES = Relation.REQUIRES
UNUSED_WITH = Relation.UNUSED_WITH
UNUSED_WITHOUT = Relation.UNUSED_WITHOUT


class Rule(NamedTuple):
    """A relation between an option and other options, any one of which is enough."""

    option: str
    relation: Relation
    others: tuple[str, ...]
    hint: str = ""

    @property
    def message(self) -> str:
        """The rule as a sentence: `--hybrid requires --corpus or --index`."""
        *first, last = self.others
        others = f"{', '.join(first)} or {last}" if first else last
        return f"{self.option} {self.relation.value} {others}"


CHUNK_MODES = ("--on-truncate chunk", "--on-truncate late-chunk")

RULES = (
    Rule(
        "--resume",
        EXCLUDES,
        ("--overwrite",),
        "--resume continues an interrupted run, --overwrite starts over",
    ),
    Rule("--extra", EXCLUDES, ("--frozen",)),
    Rule("--whole", EXCLUDES, ("--input-format",)),
    Rule("--pairs", EXCLUDES, ("TEXT", "--input", "--files-from")),
    Rule("QUERY", EXCLUDES, ("--input",)),
    Rule("--files-from", EXCLUDES, ("TEXT",)),
    Rule("FILE", EXCLUDES, ("--input",)),
    Rule("FILE...", EXCLUDES, ("--input",)),
    Rule("--margin", REQUIRES, ("--mine",)),
    Rule("--words", REQUIRES, ("--corpus",)),
    Rule(
        "--hybrid",
        EXCLUDES,
        ("--sparse", "--token-vectors", "--mine", "--threshold"),
        "scores of --hybrid are sums of reciprocal ranks",
    ),
    Rule("--hybrid", REQUIRES, ("--corpus", "--index")),
    Rule("--rank-constant", REQUIRES, ("--hybrid",)),
    Rule("--lexical-weight", REQUIRES, ("--hybrid",)),
    Rule(
        "--lexical",
        EXCLUDES,
        ("--hybrid", "--vectors", "--sparse", "--token-vectors", "--mine"),
        "it compares terms, not vectors",
    ),
    Rule("--lexical", EXCLUDES, ("--threshold",), "its scores have no scale"),
    Rule("--lexical", REQUIRES, ("--corpus", "--index")),
    Rule(
        "--against",
        EXCLUDES,
        ("--chain", "--keep longest"),
        "the texts of --against are kept",
    ),
    Rule(
        "--explain",
        EXCLUDES,
        ("--hybrid", "--lexical", "--sparse", "--rerank", "--mine"),
        "it divides cosines, dot products and MaxSim among tokens",
    ),
    Rule("--rerank", EXCLUDES, ("--mine",)),
    Rule("--rerank-top", REQUIRES, ("--rerank",)),
    Rule(
        "--index",
        EXCLUDES,
        ("--vectors", "--sparse", "--token-vectors", "--mine"),
        "it holds one vector per text or chunk",
    ),
    Rule("--mine", REQUIRES, ("--corpus",)),
    Rule("--mine", EXCLUDES, ("--format table",)),
    Rule("--mine", EXCLUDES, ("QUERY",), "give pairs with --input FILE"),
    Rule("--mine", EXCLUDES, ("--sparse", "--token-vectors")),
    Rule("--attention", EXCLUDES, ("--tree", "--tensors", "--config", "--tokenizer", "--verify")),
    Rule("--stats", EXCLUDES, ("--count", "--from-tokens")),
    Rule("--count", EXCLUDES, ("--from-tokens",)),
    Rule("--sparse", EXCLUDES, ("--precision",)),
    Rule("--scores all", EXCLUDES, ("--top-k", "--threshold")),
    *(
        Rule(labels, EXCLUDES, ("--pair", "--pairs", "--pre-split"), "it classifies single texts")
        for labels in ("--labels", "--label")
    ),
    *(
        Rule(labels, EXCLUDES, ("--logits",), "its scores are of all labels together")
        for labels in ("--labels", "--label")
    ),
    Rule("--hypothesis", REQUIRES, ("--labels", "--label")),
    Rule("--multi-label", REQUIRES, ("--labels", "--label")),
    Rule("--scores", REQUIRES, ("--redact",)),
    Rule("--scores", EXCLUDES, ("--redact-with",), "write {score} in the mask"),
    Rule("--redact-with", REQUIRES, ("--redact",)),
    Rule("--redact", EXCLUDES, ("--aggregation none",), "entities are replaced, not tokens"),
    Rule("--sparse", EXCLUDES, ("--token-vectors",)),
    Rule("--per-file", REQUIRES, ("--count", "--stats")),
    Rule("--per-file", EXCLUDES, ("TEXT",), "give files with -i"),
    Rule("--queries", REQUIRES, ("--qrels",)),
    Rule("--corpus", REQUIRES, ("--qrels",)),
    Rule("--qrels", REQUIRES, ("--queries",)),
    Rule("--qrels", REQUIRES, ("--corpus",)),
    Rule("--qrels", EXCLUDES, ("FILE", "--input")),
    Rule("--ragged", EXCLUDES, ("--engine ray",)),
    Rule("--ragged", EXCLUDES, ("--count", "--stats")),
    Rule("--engine ray", EXCLUDES, ("--from-tokens", "--count", "--stats")),
    Rule("--from-tokens", EXCLUDES, ("--pair", "--pairs")),
    Rule("--ray-address", REQUIRES, ("--engine ray",)),
    Rule("--cpus-per-worker", REQUIRES, ("--engine ray",)),
    Rule("--gpus-per-worker", REQUIRES, ("--engine ray",)),
    Rule("--update", EXCLUDES, ("--engine ray",)),
    Rule("--update", EXCLUDES, ("--overwrite", "--no-manifest")),
    Rule(
        "--update",
        EXCLUDES,
        ("--precision int8", "--precision uint8"),
        "their ranges are those of all texts together: use float32, float16 or binary",
    ),
    Rule(
        "--update",
        EXCLUDES,
        ("--token-vectors", "--word-vectors", "--pooling none", "--sparse"),
        "it needs one vector per text or chunk",
    ),
    Rule("--sparse", EXCLUDES, ("--engine ray",)),
    Rule(
        "--no-manifest", EXCLUDES, ("--engine ray",), "its manifests record which shards are done"
    ),
    *(
        Rule(mode, EXCLUDES, ("--engine ray",), "use bertcli chunk, and embed the chunks")
        for mode in CHUNK_MODES
    ),
    Rule("--ragged", EXCLUDES, ("--padding",)),
    Rule("--pair", REQUIRES, ("--attention",)),
    Rule("--extra", REQUIRES, ("--attention",)),
    Rule("--layers", REQUIRES, ("--attention",)),
    Rule("--heads", REQUIRES, ("--attention",)),
    Rule("--output", REQUIRES, ("--attention",)),
    Rule("--keep-fields", UNUSED_WITH, ("--stats",)),
    Rule("--id-field", UNUSED_WITH, ("--stats",)),
    Rule("--stride", UNUSED_WITHOUT, ("--overflowing",)),
    Rule("--stride", UNUSED_WITHOUT, ("--on-truncate window", "--on-truncate late-chunk")),
    Rule("--overlap", UNUSED_WITHOUT, CHUNK_MODES),
    Rule("--dtype int8", EXCLUDES, ("--to onnx",), "OpenVINO runs 8-bit graphs: use --to openvino"),
    *(
        Rule(
            mode,
            EXCLUDES,
            ("--pair", "--pairs", "--pre-split"),
            "chunks are made of single texts, in their original characters",
        )
        for mode in CHUNK_MODES
    ),
)
# Parameter names of positional arguments, by metavar.
ARGUMENTS = {"FILE": "file", "FILE...": "files", "TEXT": "texts", "QUERY": "queries"}


def check_rules(
    rules: Iterable[Rule], values: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
    """Raise UsageError for the first rule that the values of a command's options break.

    An option that has no effect causes only a warning.
    """
    for rule in rules:
        if is_given(rule.option, values, defaults) and is_broken(rule, values, defaults):
            if rule.relation in (EXCLUDES, REQUIRES):
                raise UsageError(rule.message, rule.hint)
            if not values.get("quiet"):
                say("warning", rule.message)


def is_broken(rule: Rule, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Return True if the other options of a rule conflict with its first, which is given."""
    any_given = any(is_given(other, values, defaults) for other in rule.others)
    if rule.relation in (EXCLUDES, UNUSED_WITH):
        return any_given
    command_has_others = any(parameter_name(other) in values for other in rule.others)
    return command_has_others and not any_given


def is_given(option: str, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Return True if an option has the value stated in a rule, or differs from its default."""
    name = parameter_name(option)
    value = values.get(name)
    if option.startswith("--no-"):
        return value is False
    _, _, rule_value = option.partition(" ")
    if rule_value:
        return bool(value == rule_value)
    return value is not False and value != defaults.get(name)


def parameter_name(option: str) -> str:
    """Return the parameter name of an option or argument: `--no-manifest` gives `manifest`."""
    flag = option.partition(" ")[0]
    if flag in ARGUMENTS:
        return ARGUMENTS[flag]
    return flag.removeprefix("--").removeprefix("no-").replace("-", "_")
