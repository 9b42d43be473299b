"""The limits that the kernel does not keep, because they are sums over processes or over files."""

from sandbox.child import Child
from sandbox.processes import usage_below


def excess(child: Child, zygote: int) -> tuple[str, str] | None:
    """The verdict on a program that uses too much, and what of; None as long as it does not.

    A zygote runs one program at a time, so all processes below it are that program's.
    """
    limits = child.limits
    usage = usage_below(zygote, limits.processes)
    if child.jail.processes and usage.tasks > limits.processes:
        return "runtime_error", f"more than {limits.processes} processes and threads"
    if child.jail.programs is not None and usage.memory > limits.memory_mb * 2**20:
        return "memory", f"more than {limits.memory_mb} MiB"
    if child.jail.changes and child.directory is not None:
        too_much = child.directory.excess(limits.disk_mb * 2**20, limits.files, usage.deleted)
        if too_much:
            return "output_limit", too_much
    return None
