"""Prints tables whose rows stay whole."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def print_whole(table: Table) -> Console:
    """Print a table: a line too long is better than one cut short. Returns where it was."""
    console = Console(highlight=False)
    needed = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    console.width = max(console.width, needed)
    console.print(table)
    return console
