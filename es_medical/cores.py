"""How many CPU cores this process may use."""

import os


def usable_cores() -> int:
    """Return the number of cores that the system lets this process run on (taskset, a batch system), at least 1."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
