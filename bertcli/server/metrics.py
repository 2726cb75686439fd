"""Counts of the server, in the text format of Prometheus.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one is above all bounds
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        """Yield the lines of the histogram."""
        total = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self.sum}"
        yield f"{name}_count {total}"


class Metrics:
    """Counts since the server was started. Changed by its event loop only."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by route and HTTP status
        self.texts = 0
        self.tokens = 0
        self.queue = 0  # requests that are read or wait for results
        self.batch_texts = Histogram(SIZES)
        self.seconds = Histogram(SECONDS)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.requests[route, status] += 1
        self.seconds.add(seconds)

    def count_batch(self, texts: int, tokens: int) -> None:
        """Count a batch that the model runs."""
        self.texts += texts
        self.tokens += tokens
        self.batch_texts.add(texts)

    def exposition(self) -> str:
        """Return all metrics as text."""
        requests = [
            f'bertcli_requests_total{{route="{route}",status="{status}"}} {count}'
            for (route, status), count in sorted(self.requests.items())
        ]
        metrics = (
            ("bertcli_requests_total", "counter", "requests answered", requests),
            ("bertcli_texts_total", "counter", "texts run by the model", self.texts),
            ("bertcli_tokens_total", "counter", "tokens run by the model", self.tokens),
            ("bertcli_queue_requests", "gauge", "requests waiting for results", self.queue),
            ("bertcli_batch_texts", "histogram", "texts of a batch", self.batch_texts),
            ("bertcli_request_seconds", "histogram", "seconds to an answer", self.seconds),
        )
        lines: list[str] = []
        for name, metric_type, about, value in metrics:
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {metric_type}"]
            match value:
                case Histogram():
                    lines += value.lines(name)
                case int():
                    lines.append(f"{name} {value}")
                case _:
                    lines += value
        return "\n".join(lines) + "\n"
