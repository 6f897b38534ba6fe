"""One stage: what its clients get, where the time goes, how its ranks are."""

from __future__ import annotations

from typing import Final

from grafana.panels import WINDOW, Dashboard, Panel, Query, Row, Variable, quantiles

ME: Final = 'namespace=~"$namespace",stage=~"$stage",replica=~"$replica"'


def _rate(series: str, by: str, more: str = "") -> str:
    selector = f"{ME},{more}" if more else ME
    return f"sum by ({by}) (rate({series}{{{selector}}}[{WINDOW}]))"


def _each(gauge: str, more: str = "") -> str:
    selector = f"{ME},{more}" if more else ME
    return f"max by (stage, replica) ({gauge}{{{selector}}})"


def _sum(gauge: str) -> str:
    return f"sum({gauge}{{{ME}}})"


WHO: Final = "{{stage}} {{replica}}"
COMPLETED: Final = _rate("omnistage_requests_total", "stage", 'outcome="completed"')

CLIENTS: Final = Row(
    "What clients get",
    (
        Panel(
            "Outputs by outcome",
            "reqps",
            "Outputs that ended each second. Rejected ones were refused at the door (429 or 503); aborted ones were "
            "taken back, most often by a client that left.",
            (Query(_rate("omnistage_requests_total", "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Answers by status",
            "reqps",
            "HTTP answers each second, probes left out. 499 is a client that left before its answer.",
            (Query(_rate("omnistage_answers_total", "code"), "{{code}}"),),
            stacked=True,
        ),
        Panel(
            "Failures by reason",
            "reqps",
            "Outputs that failed each second. engine_dead, engine_hung and device_lost end the whole replica; "
            "request_failed and out_of_memory only the request.",
            (Query(_rate("omnistage_failures_total", "reason"), "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "Time of a request",
            "s",
            "From admission to the end of completed outputs, with what was promised as a line.",
            (
                *quantiles(f'omnistage_request_seconds{{{ME},outcome="completed"}}'),
                Query("max(omnistage:latency_objective:seconds)", "objective"),
            ),
        ),
        Panel(
            "Time in the line",
            "s",
            "From admission to the first wave. It grows first when there are too few replicas.",
            quantiles(f"omnistage_queue_seconds{{{ME}}}"),
        ),
        Panel(
            "Pictures a second and rank",
            "short",
            "Completed outputs each second, divided by the ranks that there are.",
            (
                Query(
                    f"{COMPLETED} / sum by (stage) (omnistage_world_size{{{ME}}})",
                    "{{stage}}",
                ),
            ),
        ),
    ),
)

LINE: Final = Row(
    "The line and the waves",
    (
        Panel(
            "Waiting and running",
            "short",
            "Outputs that wait and that run, beside the most that may.",
            (
                Query(_sum("omnistage_requests_waiting"), "waiting"),
                Query(_sum("omnistage_queue_limit"), "may wait"),
                Query(_sum("omnistage_requests_running"), "running"),
                Query(_sum("omnistage_slots"), "slots"),
                Query(_sum("omnistage_slots_blocked"), "slots blocked by another kind of request"),
                Query(_sum("omnistage_requests_materialising"), "on their way to host memory"),
            ),
        ),
        Panel(
            "Age of the first in the line",
            "s",
            "How long the one that is next has waited; 0 when nobody waits.",
            (Query(_each("omnistage_oldest_waiting_age_seconds"), WHO),),
        ),
        Panel(
            "Wave sizes",
            "short",
            "How many requests ran together. A stage that is busy and has small waves can't put its requests together: "
            "they differ in size, guidance or model call.",
            (Query(_rate("omnistage_wave_size_bucket", "le"), "{{le}}"),),
            kind="heatmap",
        ),
        Panel(
            "Work to do",
            "short",
            "Row-step-pixels still to compute, of all that wait or run.",
            (Query(_each("omnistage_outstanding_cost"), WHO),),
        ),
        Panel(
            "Time of a step",
            "s",
            "Of one denoise step of a wave, whatever its size.",
            quantiles(f"omnistage_step_seconds{{{ME}}}", by="stage", quantiles=(0.5, 0.95)),
        ),
        Panel(
            "Where the time goes",
            "s",
            "Mean time of a completed output on the device by phase, and then to make the file.",
            (
                Query(
                    f"{_rate('omnistage_phase_seconds_sum', 'phase')}"
                    f" / {_rate('omnistage_phase_seconds_count', 'phase')}",
                    "{{phase}}",
                ),
                Query(
                    f"{_rate('omnistage_encode_seconds_sum', 'stage')}"
                    f" / {_rate('omnistage_encode_seconds_count', 'stage')}",
                    "encode {{stage}}",
                ),
            ),
            stacked=True,
        ),
    ),
)

RANKS: Final = Row(
    "Replicas and ranks",
    (
        Panel(
            "Phase",
            "short",
            "Where each replica is in its life.",
            (Query(f"omnistage_phase{{{ME}}} == 1", f"{WHO} {{{{phase}}}}"),),
            kind="state-timeline",
        ),
        Panel(
            "Epoch",
            "short",
            "Which of its lives a replica is in: each step is a restart.",
            (Query(_each("omnistage_epoch"), WHO),),
        ),
        Panel(
            "Progress of the present turn",
            "percentunit",
            "How much of the time is gone after which the present turn counts as hung. What climbs to 100 % ends with "
            "exit 71.",
            (Query(f"omnistage_tick_elapsed_seconds{{{ME}}} / omnistage_tick_limit_seconds{{{ME}}}", WHO),),
        ),
        Panel(
            "Turns of the engine",
            "ops",
            "Turns each second. 0 while there is work is a stage that stands still.",
            (Query(_rate("omnistage_ticks_total", "stage, replica"), WHO),),
        ),
        Panel(
            "Memory by rank",
            "bytes",
            "Device memory of weights and tensors; on a CPU of the weights. Has gaps while turns are long, since ranks "
            "are asked between two of them.",
            (
                Query(
                    f"max by (stage, replica, rank) (omnistage_rank_memory_bytes{{{ME}}})",
                    f"{WHO} rank {{{{rank}}}}",
                ),
            ),
        ),
        Panel(
            "Held for requests",
            "short",
            "What is held for requests by kind. Back at 0 when the stage is idle, or it is a leak.",
            (Query(f"sum by (kind) (omnistage_outstanding{{{ME}}})", "{{kind}}"),),
        ),
        Panel(
            "Ranks",
            "short",
            "Ranks of the replicas that answer.",
            (Query(f"sum by (stage) (omnistage_world_size{{{ME}}})", "{{stage}}"),),
            kind="stat",
        ),
        Panel(
            "Paused",
            "bool",
            "1 where a replica was told to pause or sleep.",
            (Query(_each("omnistage_paused"), WHO),),
            kind="stat",
        ),
        Panel(
            "What is loaded",
            "short",
            "The model of each replica, and whether it batches.",
            (
                Query(
                    "max by (stage, replica, model, pipeline, modality, batches) "
                    f"(omnistage_model_info{{{ME}}})",
                    "replicas",
                ),
            ),
            kind="table",
        ),
    ),
)

STAGE: Final = Dashboard(
    uid="omnistage-stage",
    title="omnistage / stage",
    description="One stage: what its clients get, where the time goes, how its ranks are.",
    variables=(
        Variable("namespace", "omnistage_epoch"),
        Variable("stage", 'omnistage_epoch{namespace=~"$namespace"}'),
        Variable("replica", 'omnistage_epoch{namespace=~"$namespace",stage=~"$stage"}'),
    ),
    rows=(CLIENTS, LINE, RANKS),
    marks=(Query(f'omnistage_phase{{{ME},phase="loading"}} == 1', "a life begins"),),
)
