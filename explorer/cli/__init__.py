"""The command `meshwright`. Nothing here imports JAX before a command has understood its options."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from typer.exceptions import Abort, TyperException

from explorer.cli.app import app
from explorer.cli.devices import plan_on_cpu
from hw.errors import MeshwrightError

PROGRAM: Final = "meshwright"
FAILURE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 for an answer, 1 for an audit or a check that found a difference, 2 for a request that cannot be met (one line on
    stderr), 130 when interrupted; also 1 when the reader of a pipe has gone (typer's own choice).
    """
    plan_on_cpu()
    try:
        status = app(args=arguments, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except (TyperException, MeshwrightError) as error:
        message = error.format_message() if isinstance(error, TyperException) else str(error)
        if message:  # without one, the help was asked for by giving no command
            print(f"error: {_one_line(message)}", file=sys.stderr)
        return FAILURE
    except (KeyboardInterrupt, Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except OSError as error:  # a full disk, under stdout or under a picture
        _drop_stdout()
        print(
            f"error: the result could not be written ({error.strerror}): make room, or write elsewhere", file=sys.stderr
        )
        return FAILURE


def command() -> NoReturn:
    """`main` as a program of its own."""
    status = main()
    if status == INTERRUPTED:
        # threads that still compile, and devices that still run, abort a Python that ends in its own way
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _drop_stdout() -> None:
    """What is left in the buffer is flushed at exit, to nowhere."""
    with contextlib.suppress(OSError, ValueError):  # stdout may have no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _one_line(message: str) -> str:
    """Line breaks and other control characters, which a file name may hold, become spaces."""
    printable = (c if c.isprintable() else " " for c in message)
    return " ".join("".join(printable).split())
