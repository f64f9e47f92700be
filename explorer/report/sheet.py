"""A table that gives up its less important columns before it breaks the others."""

from collections.abc import Iterable

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_UNBOUNDED = 10_000
_WRAPPED = 22  # columns that a text which may wrap is sure to get


class Sheet:
    """Rows under named columns, right-aligned but for those in `left`.

    Cells of `wraps` break into lines, all others keep one. Where a terminal is too narrow, the columns of `spare` are
    left out in the order in which they are named.
    """

    def __init__(
        self,
        title: str,
        *columns: str,
        left: Iterable[str] = (),
        wraps: Iterable[str] = (),
        spare: Iterable[str] = (),
        caption: str | None = None,
    ):
        self.title, self.columns, self.caption = title, columns, caption
        self.left, self.wraps, self.spare = set(left), set(wraps), tuple(spare)
        self.rows: list[tuple[tuple[RenderableType, ...], str]] = []
        self.breaks: set[int] = set()

    def add(self, *cells: RenderableType, style: str = "") -> None:
        """A row with a cell for every column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells under {len(self.columns)} columns of {self.title!r}")
        # a name may hold square brackets, which are no markup here
        self.rows.append((tuple(Text(cell) if isinstance(cell, str) else cell for cell in cells), style))

    def section(self) -> None:
        """A gap after the last row."""
        self.breaks.add(len(self.rows) - 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        hidden: set[str] = set()
        unbounded = options.update(width=_UNBOUNDED)
        for name in self.spare:
            if Measurement.get(console, unbounded, self._table(hidden, _WRAPPED)).maximum <= options.max_width:
                break
            hidden.add(name)
        yield self._table(hidden)

    def _table(self, hidden: set[str], wrapped: int | None = None) -> Table:
        drawn = Table(
            title=self.title,
            title_justify="left",
            title_style="bold",
            caption=self.caption,
            caption_justify="left",
            caption_style="dim",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            header_style="bold cyan",
        )
        kept = [i for i, name in enumerate(self.columns) if name not in hidden]
        for name in (self.columns[i] for i in kept):
            breaks = name in self.wraps
            justify = "left" if name in self.left | self.wraps else "right"
            drawn.add_column(
                name, justify=justify, no_wrap=not breaks, overflow="fold", max_width=wrapped if breaks else None
            )
        for index, (cells, style) in enumerate(self.rows):
            drawn.add_row(*(cells[i] for i in kept), style=style, end_section=index in self.breaks)
        return drawn
