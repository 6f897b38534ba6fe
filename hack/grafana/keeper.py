"""The operator itself: does it keep up, and does the API server let it."""

from __future__ import annotations

from typing import Final

from grafana.panels import WINDOW, Dashboard, Panel, Query, Row, Variable, quantiles

ME: Final = 'job=~"$job"'
P: Final = "omnistage_operator"


def _rate(series: str, by: str) -> str:
    return f"sum by ({by}) (rate({P}_{series}{{{ME}}}[{WINDOW}]))"


def _each(gauge: str, by: str = "pod") -> str:
    return f"max by ({by}) ({P}_{gauge}{{{ME}}})"


WORK: Final = Row(
    "Work",
    (
        Panel(
            "Who leads",
            "bool",
            "1 for the replica that acts. One at any time, and none only for seconds.",
            (Query(_each("leader"), "{{pod}}"),),
            kind="state-timeline",
        ),
        Panel(
            "Reconciles",
            "ops",
            "Turns of stages each second by what came of them.",
            (Query(_rate("reconcile_total", "result"), "{{result}}"),),
            stacked=True,
        ),
        Panel(
            "Time of a reconcile",
            "s",
            "Deciding and doing, waits for the API server included.",
            quantiles(f"{P}_reconcile_duration_seconds{{{ME}}}"),
        ),
        Panel(
            "Stages in the line",
            "short",
            "Stages that wait for their turn, and stages whose last turn failed.",
            (
                Query(_each("queue_depth"), "{{pod}} waiting"),
                Query(_each("failing_stages"), "{{pod}} failing"),
            ),
        ),
        Panel(
            "Age of the first in the line",
            "s",
            "How long the one that is next has waited. More than a minute is an alert.",
            (Query(_each("queue_oldest_seconds"), "{{pod}}"),),
        ),
        Panel(
            "Time in the line",
            "s",
            "From a change to its turn.",
            quantiles(f"{P}_queue_latency_seconds{{{ME}}}"),
        ),
        Panel(
            "Statuses written",
            "ops",
            "Each second by what came of it. 0 while nothing changes.",
            (Query(_rate("status_writes_total", "result"), "{{result}}"),),
        ),
        Panel(
            "Events told",
            "ops",
            "Each second by reason.",
            (Query(_rate("events_posted_total", "type, reason"), "{{type}} {{reason}}"),),
        ),
        Panel(
            "Version",
            "short",
            "Of each replica.",
            (Query(f"max by (pod, version) ({P}_build_info{{{ME}}})", "replicas"),),
            kind="table",
        ),
    ),
)

SERVER: Final = Row(
    "API server",
    (
        Panel(
            "Requests by code",
            "reqps",
            "Each second. 409 is a conflict that is tried again, 429 a server that asks for patience, 0 no answer.",
            (Query(_rate("api_requests_total", "code"), "{{code}}"),),
            stacked=True,
        ),
        Panel(
            "Requests by what they are for",
            "reqps",
            "Each second by verb and resource.",
            (Query(_rate("api_requests_total", "verb, resource"), "{{verb}} {{resource}}"),),
            stacked=True,
        ),
        Panel(
            "Time of a request, p95",
            "s",
            "By verb.",
            quantiles(f"{P}_api_request_duration_seconds{{{ME}}}", by="verb", quantiles=(0.95,)),
        ),
        Panel(
            "Held back by the limit",
            "s",
            "Seconds a second that requests waited for the operator's own limit of requests.",
            (Query(_rate("api_throttled_seconds_total", "pod"), "{{pod}}"),),
        ),
        Panel(
            "Watches that began anew",
            "ops",
            "Each second by resource and why.",
            (
                Query(
                    f"{_rate('watch_restarts_total', 'resource, reason')} or vector(0)",
                    "{{resource}} {{reason}}",
                ),
            ),
        ),
        Panel(
            "Time to list everything",
            "s",
            "Of one kind, over a quarter of an hour.",
            quantiles(f"{P}_resync_duration_seconds{{{ME}}}", quantiles=(0.5, 0.95), window="15m"),
        ),
    ),
)

PROCESS: Final = Row(
    "Process",
    (
        Panel(
            "Objects in the cache",
            "short",
            "By kind.",
            (Query(_each("cache_objects", "pod, resource"), "{{pod}} {{resource}}"),),
        ),
        Panel(
            "Ghosts",
            "short",
            "Objects that a list found gone though no watch had told of it, in the last hour.",
            (
                Query(
                    f"sum by (resource) (increase({P}_cache_ghosts_dropped_total{{{ME}}}[1h])) or vector(0)",
                    "{{resource}}",
                ),
            ),
        ),
        Panel(
            "Lag of the event loop",
            "s",
            "How late it is. Its probe ends it beyond five seconds.",
            (Query(_each("event_loop_lag_seconds"), "{{pod}}"),),
        ),
        Panel(
            "CPU",
            "percentunit",
            "Of one core.",
            (Query(f"sum by (pod) (rate(process_cpu_seconds_total{{{ME}}}[{WINDOW}]))", "{{pod}}"),),
        ),
        Panel(
            "Memory",
            "bytes",
            "Resident.",
            (Query(f"max by (pod) (process_resident_memory_bytes{{{ME}}})", "{{pod}}"),),
        ),
        Panel(
            "Leaderships",
            "short",
            "Times that a replica began to lead, in the last hour.",
            (Query(f"sum by (pod) (increase({P}_leaderships_total{{{ME}}}[1h]))", "{{pod}}"),),
        ),
    ),
)

OPERATOR: Final = Dashboard(
    uid="omnistage-operator",
    title="omnistage / operator",
    description="The operator itself: does it keep up, and does the API server let it.",
    variables=(Variable("job", f"{P}_leader"),),
    rows=(WORK, SERVER, PROCESS),
)
