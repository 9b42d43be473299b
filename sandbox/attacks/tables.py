"""The suite in Markdown, for the documentation: how many attacks each layer is to stop, and what each family tries."""

from collections import Counter

from sandbox.attacks import FAMILIES
from sandbox.attacks.attack import LAYERS


def layers_table() -> str:
    counts = Counter(attack.layer for family in FAMILIES for attack in family.attacks)
    rows = ["| Layer | What it is | Attacks it is to stop first |", "|---|---|--:|"]
    return "\n".join(rows + [f"| {layer} | {text} | {counts[layer]} |" for layer, text in LAYERS.items()])


def families_table() -> str:
    rows = ["| Family | Tries to | Attacks | Expected to be stopped by |", "|---|---|--:|---|"]
    for family in FAMILIES:
        layers = Counter(attack.layer for attack in family.attacks)
        by = ", ".join(f"{layer} ({count})" for layer, count in layers.most_common())
        rows.append(f"| {family.name} | {family.aim} | {len(family.attacks)} | {by} |")
    return "\n".join(rows)
