"""Metrics for Prometheus, with vLLM's names and the prefix bitnet:."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Protocol, TypeVar

from bitnet_core.engine.counters import COUNTERS, GAUGES
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

Figures = dict[str, int | float]
Number = TypeVar("Number", int, float)
Labelled = Mapping[str, tuple[str, str, Mapping[str, Number]]]
"""Metric -> explanation, label, number for each value of the label."""


Samples = list[tuple[str, dict[str, str], float]]
"""The numbers of one process that add up with those of others: sample, labels, value."""


class EngineFigures(Protocol):
    """The figures of a loaded model's engines, which every scrape reads."""

    @property
    def loaded(self) -> bool:
        """True if the model takes requests."""

    def figures(self) -> Figures:
        """Return numbers by their names in bitnet_core.engine.counters."""

    def counts(self) -> Labelled[int]:
        """Return numbers that only rise."""

    def levels(self) -> Labelled[float]:
        """Return numbers that rise and fall."""


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


class ModelMetrics:
    """The metrics of one model, which stay when it is unloaded. name: "" until it is loaded for the first time."""

    def __init__(self, ended: Counter, cancelled: Counter) -> None:
        self.name = ""
        self._build: dict[str, str] = {}
        self._engine: EngineFigures | None = None
        self._ended, self._cancelled = ended, cancelled
        self._histograms: list[Histogram] = []
        self._first = self._histogram("time_to_first_token_seconds", "From the request on.", _FIRST)
        self._next = self._histogram("time_per_output_token_seconds", "Between tokens.", _NEXT)
        self._whole = self._histogram("e2e_request_latency_seconds", "From the request to its end.", _WHOLE)
        self._queued = self._histogram("request_queue_time_seconds", "Waiting for a place.", _WHOLE)
        self._prefill = self._histogram("request_prefill_time_seconds", "Steps up to the first token.", _WHOLE)
        self._decode = self._histogram("request_decode_time_seconds", "Steps after it.", _WHOLE)
        self._prompt = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._generated = self._histogram("request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self._iteration = self._histogram("iteration_tokens_total", "Tokens that a step gave.", _TOKENS)

    def loaded(self, name: str, version: str, device: str, engine: EngineFigures) -> None:
        """Set the labels of the model and its device, and the engine whose figures a scrape reads."""
        self.name = name
        self._build = {"version": version, "device": device, "model": name}
        self._engine = engine

    def unloaded(self) -> None:
        """Forget the engine: its model is unloaded."""
        self._engine = None

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
        self._ended.labels(self.name, reason).inc()
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

    def cancelled(self) -> None:
        """Count a request whose client disconnected."""
        self._cancelled.labels(self.name).inc()

    def families(self) -> Iterator[Metric]:
        """Yield the metric families of a scrape; none before the model is loaded for the first time."""
        if not self._build:
            return
        yield InfoMetricFamily("bitnet:build", "The program and its models.", self._build)
        yield from self.histograms()
        engine = self._engine
        if engine is not None and engine.loaded:
            yield from self._plain(engine.figures())
            yield from self._labelled(CounterMetricFamily, engine.counts())
            yield from self._labelled(GaugeMetricFamily, engine.levels())

    def histograms(self) -> Iterator[Metric]:
        """Yield the histograms' families."""
        yield from (histogram.family(self.name) for histogram in self._histograms)

    def _plain(self, figures: Figures) -> Iterator[Metric]:
        for names, family in ((GAUGES, GaugeMetricFamily), (COUNTERS, CounterMetricFamily)):
            for name, text in names.items():
                metric = family(f"bitnet:{_VLLM.get(name, name)}", text, labels=["model_name"])
                metric.add_metric([self.name], figures[name])
                yield metric

    def _labelled(
        self, family: type[CounterMetricFamily | GaugeMetricFamily], found: Labelled[float]
    ) -> Iterator[Metric]:
        for name, (text, label, values) in found.items():
            metric = family(f"bitnet:{name}", text, labels=["model_name", label])
            for value, number in values.items():
                metric.add_metric([self.name, value], number)
            yield metric

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"bitnet:{name}", text, buckets)
        self._histograms.append(made)
        return made


class Metrics:
    """The server's own metrics registry: HTTP answers, and the metrics of every model."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._models: list[ModelMetrics] = []
        self.http = self._counter("http_requests", "Answers by path and status.", ["path", "status"])
        self._rejected = self._counter("requests_rejected", "Error answers by reason.", ["reason", "status"])
        self._ended = self._counter("request_success", "Texts by how they ended.", ["model_name", "finished_reason"])
        self._cancelled = self._counter("requests_cancelled", "Texts whose client left.", ["model_name"])
        self.registry.register(self)

    def of_model(self) -> ModelMetrics:
        """Return the metrics of a further model."""
        made = ModelMetrics(self._ended, self._cancelled)
        self._models.append(made)
        return made

    def rejected(self, reason: str, status: int) -> None:
        """Count an error response. reason: its code, one of those in this program."""
        self._rejected.labels(reason, str(status)).inc()

    def text(self, others: Iterable[Samples] = ()) -> bytes:
        """Return the metrics as Prometheus reads them. others: the samples of other processes, to be added."""
        return generate_latest(_Sum(self.registry.collect(), others))

    def samples(self) -> Samples:
        """Return what this process has counted itself, for another one."""
        counters = (self.http, self._rejected, self._ended, self._cancelled)
        families = [family for counter in counters for family in counter.collect()]
        families += [family for model in self._models if model.name for family in model.histograms()]
        samples = [sample for family in families for sample in family.samples]
        return [(one.name, one.labels, one.value) for one in samples if not one.name.endswith("_created")]

    def collect(self) -> Iterable[Metric]:
        """Return the models' families; a family has the samples of all models."""
        found: dict[str, Metric] = {}
        for model in self._models:
            for family in model.families():
                if family.name in found:
                    found[family.name].samples.extend(family.samples)
                else:
                    found[family.name] = family
        return found.values()

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(f"bitnet:{name}", text, labels, registry=self.registry)


class _Sum:
    """The metrics of a process with the samples of others added."""

    def __init__(self, families: Iterable[Metric], others: Iterable[Samples]) -> None:
        self._families = list(families)
        self._more: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for name, labels, value in (sample for samples in others for sample in samples):
            key = name, tuple(sorted(labels.items()))
            self._more[key] = self._more.get(key, 0.0) + value

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        for family in self._families:
            found = []
            for sample in family.samples:
                more = self._more.pop((sample.name, tuple(sorted(sample.labels.items()))), 0.0)
                found.append(sample._replace(value=sample.value + more))
            own = {f"{family.name}{end}" for end in ("", "_total")}
            left = [key for key in self._more if key[0] in own]
            found += [Sample(name, dict(labels), self._more.pop((name, labels))) for name, labels in left]
            family.samples = found
            yield family
