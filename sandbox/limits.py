"""What one execution may use. The host enforces wall time and output; the kernel enforces the rest."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one execution: all its tests together."""

    wall_s: float = 5.0
    """Seconds from start to end; the same number, rounded up, bounds CPU time."""
    memory_mb: int = 512
    """Address space beyond that of the bare interpreter."""
    output_kb: int = 64
    """Standard output and error together; one returned value may be as large again."""
    code_kb: int = 256
    """Size of the program. A larger one is refused without being run."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"limits.{name} is {value}; it must be above 0")
