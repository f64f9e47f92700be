"""A run as a sheet: what ran where, its text, its step beside the prediction, and the check."""

from rich.console import Group, RenderableType
from rich.text import Text

from explorer.report.common import NOTHING, Document, Keys, facts


def draw(document: Document) -> RenderableType:
    """Everything that a `run/1` document says but the tokens beyond the first few; the check comes last."""
    return Group(
        Text(question_line(document), style="dim"),
        Keys(document["layout_text"], style="bold"),
        facts(lines(document)),
        verdict(document),
    )


def question_line(document: Document) -> str:
    """The question in one line."""
    asked, devices = document["request"], document["devices"]
    parts = [
        asked["model"] if asked["scale"] == "full" else f"{asked['model']} ({asked['scale']})",
        f"{asked['layers']} layers",
        *([f"{asked['experts']} experts"] if asked["experts"] else []),
        f"{devices['count']} x {devices['kind']}",
        asked["dtype"],
        f"{asked['requests']} requests a group",
        f"room for {asked['context']:,} tokens",
        *([f"verify {asked['verify_width']}"] if asked["verify_width"] > 1 else []),
    ]
    return " | ".join(parts)


def lines(document: Document) -> list[tuple[str, str]]:
    """What was measured, as lines of text."""
    step, predicted, text = document["step_ms"], document["predicted_ms"], document["text"]
    said = (
        NOTHING
        if predicted is None
        else f"{predicted['likely']:.3f} ms (range {predicted['low']:.3f} to {predicted['high']:.3f} ms)"
    )
    drafted = f", {text['kept']:,} of {text['drafted']:,} drafted tokens kept" if text["drafted"] else ""
    return [
        ("weights", document["weights"]),
        ("text", f"{len(text['tokens'])} requests, {text['steps']} steps{drafted}"),
        ("begins", " ".join(map(str, text["tokens"][0][:12]))),
        ("step", f"{step['median']:.3f} ms ({step['low']:.3f} to {step['high']:.3f} ms)"),
        ("predicted", said),
    ]


def verdict(document: Document) -> Text:
    """How the logits compare with those of one device."""
    check = document["check"]
    if check is None:
        return Text("not checked against one device (--check)", style="dim")
    text = "the same text" if check["same_text"] else "another text"
    within = "not finite" if check["error"] is None else f"within {check['error']:.1e} of the largest"
    said = f"one device: {text}, logits {within} (bound {check['bound']:.0e})"
    return Text(said, style="bold green" if check["passes"] else "bold red")
