"""Questions that the explorer's tests ask, each model lowered once."""

import functools
from dataclasses import dataclass

import numpy as np

from explorer.evaluate import Case, Evaluation, Tables, evaluate_batch
from explorer.request import Request, make_request
from hw.compat import in_x64
from layouts.cut import cuts_of
from layouts.enumerate import Space, enumerate_layouts
from layouts.layout import Layout
from tests.layouts import oracle

ARTICLE, V3, QWEN = "kimi-k3@article", "deepseek-v3", "qwen3-235b-a22b"


@dataclass(frozen=True)
class Setting:
    """A request with its tables."""

    request: Request
    tables: Tables

    @property
    def case(self) -> Case:
        return self.request.case()

    @functools.cached_property
    def space(self) -> Space:
        """Every valid layout."""
        found = enumerate_layouts(self.request.site)
        assert found is not None
        return found

    def layouts(self, count: int, seed: int = 0) -> list[Layout]:
        """Some valid layouts, drawn at random."""
        rows = np.random.default_rng(seed).choice(len(self.space), count)
        return [self.space.layout(int(row)) for row in rows]

    def price(self, layouts: list[Layout], case: Case | None = None) -> Evaluation:
        """Exact evaluation of some layouts, as arrays."""
        return evaluate_batch(self.tables, cuts_of(layouts), self.case if case is None else case)

    @property
    def oracle_case(self) -> oracle.Case:
        """The load as the plain-Python oracle takes it."""
        request = self.request
        return oracle.Case(
            request.context,
            request.concurrency or 1,
            request.verify_width,
            tuple(request.graphs.astype(int).tolist()),
            int(request.machine.sms),
            request.chunk,
            request.prefill,
        )

    @in_x64
    def read(self, text: str) -> Layout:
        return self.request.layout(text)


@functools.cache
def setting(model: str, hardware: str = "b200", gpus: int = 16, **options: float | str) -> Setting:
    """A request by its options; contexts and concurrencies that every model holds by default."""
    request = make_request(model, hardware, gpus, **{"context": 30_000, "concurrency": 64, **options})  # pyright: ignore[reportArgumentType]
    return Setting(request, Tables(request.model, request.prefill))
