"""What one execution may use.

The host enforces wall time, output and what can only be summed up over processes and files; the kernel the rest.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one execution: all its tests together."""

    wall_s: float = 5.0
    """Seconds from start to end; the same number, rounded up, bounds CPU time."""
    memory_mb: int = 512
    """Address space beyond that of the bare interpreter; of languages with processes, what all hold together."""
    output_kb: int = 64
    """Standard output and error together; one returned value may be as large again."""
    code_kb: int = 256
    """Size of the program. A larger one is refused without being run."""
    disk_mb: int = 16
    """All files in the work directory together."""
    files: int = 256
    """Files and folders in the work directory."""
    processes: int = 64
    """Processes and threads at a time, where the language needs them."""
    compile_s: float = 30.0
    """Seconds that the compiler may take; they do not count towards `wall_s`."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"limits.{name} is {value}; it must be above 0")
