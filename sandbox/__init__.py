"""Running code that a model wrote, on Linux, with the standard library alone.

Each program runs in a process forked from a *zygote*: a clean interpreter that never held a secret, not even the
program itself. Before the first line of foreign code the process gives up everything it does not need.

Covered: reading files other than the system's libraries, writing outside the work directory, the network, signals to
others, tracing, memory, CPU and wall-clock time, processes, files and output without end, the host's environment and
descriptors, forged results (what counts is compared outside, see `trial`), and everything left behind after the end.

Not covered: bugs of the kernel itself (put gVisor or a virtual machine around it), timing side channels, and
looking at the names, sizes and times of files (not their content). Python programs that need threads, subprocesses or
asyncio do not work here; programs in other languages have no sockets. Modes and times of files cannot be changed.

Dive in: `verdicts` (the entry: Sandbox, run_tests), `spec` (what a test is), `trial` (one program against its tests),
`process` and `zygote` (the two ends of starting one), `confine`, `landlock`, `seccomp`, `syscalls` (what it gives
up), `harness`, `checks`, `units` (what runs inside), `languages`, `workdir`.
"""
