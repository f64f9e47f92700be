"""A service as tables: what clients see at each concurrency, what binds there, where the engine's figures are from."""

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import Document, Keys, ms, number, question_line
from explorer.report.sheet import Sheet
from hw.units import format_seconds


def draw(document: Document) -> RenderableType:
    """Everything that a `service/1` document says, the load that was asked for first."""
    asked = document["loads"][-1]
    parts = [Text(question_line(document), style="dim"), Text(clients_line(document), style="dim")]
    parts += [Keys(document["layout_text"], style="bold green"), *pool_lines(document)]
    ttft, tpot = (f"{ms(asked[f'{q}_seconds'])} ms ({span(asked, q)})" for q in ("ttft", "tpot"))
    parts += [Text(f"TTFT {ttft}, TPOT {tpot}", style="bold"), Text(f"binding: {asked['binding']}")]
    return Group(*parts, loads_table(document), parameters_table(document))


def clients_line(document: Document) -> str:
    """Who asks what of which engine, in one line."""
    clients, engine = document["clients"], document["engine"]
    drawn = "" if clients["shortest"] == 1 else f" (drawn evenly from {clients['shortest']:g} of that up)"
    lengths = f"prompts of {clients['input_tokens']:,}, answers of {clients['output_tokens']:,} tokens{drawn}"
    policy = engine["policy"].replace("_", " ")
    return f"{lengths} | engine {engine['name']}: {policy}, chunks of {engine['chunk']:,} | {document['gpus']} GPUs"


def pool_lines(document: Document) -> tuple[RenderableType, ...]:
    """The workers of either kind, where they are apart."""
    pool = document["prefill_pool"]
    if pool is None:
        return ()
    gpus = f"{pool['gpus']} x {document['request']['hardware']}"
    workers = f"decode workers: {pool['decode_workers']}; prefill workers: {pool['workers']} of {gpus} each, with"
    return Text(workers), Keys(pool["layout_text"], style="green")


def span(load: Document, quantity: str) -> str:
    """The 80 % range of a quantity, in milliseconds."""
    low, high = load[f"{quantity}_seconds_range"]
    return f"{ms(low, 1)} to {ms(high, 1)}"


def loads_table(document: Document) -> Sheet:
    """A row for each concurrency."""
    drawn = Sheet(
        "Clients (80 % ranges)", "clients", "TTFT ms", "TTFT range", "TPOT ms", "TPOT range", "step ms", "runs",
        "waits", "prefill %", "tok/s", "tok/s/GPU", "binding", left=("binding",),
        spare=("prefill %", "waits", "runs", "step ms", "tok/s", "TTFT range", "TPOT range", "binding"),
        caption=f"KV pools hold {document['capacity']:,} requests of {document['request']['context']:,} tokens.",
    )  # fmt: skip
    for load in document["loads"]:
        drawn.add(
            f"{load['concurrency']:,}", ms(load["ttft_seconds"], 1), span(load, "ttft"), ms(load["tpot_seconds"]),
            span(load, "tpot"), ms(load["step_seconds"]), number(load["running"]), number(load["waiting"]),
            f"{100 * load['prefill_share']:.0f}", number(load["tokens_per_second"]),
            number(load["tokens_per_second_per_gpu"]), load["binding"],
        )  # fmt: skip
    return drawn


def parameters_table(document: Document) -> Sheet:
    """What the engine adds to the steps of the GPU, and who says so."""
    words = ("parameter", "provenance")
    drawn = Sheet(
        f"Engine {document['engine']['name']}", "parameter", "value", "provenance", "source",
        left=words, wraps=("source",), spare=("provenance", "source"),
    )  # fmt: skip
    for row in document["parameters"]:
        seconds = row["unit"] == "s"
        value = format_seconds(row["value"]) if seconds else f"{row['value']:.3g} {row['unit']}"
        drawn.add(row["name"], value, row["provenance"], row["source"])
    return drawn
