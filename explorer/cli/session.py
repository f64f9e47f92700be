"""From a checked request to documents: where a command meets JAX."""

from typing import TYPE_CHECKING, Any

from explorer.cli.output import note, watching

if TYPE_CHECKING:
    from explorer.request import Request
    from layouts.layout import Layout


def planned(request: "Request") -> dict[str, Any]:
    """The plan of a request, with a bar on stderr while it is made."""
    warm()
    from explorer.planner import plan

    with watching("planning") as report:
        return plan(request, progress=report).document()


def chosen(request: "Request", text: str | None) -> "Layout":
    """The layout that was named, or else the best one; raises LayoutError for one that breaks a rule."""
    warm()
    if text is not None:
        return request.layout(text)
    best = planned(request)["best"]["layout_text"]
    note(f"note: no --layout given, taking the best one found: {best}")
    return request.layout(best)


def warm() -> None:
    """Keep compiled programs between runs, unless JAX was told where to."""
    from hw.compat import compilation_cache_folder, use_compilation_cache

    if compilation_cache_folder() is None:
        use_compilation_cache()
