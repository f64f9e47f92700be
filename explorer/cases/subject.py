"""The server of a case, understood as far as a question needs it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from explorer.cases.case import READINGS, CaseError, Reading, Server
from explorer.engines.command.launch import Launch
from explorer.engines.command.reading import read_launches
from explorer.engines.settings import Settings
from explorer.engines.setup import READERS, Asked, Setup, setup_of
from explorer.engines.startup import Given, Startup, startup
from explorer.engines.startup.parts import Parts
from explorer.serving import Service, make_engine, make_lengths, serve
from hw.units import GIB
from layouts.moe import MoE
from layouts.rules import LayoutError


@dataclass(frozen=True)
class Subject:
    """A server and the readings that a figure takes as given. What is not there is an error that names it."""

    server: Server | None
    given: Mapping[str, Reading]

    def reading(self, name: str) -> Reading:
        """A reading that the figure needs; CaseError where the case has none."""
        if name not in self.given:
            raise CaseError(f"given.{name} is missing: state {READINGS[name]}")
        return self.given[name]

    def count(self, name: str) -> int:
        """The same as a whole number."""
        return int(self.reading(name))

    def bytes(self, name: str) -> int:
        """A reading in GiB as bytes."""
        return round(self.reading(name) * GIB)

    def optional_bytes(self, name: str) -> int | None:
        """The same, None where it is not given."""
        return round(self.given[name] * GIB) if name in self.given else None

    @property
    def ran(self) -> Server:
        """The server; CaseError where the case has none."""
        if self.server is None:
            raise CaseError("server is missing: write [server] with the command that ran")
        return self.server

    @cached_property
    def launch(self) -> Launch:
        """The one launch of the command."""
        found = read_launches(self.ran.command)
        if len(found) != 1:
            raise CaseError(f"command holds {len(found)} launches: write one of them")
        (launch,) = found
        return launch

    @cached_property
    def settings(self) -> Settings:
        """What its flags say; the model plays no part."""
        return READERS[self.launch.engine](self.launch)

    @cached_property
    def setup(self) -> Setup:
        """The launch on its machine, with the model."""
        ran = self.ran
        memory = None if ran.memory_gib is None else round(ran.memory_gib * GIB)
        asked = Asked(
            ran.hardware,
            model=ran.model,
            draft=ran.draft,
            precision=ran.precision,
            context=ran.context,
            requests=ran.requests,
            accept_length=ran.accept_length,
            memory_bytes=memory,
            shared_clones=ran.shared_clones or 1,
        )
        return setup_of(self.launch, asked)

    @cached_property
    def parts(self) -> Parts:
        """Bytes of one rank, whatever starts; LayoutError for a layout that breaks a rule."""
        if self.setup.broken:
            raise LayoutError("; ".join(self.setup.broken))
        return Parts(self.setup)

    @cached_property
    def started(self) -> Startup:
        """What starts, from the readings where there are any."""
        names = ("free", "weights", "left", "budget", "pool")
        return startup(self.setup, Given(**{name: self.optional_bytes(f"{name}_gib") for name in names}))

    @cached_property
    def served(self) -> Service:
        """What the server's clients see."""
        ran, found = self.ran, self.setup
        if ran.requests is None or ran.input_tokens is None or ran.output_tokens is None:
            raise CaseError("requests, input_tokens or output_tokens is missing: state what clients asked for")
        lengths = make_lengths(ran.input_tokens, ran.output_tokens)
        request = replace(found.request, concurrency=ran.requests, context=lengths.context)
        return serve(request, found.layout, make_engine(str(found.settings.engine)), lengths)

    @property
    def moe(self) -> MoE:
        """The experts of the model."""
        for layer in self.setup.request.model.layers:
            if isinstance(layer.ffn, MoE):
                return layer.ffn
        raise CaseError(f"{self.setup.request.model.name} has no experts: give width and experts")
