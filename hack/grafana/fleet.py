"""All stages: which are well, which aren't, and what happened to them. Told by the operator, and by the stages."""

from __future__ import annotations

from typing import Final

from grafana.panels import WINDOW, Dashboard, Panel, Query, Row, Variable, quantiles

HERE: Final = 'namespace=~"$namespace"'
O: Final = "omnistage_operator"  # noqa: E741 - a prefix that stands in every expression


def _kept(series: str, by: str = "namespace, stage") -> str:
    """Both replicas of the operator tell of every stage: one of them is enough."""
    return f"max by ({by}) ({series})"


def _replicas(kind: str) -> str:
    return _kept(f'{O}_stage_replicas{{{HERE},kind="{kind}"}}')


STAGE: Final = "{{namespace}}/{{stage}}"
READY: Final = _kept(f"{O}_stage_ready{{{HERE}}}")
FAILED: Final = _kept(f'{O}_stage_condition{{{HERE},condition="Failed"}}')

HEALTH: Final = Row(
    "How they are",
    (
        Panel(
            "Stages that aren't ready",
            "short",
            "Of which not all replicas serve with the spec as it is now; suspended ones too.",
            (Query(f"count({READY} == 0) or vector(0)"),),
            kind="stat",
            width=6,
        ),
        Panel(
            "Stages that failed",
            "short",
            "With a replica that is held: nothing happens to it until somebody changes something.",
            (Query(f"count({FAILED} == 1) or vector(0)"),),
            kind="stat",
            width=6,
        ),
        Panel(
            "Replicas ready of desired",
            "percentunit",
            "Over all stages.",
            (Query(f"sum({_replicas('ready')}) / sum({_replicas('desired')})"),),
            kind="stat",
            width=6,
        ),
        Panel(
            "Ranks that serve, and that are asked for",
            "short",
            "Ranks of the replicas that answer, and of all replicas that there should be in all namespaces; on most "
            "clusters as many accelerators.",
            (
                Query(f"sum(omnistage_world_size{{{HERE}}})", "serve"),
                Query(_kept(f'{O}_ranks{{kind="desired"}}', "kind"), "asked for"),
            ),
            kind="stat",
            width=6,
        ),
        Panel(
            "Stages by phase",
            "short",
            "In all namespaces that the operator keeps.",
            (Query(_kept(f"{O}_stages", "phase"), "{{phase}}"),),
            stacked=True,
        ),
        Panel(
            "Replicas by phase",
            "short",
            "In all namespaces that the operator keeps. BackOff waits for its next life; Held gets none.",
            (Query(_kept(f"{O}_replicas", "phase"), "{{phase}}"),),
            stacked=True,
        ),
        Panel(
            "Replicas that wait or are held",
            "short",
            "By stage: back_off waits for its next life, held gets none.",
            (
                Query(
                    _kept(f'{O}_stage_replicas{{{HERE},kind=~"back_off|held"}}', "namespace, stage, kind"),
                    f"{STAGE} {{{{kind}}}}",
                ),
            ),
        ),
        Panel(
            "Stages",
            "short",
            "A line for each stage. A rollout is under way where fewer replicas are updated than desired.",
            (
                Query(
                    _kept(f"{O}_stage_info{{{HERE}}}", "namespace, stage, model, revision, world"), "stage"
                ),
                Query(_replicas("desired"), "desired"),
                Query(_replicas("ready"), "ready"),
                Query(_replicas("updated"), "updated"),
                Query(_kept(f"{O}_stage_restarts_total{{{HERE}}}"), "restarts"),
            ),
            kind="table",
            width=12,
            height=10,
        ),
        Panel(
            "Conditions",
            "short",
            "1 is True, 0 False, -1 Unknown, with the reason. Degraded and Failed are bad when True, the others when "
            "False.",
            (
                Query(
                    _kept(f"{O}_stage_condition{{{HERE}}}", "namespace, stage, condition, reason"),
                    "says",
                ),
            ),
            kind="table",
            width=12,
            height=10,
        ),
    ),
)

LIVES: Final = Row(
    "What happened",
    (
        Panel(
            "Restarts by reason",
            "short",
            "Replicas that began another life, by why the one before ended.",
            (
                Query(
                    f"sum by (reason) (increase({O}_group_restarts_total[{WINDOW}])) or vector(0)",
                    "{{reason}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Most restarts in an hour",
            "short",
            "The ten stages whose replicas began the most lives.",
            (Query(f"topk(10, {_kept(f'increase({O}_stage_restarts_total{{{HERE}}}[1h])')})", STAGE),),
        ),
        Panel(
            "Time to serve again",
            "s",
            "From a replica's end to all of its stage serving, over an hour.",
            quantiles(f"{O}_group_recovery_seconds", quantiles=(0.5, 0.95), window="1h"),
        ),
        Panel(
            "Time to clear what is left",
            "s",
            "From the news of a replica's end to the deletion of its pods, over an hour.",
            quantiles(f"{O}_group_restart_detect_seconds", quantiles=(0.5, 0.99), window="1h"),
        ),
        Panel(
            "Pods deleted by force",
            "short",
            "Whose node was known to be gone, in the last hour.",
            (Query(f"sum(increase({O}_force_deletes_total[1h]))", "pods"),),
        ),
    ),
)

SERVING: Final = Row(
    "What clients get",
    (
        Panel(
            "Completed outputs",
            "reqps",
            "Each second, by stage.",
            (
                Query(
                    "sum by (namespace, stage) "
                    f'(rate(omnistage_requests_total{{{HERE},outcome="completed"}}[{WINDOW}]))',
                    STAGE,
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Failed or turned away",
            "reqps",
            "Outputs each second that failed or were refused, by stage.",
            (
                Query(
                    "sum by (namespace, stage) "
                    f'(rate(omnistage_requests_total{{{HERE},outcome=~"failed|rejected"}}[{WINDOW}]))',
                    STAGE,
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Time of a request, p95",
            "s",
            "Of completed outputs, by stage.",
            quantiles(
                f'omnistage_request_seconds{{{HERE},outcome="completed"}}', by="stage", quantiles=(0.95,)
            ),
        ),
        Panel(
            "Fullness of the line",
            "percentunit",
            "Of the fullest replica of each stage; at 100 % requests are refused.",
            (
                Query(
                    "max by (namespace, stage) "
                    f"(omnistage_requests_waiting{{{HERE}}} / omnistage_queue_limit{{{HERE}}})",
                    STAGE,
                ),
            ),
        ),
    ),
)

FLEET: Final = Dashboard(
    uid="omnistage-fleet",
    title="omnistage / fleet",
    description="All stages: which are well, which aren't, and what happened to them.",
    variables=(Variable("namespace", f"{O}_stage_ready"),),
    rows=(HEALTH, LIVES, SERVING),
)
