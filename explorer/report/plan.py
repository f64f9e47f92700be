"""A plan as a panel for the best layout, a table of candidates, and what the search did."""

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from explorer.report.common import (
    GROUPS,
    Document,
    Keys,
    by_group,
    clamped,
    facts,
    gib,
    ms,
    number,
    question_line,
    span,
)
from explorer.report.sheet import Sheet

_SHOWN = 12


def draw(document: Document) -> RenderableType:
    """Everything that a `plan/1` document says, the answer first."""
    return Group(
        Text(question_line(document), style="dim"),
        _best(document["best"], document["objective"]),
        candidates_table(document["candidates"], document["best"]["layout_text"]),
        Text(search_sentence(document)),
    )


def _best(best: Document, objective: str) -> RenderableType:
    rows = [
        ("step", f"{ms(best['step_seconds'])} ms (range {span(best['step_seconds_range'])} ms)"),
        *([("TPOT", f"{ms(best['tpot_seconds'])} ms")] if best["tpot_seconds"] is not None else []),
        *([("runs", f"{best['concurrency']:,} at once")] if best["tpot_seconds"] is not None else []),
        ("output" if best["tpot_seconds"] is not None else "input", _rates(best)),
        *memory_facts(best["memory"]),
        ("binds", best["binding"]),
    ]
    title = f"best by {objective}" + ("" if best["feasible"] else " - DOES NOT FIT")
    body = Group(Keys(best["layout_text"], style="bold green" if best["feasible"] else "bold red"), facts(rows))
    return Panel(
        body, title=title, title_align="left", border_style="green" if best["feasible"] else "red", expand=False
    )


def _rates(candidate: Document) -> str:
    user = candidate["tokens_per_second_per_user"]
    parts = [
        f"{number(candidate['tokens_per_second'])} tok/s",
        f"{number(candidate['tokens_per_second_per_gpu'])} tok/s/GPU",
        *([f"{number(user)} tok/s/user"] if user is not None else []),
    ]
    return ", ".join(parts)


def memory_facts(held: Document) -> list[tuple[str, str]]:
    """What one GPU holds and what that admits, in three lines."""
    parts = [f"{GROUPS.get(name, name)} {gib(size)}" for name, size in by_group(held["lines"]).items() if size]
    tokens = f"{held['kv_tokens_per_rank']:,} tokens a rank, {held['kv_tokens_instance']:,} the instance"
    return [
        ("GiB a GPU", ", ".join(parts)),
        ("KV pool", tokens),
        ("admits", f"{held['max_running_requests']:,} requests ({clamped(held)}), "
         f"longest context {held['longest_context']:,}"),
    ]  # fmt: skip


def candidates_table(candidates: list[Document], best: str) -> Sheet:
    """The candidates in their order; the best is marked."""
    head = ("", "layout", "step ms", "tok/s", "tok/s/GPU", "tok/s/user", "KV Mtokens", "binds")
    hidden = len(candidates) - _SHOWN
    caption = f"{hidden} more with --json" if hidden > 0 else None
    drawn = Sheet(
        "Candidates", *head, left=("", "binds"), wraps=("layout",), spare=("tok/s", "KV Mtokens"), caption=caption
    )
    for candidate in candidates[:_SHOWN]:
        marked = candidate["layout_text"] == best
        drawn.add(
            "*" if marked else "",
            Keys(candidate["layout_text"]),
            ms(candidate["step_seconds"]),
            number(candidate["tokens_per_second"]),
            number(candidate["tokens_per_second_per_gpu"]),
            number(candidate["tokens_per_second_per_user"]),
            f"{candidate['memory']['kv_tokens_instance'] / 1e6:,.2f}",
            candidate["binding"].partition(",")[0] if candidate["feasible"] else "does not fit",
            style="bold" if marked else ("" if candidate["feasible"] else "dim"),
        )
    return drawn


def search_sentence(document: Document) -> str:
    """What the search did, and how far it can be trusted."""
    search = document["search"]
    did = (
        f"Search: {search['starts']} starts x {search['gradient_steps']} gradient steps, rounded to "
        f"{search['exact_evaluations']} exact evaluations, {search['seconds']:.2f} s."
    )
    if search["space"] is None:
        return f"{did} The space was not enumerated: the answer is not certified."
    regret = "unknown" if search["regret"] is None else f"{100 * search['regret']:.2f} %"
    if document["best"]["certified"]:
        end = "the best layout is certified."
    elif document["request"]["concurrency"] is None:
        end = "not certified, for the concurrency was tried in steps only."
    else:
        end = "the best layout is not certified."
    times = search["enumerated"] // max(search["space"], 1)
    at = f" at {times} concurrencies" if times > 1 else ""
    return f"{did} All {search['space']:,} valid layouts were evaluated{at}: regret of the gradient {regret}; {end}"
