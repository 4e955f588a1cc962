"""Fire every alert by its fault, against a real Prometheus, and see it end.

Windows of the rules are divided by ``--scale``, so that minutes are seconds; nothing else differs
but what is late for a first token, as the bundled model is fast. Each fault has its own server.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from loadtests.alerts.faults import FAULTS, Fault
from loadtests.alerts.groups import NoGroupsError, control_group
from loadtests.alerts.rules import alert_names
from loadtests.alerts.targets import Target
from loadtests.alerts.watching import Prometheus, watching

SCALE = 30.0
WAIT_S = 180.0  # for an alert to fire, or to end
SCRAPE_S = 3.0  # a server is scraped before anything happens to it
ABSENT = "LanewiseAbsent"


@dataclass(slots=True)
class Outcome:
    """Seconds from a fault to each alert, and from when it was undone to the alert's end."""

    fired: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    problem: str | None = None
    why_not: str | None = None  # it was not tried here

    def lines(self, name: str) -> list[str]:
        """For people."""
        if self.why_not is not None:
            return [f"{name:12} not here: {self.why_not}"]
        if self.problem is not None:
            return [f"{name:12} MISSED  {self.problem}"]
        return [
            f"{name:12} {alert:30} fired after {self.fired[alert]:5.1f} s,"
            f" ended {self.ended[alert]:5.1f} s after it was undone"
            for alert in self.ended
        ]


def of_target(labels: dict[str, str], target: Target) -> bool:
    """Whether an alert is about this server."""
    about = labels.get("instance") == target.address
    return about or labels.get("model_name") == target.name


def wait_until(
    are_firing: bool,
    prometheus: Prometheus,
    is_about: Callable[[dict[str, str]], bool],
    alerts: Sequence[str],
    times: dict[str, float],
) -> None:
    """Until each alert has been seen firing, or not firing; ``times`` says after how long."""
    began = time.monotonic()
    while missing := [alert for alert in alerts if alert not in times]:
        now = time.monotonic() - began
        here = {one["alertname"] for one in prometheus.firing() if is_about(one)}
        times |= {alert: now for alert in missing if (alert in here) is are_firing}
        if now > WAIT_S:
            what = "fired" if are_firing else "ended"
            raise TimeoutError(f"not {what} within {WAIT_S:g} s: {', '.join(missing)}")
        time.sleep(0.25)


def try_fault(name: str, fault: Fault, prometheus: Prometheus, folder: Path) -> Outcome:
    """Start a server, do it to it, and undo it."""
    outcome = Outcome()
    with ExitStack() as stack:
        try:
            group = None
            if fault.controller is not None:
                group = stack.enter_context(control_group(fault.controller, name))
            own = folder / name
            own.mkdir()
            target = Target(name, own, fault.options, group)
            if fault.prepare is not None:
                fault.prepare(target)
            stack.callback(target.stop)
            target.start()
            prometheus.watch(target.address)
            stack.callback(prometheus.forget, target.address)
            time.sleep(SCRAPE_S)
            is_about = partial(of_target, target=target)
            if early := list(filter(is_about, prometheus.firing())):
                raise TimeoutError(f"fires before anything has happened: {early}")
            with fault.happens(target):
                wait_until(True, prometheus, is_about, fault.alerts, outcome.fired)
            wait_until(False, prometheus, is_about, fault.alerts, outcome.ended)
        except NoGroupsError as error:
            outcome.why_not = str(error)
        except OSError as error:
            outcome.problem = str(error)
    print("\n".join([f"{name:12} {fault.what}:", *outcome.lines(name)]), flush=True)
    return outcome


def try_absence(prometheus: Prometheus, folder: Path) -> Outcome:
    """A server that Prometheus is not told of."""
    outcome = Outcome()
    target = Target("absent", folder, (), None)

    try:
        target.start()
        wait_until(True, prometheus, lambda _: True, [ABSENT], outcome.fired)
        prometheus.watch(target.address)
        wait_until(False, prometheus, lambda _: True, [ABSENT], outcome.ended)
    except OSError as error:
        outcome.problem = str(error)
    finally:
        target.stop()
    print("\n".join(outcome.lines("absent")), flush=True)
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Try each fault; 1 if an alert did not fire, or did not end."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.alerts", description=__doc__)
    parser.add_argument("--only", action="append", choices=FAULTS, metavar="FAULT")
    parser.add_argument("--scale", type=float, default=SCALE, help="[%(default)g]")
    parser.add_argument("--at-once", type=int, default=3, help="faults [%(default)d]")
    options = parser.parse_args(arguments)
    names = options.only or list(FAULTS)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with watching(folder, options.scale) as prometheus:
            with ThreadPoolExecutor(options.at_once) as pool:
                made = pool.map(lambda one: try_fault(one, FAULTS[one], prometheus, folder), names)
                tried = dict(zip(names, made, strict=True))
            outcomes = list(tried.values())
            if not options.only:
                outcomes.append(try_absence(prometheus, folder))
    fired = {alert for outcome in outcomes for alert in outcome.ended}
    untried = {
        alert
        for name, outcome in tried.items()
        if outcome.why_not is not None
        for alert in FAULTS[name].alerts
    }
    print(f"{len(fired)} alerts fired and ended in {time.monotonic() - began:.0f} s")
    never = set() if options.only else alert_names() - fired - untried
    if never:
        print(f"MISSED: {', '.join(sorted(never))}")
    return 1 if never or any(outcome.problem for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
