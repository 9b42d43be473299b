"""The errors people are meant to read: one line that names the field, the value and the fix.

The command line and every stage print a `BurnishError` as that one line and exit with its code;
anything else is a fault of ours and keeps its traceback.
"""


class BurnishError(Exception):
    """Something the user, the data or a service got wrong. `exit_code` is the process's exit status."""

    exit_code = 1


class ConfigError(BurnishError):
    """A field of the run's configuration is wrong."""

    exit_code = 2


class ContractError(BurnishError):
    """Data that crosses a stage boundary does not have the shape its schema promises."""

    exit_code = 3


class StoreError(BurnishError):
    """The object store cannot be reached, or what it holds is missing or corrupt."""

    exit_code = 4


class StageError(BurnishError):
    """A stage cannot do its work on inputs that are themselves valid."""

    exit_code = 5
