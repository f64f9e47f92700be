"""`meshwright models` and `meshwright hardware`: what ships with the package."""

from explorer.cli.output import stdout_console


def models() -> None:
    """List the models that ship with the package, their builds and drafts."""
    from explorer.report.catalogue import models_table
    from layouts.models import load_model
    from layouts.models.presets import aliases, draft_names, preset_names

    console = stdout_console()
    console.print(models_table([load_model(name) for name in preset_names()]))
    short = ", ".join(f"{name} = {preset}" for name, preset in aliases().items())
    console.print(f"Drafts: none, mtp, {', '.join(draft_names())}. Short names: {short}.")


def hardware() -> None:
    """List the chips that ship with the package."""
    from explorer.report.catalogue import chips_table
    from hw.figures import chip_names, read_chip

    stdout_console().print(chips_table({name: read_chip(name) for name in chip_names()}))
