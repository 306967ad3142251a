"""Metrics for Prometheus, with vLLM's names and the prefix bitnet:."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from bitnet_core.engine.counters import COUNTERS, GAUGES
from prometheus_client import CollectorRegistry, Counter, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

Figures = dict[str, int | float]
Counts = Mapping[str, tuple[str, str, Mapping[str, int]]]
"""Metric -> explanation, label, count for each value of the label."""

Levels = Mapping[str, tuple[str, str, Mapping[str, float]]]
"""The same for numbers that rise and fall."""

_VLLM = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "cache_use": "kv_cache_usage_perc",
    "generated_tokens": "generation_tokens",
    "prefix_queries": "prefix_cache_queries",
    "prefix_hits": "prefix_cache_hits",
    "preemptions": "num_preemptions",
    "draft_steps": "spec_decode_num_drafts",
    "draft_tokens": "spec_decode_num_draft_tokens",
    "accepted_tokens": "spec_decode_num_accepted_tokens",
}
"""The engine's name -> vLLM's, for those that differ."""

_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_NEXT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20)
_WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 3600)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class Histogram:
    """A histogram of fixed buckets. prometheus_client's own takes ten times as long, and tokens are many."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Add a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, model: str) -> Metric:
        """Return the metric family of a scrape; a bucket counts the values up to its bound."""
        metric = HistogramMetricFamily(self._name, self._text, labels=["model_name"])
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        metric.add_metric([model], list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)
        return metric


class Metrics:
    """The server's own metrics registry.

    figures, counts, levels: return the engine's, at each scrape; figures returns None before the model is loaded.
    """

    def __init__(
        self,
        figures: Callable[[], Figures | None],
        counts: Callable[[], Counts],
        levels: Callable[[], Levels],
    ) -> None:
        self.registry = CollectorRegistry()
        self._figures, self._counts, self._levels = figures, counts, levels
        self.model = ""
        self.http = Counter(
            "bitnet:http_requests", "Answers by path and status.", ["path", "status"], registry=self.registry
        )
        self._rejected = Counter(
            "bitnet:requests_rejected", "Error answers by reason.", ["reason", "status"], registry=self.registry
        )
        label = ["model_name"]
        self._histograms: list[Histogram] = []
        self._success = self._counter("request_success", "Texts by how they ended.", [*label, "finished_reason"])
        self._cancelled = self._counter("requests_cancelled", "Texts whose client left.", label)
        self._first = self._histogram("time_to_first_token_seconds", "From the request on.", _FIRST)
        self._next = self._histogram("time_per_output_token_seconds", "Between tokens.", _NEXT)
        self._whole = self._histogram("e2e_request_latency_seconds", "From the request to its end.", _WHOLE)
        self._queued = self._histogram("request_queue_time_seconds", "Waiting for a place.", _WHOLE)
        self._prefill = self._histogram("request_prefill_time_seconds", "Steps up to the first token.", _WHOLE)
        self._decode = self._histogram("request_decode_time_seconds", "Steps after it.", _WHOLE)
        self._prompt = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._generated = self._histogram("request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self._iteration = self._histogram("iteration_tokens_total", "Tokens that a step gave.", _TOKENS)
        self.registry.register(self)

    def loaded(self, model: str, version: str, device: str) -> None:
        """Set the labels of the model and its device."""
        self.model = model
        info = Info("bitnet:build", "What serves.", registry=self.registry)
        info.info({"version": version, "device": device, "model": model})

    def stepped(self, tokens: int) -> None:
        """Count the tokens of a step, of all requests."""
        self._iteration.observe(tokens)

    def first_token(self, seconds: float) -> None:
        """Record the time from a request to its first token."""
        self._first.observe(seconds)

    def next_tokens(self, seconds: float, count: int) -> None:
        """Record the time between the last token and the next `count` tokens."""
        self._next.observe(seconds / count)

    def ended(
        self, reason: str, *, prompt: int, generated: int, whole: float, queued: float, prefill: float, decode: float
    ) -> None:
        """Record the end of a request; times in seconds."""
        self._success.labels(self.model, reason).inc()
        pairs = (
            (self._whole, whole),
            (self._queued, queued),
            (self._prefill, prefill),
            (self._decode, decode),
            (self._prompt, prompt),
            (self._generated, generated),
        )
        for histogram, value in pairs:
            histogram.observe(value)

    def rejected(self, reason: str, status: int) -> None:
        """Count an error response. reason: its code, one of those in this program."""
        self._rejected.labels(reason, str(status)).inc()

    def cancelled(self) -> None:
        """Count a request whose client disconnected."""
        self._cancelled.labels(self.model).inc()

    def text(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """Return the histograms and the engine's own metrics."""
        figures = self._figures()
        if figures is not None:
            yield from (histogram.family(self.model) for histogram in self._histograms)
            yield from self._engine(figures)
            yield from self._labelled()

    def _engine(self, figures: Figures) -> Iterator[Metric]:
        for names, family in ((GAUGES, GaugeMetricFamily), (COUNTERS, CounterMetricFamily)):
            for name, text in names.items():
                metric = family(f"bitnet:{_VLLM.get(name, name)}", text, labels=["model_name"])
                metric.add_metric([self.model], figures[name])
                yield metric

    def _labelled(self) -> Iterator[Metric]:
        for family, found in ((CounterMetricFamily, self._counts()), (GaugeMetricFamily, self._levels())):
            for name, (text, label, values) in found.items():
                metric = family(f"bitnet:{name}", text, labels=["model_name", label])
                for value, number in values.items():
                    metric.add_metric([self.model, value], number)
                yield metric

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(f"bitnet:{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"bitnet:{name}", text, buckets)
        self._histograms.append(made)
        return made
