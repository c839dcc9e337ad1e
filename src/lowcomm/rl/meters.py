"""What of an update the receivers can see, counted from the masters after every optimizer step.

    density    share of weights whose BF16 cast changed since the last step, and the same without those that were zero
               when the run began: a quantised file leaves many, which stay so small that they change at every step
    groups     the same by kind of tensor: embedding, attention, mlp, norm, head
    horizons   sparsity over k steps, windows that do not overlap (PULSE: k in 1, 2, 4, 8, 16, 32)
    formats    density under FP8 and MXFP4 receivers
    bounds     how far Adam moved the weights, against how far it can and must (PULSE, section 3)
    codecs     bytes of the step's patch in the published layout and in ours, whichever the run itself sends

`horizons` keeps BF16 snapshots, `bounds` one FP32 copy, `formats` the codes of all formats; the others one BF16 copy.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lowcomm.pulse import bounds, cast, encode
from lowcomm.pulse.visibility import changed, differ, seen

FORMATS = ("fp16", "fp8-e4m3", "fp8-e5m2", "mxfp4")
CODECS = ("paper", "packed")
KINDS = {"embedding": ("embed",), "head": ("lm_head",), "norm": ("norm",), "attention": ("attn",), "mlp": ("mlp",)}
Values = dict[str, float]
EXPONENT = 0x7F800000  # bits of an FP32 exponent


def kind_of(name: str) -> str:
    """The group of a parameter, by its name: a key of KINDS, or "other"."""
    return next((kind for kind, parts in KINDS.items() if any(p in name for p in parts)), "other")


def zeros(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Masks (bool, of each parameter's shape) of what is exactly zero, of the parameters that hold a zero."""
    return {name: mask for name, p in params.items() if bool((mask := p.detach() == 0).any())}


class Meters:
    """Feed it the masters: once before the first step, then after every step.

    ``names``: of the meters above; ``betas``: of Adam, for the bounds, or None for another optimizer; ``zeros``: bool
    masks of the weights that were zero when the run began, see `zeros`.
    """

    def __init__(self, names: Sequence[str], horizons: Sequence[int] = (), betas: tuple[float, float] | None = None,
                 zeros: Mapping[str, Tensor] | None = None):  # fmt: skip
        self.zeros = zeros or {}
        self.names, self.horizons, self.betas = set(names), sorted(horizons), betas
        self.snapshots: dict[int, dict[str, Tensor]] = {}  # step -> casts; the starts of open windows
        self.last: dict[str, Tensor] = {}
        self.masters: dict[str, Tensor] = {}
        self.codes: dict[tuple[str, str], tuple[Tensor, ...]] = {}  # (format, name) -> what a receiver of it holds

    def start(self, step: int, params: Mapping[str, Tensor]) -> None:
        """Take the weights of `step` as what the next step is compared with."""
        self._keep(step, params, cast(params))
        if "formats" in self.names:
            self._formats(params)

    def update(self, step: int, params: Mapping[str, Tensor], lr: float) -> Values:
        """Values of the step that has just ended, at learning rate ``lr``."""
        if not self.names:
            return {}
        now, out = cast(params), {}
        if self.names & {"density", "groups"}:
            out |= self._density(now)
        if "horizons" in self.names:
            out |= self._horizons(step, now)
        if "formats" in self.names:
            out |= self._formats(params)
        if "bounds" in self.names:
            out |= self._bounds(step, params, now, lr)
        if "codecs" in self.names:
            out |= {f"codecs/{codec}": float(len(encode(self.last, now, codec))) for codec in CODECS}
        self._keep(step, params, now)
        return out

    def _keep(self, step: int, params: Mapping[str, Tensor], now: dict[str, Tensor]) -> None:
        own = {n: t.clone() if t.data_ptr() == params[n].data_ptr() else t for n, t in now.items()}  # BF16 parameters
        self.last = own
        if "bounds" in self.names:
            self.masters = {n: p.detach().clone() for n, p in params.items()}
        if "horizons" in self.names:
            open_windows = {step - step % k for k in self.horizons}
            self.snapshots = {s: t for s, t in {**self.snapshots, step: own}.items() if s in open_windows}

    def _density(self, now: dict[str, Tensor]) -> Values:
        total, count, zeros, zeros_changed = 0, 0, 0, 0
        groups: dict[str, list[int]] = {}
        for name, new in now.items():
            hit, zero = changed(self.last[name], new), self.zeros.get(name)
            n, size = int(hit.sum()), new.numel()
            total, count = total + size, count + n
            if zero is not None:
                zeros, zeros_changed = zeros + int(zero.sum()), zeros_changed + int((hit & zero).sum())
            group = groups.setdefault(kind_of(name), [0, 0])
            group[0] += n
            group[1] += size
        out = {"density/bf16": count / total, "density/zeros": zeros / total}
        out["density/without_zeros"] = (count - zeros_changed) / max(1, total - zeros)
        if "groups" in self.names:
            out |= {f"density/{kind}": n / size for kind, (n, size) in sorted(groups.items())}
        return out

    def _formats(self, params: Mapping[str, Tensor]) -> Values:
        """Density of the other formats against the last call; of the first call nothing that counts."""
        out = {}
        for form in FORMATS:
            count = 0
            for name, p in params.items():
                new = seen(p, form)
                count += int(differ(self.codes.get((form, name), new), new).sum())
                self.codes[form, name] = new
            out[f"density/{form}"] = count / sum(p.numel() for p in params.values())
        return out

    def _horizons(self, step: int, now: dict[str, Tensor]) -> Values:
        out = {}
        for k in self.horizons:
            old = self.snapshots.get(step - k) if step % k == 0 else None
            if old is not None:
                count = sum(int(changed(old[n], t).sum()) for n, t in now.items())
                out[f"density/k{k}"] = count / sum(t.numel() for t in now.values())
        return out

    def _bounds(self, step: int, params: Mapping[str, Tensor], now: dict[str, Tensor], lr: float) -> Values:
        """`predicted`: mean over the weights of min(1, |move| / spacing of BF16), what density should be; `below_*`:
        share of weights smaller than the critical magnitude of a bound: a mark, not a limit, as masters that have
        gathered cross above it."""
        limits = {"effective": bounds.effective(lr)}
        if self.betas:
            limits |= {"conservative": bounds.conservative(lr, self.betas), "exact": bounds.exact(lr, self.betas, step)}
        sums = dict.fromkeys(("predicted", "moved", *(f"below_{k}" for k in limits)), 0.0)
        largest, outside, total = 0.0, 0, 0
        for name, p in params.items():
            old, new = self.masters[name].float(), p.detach().float()
            move, size = (new - old).abs(), old.abs()
            spacing = (size.view(torch.int32) & EXPONENT).view(torch.float32) * 2.0**-7  # of BF16 at |w|; at 0 none
            share = torch.where(move > 0, move / spacing, 0.0).clamp(max=1)
            sums["predicted"] += float(share.sum(dtype=torch.float64))
            sums["moved"] += float(move.sum(dtype=torch.float64))
            largest, total = max(largest, float(move.max())), total + p.numel()
            for key, limit in limits.items():
                sums[f"below_{key}"] += int((size < bounds.critical_magnitude(limit)).sum())
            edge = bounds.critical_magnitude(limits.get("exact", limits["effective"]))
            outside += int((changed(self.last[name], now[name]) & (size >= edge)).sum())
        out = {f"bounds/{key}": value / total for key, value in sums.items()}
        out["bounds/moved_over_lr"] = out.pop("bounds/moved") / lr if lr else 0.0
        return out | {"bounds/largest_over_lr": largest / lr if lr else 0.0, "bounds/changed_above": outside / total}

    def state_dict(self) -> dict[int, dict[str, Tensor]]:
        """Starts of open windows; the weights themselves are the last."""
        return dict(self.snapshots)

    def load_state_dict(self, state: dict[int, dict[str, Tensor]]) -> None:
        """Go on with the open windows of a checkpoint."""
        self.snapshots = {int(step): tensors for step, tensors in state.items()}
