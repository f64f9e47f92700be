"""A checked command as tables: what it means, whether it starts, what clients would see, what would be better."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import Document, Keys, facts, gib, ms, number, question_line
from explorer.report.service import span
from explorer.report.sheet import Sheet


def draw(document: Document) -> RenderableType:
    """Everything that a `check/1` document says."""
    style = "green" if document["starts"] else "red"
    parts: list[RenderableType] = [
        Text(question_line(document), style="dim"),
        Keys(document["layout_text"], style=f"bold {style}"),
        facts(list(verdict(document))),
    ]
    if document["start"] is not None:
        parts += [memory_table(document), facts(list(admitted(document)))]
    if document["loads"]:
        parts.append(loads_table(document))
    if document["findings"]:
        parts.append(findings_table(document))
    parts += [better_table(row) for row in document["better"]]
    return Group(*parts)


def verdict(document: Document) -> Iterator[tuple[str, str]]:
    """What was read, and what stands against it."""
    command = document["command"]
    yield "engine", f"{command['engine']}, {command['role']} ({command['source']})"
    yield "starts", "yes" if document["starts"] else "no"
    for rule in document["broken"]:
        yield "breaks", rule
    if document["refusal"]:
        yield "refuses", document["refusal"]
    for name in command["unknown"]:
        yield "unknown flag", name
    for row in command["replaced"]:
        yield "renamed", f"{row['written']} is now {row['write']}"
    for what in command["unmodelled"]:
        yield "not modelled", what
    if document["unserved"]:
        yield "not served", document["unserved"]


def memory_table(document: Document) -> Sheet:
    """One GPU after start-up, in the order in which the engine allocates."""
    start = document["start"]
    drawn = Sheet("One GPU after start-up", "line", "GiB", "how", left=("line",), wraps=("how",))
    lines = [line for line in start["lines"] if line["group"] != "reserve"]
    for line in lines:
        drawn.add(f"  {line['name']}", gib(line["bytes"]), "" if line["exact"] else spread(line))
    drawn.add("weights", gib(start["weights"]), "", style="bold")
    share = f"{start['share']:.3g} ({start['share_source']})"
    drawn.add("for pools", gib(start["budget"]), f"of a share of {share}", style="bold")
    if start["state_slots"] is not None:
        slots = f"{start['state_slots']:,} slots and one, {start['slots_a_request']} a request"
        drawn.add("  recurrent state", gib(start["state_bytes"]), slots)
    for name, key in (("verified states", "verify_bytes"), ("window KV", "window_bytes"), ("draft KV", "draft_bytes")):
        if start[key]:
            drawn.add(f"  {name}", gib(start[key]), "")
    tokens = f"{start['kv_tokens']:,} tokens of {start['token_bytes']:,} B"
    drawn.add("  KV pool", gib(start["kv_bytes"]), tokens)
    drawn.add("left", gib(start["left"]), "", style="bold")
    for line in start["lines"]:
        if line["group"] == "reserve":
            drawn.add(f"  {line['name']}", gib(line["bytes"]), "" if line["exact"] else spread(line))
    return drawn


def spread(line: Document) -> str:
    """The range of an estimate."""
    return f"estimate, {gib(line['low'])} to {gib(line['high'])}"


def admitted(document: Document) -> Iterator[tuple[str, str]]:
    """Tokens and requests, of a group and of the server."""
    start, request = document["start"], document["request"]
    groups = f" an attention group, {start['running_instance']:,} in all" if start["groups"] > 1 else ""
    clamp = start["clamp"].replace("_", " ")
    yield "KV tokens", f"{start['kv_tokens']:,} a rank, {start['group_tokens']:,} an attention group"
    yield "requests that run", f"{start['running']:,}{groups}, of {request['context']:,} tokens (limit: {clamp})"
    yield "admits", f"{start['admitted']:,} an attention group, whatever their length"
    yield "longest request", f"{start['longest']:,} tokens"
    if start["logged_tokens"] is not None:
        figures = f"{start['logged_tokens']:,} tokens, {start['logged_concurrency']:.2f}x"
        yield "the log will say", f"{figures}: requests of the longest length, not what the pool holds"


def loads_table(document: Document) -> Sheet:
    """What clients see, by clients."""
    lengths = document["clients"]
    title = f"Clients: prompts of {lengths['input_tokens']:,}, answers of {lengths['output_tokens']:,} (80 % ranges)"
    drawn = Sheet(
        title, "clients", "TTFT ms", "TTFT range", "TPOT ms", "TPOT range", "tok/s", "tok/s/GPU", "binding",
        left=("binding",), spare=("TTFT range", "TPOT range", "binding"),
    )  # fmt: skip
    for load in document["loads"]:
        drawn.add(
            f"{load['concurrency']:,}", ms(load["ttft_seconds"], 0), span(load, "ttft"), ms(load["tpot_seconds"], 1),
            span(load, "tpot"), number(load["tokens_per_second"]), number(load["tokens_per_second_per_gpu"]),
            load["binding"],
        )  # fmt: skip
    return drawn


def findings_table(document: Document) -> Sheet:
    """What is wasted, out of reach or at risk."""
    drawn = Sheet(
        "Worth a change", "what", "flag", "why", "set to", "frees GiB", "KV tokens",
        left=("what", "flag"), wraps=("why",), spare=("KV tokens",),
    )  # fmt: skip
    for row in document["findings"]:
        freed = gib(row["frees"]) if row["frees"] else ""
        tokens = f"+{row['tokens']:,}" if row["tokens"] else ""
        drawn.add(row["kind"], row["flag"], row["says"], row["change"], freed, tokens)
    return drawn


def better_table(row: Document) -> RenderableType:
    """Another command, flag by flag, and what it buys."""
    buys = f"{100 * row['gain']:+.0f} % tok/s, step {ms(row['step'])} ms, {row['kv_tokens']:,} KV tokens in all"
    drawn = Sheet("", "flag", "now", "then", left=("flag",))
    for change in row["changes"]:
        drawn.add(change["flag"], change["now"] or "-", change["then"] or "-")
    return Group(Text.assemble(("\nBetter: ", "bold"), row["layout_text"], f"  {buys}"), drawn)
