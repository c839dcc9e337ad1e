"""A small page for a notebook: choose a link and a model, see where the time of one synchronisation goes.

Plain HTML with its numbers inside: it needs no server and no extension, and shows one choice where scripts do not run.
"""

import json
from pathlib import Path

from IPython.display import HTML

from lowcomm.results.experiment import load
from lowcomm.results.record import RECORDS, read
from lowcomm.results.summary import finished_runs
from lowcomm.results.wire_figures import CODECS

TIMED, UNTIMED = "pulsesync/speed", ("pulsesync/chains", "adam-")


def numbers(scale: str, records: Path = RECORDS) -> tuple[str, dict[str, dict[str, float | None]]]:
    """Where the numbers come from, and for each codec bytes, and seconds (None: no time was taken), of a dense byte."""
    experiment, out = load(TIMED), {}
    rows = {row.row: row for row in experiment.rows}
    source = f"table speed, scale {scale}"
    if not any(finished_runs(experiment, row, scale, records)[0] for row in experiment.rows):
        experiment, source = load(UNTIMED[0]), f"table chains, scale {scale}; encode and apply were not timed"
        rows = {c: experiment.get(UNTIMED[1] + c) for c in ("paper", "packed", "history")}
    for codec, row in rows.items():
        for run in finished_runs(experiment, row, scale, records)[0][:1]:
            m = read(records / run.path)["outcome"]["metrics"]
            out[codec] = {
                "bytes": m["bytes"] / m["dense_bytes"],
                "encode": m["encode_seconds"] / m["dense_bytes"] if "encode_seconds" in m else None,
                "apply": m["apply_seconds"] / m["dense_bytes"] if "apply_seconds" in m else None,
            }
    if out and "dense" not in out:
        out["dense"] = {"bytes": 1.0, "encode": None, "apply": None}
    return source, out


def chooser(codec: str = "packed", gbits: float = 1.0, gigabytes: float = 14.0, scale: str = "cpu") -> HTML:
    """Bars of encode, transfer and apply for every codec; the chosen one is told in words."""
    source, rows = numbers(scale)
    if not rows:
        command = f"python -m lowcomm.reproduce paper=pulsesync scale={scale}"
        return HTML(f"<p>No records at scale {scale}: <code>{command}</code></p>")
    data = json.dumps({"rows": rows, "colors": CODECS, "codec": codec, "gbits": gbits, "gigabytes": gigabytes})
    options = "".join(f"<option{' selected' if c == codec else ''}>{c}</option>" for c in rows)
    return HTML(PAGE.replace("OPTIONS", options).replace("SOURCE", source).replace("DATA", data))


PAGE = """
<div class="sync" style="font:13px sans-serif;max-width:640px">
 <label>codec <select>OPTIONS</select></label>
 <label>link <input type="range" class="g" min="-2" max="2" step="0.05"> <b class="gv"></b></label>
 <label>weights <input type="range" class="s" min="-1" max="3" step="0.05"> <b class="sv"></b></label>
 <div class="bars" style="margin:8px 0"></div><div class="said"></div>
 <small>dark: encode and apply, light: transfer; logarithmic; from SOURCE</small>
</div>
<script>
(() => {
 const d = DATA, all = document.querySelectorAll("div.sync"), root = all[all.length - 1];
 const q = (s) => root.querySelector(s), text = (t) => t >= 90 ? (t / 60).toFixed(1) + " min" : t.toPrecision(3) + " s";
 q(".g").value = Math.log10(d.gbits); q(".s").value = Math.log10(d.gigabytes);
 function draw() {
  const gbits = 10 ** q(".g").value, size = 10 ** q(".s").value, codec = q("select").value;
  q(".gv").textContent = gbits.toPrecision(2) + " Gbit/s"; q(".sv").textContent = size.toPrecision(2) + " GB";
  const rows = Object.entries(d.rows).map(([name, r]) => {
   const compute = ((r.encode || 0) + (r.apply || 0)) * size * 1e9, wire = 8 * r.bytes * size / gbits;
   return {name, compute, wire, total: compute + wire};
  });
  const low = Math.min(...rows.map(r => r.total)) / 3, high = Math.max(...rows.map(r => r.total));
  q(".bars").innerHTML = rows.map(r => {
   const width = 400 * Math.log(r.total / low) / Math.log(high / low), dark = width * r.compute / r.total;
   const color = d.colors[r.name] || "#888";
   return `<div style="display:flex;align-items:center;height:20px"><span style="width:70px">${r.name}</span>` +
    `<span style="display:inline-block;height:13px;width:${dark}px;background:${color}"></span>` +
    `<span style="display:inline-block;height:13px;width:${width - dark}px;background:${color};opacity:.4"></span>` +
    `<span style="margin-left:6px">${text(r.total)}</span></div>`;
  }).join("");
  const best = rows.reduce((a, b) => b.total < a.total ? b : a), mine = rows.find(r => r.name === codec);
  q(".said").innerHTML = `<b>${codec}</b>: ${text(mine.wire)} on the wire, ${text(mine.compute)} at both ends. ` +
   `Fastest here: <b>${best.name}</b>, ${text(best.total)}.`;
 }
 root.querySelectorAll("input,select").forEach(e => e.addEventListener("input", draw)); draw();
})();
</script>
"""


def recommendation(scale: str = "cpu", records: Path = RECORDS) -> list[dict[str, str]]:
    """Which codec is the fastest at which link, from the measured bytes and seconds; empty where nothing was timed."""
    from lowcomm.results.wire import link_seconds
    from lowcomm.results.wire_figures import GBITS, best

    experiment, metrics = load(TIMED), {}
    for row in experiment.rows:
        for run in finished_runs(experiment, row, scale, records)[0][:1]:
            metrics[row.row] = read(records / run.path)["outcome"]["metrics"]
    if not metrics:
        return []
    rows = []
    for low, high, name in best({n: link_seconds(m, GBITS) for n, m in metrics.items()}):
        ends = [link_seconds(metrics[name], g) for g in (low, high)]
        span = f"{low:.2g} to {high:.2g} Gbit/s"
        rows.append({"link": span, "fastest": name, "seconds for 1 GB of weights": f"{ends[0]:.2f} to {ends[1]:.2f}"})
    return rows
