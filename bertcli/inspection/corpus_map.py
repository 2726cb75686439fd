"""A map of a corpus: coordinates in the plane, a cluster and its label, for each text.

    corpus_map = CorpusMap.of(search)                   # of stored vectors; needs scikit-learn
    corpus_map.rows()                                   # blocks: x, y, cluster, label of each text
    corpus_map.page("reviews.txt", "stars")             # map.html, coloured by a field

Clusters are those of k-means on the principal components, coordinates are t-SNE of these; one
thread computes, so equal seeds give equal bytes. Of a large corpus a sample is laid out and drawn;
each other text is in the cluster with the nearest centre, and placed between its nearest texts of
the sample. The label of a cluster is its most characteristic words, without stop words.
Letters: `n` texts, `D` dimensions, `k` clusters, `W` words. Sources: scikit-learn; class-based
TF-IDF of Grootendorst, BERTopic, 2022.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from bertcli.errors import BertcliError, InputError
from bertcli.exporting.distil import principal_components
from bertcli.inspection.attention import html_page
from bertcli.inspection.stop_words import STOP_WORDS
from bertcli.records.record import Record, row_of
from bertcli.retrieval.corpus import CorpusTexts, records_of_rows
from bertcli.retrieval.search import Search, corpus_vectors
from bertcli.versions import install_command

COLUMNS = ("row", "text", "x", "y", "cluster", "label")
MAX_TEXTS = 20_000  # that are laid out and drawn
ROWS_PER_BLOCK = 4096  # texts between which the others are placed at once
NEIGHBORS = 10  # laid-out texts between which another one is placed
SAME_POINT = 1e-12  # squared distance of equal points
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
    """The coordinates and the cluster of each text of a corpus, in its order."""

    texts: CorpusTexts  # of the corpus, which are read again
    x: np.ndarray  # [n]
    y: np.ndarray  # [n]
    clusters: np.ndarray  # int [n]; 0 is the largest cluster
    labels: Sequence[str]  # of the clusters
    drawn: Mapping[int, Record]  # the texts of the page by row: all, or a sample

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
            vectors = corpus_vectors(search)
            total = len(vectors)
            if total < 2:
                raise InputError(f"a map needs at least two texts, not {total}")
            random = np.random.default_rng(seed)
            sample = np.sort(random.choice(total, min(total, MAX_TEXTS), replace=False))
            texts = search.corpus_texts()
            drawn = records_of_rows({*sample.tolist()}, texts.blocks(total))
            sampled = vectors[sample].astype(np.float64)
            distinct = len(np.unique(sampled, axis=0))
            if distinct < 2:
                raise InputError("all vectors are equal, and have no map")
            components = principal_components(sampled, min(COMPONENTS, sampled.shape[1]))
            points = components.values
            default = min(MAX_DEFAULT_CLUSTERS, round((len(sample) / 2) ** 0.5) + 1)
            k = min(clusters or default, distinct)
            kmeans = KMeans(k, n_init=4, random_state=seed).fit(points)
            plane = np.pad(points, ((0, 0), (0, 1)))[:, :2]
            perplexity = min(TSNE_PERPLEXITY, (len(sample) - 1) / 3)
            tsne = TSNE(
                init=plane / plane.std() * 1e-4,
                perplexity=perplexity,
                max_iter=TSNE_STEPS,
                random_state=seed,
                n_jobs=1,
            )
            layout = tsne.fit_transform(points)
            coordinates = np.zeros((total, 2), layout.dtype)
            cluster_ids = np.zeros(total, np.int64)
            coordinates[sample] = layout
            cluster_ids[sample] = kmeans.labels_
            others = np.delete(np.arange(total), sample)
            for start in range(0, len(others), ROWS_PER_BLOCK):
                rows = others[start : start + ROWS_PER_BLOCK]
                block = (vectors[rows].astype(np.float64) - components.mean) @ components.axes
                cluster_ids[rows] = kmeans.predict(block)
                coordinates[rows] = interpolated(block, points, layout)
        by_size = np.argsort(-np.bincount(cluster_ids), kind="stable")
        ranks = np.argsort(by_size)[cluster_ids]
        labels = cluster_labels([str(record.text) for record in drawn.values()], ranks[sample])
        x, y = coordinates.round(3).T
        return cls(texts, x, y, ranks, labels, drawn)

    @property
    def total(self) -> int:
        """The number of texts of the corpus."""
        return len(self.clusters)

    def columns(self, rows: np.ndarray) -> dict[str, list[Any]]:
        """Return the columns of these rows besides their texts."""
        clusters = self.clusters[rows].tolist()
        return {
            "row": rows.tolist(),
            "x": self.x[rows].tolist(),
            "y": self.y[rows].tolist(),
            "cluster": clusters,
            "label": [self.labels[cluster] for cluster in clusters],
        }

    def rows(self) -> Iterator[list[dict[str, Any]]]:
        """Yield a row for each text, with the fields of its record, in blocks."""
        start = 0
        for records in self.texts.blocks(self.total):
            columns = self.columns(np.arange(start, start + len(records)))
            columns["text"] = [str(record.text) for record in records]
            rows = zip(*(columns[name] for name in COLUMNS), strict=True)
            yield [
                row_of(record, dict(zip(COLUMNS, row, strict=True)))
                for record, row in zip(records, rows, strict=True)
            ]
            start += len(records)

    def page(self, title: str, field: str | None) -> bytes:
        """Return an HTML page, coloured by a field of the records or by cluster."""
        content: dict[str, Any] = {"labels": self.labels, "total": self.total, "field": field}
        content |= self.columns(np.array([*self.drawn]))
        del content["label"]
        records = self.drawn.values()
        texts = [str(record.text) for record in records]
        copies = Counter(texts)
        content["text"] = [text[:SHOWN_CHARACTERS] for text in texts]
        content["equal"] = [copies[text] for text in texts]
        content["id"] = [record.id for record in records]
        if field:
            content["values"] = [(record.extra or {}).get(field) for record in records]
        return html_page("map", title, title, content)


def interpolated(points: np.ndarray, sampled: np.ndarray, layout: np.ndarray) -> np.ndarray:
    """Return coordinates of points [b, D]: means of those of the nearest sampled points [s, D].

    ``layout`` [s, 2] are the coordinates of the sampled points. Weights are inverse squares of
    distances, so that equal points have equal coordinates.
    """
    from sklearn.neighbors import NearestNeighbors

    neighbors = NearestNeighbors(n_neighbors=min(NEIGHBORS, len(sampled)), algorithm="brute")
    distances, indices = neighbors.fit(sampled).kneighbors(points)
    weights = 1 / (np.square(distances) + SAME_POINT)
    weights /= weights.sum(1, keepdims=True)
    return np.einsum("bk,bkd->bd", weights, layout[indices])


def cluster_labels(texts: Sequence[str], clusters: np.ndarray) -> list[str]:
    """Return the label of each cluster: its words with the largest class-based TF-IDF.

    `clusters` [n] has the number of the cluster of each text. Words of a label are in at least half
    of its texts; if there are none, the label is its most characteristic word.
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
            best = np.array([scores[cluster].argmax()])
        labels.append(", ".join(words[best]))
    return labels
