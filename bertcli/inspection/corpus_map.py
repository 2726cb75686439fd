"""What is in a corpus, at a look: a place in the plane, a cluster and its terms, for each text.

    corpus_map = CorpusMap.of(search)                   # of stored vectors; needs scikit-learn
    corpus_map.rows()                                   # x, y, cluster and label of each text
    corpus_map.page("reviews.txt", "stars")             # map.html, coloured by a field

Of a large corpus a sample is drawn. Clusters are those of k-means in the principal components, the
layout is t-SNE of them: the same seed gives the same bytes, as one thread computes. A label is the
words that set a cluster apart, without stop words.
Letters: `n` texts, `D` dimensions, `k` clusters, `W` words. Sources: scikit-learn; class-based
TF-IDF of Grootendorst, BERTopic, 2022.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from bertcli.errors import BertcliError, InputError
from bertcli.exporting.distil import principal_components
from bertcli.inspection.attention import filled_page
from bertcli.inspection.stop_words import STOP_WORDS
from bertcli.records.record import Record, row_of
from bertcli.retrieval.search import CorpusTexts, Search, corpus_vectors, texts_at
from bertcli.versions import install_command

COLUMNS = ("row", "text", "x", "y", "cluster", "label")
MOST = 20_000  # texts that are drawn
COMPONENTS = 50
PERPLEXITY, STEPS = 30, 500  # of t-SNE
MOST_CLUSTERS = 24  # where no number is given
WORDS, VOCABULARY = 3, 50_000  # of a label, and that it is chosen from
MIN_SHARE = 0.5  # of the texts of a cluster have each word of its label
SHOWN = 300  # characters of a text on the page


def require_scikit_learn() -> None:
    """Raise BertcliError when scikit-learn, which is an extra, is not installed."""
    if find_spec("sklearn") is None:
        raise BertcliError("a map needs scikit-learn", install_command("map"))


@dataclass(frozen=True)
class CorpusMap:
    """Texts of a corpus, in their order, and what the columns say of them."""

    records: Sequence[Record]
    columns: Mapping[str, Sequence[Any]]
    labels: Sequence[str]  # of the clusters, the largest first
    total: int  # texts of the corpus

    @classmethod
    def of(cls, search: Search, clusters: int | None = None, seed: int = 0) -> CorpusMap:
        """Lay out the texts whose vectors are stored, in so many clusters, or as many as suit them.

        Raises InputError for vectors that have no layout, or of other texts.
        """
        from sklearn.cluster import KMeans
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1):
            all_vectors = corpus_vectors(search)
            total = len(all_vectors)
            if total < 2:
                raise InputError(f"a map needs at least two texts, not {total}")
            random = np.random.default_rng(seed)
            chosen = np.sort(random.choice(total, min(total, MOST), replace=False))
            rows = chosen.tolist()
            texts = texts_at({*rows}, CorpusTexts(search).blocks(total))
            vectors = all_vectors[chosen].astype(np.float64)
            distinct = len(np.unique(vectors, axis=0))
            if distinct < 2:
                raise InputError("all vectors are equal, and have no map")
            points, _ = principal_components(vectors, min(COMPONENTS, vectors.shape[1]))
            usual = min(MOST_CLUSTERS, round((len(rows) / 2) ** 0.5) + 1)
            k = min(clusters or usual, distinct)
            members = KMeans(k, n_init=4, random_state=seed).fit_predict(points)
            plane = np.pad(points, ((0, 0), (0, 1)))[:, :2]
            perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
            start = plane / plane.std() * 1e-4
            layout = TSNE(
                init=start,
                perplexity=perplexity,
                max_iter=STEPS,
                random_state=seed,
                n_jobs=1,
            )
            x, y = layout.fit_transform(points).round(3).T.tolist()
        largest = np.argsort(-np.bincount(members), kind="stable")
        numbers = np.argsort(largest)[members]
        records = [texts[row] for row in rows]
        written = [str(record.text) for record in records]
        labels = labels_of(written, numbers)
        named = [labels[number] for number in numbers]
        columns = (rows, written, x, y, numbers.tolist(), named)
        return cls(records, dict(zip(COLUMNS, columns, strict=True)), labels, total)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each text, with the fields that it carries."""
        rows = zip(*self.columns.values(), strict=True)
        return [
            row_of(record, dict(zip(self.columns, row, strict=True)))
            for record, row in zip(self.records, rows, strict=True)
        ]

    def page(self, title: str, field: str | None) -> bytes:
        """Return a page, coloured by a field of the records or else by cluster."""
        content: dict[str, Any] = {"labels": self.labels, "total": self.total, "field": field}
        content |= {name: self.columns[name] for name in ("row", "x", "y", "cluster")}
        texts = self.columns["text"]
        copies = Counter(texts)
        content["text"] = [text[:SHOWN] for text in texts]
        content["equal"] = [copies[text] for text in texts]
        content["id"] = [record.id for record in self.records]
        if field:
            content["values"] = [(record.extra or {}).get(field) for record in self.records]
        return filled_page("map", title, title, content)


def labels_of(texts: Sequence[str], clusters: np.ndarray) -> list[str]:
    """Return the words that set each cluster [n] apart, by class-based TF-IDF.

    They are in at least half of its texts; where no word is, the label is its most frequent one.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    k = int(clusters.max()) + 1
    counter = CountVectorizer(max_features=VOCABULARY, binary=True, stop_words=[*STOP_WORDS])
    try:
        matrix = counter.fit_transform(texts)  # [n, W]
    except ValueError:  # no words
        return [""] * k
    sums = [matrix[clusters == number].sum(0).A1 for number in range(k)]
    counts = np.array(sums, np.float64)  # [k, W]
    sizes = np.bincount(clusters, minlength=k)[:, None]  # texts of a cluster [k, 1]
    scores = counts / sizes * np.log(1 + counts.sum() / k / counts.sum(0))
    words = counter.get_feature_names_out()
    labels = []
    for cluster in range(k):
        common = np.flatnonzero(counts[cluster] >= MIN_SHARE * sizes[cluster])
        best = common[np.argsort(-scores[cluster, common], kind="stable")][:WORDS]
        if not len(best) and counts[cluster].any():
            best = np.array([counts[cluster].argmax()])
        labels.append(", ".join(words[best]))
    return labels
