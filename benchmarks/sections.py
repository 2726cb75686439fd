"""What is measured in an Arena: each section makes tables for people and a record for the JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from contestants import CPU, OURS, REFERENCE, Contestant, bertcli, with_threads
from corpus import Corpus, TextSet
from engines import tokens_of
from flops import Shape
from measure import Arena, Result, cosines
from report import Table

REFERENCES = (REFERENCE, "sentence-transformers float16", OURS)  # the first that takes part


@dataclass(frozen=True)
class Setting:
    """What the sections work with."""

    arena: Arena
    corpus: Corpus
    contestants: Sequence[Contestant] = CPU
    given: Sequence[TextSet] = ()  # from the user's files, instead of the sets that are made
    scale: float = 1.0  # of the number of texts
    large: bool = False

    @property
    def shape(self) -> Shape:
        return Shape.read(self.arena.place.model)

    @property
    def ceiling_flops(self) -> int:
        """What a contestant that only multiplies computes in one run."""
        return self.shape.linear * tokens_of(self.contestants[0].device)

    def count(self, texts: int) -> int:
        return max(3, round(texts * self.scale))

    def pick(self, *names: str) -> list[Contestant]:
        """Return the contestants of these names, in this order."""
        by_name = {one.name: one for one in self.contestants}
        return [by_name[name] for name in names if name in by_name]


@dataclass(frozen=True)
class Section:
    """What a section found."""

    tables: list[Table]
    record: dict[str, Any]


def embed(setting: Setting) -> Section:
    """Everybody on short, long and mixed texts; the ceiling is measured in the same rounds."""
    corpus, count = setting.corpus, setting.count
    made = [corpus.short(count(500)), corpus.long(count(50)), corpus.mixed(count(100))]
    sets = setting.given or made
    found = setting.arena.race(setting.contestants, sets)
    products = {one.name for one in setting.contestants if one.ceiling}
    measured = ceilings(setting, [one for each in found.values() for one in each], products)
    tables, record = list(measured.tables), {"ceiling": measured.record}
    for texts in sets:
        tops = {one.precision: one for one in found[texts.name] if one.name in products}
        runners = [one for one in found[texts.name] if one.name not in products]
        rows = [row(setting, texts, one, runners, tops.get(one.precision)) for one in runners]
        about = {"texts": len(texts.texts), "tokens": texts.tokens}
        record[texts.name] = about | {"contestants": rows}
        each = texts.tokens / len(texts.texts)
        title = f"{texts.name}: {len(texts.texts)} texts of {each:.0f} tokens on average"
        tables.append(comparison(title, rows))
    compact = summary({texts.name: record[texts.name]["contestants"] for texts in sets})
    return Section([compact, *tables], record)


def summary(found: Mapping[str, Sequence[dict[str, Any]]]) -> Table:
    """Return the speeds on all sets in one table, with the worst cosine of any."""
    lines = []
    for each in zip(*found.values(), strict=True):
        worst = min(one["worst_cosine"] for one in each)
        lines.append((each[0]["name"], *(one["to_reference"] for one in each), worst))
    return Table("x on all sets", ("", *found, "worst cosine"), lines)


def ceilings(setting: Setting, found: Sequence[Result], products: Collection[str]) -> Section:
    """The rate of the model's matrix products alone, over all rounds."""
    seconds: dict[str, list[float]] = {}
    for one in found:
        if one.name in products:
            seconds.setdefault(one.precision, []).extend(one.seconds)
    if not seconds:
        return Section([], {})
    rates = {name: setting.ceiling_flops / median(each) for name, each in seconds.items()}
    best = {name: setting.ceiling_flops / min(each) for name, each in seconds.items()}
    tokens = {name: rate / setting.shape.linear for name, rate in rates.items()}
    lines = [(name, rates[name] / 1e9, best[name] / 1e9, tokens[name]) for name in rates]
    title = "ceiling: the model's matrix products and nothing else"
    table = Table(title, ("in", "GFLOP/s", "in the best round", "tokens/s"), lines)
    record = {"flops_per_second": rates, "best": best, "tokens_per_second": tokens}
    return Section([table], record)


def row(
    setting: Setting, texts: TextSet, one: Result, found: Sequence[Result], top: Result | None
) -> dict[str, Any]:
    """Return what is said of a contestant on a set; ``top`` is the ceiling in its precision."""
    peers = [o for o in found if not o.ours and o.precision == one.precision]
    by_name = {other.name: other for other in found}
    reference = next((by_name[name] for name in REFERENCES if name in by_name), found[0])
    worst, mean = cosines(one.vectors, reference.vectors)
    work = setting.shape.of(texts.lengths) / setting.ceiling_flops
    return {
        "name": one.name,
        "precision": one.precision,
        "seconds": one.median,
        "all_seconds": one.seconds,
        "texts_per_second": len(texts.texts) / one.median,
        "tokens_per_second": texts.tokens / one.median,
        "to_reference": paired(reference, one),
        "to_fastest_peer": paired(min(peers, key=lambda o: o.median), one) if peers else None,
        "worst_cosine": worst,
        "mean_cosine": mean,
        "share_of_ceiling": work * paired(top, one) if top else None,
        "batch": one.batch,
        "megabytes": one.megabytes,
    }


def paired(slow: Result, fast: Result) -> float:
    """Return how many times as fast the second is: the median of the ratios in each round."""
    return median(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))


def comparison(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    columns = {
        "": "name",
        "texts/s": "texts_per_second",
        "tokens/s": "tokens_per_second",
        "x": "to_reference",
        "x fastest peer of this precision": "to_fastest_peer",
        "worst cosine": "worst_cosine",
        "mean cosine": "mean_cosine",
        "share of ceiling": "share_of_ceiling",
    }
    lines = [tuple(one[key] for key in columns.values()) for one in rows]
    return Table(title, tuple(columns), lines)


def lengths(setting: Setting) -> Section:
    """Throughput against length, texts of one length each."""
    steps = [8, 16, 32, 64, 128, 256]
    sets = [setting.corpus.exact(step, setting.count(max(16, 4096 // step))) for step in steps]
    names = (OURS, "bertcli bfloat16", "bertcli int8", REFERENCE, "OpenVINO float32")
    found = setting.arena.race(setting.pick(*names, "OpenVINO bfloat16"), sets)
    record = {
        one.name: [texts.tokens / found[texts.name][at].median for texts in sets]
        for at, one in enumerate(found[sets[0].name])
    }
    lines = [(name, *rates) for name, rates in record.items()]
    heads = ("tokens/s", *(str(step) for step in steps))
    return Section(
        [Table("texts of so many tokens", heads, lines)], {"tokens": steps, "rates": record}
    )


def choices(setting: Setting) -> Section:
    """What asking for less costs less: lower layers."""
    count, depth = setting.count, setting.shape.layers
    short = setting.corpus.short(count(300))
    sets = [short, setting.corpus.long(count(30))]
    lower = [bertcli(f"layer {k}", layers=(k,)) for k in range(depth)]
    asked = [bertcli("mean"), *lower]
    found = setting.arena.race(asked, sets)
    record = {
        texts.name: {one.name: paired(found[texts.name][0], one) for one in found[texts.name]}
        for texts in sets
    }
    lines = [(name, *(record[texts.name][name] for texts in sets)) for name in record[sets[0].name]]
    table = Table("bertcli float32, x its mean of the last layer", ("", "short", "long"), lines)
    return Section([table], {"speed": record})


def size(setting: Setting) -> Section:
    """Time a text and memory against the number of texts."""
    steps = [1_000, 10_000, *([100_000] if setting.large else [])]
    sets = [setting.corpus.short(setting.count(step), f"{step} short") for step in steps]
    found = setting.arena.race(setting.pick(OURS, REFERENCE, "OpenVINO float32"), sets, 0)
    lines, record = [], {}
    for at, one in enumerate(found[sets[0].name]):
        results = [found[texts.name][at] for texts in sets]
        times = [1e3 * r.median / len(t.texts) for r, t in zip(results, sets, strict=True)]
        memory = [result.megabytes for result in results]
        record[one.name] = {"milliseconds": times, "megabytes": memory}
        lines.append((one.name, *times, *memory))
    heads = [f"ms a text, {step:,}" for step in steps] + [f"MB, {step:,}" for step in steps]
    table = Table("cost against the number of texts", ("", *heads), lines)
    return Section([table], {"texts": steps, "contestants": record})


def threads(setting: Setting) -> Section:
    """What further threads bring."""
    most = setting.arena.place.threads
    steps = sorted({1, most, *(2**k for k in range(1, most.bit_length()) if 2**k < most)})
    sets = [setting.corpus.short(setting.count(300)), setting.corpus.long(setting.count(30))]
    bases = setting.pick(OURS, REFERENCE, "OpenVINO float32")
    some = [with_threads(one, step) if step != most else one for one in bases for step in steps]
    found = setting.arena.race(some, sets)
    lines = [
        (one.name, *(len(texts.texts) / found[texts.name][at].median for texts in sets))
        for at, one in enumerate(found[sets[0].name])
    ]
    title = f"threads ({most} unless it is said)"
    record = {name: dict(zip(("short", "long"), rates, strict=True)) for name, *rates in lines}
    return Section([Table(title, ("texts/s", "short", "long"), lines)], record)
