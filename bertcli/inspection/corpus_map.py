"""A map of a corpus: coordinates in the plane, a cluster and its label, for each text.

    corpus_map = CorpusMap.of(search)                   # of stored vectors; needs scikit-learn
    corpus_map.rows()                                   # x, y, cluster and label of each text
    corpus_map.page("reviews.txt", "stars")             # map.html, coloured by a field

Large corpora are sampled. Clusters are those of k-means on the principal components, coordinates
are t-SNE of these; one thread computes, so equal seeds give equal bytes. The label of a cluster is
its most characteristic words, without stop words.
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
from bertcli.inspection.attention import html_page
from bertcli.inspection.stop_words import STOP_WORDS
from bertcli.records.record import Record, row_of
from bertcli.retrieval.search import CorpusTexts, Search, corpus_vectors, records_of_rows
from bertcli.versions import install_command

COLUMNS = ("row", "text", "x", "y", "cluster", "label")
MAX_TEXTS = 20_000  # on the map
COMPONENTS = 50
TSNE_PERPLEXITY = 30
TSNE_STEPS = 500
MAX_DEFAULT_CLUSTERS = 24
WORDS_PER_LABEL = 3
VOCABULARY_SIZE = 50_000  # most frequent words, from which labels are chosen
MIN_SHARE = 0.5  # of the texts of a cluster contain each word of its label
SHOWN_CHARACTERS = 300  # of a text on the page


def require_scikit_learn() -> None:
    """Raise BertcliError if scikit-learn, an extra, is not installed."""
    if find_spec("sklearn") is None:
        raise BertcliError("a map needs scikit-learn", install_command("map"))


@dataclass(frozen=True)
class CorpusMap:
    """The texts on the map, in the order of the corpus, with their columns."""

    records: Sequence[Record]
    columns: Mapping[str, Sequence[Any]]
    labels: Sequence[str]  # of the clusters, largest cluster first
    total: int  # number of texts of the corpus

    @classmethod
    def of(cls, search: Search, clusters: int | None = None, seed: int = 0) -> CorpusMap:
        """Compute the map of a search whose vectors are stored.

        By default the number of clusters depends on that of texts. Raises InputError for fewer than
        two different vectors, and if the vectors are not those of the search's texts.
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
            sample = np.sort(random.choice(total, min(total, MAX_TEXTS), replace=False))
            rows = sample.tolist()
            texts = records_of_rows({*rows}, CorpusTexts(search).blocks(total))
            vectors = all_vectors[sample].astype(np.float64)
            distinct = len(np.unique(vectors, axis=0))
            if distinct < 2:
                raise InputError("all vectors are equal, and have no map")
            points, _ = principal_components(vectors, min(COMPONENTS, vectors.shape[1]))
            default = min(MAX_DEFAULT_CLUSTERS, round((len(rows) / 2) ** 0.5) + 1)
            k = min(clusters or default, distinct)
            cluster_ids = KMeans(k, n_init=4, random_state=seed).fit_predict(points)
            plane = np.pad(points, ((0, 0), (0, 1)))[:, :2]
            perplexity = min(TSNE_PERPLEXITY, (len(rows) - 1) / 3)
            layout = TSNE(
                init=plane / plane.std() * 1e-4,
                perplexity=perplexity,
                max_iter=TSNE_STEPS,
                random_state=seed,
                n_jobs=1,
            )
            x, y = layout.fit_transform(points).round(3).T.tolist()
        by_size = np.argsort(-np.bincount(cluster_ids), kind="stable")
        ranks = np.argsort(by_size)[cluster_ids]  # cluster of each text, 0 is the largest
        records = [texts[row] for row in rows]
        strings = [str(record.text) for record in records]
        labels = cluster_labels(strings, ranks)
        text_labels = [labels[rank] for rank in ranks]
        columns = (rows, strings, x, y, ranks.tolist(), text_labels)
        return cls(records, dict(zip(COLUMNS, columns, strict=True)), labels, total)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each text, with the fields of its record."""
        rows = zip(*self.columns.values(), strict=True)
        return [
            row_of(record, dict(zip(self.columns, row, strict=True)))
            for record, row in zip(self.records, rows, strict=True)
        ]

    def page(self, title: str, field: str | None) -> bytes:
        """Return an HTML page, coloured by a field of the records or by cluster."""
        content: dict[str, Any] = {"labels": self.labels, "total": self.total, "field": field}
        content |= {name: self.columns[name] for name in ("row", "x", "y", "cluster")}
        texts = self.columns["text"]
        copies = Counter(texts)
        content["text"] = [text[:SHOWN_CHARACTERS] for text in texts]
        content["equal"] = [copies[text] for text in texts]
        content["id"] = [record.id for record in self.records]
        if field:
            content["values"] = [(record.extra or {}).get(field) for record in self.records]
        return html_page("map", title, title, content)


def cluster_labels(texts: Sequence[str], clusters: np.ndarray) -> list[str]:
    """Return the label of each cluster: its words with the largest class-based TF-IDF.

    `clusters` [n] has the number of the cluster of each text. Words of a label are in at least half
    of its texts; if there are none, the label is the most frequent word.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    k = int(clusters.max()) + 1
    counter = CountVectorizer(
        max_features=VOCABULARY_SIZE, binary=True, stop_words=list(STOP_WORDS)
    )
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
        best = common[np.argsort(-scores[cluster, common], kind="stable")][:WORDS_PER_LABEL]
        if not len(best) and counts[cluster].any():
            best = np.array([counts[cluster].argmax()])
        labels.append(", ".join(words[best]))
    return labels
