"""Metrics of the server for Prometheus.

Each server has a registry of its own, so that several can run in one process. Models choose the reasons of failures;
after the first hundred they are counted as `other`, so that no model can fill the memory.

    metrics = Metrics()
    metrics.items.labels("prm", "scored").inc(32)
    metrics.text()
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RESULTS = ("scored", "failed", "cached", "shared", "expired", "cancelled", "refused")
"""Results of items.

shared: with an equal item that was waiting or being scored; expired, cancelled: removed unscored, as their
time was over, or as the requests that waited for them ended otherwise (their clients disconnected).
"""
_REASONS = 100
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters, gauges and histograms of one server.

    Attributes:
        requests: by route and status.
        request_seconds: by route, from the first byte to the last.
        in_flight: requests in progress.
        items: by model and result, one of `RESULTS`.
        failures: by model and reason.
        queue: items that wait, by model.
        batch_items: items per call of a model.
        batch_seconds: of a call of a model.
        updates: by model and result: learnt, failed, repeated, refused, cancelled.
        overdue: by model, calls of it that took longer than a request may.
        ready: 1 while a model can be asked.
    """

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        model = ["model"]
        self.requests = Counter("guerdon_requests", "Requests", ["route", "status"], registry=r)
        self.request_seconds = Histogram(
            "guerdon_request_seconds", "Time of a request", ["route"], buckets=_SECONDS, registry=r
        )
        self.in_flight = Gauge("guerdon_requests_in_flight", "Requests being worked on", registry=r)
        self.items = Counter("guerdon_items", "Items by what became of them", ["model", "result"], registry=r)
        self._failures = Counter("guerdon_failures", "Failed items by reason", ["model", "reason"], registry=r)
        self.queue = Gauge("guerdon_queue_items", "Items that wait", model, registry=r)
        self.batch_items = Histogram("guerdon_batch_items", "Items per call", model, buckets=_SIZES, registry=r)
        self.batch_seconds = Histogram("guerdon_batch_seconds", "Time of a call", model, buckets=_SECONDS, registry=r)
        self.updates = Counter("guerdon_updates", "Updates by what became of them", ["model", "result"], registry=r)
        self.overdue = Counter(
            "guerdon_overdue_calls", "Calls that took longer than limits.deadline_s", model, registry=r
        )
        self.ready = Gauge("guerdon_model_ready", "1 while the model can be asked", model, registry=r)
        self._reasons: set[str] = set()
        self._answers: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        known = self._answers.get((route, status))
        if known is None:
            known = self.requests.labels(route, str(status)), self.request_seconds.labels(route)
            self._answers[route, status] = known
        known[0].inc()
        known[1].observe(seconds)

    def failed(self, model: str, reason: str) -> None:
        """Count a failed item."""
        if reason not in self._reasons and len(self._reasons) >= _REASONS:
            reason = "other"
        self._reasons.add(reason)
        self._failures.labels(model, reason).inc()

    def text(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self.registry)
