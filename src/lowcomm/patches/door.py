"""From overrides to a record."""

from datetime import UTC, datetime
from typing import Any

from lowcomm.blocks import ConfigError, build
from lowcomm.patches.config import checked, digest, identity
from lowcomm.patches.measuring import TIMES, fingerprint, follow
from lowcomm.pulse import PatchError
from lowcomm.results import provenance
from lowcomm.results.describe import local
from lowcomm.session import peak_memory, reset_peak_memory, threads

TOTALS = ("bytes", "changed", "dense_bytes", "coo_bytes", "published_bytes", "entropy_bits", "entropy_history_bits",
          *TIMES, "raw_bytes")  # fmt: skip


def run(overrides: list[str], claim: dict[str, Any] | None = None) -> dict[str, Any]:
    """Measure one configuration. Raises ConfigError for a source that cannot be read or made."""
    cfg = checked(overrides)
    started = datetime.now(UTC)
    reset_peak_memory()
    with threads(cfg.scale.threads):
        source = build("source", cfg.source, seed=cfg.seed)
        last: dict[str, Any] = {}

        def versions():
            for weights in source.chain():
                last["weights"] = weights
                yield weights

        try:
            rows = follow(versions(), cfg.codec, cfg.repeats, cfg.scale.threads)
        except PatchError as error:
            raise ConfigError(f"source ({cfg.source['_target_']}): {error}") from error
        environment = provenance.environment()
    metrics = {k: sum(r[k] for r in rows) for k in TOTALS if rows[0].get(k) is not None}
    memory = {k: rows[0][f"{k}_memory"] for k in ("encode", "apply") if f"{k}_memory" in rows[0]}
    columns = ("step", "bytes", "changed", "published_bytes")
    return {
        "schema": 1,
        "identity": provenance.session(f"patches_{cfg.scale.name}-{digest(cfg)[:6]}/seed{cfg.seed}", cfg.seed, started),
        "claim": claim,
        "code": provenance.code(local(identity(cfg)), digest(cfg), [local(o) for o in overrides]),
        "environment": environment,
        "data": source.describe() | {"units": rows[0]["numel"], "order_seed": cfg.seed},
        "outcome": {
            "metrics": metrics,
            "evaluation_n": len(rows),
            "steps": rows[-1]["step"],
            "curve": {k: [r[k] for r in rows] for k in columns},
            "bytes": {"rounds": len(rows), "per_worker": metrics["bytes"], "last_round": rows[-1]["bytes"]},
            "memory": {"parameters": rows[0]["dense_bytes"], **memory, "peak": peak_memory()},
            "weights": fingerprint(last["weights"]),
        },
    }


def report(record: dict[str, Any]) -> str:
    """A few lines for a person."""
    m, n = record["outcome"]["metrics"], record["outcome"]["steps"]
    bits = {k: 8 * m[k] / max(m["changed"], 1) for k in ("bytes", "published_bytes")}
    lines = [
        record["data"]["summary"],
        f"{n} patches, {100 * m['changed'] / (record['data']['units'] * n):.4f} % of the weights changed in each",
        f"{record['code']['config']['codec']}: {m['bytes']:,.0f} bytes, {bits['bytes']:.2f} bits a change, "
        f"{m['dense_bytes'] / m['bytes']:.1f}x less than dense; the published layout takes "
        f"{bits['published_bytes']:.2f} bits a change",
    ]
    if "entropy_bits" in m:
        left = [m[k] / max(m["changed"], 1) for k in ("entropy_bits", "entropy_history_bits")]
        lines.append(f"entropy: {left[0]:.2f} bits given the exponent, {left[1]:.2f} with age and direction")
    if "encode_seconds" in m:
        rates = [m["dense_bytes"] / 1e6 / m[f"{k}_seconds"] for k in ("encode", "apply")]
        lines.append(f"encode {rates[0]:,.0f} MB/s, apply {rates[1]:,.0f} MB/s of dense weights")
    return "\n".join(lines)
