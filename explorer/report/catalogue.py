"""What ships with the package: models and chips as tables."""

from collections.abc import Mapping, Sequence

from explorer.report.common import NOTHING
from explorer.report.sheet import Sheet
from hw.figures import Figure, Provenance
from hw.units import GIB, format_bytes
from layouts.models.model import Model


def models_table(models: Sequence[Model]) -> Sheet:
    """Sizes of each model; weights at the precision that its config states."""
    words = ("model", "layers", "formats")
    head = ("model", "layers", "params 10^9", "weights", "context", "formats")
    drawn = Sheet(
        "Models", *head, left=words, spare=("formats", "context"), caption="formats of attention, experts and KV"
    )
    for model in models:
        kinds = "\n".join(f"{n} {kind.label}" for kind, n in zip(model.kinds, model.kind_counts, strict=True))
        formats = ", ".join(dict.fromkeys(model.precision[part].name for part in ("attention", "experts", "kv")))
        drawn.add(
            model.name, kinds, f"{model.parameters / 1e9:,.1f}", format_bytes(float(model.weight_bytes)),
            f"{model.context_limit:,}", formats,
        )  # fmt: skip
    return drawn


def chips_table(chips: Mapping[str, Mapping[str, Figure]]) -> Sheet:
    """Datasheet figures of each chip: memory in GiB, bandwidths in powers of ten and one way, dense rates."""
    head = ("chip", "GiB", "HBM TB/s", "BF16", "FP8", "FP4", "link GB/s", "NIC GB/s", "host", "domain")
    caption = "BF16, FP8, FP4 in dense PFLOP/s; link, NIC: one way, a GPU; host, domain: GPUs"
    drawn = Sheet("Chips", *head, left=("chip",), spare=("NIC GB/s", "link GB/s"), caption=caption)
    for name, figures in chips.items():
        rates = [figures[f"peak.{rate}"] for rate in ("bf16", "fp8", "fp4")]
        drawn.add(
            name,
            f"{figures['memory_bytes'].value / GIB:.1f}",
            f"{figures['hbm_bandwidth'].value / 1e12:.2f}",
            *(_peak(rate) for rate in rates),
            f"{figures['link_bandwidth'].value / 1e9:.0f}",
            f"{figures['nic_bandwidth'].value / 1e9:.0f}",
            f"{figures['gpus_per_host'].value:.0f}",
            f"{figures['domain'].value:.0f}",
        )
    return drawn


def _peak(rate: Figure) -> str:
    """PFLOP/s; a format that the chip only emulates has none of its own."""
    return NOTHING if rate.provenance is Provenance.ASSUMED else f"{rate.value / 1e15:.3g}"
