"""`meshwright check`: one launch command understood, held against every rule, and priced."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from explorer.documents import Document, Schema, heading, layout_entry, plain
from explorer.engines.check.better import Better, better
from explorer.engines.check.findings import Finding, findings
from explorer.engines.command.launch import Launch
from explorer.engines.setup import Asked, Setup, setup_of
from explorer.engines.startup import Startup, startup
from explorer.residents.line import Group
from explorer.serving import Lengths, Load, make_engine, make_lengths, serve
from hw.errors import MeshwrightError

_MOST_CLIENTS: Final = 1024
_PROMPT, _ANSWER, _ENDLESS = 4096, 1024, 1 << 40


@dataclass(frozen=True)
class Served:
    """The load to predict for: tokens of prompts and answers, and clients at once (those that run, if left out).
    Lengths that are left out are 4096 and 1024, or as much less as the server takes."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    clients: int | None = None

    def tokens(self, limit: int) -> tuple[int, int]:
        """Of a prompt and an answer of a server that takes `limit` of both."""
        prompt, answer = self.input_tokens or _PROMPT, self.output_tokens or _ANSWER
        stated = self.input_tokens is not None or self.output_tokens is not None
        if stated or prompt + answer <= limit or limit < 2:
            return prompt, answer
        answer = max(limit * _ANSWER // (_PROMPT + _ANSWER), 1)
        return limit - answer, answer


@dataclass(frozen=True)
class Check:
    """Everything about one launch. `start` is None where a rule is broken; `loads` is empty where nothing is served,
    for the reason `unserved`."""

    setup: Setup
    served: Served
    start: Startup | None
    findings: tuple[Finding, ...]
    loads: tuple[Load, ...]
    unserved: str | None
    better: tuple[Better, ...]

    @property
    def starts(self) -> bool:
        """Whether the server would come up."""
        return self.start is not None and self.start.starts

    def document(self) -> Document:
        """The `check/1` document."""
        setup, launch = self.setup, self.setup.launch
        head = heading(Schema.CHECK, setup.request)
        return {
            **head,
            "notes": [*setup.notes, *launch.notes],
            **layout_entry(setup.layout, setup.request.model),
            "command": {
                "engine": str(launch.engine),
                "source": launch.source,
                "role": str(setup.settings.role),
                "unknown": list(launch.unknown),
                "replaced": [{"written": old, "write": new} for old, new in launch.replaced],
                "unmodelled": list(setup.settings.unmodelled),
            },
            "broken": list(setup.broken),
            "starts": self.starts,
            "refusal": None if self.start is None else self.start.refusal,
            "start": None if self.start is None else _start(self.start),
            "findings": plain(self.findings),
            "clients": plain(self.served),
            "loads": plain(self.loads),
            "unserved": self.unserved,
            "better": plain(self.better),
        }


def check(launch: Launch, asked: Asked, served: Served = Served(), advise: bool = True) -> Check:
    """Hold a launch against rules, memory and load; raises MeshwrightError for a model, chip or value unknown."""
    whole = sum(served.tokens(_ENDLESS))
    setup = setup_of(launch, replace(asked, context=asked.context or whole, requests=asked.requests or served.clients))
    prompt, answer = served.tokens(setup.request.model.context_limit)
    lengths = make_lengths(prompt, answer)
    served = replace(served, input_tokens=prompt, output_tokens=answer)
    if setup.broken:
        return Check(setup, served, None, (), (), "the layout breaks a rule", ())
    up = startup(setup)
    if not up.starts:
        return Check(setup, served, up, findings(up), (), "the server does not start", ())
    clients = served.clients or min(up.running_instance, _MOST_CLIENTS)
    setup = replace(setup, request=replace(setup.request, concurrency=max(clients, 1), mem_fraction=_fraction(up)))
    with ThreadPoolExecutor(1) as beside:
        advice = beside.submit(better, setup, up.parts.tables) if advise else None
        loads, why = _loads(setup, up, lengths)
    return Check(setup, served, up, findings(up), loads, why, advice.result() if advice else ())


def _loads(setup: Setup, up: Startup, lengths: Lengths) -> tuple[tuple[Load, ...], str | None]:
    """What clients see, or why nothing is served."""
    if setup.request.prefill:
        return (), "a prefill server decodes nothing"
    question = replace(setup.request, context=min(lengths.context, setup.request.model.context_limit))
    engine = make_engine(setup.launch.engine, max(setup.request.chunk // _divided(setup), 1))
    try:
        return serve(question, setup.layout, engine, lengths, tables=up.parts.tables).loads, None
    except MeshwrightError as error:
        return (), str(error)


def _divided(setup: Setup) -> int:
    """vLLM's chunk is each group's, ours that of all groups."""
    return setup.layout.attn_dp if setup.launch.engine == "vllm" else 1


def _fraction(up: Startup) -> float:
    """The share of free memory that gives the ledger the same pools."""
    return min(max((up.weights + up.budget) / up.free, 0.05), 0.99)


def _start(up: Startup) -> Document:
    """Start-up as a document: figures, and the ledger's lines of what is no pool."""
    books = up.parts.books
    kept = {name: plain(value) for name, value in vars(up).items() if name not in ("parts", "refusal")}
    lines = [
        {
            "name": line.name,
            "group": str(line.group),
            "bytes": books.size(line),
            "exact": line.exact,
            "low": int(books.size(line) * line.low),
            "high": int(books.size(line) * line.high),
            "rule": str(line.size),
            "provenance": line.provenance,
        }
        for line in up.parts.lines(Group.START, Group.WEIGHTS, Group.RESERVE)
    ]
    return {**kept, "running_instance": up.running_instance, "token_bytes": up.parts.token, "lines": lines}
