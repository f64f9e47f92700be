"""What a config says of a model's arithmetic beyond its shapes: epsilons, scales, rotation, activation, routing.

Costs do not depend on it, so only programs read it, and a config that lacks such a key can still be priced.
"""

from dataclasses import dataclass

from layouts.dense.activation import Activation, SiTU, SwiGLU
from layouts.dsa.form import IndexForm
from layouts.kda.reference import Form as KDAForm
from layouts.models.config import Config
from layouts.models.rotary import Rotary
from layouts.moe.reference import Mixture
from layouts.moe.router import Router


@dataclass(frozen=True)
class Forms:
    """`eps`: of every norm, those inside low-rank projections included, as engines have it; `scale`: what attention
    scores are multiplied with."""

    eps: float
    scale: float
    activation: Activation
    rotary: Rotary | None = None
    router: Router | None = None
    kda: KDAForm | None = None
    index: IndexForm | None = None

    @property
    def mixture(self) -> Mixture:
        """What a mixture of experts does; only models that have one ask."""
        assert self.router is not None
        return Mixture(self.router, self.activation, self.eps)


def unavailable(config: Config) -> Forms:
    """For families whose arithmetic was not compared with anything: raises ModelError."""
    raise config.error("the arithmetic of this architecture has no program; it can be priced")


def activation(config: Config) -> Activation:
    """The gated activation that `hidden_act` names."""
    name = config.text("hidden_act")
    if name == "silu":
        return SwiGLU()
    if name == "situ":
        return SiTU(config.number("activation_situ_beta"), config.number("activation_situ_linear_beta", 0.0))
    raise config.error(f"hidden_act = {name!r} has no program; supported: silu, situ")
