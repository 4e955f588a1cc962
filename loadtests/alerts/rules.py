"""The alerts of ``deploy/prometheus``, with minutes that take seconds."""

import re
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "alerts.yml"
WINDOW = re.compile(r"\[(\d+[smhd])\]")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
STEP_AGE = re.compile(r"(lanewise_step_age_seconds > )(\d+)")
# The bundled model answers in milliseconds: what is late for it is not late for others.
LATE_FIRST_TOKEN, LATE_HERE = 'le="10.0"', 'le="0.25"'
# Servers begin no faster because the clock of the rules does.
LESS = {"LanewiseCrashLoop": 3}


def shorter(duration: str, factor: float) -> str:
    """A duration of Prometheus, divided; whole milliseconds."""
    return f"{round(1000 * int(duration[:-1]) * SECONDS[duration[-1]] / factor)}ms"


def scaled_rules(factor: float) -> dict[str, Any]:
    """The rules with every window, every ``for`` and the age of a step divided by ``factor``."""
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            by = factor / LESS.get(rule["alert"], 1)
            rule["expr"] = _scaled(rule["expr"], by)
            if "for" in rule:
                rule["for"] = shorter(rule["for"], by)
    return rules


def alert_names() -> set[str]:
    """What there is to fire."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


def _scaled(expression: str, factor: float) -> str:
    expression = WINDOW.sub(lambda found: f"[{shorter(found[1], factor)}]", expression)
    expression = STEP_AGE.sub(lambda found: f"{found[1]}{int(found[2]) / factor:g}", expression)
    return expression.replace(LATE_FIRST_TOKEN, LATE_HERE)
