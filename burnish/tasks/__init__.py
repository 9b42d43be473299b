"""Where prompts and their verifiers come from; one source a file, `load_task` is the way in.

What `Prompt.verifier` holds, by its `kind`:

- `exact`: `answer`, the text or number that the response must end with.
- `math`: `answer`, LaTeX or plain; anything equivalent is right.
- `code`: `tests` and what goes with them, the fields of `sandbox.spec.Spec`.
- `reasoning_gym`: `dataset`, `params`, `seed`, `size` and `index`, from which the entry is made again to score it.
"""

from burnish.tasks.load import load_task

__all__ = ["load_task"]
