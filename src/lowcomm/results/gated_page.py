"""PULSELoCo for models that were not run here: payloads and links that follow from measured messages; a small page.

Everything here is derived: parameters of the model, times the share of entries sent, times the bytes that an entry of
such a share took in our records.
"""

import json
from pathlib import Path

from IPython.display import HTML

from lowcomm.results import gated
from lowcomm.results.experiment import load
from lowcomm.results.record import RECORDS, read
from lowcomm.results.summary import finished_runs
from lowcomm.results.wire import STEP_SECONDS, gbits_for_90

MODELS = {"Qwen2.5-0.5B": 0.494, "Qwen2.5-1.5B": 1.544, "Qwen2.5-3B": 3.086, "Llama-3.2-3B": 3.213,
          "Qwen2.5-7B": 7.616}  # fmt: skip  # G parameters, tied ones once; 7B: the paper's 30.5 GB
PAPER = {"sparsity": (0.948, 0.964), "gigabytes": 1.77, "parameters": 7.616}
EXACT = {"payload": ("lr-1e-5", "lr-1e-4", "lr-1e-3", "lr-3e-3", "h2", "h32"), "grpo": ("pulseloco",)}


def points(scale: str = "cpu", records: Path = RECORDS) -> list[dict[str, float | str]]:
    """Measured messages of the BF16 gate with exact values, packed: where, share sent, bytes an entry; by share."""
    found = []
    for table, rows in EXACT.items():
        experiment = load(f"pulseloco/{table}")
        for row in rows:
            for run in finished_runs(experiment, experiment.get(row), scale, records)[0]:
                outcome = read(records / run.path)["outcome"]
                share, size = 1 - gated.sparsity(outcome, None), gated.entry_bytes(outcome, None)
                if size:
                    found.append({"where": f"{table}/{row}", "share": share, "bytes": size})
    return sorted(found, key=lambda p: p["share"])


def derived(scale: str = "cpu", records: Path = RECORDS) -> list[dict[str, str]]:
    """A round of the paper's models: dense, at the paper's ratio, and as the GRPO run here; with the links for 90 %.

    The last is empty where that run has no record.
    """
    experiment = load("pulseloco/grpo")
    runs, _, _ = finished_runs(experiment, experiment.get("pulseloco"), scale, records)
    ratio = gated.times_less_than_dense(read(records / runs[0].path)["outcome"], None) if runs else None
    papers = 4 * PAPER["parameters"] / PAPER["gigabytes"]
    rows = []
    for model, parameters in MODELS.items():
        dense = 4 * parameters
        rows.append({"model": model})
        mine = (f"ours, {ratio:.1f}", dense / ratio) if ratio else ("ours, not run", None)
        for title, size in (("DiLoCo", dense), (f"paper's ratio, {papers:.1f}", dense / papers), mine):
            rows[-1][f"{title}: GB a round"] = f"{size:.2f}" if size else ""
            rows[-1][f"{title}: Gbit/s for 90 %"] = f"{gbits_for_90(size):.2f}" if size else ""
    return rows


def chooser(model: str = "Qwen2.5-7B", sparsity: float = 95.6, gbits: float = 2.6, scale: str = "cpu",
            records: Path = RECORDS) -> HTML:  # fmt: skip
    """Choose model, per cent not sent, and link: payload of a round beside DiLoCo's, utilisation, link for 90 %.

    Bytes an entry are interpolated between our measured messages (in the logarithm of the share), and constant beyond
    them; without records 5.05 bytes, the paper's payload at the middle of its sparsities.
    """
    low, high = PAPER["sparsity"]
    middle = 1 - (low + high) / 2
    known = points(scale, records)
    source = f"{len(known)} measured messages, scale {scale}" if known else "the paper's payload: no records yet"
    known = known or [{"share": middle, "bytes": PAPER["gigabytes"] / PAPER["parameters"] / middle}]
    data = {"models": MODELS, "points": [[p["share"], p["bytes"]] for p in known], "sparsity": sparsity,
            "gbits": gbits, "seconds": STEP_SECONDS}  # fmt: skip
    options = "".join(f"<option{' selected' if m == model else ''}>{m}</option>" for m in MODELS)
    return HTML(PAGE.replace("OPTIONS", options).replace("SOURCE", source).replace("DATA", json.dumps(data)))


PAGE = """
<div class="loco" style="font:13px sans-serif;max-width:660px">
 <label>model <select>OPTIONS</select></label>
 <label>not sent <input type="range" class="s" min="0" max="99.5" step="0.1"> <b class="sv"></b></label>
 <label>link <input type="range" class="g" min="-2" max="2" step="0.05"> <b class="gv"></b></label>
 <div class="bars" style="margin:8px 0"></div><div class="said"></div>
 <small>derived; bytes an entry from SOURCE; T = 50 s of computing a round, not overlapped; bars are logarithmic</small>
</div>
<script>
(() => {
 const d = DATA, all = document.querySelectorAll("div.loco"), root = all[all.length - 1];
 const q = (s) => root.querySelector(s), text = (t) => t >= 90 ? (t / 60).toFixed(1) + " min" : t.toPrecision(3) + " s";
 q(".s").value = d.sparsity; q(".g").value = Math.log10(d.gbits);
 function size(share) {
  const p = d.points;
  if (share <= p[0][0]) return p[0][1];
  for (let i = 1; i < p.length; i++) if (share <= p[i][0]) {
   const f = Math.log(share / p[i - 1][0]) / Math.log(p[i][0] / p[i - 1][0]);
   return p[i - 1][1] + (isFinite(f) ? f : 1) * (p[i][1] - p[i - 1][1]);
  }
  return p[p.length - 1][1];
 }
 function draw() {
  const n = d.models[q("select").value], share = 1 - q(".s").value / 100, b = size(share), gbits = 10 ** q(".g").value;
  q(".sv").textContent = (+q(".s").value).toFixed(1) + " %"; q(".gv").textContent = gbits.toPrecision(2) + " Gbit/s";
  const sizes = [["DiLoCo", 4 * n, "#d55e00"], ["PULSELoCo", Math.min(4, share * b) * n, "#0072b2"]];
  const rows = sizes.map(([name, gb, color]) => ({name, gb, color, time: 8 * gb / gbits, need: 72 * gb / d.seconds}));
  const low = Math.min(...rows.map(r => r.gb)) / 3, high = rows[0].gb;
  q(".bars").innerHTML = rows.map(r => {
   const width = 300 * Math.log(r.gb / low) / Math.log(high / low), use = 100 * d.seconds / (d.seconds + r.time);
   return `<div style="display:flex;align-items:center;height:20px"><span style="width:80px">${r.name}</span>` +
    `<span style="display:inline-block;height:13px;width:${width}px;background:${r.color}"></span>` +
    `<span style="margin-left:6px">${r.gb.toPrecision(3)} GB, ${text(r.time)}, ` +
    `${use.toFixed(0)} % computing</span></div>`;
  }).join("");
  q(".said").innerHTML = `${b.toFixed(2)} bytes for each entry sent; ` +
   `<b>${(rows[0].gb / rows[1].gb).toFixed(1)}x</b> less than DiLoCo. ` +
   `For 90 %: <b>${rows[1].need.toPrecision(2)} Gbit/s</b> in place of ${rows[0].need.toPrecision(3)}.`;
 }
 root.querySelectorAll("input,select").forEach(e => e.addEventListener("input", draw)); draw();
})();
</script>
"""
