"""Grafana's format of dashboards, version 39 of its schema."""

import itertools
from collections.abc import Sequence
from typing import Any

from deploy.dashboards.panels import SERVER, Panel, Target

WIDTH = 24
HEIGHTS = {"row": 1, "stat": 4}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLOURS = ("green", "orange", "red")
TABLE_WITHOUT = ("Time", "Value", "__name__", "job", "engine")
STARTS = f"process_start_time_seconds{{{SERVER}}} * 1000"
FIRING = 'ALERTS{alertname=~"Lanewise.*", alertstate="firing"}'


def dashboard(
    uid: str, title: str, panels: Sequence[Panel], variables: Sequence[str]
) -> dict[str, Any]:
    """A whole dashboard, with those of ``VARIABLES`` that its queries have."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["lanewise", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "graphTooltip": 1,
        "annotations": {
            "list": [
                annotation("Starts", STARTS, "blue", "{{instance}} has started", at_value=True),
                annotation("Alerts", FIRING, "red", "{{alertname}} {{instance}} {{model_name}}"),
            ]
        },
        "links": [
            {
                "type": "dashboards",
                "title": "Lanewise",
                "tags": ["lanewise"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [source_variable(), *map(variable, variables)]},
        "panels": placed(panels),
    }


def annotation(
    name: str, expr: str, colour: str, title: str, *, at_value: bool = False
) -> dict[str, Any]:
    """Marks in every chart where a query has data, or at the time that is its value."""
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "expr": expr,
        "iconColor": colour,
        "titleFormat": title,
        "useValueForTime": at_value,
    }


def source_variable() -> dict[str, Any]:
    """Which Prometheus is asked."""
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
    }


VARIABLES = {
    "model": ("Model", "vllm:num_requests_running", "model_name"),
    "instance": ("Server", "lanewise_info", "instance"),
    "job": ("Job", "lanewise_info", "job"),
}


def variable(name: str) -> dict[str, Any]:
    """The values of a label, of which some or all may be chosen."""
    label, metric, of = VARIABLES[name]
    query = f"label_values({metric}, {of})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
        "hide": 0,
    }


def placed(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Panels one beside the other, as many as there is room for, and below each other."""
    made = []
    x = y = 0
    height = 0
    for number, panel in enumerate(panels, start=1):
        width = WIDTH if panel.kind == "row" else panel.width
        if x + width > WIDTH:
            x, y = 0, y + height
        height = HEIGHTS.get(panel.kind, 8)
        place = {"x": x, "y": y, "w": width, "h": height}
        made.append({"id": number, **written(panel), "gridPos": place})
        x += width
    return made


def written(panel: Panel) -> dict[str, Any]:
    """A panel without its place."""
    if panel.kind == "row":
        return {"type": "row", "title": panel.title, "collapsed": False, "panels": []}
    names = itertools.count(ord("A"))
    made = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults(panel), "overrides": []},
        "options": OPTIONS[panel.kind](panel),
        "targets": [query(target, chr(next(names))) for target in panel.targets],
    }
    if panel.kind == "table":
        hidden = {"excludeByName": dict.fromkeys(TABLE_WITHOUT, True)}
        made["transformations"] = [{"id": "organize", "options": hidden}]
    return made


def query(target: Target, name: str) -> dict[str, Any]:
    """One query; a table shows the last values, a heatmap reads bounds of buckets."""
    made = {
        "refId": name,
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": target.expr,
        "legendFormat": target.legend,
        "range": target.kind != "table",
    }
    if target.exemplars:
        made["exemplar"] = True
    if target.kind == "table":
        made |= {"instant": True, "format": "table"}
    if target.kind == "heatmap":
        made["format"] = "heatmap"
    return made


def defaults(panel: Panel) -> dict[str, Any]:
    """Unit, limits and how lines are drawn."""
    made: dict[str, Any] = {}
    if panel.unit is not None:
        made["unit"] = panel.unit
    if panel.limits:
        made["thresholds"] = {"mode": "absolute", "steps": steps(panel.limits)}
    if panel.kind == "timeseries":
        custom: dict[str, Any] = {
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 8,
            "showPoints": "never",
        }
        if panel.stacked:
            custom["stacking"] = {"mode": "normal"}
        if panel.limits:
            custom["thresholdsStyle"] = {"mode": "dashed"}
        made |= {"custom": custom, "min": 0}
    if panel.most is not None:
        made["max"] = panel.most
    return made


def steps(limits: Sequence[float]) -> list[dict[str, Any]]:
    """Green to red with rising values; where the limits fall, red is what is below the last."""
    first, *_, last = limits
    if first > last:
        bounds, colours = (None, last, first), COLOURS[::-1]
    else:
        bounds, colours = (None, first, last), COLOURS
    return [{"color": c, "value": v} for c, v in zip(colours, bounds, strict=True)]


def stat_options(panel: Panel) -> dict[str, Any]:
    """The last value, in the colour of its limits."""
    return {
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "colorMode": "background" if panel.limits else "value",
        "graphMode": "area",
        "textMode": "auto",
    }


def lines_options(_: Panel) -> dict[str, Any]:
    """A legend below, and all series in the tooltip."""
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def heatmap_options(panel: Panel) -> dict[str, Any]:
    """Buckets as they come from Prometheus."""
    axis = {} if panel.unit is None else {"unit": panel.unit}
    return {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, **axis},
    }


def table_options(_: Panel) -> dict[str, Any]:
    """With names of columns."""
    return {"showHeader": True}


OPTIONS = {
    "stat": stat_options,
    "timeseries": lines_options,
    "heatmap": heatmap_options,
    "table": table_options,
}
