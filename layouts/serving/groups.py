"""GPUs and process groups that a set of degrees asks for."""

from dataclasses import dataclass

from layouts.serving.errors import EngineRuleError, require_not_negative, require_positive


@dataclass(frozen=True)
class ProcessGroup:
    """One communicator of a rank: its purpose and its ranks."""

    name: str
    size: int


@dataclass(frozen=True)
class Degrees:
    """The widths that decide the groups. `vocab_tp` is 1 where the vocabulary is cut over an existing group."""

    tp: int
    pp: int = 1
    attn_dp: int = 1
    attn_cp: int = 1
    dcp: int = 1
    ep: int = 1
    moe_dp: int = 1
    vocab_tp: int = 1

    def __post_init__(self) -> None:
        require_positive(**vars(self))
        if self.tp % (self.attn_dp * self.attn_cp):
            raise EngineRuleError(
                f"tp {self.tp} is no multiple of attn_dp x attn_cp = {self.attn_dp * self.attn_cp}: change one of them"
            )
        if self.attn_tp % self.dcp:
            raise EngineRuleError(f"attn_tp {self.attn_tp} is no multiple of dcp {self.dcp}: change one of them")
        if self.tp % (self.ep * self.moe_dp):
            raise EngineRuleError(
                f"tp {self.tp} is no multiple of ep x moe_dp = {self.ep * self.moe_dp}: change one of them"
            )

    @property
    def attn_tp(self) -> int:
        """Ranks of one attention group: DCP subdivides them and is no further factor."""
        return self.tp // (self.attn_dp * self.attn_cp)

    @property
    def gpus(self) -> int:
        """GPUs of one replica: tp x pp, whatever the attention DP and expert widths."""
        return self.tp * self.pp


def process_groups(degrees: Degrees) -> tuple[ProcessGroup, ...]:
    """Communicators of more than one rank that start-up builds in the process of one rank.

    A group that spans all of TP is TP's own and is not built again; DCP is always built. Weight-shard
    groups are built later, on first use.
    Source: SGLang 0.5.23 `initialize_model_parallel`; vocabulary group: seed article 000.
    """
    tp = degrees.tp
    moe_tp = tp // (degrees.ep * degrees.moe_dp)
    asked = [
        ProcessGroup("tp", tp),
        ProcessGroup("dcp", degrees.dcp),
        *(
            ProcessGroup(name, size)
            for name, size in (
                ("attn_cp", degrees.attn_cp),
                ("attn_tp", degrees.attn_tp),
                ("moe_ep", degrees.ep),
                ("moe_tp", moe_tp),
            )
            if size != tp
        ),
        # copies of the experts talk over the prefill CP group where that is the wider one
        ProcessGroup("moe_dp", 1 if degrees.moe_dp == tp or degrees.attn_cp > degrees.moe_dp else degrees.moe_dp),
        ProcessGroup("vocab_tp", degrees.vocab_tp if degrees.vocab_tp not in (tp, degrees.attn_tp) else 1),
        ProcessGroup("pp", degrees.pp),
    ]
    return tuple(group for group in asked if group.size > 1)


def fake_dp_gpus(fake_dp: int, dp: int, degrees: Degrees) -> int:
    """GPUs of a deployment of whole replicas: the controller starts max(fake_dp, dp) of them, not the product."""
    require_positive(fake_dp=fake_dp, dp=dp)
    return max(fake_dp, dp) * degrees.gpus


def decode_replica(bootstrap_room: int, replicas: int) -> int:
    """The replica that serves a request handed over by a prefill server: its room number modulo the replicas."""
    require_not_negative(bootstrap_room=bootstrap_room)
    require_positive(replicas=replicas)
    return bootstrap_room % replicas
