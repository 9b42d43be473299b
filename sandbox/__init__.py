"""Running code that a model wrote, on Linux, with the standard library alone.

Each program runs in a process forked from a *zygote*: a clean interpreter that never held a secret, not even the
program itself. Before the first line of foreign code the process gives up everything it does not need.

Covered: reading files other than Python's own, any writing, the network, new processes and threads, signals to
others, tracing, memory, CPU and wall-clock time, output without end, the host's environment and descriptors,
forged results (what counts is compared outside, see `verdicts`), and everything left behind after the end.

Not covered: bugs of the kernel itself (put gVisor or a virtual machine around it), timing side channels, and
looking at the names, sizes and times of files (not their content). Programs that need threads, subprocesses,
asyncio or a place to write files do not work here.

Entry: `sandbox.verdicts.Sandbox` and `run_tests`, with `sandbox.spec.parse_spec` and `sandbox.limits.Limits`.
"""
