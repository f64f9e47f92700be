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
    step, text = document["step_ms"], document["text"]
    waited = f"{step['waited']:.3f} ms with a wait behind every step; a call takes the CPU {step['call']:.3f} ms"
    drafted = f", {text['kept']:,} of {text['drafted']:,} drafted tokens kept" if text["drafted"] else ""
    return [
        ("weights", document["weights"]),
        ("text", f"{len(text['tokens'])} requests, {text['steps']} steps{drafted}"),
        ("begins", " ".join(map(str, text["tokens"][0][:12]))),
        ("step", f"{step['median']:.3f} ms in flight ({step['low']:.3f} to {step['high']:.3f} ms)"),
        ("predicted", prediction(document["predicted_ms"])),
        ("waited", waited),
    ]


def prediction(predicted: Document | None) -> str:
    """Of the step in flight, and whether its launch is what binds it."""
    if predicted is None:
        return NOTHING
    said = f"{predicted['likely']:.3f} ms in flight (range {predicted['low']:.3f} to {predicted['high']:.3f} ms)"
    return f"{said}: bound by its launch on the CPU" if predicted["on_host"] else said


def verdict(document: Document) -> Text:
    """How the logits compare with those of one device."""
    check = document["check"]
    if check is None:
        return Text("not checked against one device (--check)", style="dim")
    said = compared(check, document["request"]["dtype"])
    if check["passes"]:
        return Text(f"one device: {said}", style="bold green")
    return Text(f"check failed, one device: {said}", style="bold red")


def compared(check: Document, dtype: str) -> str:
    """Text and logits: of all tokens in float32, elsewhere of half of each request's, with those that are further."""
    text = "the same text" if check["same_text"] else "another text"
    if check["error"] is None:
        return f"{text}, logits not finite"
    whole = dtype == "float32"
    off = check["error"] if whole else check["typical"]
    of = "logits" if whole else "logits of half of each request's tokens"
    within = "within" if off <= check["bound"] else "beyond"
    said = f"{text}, {of} {off:.1e} of the largest off, {within} the bound of {check['bound']:.0e}"
    if check["conditioned"]:
        said += ", to which a rounding of the weights moves one device (--dtype float32 tells more)"
    if whole or not check["beyond"]:
        return said
    return f"{said}; {check['beyond']:,} of {check['tokens']:,} tokens up to {check['error']:.1e}"
