"""Dashboards as values, and as the JSON that Grafana imports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

SCHEMA: Final = 39  # of Grafana 10.4 and later
COLUMNS: Final = 24  # of Grafana's grid
WINDOW: Final = "$__rate_interval"
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

Kind = Literal["timeseries", "stat", "heatmap", "table", "state-timeline"]


@dataclass(frozen=True, slots=True)
class Query:
    """One expression, and what its series are called: Grafana puts a label's value in the place of {{label}}."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. `unit` is one of Grafana's: s, reqps, bytes, short …"""

    title: str
    unit: str
    description: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice above the panels, of a label's values."""

    name: str
    series: str
    """What has the label."""

    @property
    def query(self) -> str:
        """As Grafana asks for the values."""
        return f"label_values({self.series}, {self.name})"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    marks: tuple[Query, ...] = ()
    """Drawn as lines through every panel where they have a value."""

    @property
    def panels(self) -> Iterator[Panel]:
        """All of them, in order."""
        return (panel for row in self.rows for panel in row.panels)


def quantiles(
    of: str, by: str = "", quantiles: Sequence[float] = (0.5, 0.95, 0.99), window: str = WINDOW
) -> tuple[Query, ...]:
    """Quantiles of a histogram, whose name with its selector is `of`. What is rare needs a long `window`."""
    name, _, selector = of.partition("{")
    series = f"{name}_bucket{{{selector}" if selector else f"{name}_bucket"
    group = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple(
        Query(
            f"histogram_quantile({q}, sum by ({group}) (rate({series}[{window}])))", f"{legend}p{100 * q:g}"
        )
        for q in quantiles
    )


def as_json(dashboard: Dashboard) -> dict[str, Any]:
    """The page in Grafana's form."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["omnistage"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "timezone": "browser",
        "links": [{"type": "dashboards", "tags": ["omnistage"], "title": "omnistage", "keepTime": True}],
        "templating": {"list": [_source(), *map(_variable, dashboard.variables)]},
        "annotations": {"list": [_mark(query) for query in dashboard.marks]},
        "panels": list(_laid_out(dashboard.rows)),
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> dict[str, Any]:
    # `.*` for all also lets through what lacks the label, such as a stage that was started by hand.
    return {
        "name": variable.name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "definition": variable.query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _mark(query: Query) -> dict[str, Any]:
    return {
        "name": query.legend,
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "orange",
        "expr": query.expr,
        "titleFormat": query.legend,
        "textFormat": "{{stage}} {{replica}}",
        "useValueForTime": False,
    }


def _laid_out(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Panels from left to right and from top to bottom, each row under its heading."""
    y, number = 0, 0
    for row in rows:
        number += 1
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            number += 1
            yield _panel(panel, number, {"h": panel.height, "w": panel.width, "x": x, "y": y})
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    drawn: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [_target(panel, query, chr(ord("A") + i)) for i, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": _drawing(panel)}, "overrides": []},
        "options": _OPTIONS[panel.kind],
    }
    if panel.kind == "table":
        drawn["transformations"] = [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": _columns(panel)}},
        ]
    return drawn


def _target(panel: Panel, query: Query, ref: str) -> dict[str, Any]:
    table = panel.kind == "table"
    return {
        "refId": ref,
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "format": {"table": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series"),
        "instant": table,
        "range": not table,
    }


def _columns(panel: Panel) -> dict[str, str]:
    """Each query's values are a column named after its letter; one query's is just Value."""
    if len(panel.queries) == 1:
        return {"Value": panel.queries[0].legend}
    return {f"Value #{chr(ord('A') + i)}": query.legend for i, query in enumerate(panel.queries)}


def _drawing(panel: Panel) -> dict[str, Any]:
    if panel.kind != "timeseries":
        return {}
    return {
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }


_OPTIONS: Final[dict[Kind, dict[str, Any]]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"},
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "yAxis": {"axisPlacement": "left"},
        "tooltip": {"mode": "single"},
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
    "state-timeline": {"mergeValues": True, "showValue": "never", "legend": {"showLegend": True}},
}
