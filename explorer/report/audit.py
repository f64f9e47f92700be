"""An audit as tables: exchanges of the model beside those of the program, FLOPs, and what neither can be held to."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import NOTHING, Document, Keys, facts, number
from explorer.report.sheet import Sheet


def draw(document: Document) -> RenderableType:
    """Everything that an `audit/1` document says; whether both sides agree comes last."""
    return Group(
        Text(question_line(document), style="dim"),
        Keys(document["layout_text"], style="bold"),
        exchanges_table(document),
        facts(sums(document)),
        verdict(document),
    )


def question_line(document: Document) -> str:
    """The question in one line."""
    asked = document["request"]
    parts = [
        asked["model"],
        f"{asked['gpus']} GPUs, {asked['gpus_per_host']} a host",
        f"decode, context {asked['context']:,}",
        f"concurrency {asked['concurrency']:,}",
        *([f"verify {asked['verify_width']}"] if asked["verify_width"] > 1 else []),
    ]
    return " | ".join(parts)


def exchanges_table(document: Document) -> Sheet:
    """One row for exchanges of one kind, group and size; a mark where the sides differ in how many there are."""
    head = ("", "exchange", "ranks", "bytes each", "model", "program", "ops of the model")
    caption = "A rank and step; bytes are those of the operand, of an all-gather those of its result. ! differs."
    words = ("", "exchange")
    drawn = Sheet("Exchanges", *head, left=words, wraps=head[-1:], spare=head[-1:], caption=caption)
    for one in document["exchanges"]:
        mark, style = ("", "") if one["agrees"] else ("!", "bold red")
        counts = number(one["model"]), number(one["program"])
        size = f"{one['bytes']:,.10g}" if isinstance(one["bytes"], float) else f"{one['bytes']:,}"
        drawn.add(mark, one["kind"], str(one["ranks"]), size, *counts, ", ".join(one["ops"]), style=style)
    return drawn


def sums(document: Document) -> list[tuple[str, str]]:
    """FLOPs of both sides, and what only one of them has, as lines of text."""
    flops = document["flops"]
    return [
        ("FLOPs", f"model {flops['model']:,.10g}, program {flops['program']:,.10g}, {100 * flops['error']:+.4f} %"),
        ("priced only", "; ".join(_grouped(document["priced_only"])) or NOTHING),
        ("left out", ", ".join(document["left_out"]) or NOTHING),
    ]


def verdict(document: Document) -> Text:
    """`agrees`, or what differs, a line each."""
    if document["agrees"]:
        return Text("agrees", style="bold green")
    return Text("\n".join(f"differs: {line}" for line in document["differences"]), style="bold red")


def _grouped(parts: Iterable[Document]) -> list[str]:
    """Ops that many kinds of layer share are named once, with how many they are; whole parts by their own name."""
    kinds: dict[str, int] = {}
    for part in parts:
        for name in part["ops"] or [part["layer_kind"]]:
            kinds[name] = kinds.get(name, 0) + 1
    return [name if n == 1 else f"{name} ({n} kinds of layer)" for name, n in kinds.items()]
