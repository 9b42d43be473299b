"""The program in a response: a fenced block, a bare function, or the continuation of the prompt's own code.

By lines only: parsing foreign code is left to the sandbox.
"""

import re
import textwrap

_FENCE = re.compile(r"```(?P<tag>[^\n`]*)(?=\n)(?P<body>.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_TAGS = {"bash": ("sh", "shell"), "cpp": ("c++", "cc"), "javascript": ("js", "node")}
_CODE_LINE = re.compile(r"(def |async def |class |import |from \w[\w.]* import |@)")
# A line at the margin that belongs to a program; anything else there is the model talking.
_MARGIN_LINE = re.compile(
    r"(def |async def |class |import |from |@|#|if |for |while |try:|with |[)\]}]"
    r"|[A-Za-z_][\w.]*\(|[A-Za-z_][\w.\[\]]*\s*[+*-]?=)"
)


def extract_code(response: str, entry_point: str | None = None, context: str = "") -> str:
    """The program in `response`, with the prompt's `context` before it; never fails, may be nonsense.

    A fenced block that defines `entry_point` wins over other blocks, the first block over text around it; a block
    cut off by the length limit counts. Without the definition, the code continues `context`.
    """
    defines = re.compile(rf"^(async )?def {re.escape(entry_point)}\b", re.MULTILINE) if entry_point else None
    blocks = [match["body"].removeprefix("\n") for match in _FENCE.finditer(response)]
    if blocks:
        code = next((block for block in blocks if defines and defines.search(block)), blocks[0])
    elif defines is None or defines.search(response):
        code = _program_lines(response, _CODE_LINE if defines else _MARGIN_LINE)
    else:
        return context + _continuation(response)
    if context and (defines is None or not defines.search(code)):
        return context + _indented(code)
    return f"{context}\n{code}" if context else code


def extract_program(response: str, language: str) -> str:
    """The program in another language than Python: its own fenced block, else the first, else the whole response."""
    blocks = [(match["tag"].strip().lower(), match["body"].removeprefix("\n")) for match in _FENCE.finditer(response)]
    if not blocks:
        return response
    tags = {language, *_TAGS.get(language, ())}
    return next((body for tag, body in blocks if tag in tags), blocks[0][1])


def _program_lines(text: str, opening: re.Pattern[str]) -> str:
    """From the first line that looks like code to the line before the model talks again."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if opening.match(line)), 0)
    kept: list[str] = []
    for line in lines[start:]:
        if kept and line[:1].strip() and not _MARGIN_LINE.match(line):
            break
        kept.append(line)
    return "\n".join(kept)


def _continuation(text: str) -> str:
    """The rest of a function's body: everything up to the first line back at the margin."""
    kept: list[str] = []
    begun = False
    for line in text.splitlines():
        if begun and line[:1].strip():
            break
        begun = begun or bool(line.strip())
        kept.append(line)
    return _indented("\n".join(kept))


def _indented(code: str) -> str:
    """A body whose lines, or whose first line alone, lost their indentation gets it back."""
    lines = [line for line in code.splitlines() if line.strip()]
    if not lines or lines[0][:1].isspace():
        return code
    rest_indent = len(lines[1]) - len(lines[1].lstrip()) if len(lines) > 1 else 0
    if rest_indent > (4 if lines[0].rstrip().endswith(":") else 0):
        return f"    {code.lstrip()}"
    return textwrap.indent(code, "    ")
