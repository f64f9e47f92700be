"""A ledger as a table by group with sums, and what it admits."""

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import GROUPS, Document, Keys, by_group, clamped, facts, gib, question_line
from explorer.report.sheet import Sheet

_RULE = 60  # characters of a rule in a table; the whole is in the document


def draw(document: Document) -> RenderableType:
    """Everything that a `memory/1` document says: lines, sums, then what they admit."""
    style = "green" if document["feasible"] else "red"
    return Group(
        Text(question_line(document), style="dim"),
        Keys(document["layout_text"], style=f"bold {style}"),
        Text("fits" if document["feasible"] else "does not fit", style=f"bold {style}"),
        ledger_table(document),
        facts(admitted(document)),
    )


def ledger_table(document: Document) -> Sheet:
    """Every line that holds something under its group, each group with its sum; estimates with their range."""
    head = ("line", "GiB", "range", "rule", "provenance")
    caption = "A range marks an estimate. Rules in full: --json."
    drawn = Sheet("One GPU", *head, left=("line", "range"), wraps=head[3:], spare=("rule",), caption=caption)
    sums = by_group(document["lines"])
    for group, size in sums.items():
        drawn.add(GROUPS.get(group, group), gib(size), "", "", "", style="bold")
        for line in document["lines"]:
            if line["group"] == group and line["bytes"]:
                range_ = "" if line["exact"] else f"{gib(line['low'])} to {gib(line['high'])}"
                provenance = Text(str(line["provenance"]), style="dim")
                drawn.add(f"  {line['name']}", gib(line["bytes"]), range_, _short(line["rule"]), provenance)
        drawn.section()
    drawn.add("sum", gib(sum(sums.values())), "", "", "", style="bold")
    return drawn


def admitted(document: Document) -> list[tuple[str, str]]:
    """Budget, pool and requests as lines of text; what is short and what would do where the load does not fit."""
    engine = document["engine_default_mem_fraction"]
    beside = "" if engine is None else f" (the engine's own default: {engine:.3f})"
    return [
        *([("short", document["reason"]), ("would do", document["remedy"])] if not document["feasible"] else []),
        ("free at start", f"{gib(document['free_bytes'])} GiB"),
        ("mem_fraction", f"{document['mem_fraction']:.3f}{beside}"),
        ("budget of the pools", f"{gib(document['budget_bytes'])} GiB"),
        ("KV tokens", f"{document['kv_tokens_per_rank']:,} a rank, {document['kv_tokens_instance']:,} the instance"),
        ("requests that run", f"{document['max_running_requests']:,} ({clamped(document)})"),
        ("longest context", f"{document['longest_context']:,} tokens of one request"),
        ("peak while loading", f"{gib(document['load_peak_bytes'])} GiB"),
    ]


def _short(rule: str) -> str:
    return rule if len(rule) <= _RULE else f"{rule[: _RULE - 3]}..."
