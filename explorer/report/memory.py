"""A ledger as a table by group with sums, and what it admits."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from explorer.report.common import GROUPS, Document, Keys, by_group, facts, gib, question_line, table


def draw(document: Document) -> RenderableType:
    """Everything that a `memory/1` document says: lines, sums, then what they admit."""
    verdict = "fits" if document["feasible"] else "does not fit"
    style = "green" if document["feasible"] else "red"
    return Group(
        Text(question_line(document), style="dim"),
        Keys(document["layout_text"], style=f"bold {style}"),
        Text(verdict, style=f"bold {style}"),
        ledger_table(document),
        facts(admitted(document)),
    )


def ledger_table(document: Document) -> Table:
    """Every line under its group, each group with its sum. `~` marks an estimate."""
    words = ("line", "rule", "provenance")
    drawn = table(
        "One GPU", "line", "GiB", "", "rule", "provenance", left=(*words, ""), caption="~ is an estimate with a range"
    )
    sums = by_group(document["lines"])
    for group, size in sums.items():
        drawn.add_row(Text(GROUPS.get(group, group), style="bold"), Text(gib(size), style="bold"))
        for line in document["lines"]:
            if line["group"] == group:
                drawn.add_row(
                    Text(f"  {line['name']}"), gib(line["bytes"]), "" if line["exact"] else "~",
                    Text(str(line["rule"])), Text(str(line["provenance"]), style="dim"),
                )  # fmt: skip
        drawn.add_section()
    drawn.add_row(Text("sum", style="bold"), Text(gib(sum(sums.values())), style="bold"))
    return drawn


def admitted(document: Document) -> list[tuple[str, str]]:
    """Budget, pool and requests as lines of text."""
    return [
        ("free at start", f"{gib(document['free_bytes'])} GiB"),
        ("budget of the pools", f"{gib(document['budget_bytes'])} GiB"),
        ("KV tokens", f"{document['kv_tokens_per_rank']:,} a rank, {document['kv_tokens_instance']:,} the instance"),
        ("requests that run", f"{document['max_running_requests']:,} (limit: {document['binding_clamp']})"),
        ("longest context", f"{document['longest_context']:,} tokens of one request"),
    ]
