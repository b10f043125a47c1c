"""Who else was at work on the machine: what makes a measurement worthless, in a figure."""

from __future__ import annotations


def busy_core_seconds() -> float:
    """Processor seconds that all processes of the machine have used since it started, idle time and waiting left out."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it

    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
