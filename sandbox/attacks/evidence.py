"""From a result to the layer that stopped the attack: by its verdict, or by what its error says.

A program that ends for no reason known here is not counted as stopped: the attack may just be broken.
"""

from sandbox.attacks.attack import Attack, Layer
from sandbox.verdicts import Result

_BY_VERDICT: dict[str, Layer] = {
    "timeout": "clock in the host",
    "memory": "resource limits",
    "output_limit": "output cap",
    "refused": "size cap",
}

# Texts of errno(3) and of the interpreter. The filter answers EPERM, Landlock EACCES; the rest are limits.
_BY_TEXT: tuple[tuple[str, Layer], ...] = (
    ("Operation not permitted", "system-call filter"),
    ("EPERM", "system-call filter"),
    ("SIGSYS", "system-call filter"),
    ("Bad system call", "system-call filter"),
    ("Permission denied", "Landlock"),
    ("EACCES", "Landlock"),
    ("Cannot allocate memory", "resource limits"),
    ("Too many open files", "resource limits"),
    ("Resource temporarily unavailable", "resource limits"),
    ("EAGAIN", "resource limits"),
    ("EMFILE", "resource limits"),
    ("ENOMEM", "resource limits"),
    ("out of memory", "resource limits"),  # V8, which then ends itself
    ("File too large", "resource limits"),
    ("File size limit exceeded", "resource limits"),
    ("compiler: no end within", "clock in the host"),
    ("Error: file not found", "Landlock"),  # what the assembler says of a file it may not open
    ("processes and threads", "resource limits"),
    ("not allowed to raise maximum limit", "resource limits"),
    ("RecursionError", "interpreter"),
    ("SIGSEGV", "interpreter"),
    ("Exceeds the limit", "interpreter"),
    ("too many nested parentheses", "interpreter"),
    ("Function not implemented", "machine"),
    ("Address family not supported", "machine"),
    ("No such file or directory", "machine"),
    ("No such process", "machine"),
    ("Read-only file system", "machine"),
)

_OWN_FAULTS = ("SyntaxError", "NameError", "ImportError", "IndentationError", "ModuleNotFoundError")


def stopped_by(attack: Attack, result: Result) -> Layer | None:
    """The layer, or None when nothing says which."""
    verdict = next((verdict for verdict in result.verdicts if verdict != "passed"), "passed")
    if verdict in _BY_VERDICT:
        return _BY_VERDICT[verdict]
    text = " ".join([*result.details, result.stderr])
    if "nothing found" in text:
        return attack.layer
    if verdict == "wrong" and attack.layer in {"comparison in the host", "end of the group"}:
        # An answer is not the point of those that try to stay: nothing of them is there any more.
        return attack.layer
    for part, layer in _BY_TEXT:
        if part in text:
            return layer
    if verdict == "wrong":
        return "comparison in the host"
    # An attack on the verdict has failed when there is a verdict; unless it never got as far as trying.
    if attack.layer == "comparison in the host" and not any(fault in text for fault in _OWN_FAULTS):
        return attack.layer
    return None
