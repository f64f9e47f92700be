"""JAX's primitives as the audit sees them: which exchange, what they run inside, what they hide.

Names are those of `jax.lax` in JAX 0.10 and 0.11, with and without `check_vma`, which changes them: an all-reduce is
`psum` or `psum_invariant`, and a value that becomes one that may differ passes through `pvary`.
"""

from collections.abc import Mapping
from typing import Final

from hw.work import CollectiveKind

# A collective that starts here and is waited for by a `_done`: the start carries the bytes.
_STARTS: Final = "_start"

_EXCHANGES: Final[Mapping[CollectiveKind, tuple[str, ...]]] = {
    CollectiveKind.ALL_GATHER: ("all_gather", "all_gather_invariant", "all_gather_reduced"),
    CollectiveKind.REDUCE_SCATTER: ("reduce_scatter", "unreduced_reduce_scatter"),
    CollectiveKind.ALL_REDUCE: (
        *("psum", "psum_invariant", "unreduced_psum"),
        *("pmax", "pmin", "unreduced_pmax", "unreduced_pmin"),
    ),
    CollectiveKind.ALL_TO_ALL: ("all_to_all", "ragged_all_to_all"),
    CollectiveKind.SEND: ("ppermute", "psend"),
}

EXCHANGES: Final[Mapping[str, CollectiveKind]] = {
    form: kind for kind, names in _EXCHANGES.items() for name in names for form in (name, name + _STARTS)
}

# They name mesh axes and move nothing: changes of type, a rank's own number, the receiving end of a `psend`.
SILENT: Final = frozenset(
    {"pvary", "preduced", "vary_unreduced_cast_p", "reduced_vary_cast_p", "axis_index", "precv"}
    | {f"{name}_done" for name in ("all_gather", "psum", "reduce_scatter", "all_to_all", "ppermute", "pbroadcast")}
)

# Parameters in which a primitive names mesh axes.
AXIS_PARAMETERS: Final = ("axes", "axis_name", "axis_names")

# They run the program that they hold once.
CALLS: Final = frozenset(
    {"jit", "call", "closed_call", "eval_jaxpr", "composite", "run_state"}
    | {"remat2", "custom_jvp_call", "custom_vjp_call"}
)

# They compute what is not written as primitives, or not as dots.
OPAQUE: Final = frozenset(
    {"pallas_call", "mpmd_map", "tpu_custom_call", "ffi_call", "pure_callback", "io_callback", "fft"}
    | {"cholesky", "cholesky_update", "lu", "geqrf", "geqp3", "qr", "householder_product", "ormqr", "symmetric_product"}
    | {"eig", "eigh", "svd", "schur", "hessenberg", "tridiagonal", "tridiagonal_solve", "triangular_solve"}
)
