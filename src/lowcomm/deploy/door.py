"""From overrides to a record: the ladder of rates, then a cut in the middle of a transfer."""

import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lowcomm.blocks import ConfigError
from lowcomm.deploy import formula
from lowcomm.deploy.config import digest, load
from lowcomm.deploy.namespaces import missing
from lowcomm.deploy.stage import PORTS, Stage
from lowcomm.results import provenance
from lowcomm.session import peak_memory, reset_peak_memory

CUT_AFTER = 0.4  # of the payload


class Unavailable(RuntimeError):
    """This machine cannot have the links."""


def run(
    overrides: list[str], claim: dict[str, Any] | None = None, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Measure one configuration. Raises ConfigError, Unavailable with the reason."""
    cfg = load(overrides)
    if why := missing():
        raise Unavailable(why)
    started = datetime.now(UTC)
    reset_peak_memory()
    with tempfile.TemporaryDirectory() as folder, Stage(cfg, Path(folder)) as stage:
        for method in PORTS:  # what a process does only once (code compiled, connections made) is nobody's sync time
            stage.publish(method, 1)
        ladder = [measure(stage, cfg, rate, say) for rate in cfg.rates]
        cuts = {m: cut(stage, cfg, m, say) for m in PORTS} if cfg.cut_rate is not None else {}
    return describe(cfg, overrides, claim, started, ladder, cuts, stage)


def measure(stage: Stage, cfg: DictConfig, rate: float, say: Callable[[str], None]) -> dict[str, float]:
    """One rate, both methods."""
    stage.shape(rate)
    row: dict[str, float] = {"rate_mbit": rate}
    for method in PORTS:
        versions = stage.publish(method, cfg.versions)
        fetches = [max(r["fetch_s"] for r in stage.received(method, v["version"])) for v in versions]
        payload, blocked = mean(v["bytes"] for v in versions), mean(v["blocked_s"] for v in versions)
        computed = mean(v["compute_s"] for v in versions)  # a busy machine sleeps longer than it was told to
        row |= {
            f"{method}_bytes": payload,
            f"{method}_sync_s": blocked,
            f"{method}_publish_s": mean(v["publish_s"] for v in versions),
            f"{method}_fetch_s": mean(fetches),
            f"{method}_utilisation": mean(v["compute_s"] / (v["compute_s"] + v["blocked_s"]) for v in versions),
            f"{method}_formula": formula.utilisation(computed, payload, 1e6 * rate),
        }
        row["changed"] = mean(v["changed"] for v in versions) / cfg.parameters
        say(
            f"{rate:g} Mbit/s {method}: {payload:,.0f} bytes, sync {blocked:.2f} s (fetch {mean(fetches):.2f}), "
            f"utilisation {row[f'{method}_utilisation']:.3f}, formula {row[f'{method}_formula']:.3f}"
        )
    row["load"] = os.getloadavg()[0]
    row["paper_gbit"] = formula.paper_rate(1e6 * rate, cfg.compute_s, row["dense_bytes"]) / 1e9
    return row


def cut(stage: Stage, cfg: DictConfig, method: str, say: Callable[[str], None]) -> dict[str, float]:
    """One version whose first receiver's link breaks when a part has come through, for longer than connections live.

    Raises RuntimeError if the version had arrived before.
    """
    stage.shape(cfg.cut_rate)
    (before,) = stage.publish(method, 1)
    link = stage.links[0]
    cuts = link.cuts
    link.cut(int(CUT_AFTER * before["bytes"]), cfg.cut_s)
    (version,) = stage.publish(method, 1)
    if link.cuts == cuts:
        raise RuntimeError(f"{method}: the link was not cut before the version had arrived; lower cut_rate")
    say(f"cut for {cfg.cut_s:g} s, {method}: identical again after {version['blocked_s']:.2f} s")
    return {f"{method}_cut_sync_s": version["blocked_s"], f"{method}_uncut_sync_s": before["blocked_s"]}


def describe(cfg: DictConfig, overrides: list[str], claim: dict | None, started: datetime, ladder: list[dict],
             cuts: dict[str, dict], stage: Stage) -> dict[str, Any]:  # fmt: skip
    """The record, `lowcomm.results.record`: one line of the curve per rate; what was cut among the metrics."""
    versions = len(ladder) * cfg.versions + 2 * bool(cuts) + 2  # the first weights, and one to warm up
    bits = mean(8 * r["pulsesync_bytes"] / (r["changed"] * cfg.parameters) for r in ladder)
    metrics: dict[str, Any] = {
        "versions": versions * len(PORTS),
        "cores": os.cpu_count(),
        "real_time": int(os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)),
        "bit_identical": sum(s["verified"] for s in stage.status.values()),
        "refused": sum(s["refused"] for s in stage.status.values()),
        "changed_share": mean(r["changed"] for r in ladder),
        "payload_ratio": mean(r["dense_bytes"] / r["pulsesync_bytes"] for r in ladder),
        "bits_per_change": bits,
    }
    for method in PORTS:
        payload = mean(r[f"{method}_bytes"] for r in ladder)
        metrics[f"{method}_bytes"] = payload
        metrics[f"{method}_mbit_for_90"] = formula.rate_for(0.9, cfg.compute_s, payload) / 1e6
    for measured in cuts.values():
        metrics |= measured
    summary = (
        f"A trainer and {cfg.receivers} receivers over links of {min(cfg.rates):g} to {max(cfg.rates):g} Mbit/s, "
        f"{cfg.delay_ms:g} ms and {100 * cfg.loss:g} % loss; {cfg.parameters:,} BF16 weights, a version every "
        f"{cfg.compute_s:g} s of computation"
    )
    return {
        "schema": 1,
        "identity": provenance.session(f"deploy-{digest(cfg)[:6]}/seed{cfg.seed}", cfg.seed, started),
        "claim": claim,
        "code": provenance.code(OmegaConf.to_container(cfg), digest(cfg), list(overrides)),
        "environment": provenance.environment(processes=cfg.receivers + 2),
        "data": {"name": "synthetic updates", "revision": "1", "units": cfg.parameters, "order_seed": cfg.seed,
                 "summary": summary, "link": "TUN devices, user space, one a receiver"},
        "outcome": {
            "metrics": metrics,
            "evaluation_n": versions * len(PORTS),
            "steps": len(ladder),
            "curve": {"step": list(range(len(ladder))), **{k: [r[k] for r in ladder] for k in ladder[0]}},
            "bytes": {"rounds": versions, "per_worker": metrics["pulsesync_bytes"],
                      "last_round": ladder[-1]["pulsesync_bytes"]},
            "memory": {"parameters": 2 * cfg.parameters, "peak": peak_memory()},
            "weights": stage.weights,
        },
    }  # fmt: skip


__all__ = ["ConfigError", "Unavailable", "run"]
