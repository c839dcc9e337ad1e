"""A small page for a notebook: choose a rate, a format and the weights, see how many of them a step would change.

Plain HTML with its numbers inside, see `wire_page`. A prediction from magnitudes alone, not a measurement.
"""

import json
import math
from pathlib import Path

import torch
from IPython.display import HTML
from pandas import DataFrame, concat

from lowcomm.pulse import bounds
from lowcomm.pulse.visibility import FORMATS
from lowcomm.results.experiment import load
from lowcomm.results.record import RECORDS, read
from lowcomm.results.summary import finished_runs

SHOWN = ("bf16", "fp16", "fp8-e4m3", "fp8-e5m2")
BOUNDS = ("effective", "conservative")  # eta and, at Adam's usual betas, 10 eta


def counted(scale: str = "cpu", records: Path = RECORDS) -> dict[str, list[tuple[float, float]]]:
    """Points of the distribution of magnitudes, by model: |w| and the share of the weights below it, ascending.

    Counted at every step of the runs of table learning-rate, at the critical magnitudes of `BOUNDS`; means over seeds.
    """
    experiment = load("pulse/learning-rate")
    found: dict[str, dict[float, float]] = {}
    for row in experiment.rows:
        runs = finished_runs(experiment, row, scale, records)[0]
        if runs:
            each = [DataFrame(read(records / r.path)["outcome"]["steps_of"]).astype(float) for r in runs]
            steps = concat(each).groupby("step").mean()
            points = found.setdefault(row.series, {})
            for name in BOUNDS:
                critical = bounds.critical_magnitude(getattr(bounds, name)(steps["train/lr"]))
                at = critical.map("{:.6g}".format).astype(float)  # 10 times a small rate is the large one: one point
                points |= dict(zip(at, steps[f"bounds/below_{name}"], strict=True))
    return {model: sorted(points.items()) for model, points in found.items()}


def chooser(lr: float = 3e-6, dtype: str = "bf16", sigma: float = 0.028, move: float = 0.24, scale: str = "cpu",
            records: Path = RECORDS) -> HTML:  # fmt: skip
    """Choose rate, format of `SHOWN`, weights (counted, or normal of standard deviation ``sigma``) and mean move in
    units of the rate: critical magnitude, share of the weights below it, and predicted density.
    """
    least = {name: int(math.log2(torch.finfo(FORMATS[name]).smallest_normal)) for name in SHOWN}
    formats = {name: [bounds.FRACTION_BITS[name], exponent] for name, exponent in least.items()}
    weights = {f"{model}, counted": points for model, points in counted(scale, records).items()}
    data = {"rate": lr, "sigma": sigma, "move": move, "format": dtype, "counted": weights, "formats": formats}
    return HTML(PAGE.replace("DATA", json.dumps(data)))


PAGE = r"""
<div class="seen" style="font:13px sans-serif;max-width:680px">
 <label>format <select class="f"></select></label> <label>weights <select class="w"></select></label><br>
 <label>learning rate <input type="range" class="r" min="-7" max="-3" step="0.02"> <b class="rv"></b></label>
 <label>move / lr <input type="range" class="m" min="0.02" max="1" step="0.02"> <b class="mv"></b></label>
 <label class="sl">sd <input type="range" class="s" min="-3" max="0" step="0.02"> <b class="sv"></b></label>
 <svg viewBox="0 0 640 205" width="640" height="205" style="display:block;margin:6px 0"></svg><div class="said"></div>
</div>
<script>
(() => {
 const d = DATA, all = document.querySelectorAll("div.seen"), root = all[all.length - 1];
 const q = (s) => root.querySelector(s), NORMAL = "normal, of a standard deviation", LOW = -6, HIGH = 0.5, N = 600;
 const option = (n, on) => `<option${on ? " selected" : ""}>${n}</option>`;
 q(".f").innerHTML = Object.keys(d.formats).map((n) => option(n, n === d.format)).join("");
 q(".w").innerHTML = [...Object.keys(d.counted), NORMAL].map((n, i) => option(n, i === 0)).join("");
 q(".r").value = Math.log10(d.rate); q(".s").value = Math.log10(d.sigma); q(".m").value = d.move;
 const erf = (x) => {  // Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most; near zero the series
  if (x < 0.01) return 2 / Math.sqrt(Math.PI) * (x - x ** 3 / 3);
  const t = 1 / (1 + 0.3275911 * x), a = [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592];
  return 1 - Math.exp(-x * x) * a.reduce((sum, c) => (sum + c) * t, 0);
 };
 const below = (w, sigma) => (x) => {  // share of the weights that are smaller than x
  if (w === NORMAL) return erf(x / sigma / Math.SQRT2);
  const p = d.counted[w], [xn, yn] = p[p.length - 1], i = p.findIndex(([px]) => px >= x);
  if (i === 0) return p[0][1];
  if (i < 0) return Math.min(1, p[0][1] + (yn - p[0][1]) * x / xn);
  const [x0, y0] = p[i - 1], [x1, y1] = p[i];
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
 };
 const percent = (v) => +(100 * v).toPrecision(3) + " %";
 const text = (x, y, s, anchor) =>
  `<text x="${x}" y="${y}" font-size="10" fill="#555" text-anchor="${anchor}">${s}</text>`;
 const rule = (x1, y1, x2, y2, color) => `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" stroke="${color}"/>`;
 const X = (x) => +(40 + 590 * (Math.log10(x) - LOW) / (HIGH - LOW)).toFixed(1);
 const Y = (y) => +(185 - 34 * (Math.log10(Math.max(y, 1e-5)) + 5)).toFixed(1);
 function draw() {
  const lr = 10 ** q(".r").value, move = +q(".m").value, sigma = 10 ** q(".s").value, w = q(".w").value;
  const format = q(".f").value, [bits, least] = d.formats[format], share = below(w, sigma);
  q(".rv").textContent = lr.toExponential(1); q(".mv").textContent = move.toFixed(2);
  q(".sv").textContent = sigma.toPrecision(2); q(".sl").style.display = w === NORMAL ? "" : "none";
  const critical = lr * 2 ** (bits + 1), none = critical < 2 ** least;
  const spacing = (x) => 2 ** (Math.max(Math.floor(Math.log2(x)), least) - bits);
  const edges = Array.from({length: N + 1}, (_, i) => 10 ** (LOW + (HIGH - LOW) * i / N)), F = edges.map(share);
  let density = F[0] * Math.min(1, lr * move / spacing(edges[0]));
  for (let i = 0; i < N; i++) {
   density += (F[i + 1] - F[i]) * Math.min(1, lr * move / spacing(Math.sqrt(edges[i] * edges[i + 1])));
  }
  const points = edges.map((x, i) => `${X(x)},${Y(F[i])}`), at = X(critical);
  const inside = points.filter((_, i) => edges[i] <= critical).join(" ");
  let svg = [-6, -5, -4, -3, -2, -1, 0].map((e) => rule(X(10 ** e), 15, X(10 ** e), 185, "#e6e6e6") +
   text(X(10 ** e), 198, "1e" + e, "middle")).join("");
  svg += [-5, -4, -3, -2, -1, 0].map((e) => rule(40, Y(10 ** e), 630, Y(10 ** e), "#e6e6e6") +
   text(37, Y(10 ** e) + 3, +(10 ** (e + 2)).toPrecision(1) + " %", "end")).join("");
  if (!none) {
   svg += `<polygon points="40,185 ${inside} ${at},185" fill="#0072b2" opacity=".25"/>`;
   svg += rule(at, 15, at, 185, "#d55e00");
  }
  svg += `<polyline points="${points.join(" ")}" fill="none" stroke="#0072b2" stroke-width="1.8"/>`;
  q("svg").innerHTML = svg + text(44, 11, "weights smaller than |w|; red: the critical magnitude", "start");
  const could = `Critical magnitude <b>${critical.toPrecision(3)}</b>, below it <b>${percent(share(critical))}</b>.`;
  const cannot = `Half of the smallest spacing of ${format} is more than the rate: from one of its values none moves.`;
  q(".said").innerHTML = `${none ? cannot : could} Predicted density <b>${percent(density)}</b>.`;
 }
 root.querySelectorAll("input,select").forEach((e) => e.addEventListener("input", draw)); draw();
})();
</script>
"""
