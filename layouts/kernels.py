"""Which form of each op a program runs: the first that its devices can, with what the forms before it said.

A form is one of several implementations of one interface. Forms are tried in order, and each failure is kept beside the
choice, so that a slow form is never taken silently.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from hw.errors import MeshwrightError

PLAIN: Final = "xla"  # the form that every device runs, and that is counted in an audit
MOSAIC: Final = "mosaic_gpu"  # a kernel that only Hopper GPUs run
INTERPRETED: Final = "interpreted"  # a kernel as JAX operations one by one, for tests: no `first_form` is asked of it
# of a multiprocessor of compute capability 9.0, which one block can have (CUDA C++ Programming Guide)
SHARED_BYTES: Final = 227 * 1024


class NoFormError(MeshwrightError):
    """No form of an op can run; the message has the error of each."""


class Choice(NamedTuple):
    """The form that runs, and why those before it do not, a line each."""

    form: str
    errors: tuple[str, ...] = ()


class Kernels(NamedTuple):
    """The form of each op in a program. Without devices, or on a platform that has no kernels, all are plain."""

    attention: Choice = Choice(PLAIN)
    state: Choice = Choice(PLAIN)
    grouped_gemm: Choice = Choice(PLAIN)
    weight_gather: Choice = Choice(PLAIN)

    @property
    def typed(self) -> bool:
        """Whether JAX can follow what is the same on which ranks. It takes the interpreter's own constants to be the
        same on every one, and blocks copied from rank to rank to differ although together they do not; and it knows no
        references to what differs, which a kernel that updates states through them asks for."""
        follows = self.weight_gather.form == PLAIN and self.state.form != MOSAIC
        return follows and all(choice.form != INTERPRETED for choice in self)

    def notes(self) -> list[str]:
        """A line for each op that had a choice: its form, and why none before it."""
        lines = (
            "; ".join((f"{op.replace('_', ' ')} runs in form {choice.form}", *choice.errors))
            for op, choice in zip(self._fields, self, strict=True)
            if choice != Choice(PLAIN)
        )
        return [*lines]


ALL_PLAIN: Final = Kernels()


def first_form(op: str, forms: Iterable[str], attempt: Callable[[str], Any]) -> Choice:
    """The first form that `attempt` (to compile it, say) does not fail for. Raises NoFormError if it does for all."""
    errors: list[str] = []
    for form in forms:
        try:
            attempt(form)
        except Exception as error:  # whatever a compiler raises: the next form is tried, and the reason kept
            errors.append(f"{form}: {(str(error).splitlines() or [type(error).__name__])[0]}")
        else:
            return Choice(form, tuple(errors))
    raise NoFormError(f"{op} has no form here: {'; '.join(errors)}")


def first_compiled(op: str, forms: Iterable[str], compile_form: Callable[[str], Any]) -> tuple[Choice, Any]:
    """`first_form`, and what compiling that one gave: a second time takes as long again."""
    compiled: dict[str, Any] = {}

    def attempt(form: str) -> None:
        compiled[form] = compile_form(form)

    choice = first_form(op, forms, attempt)
    return choice, compiled[choice.form]
