"""Merging rules for pseudo-gradients: one tensor per worker in, one tensor out.

Every rule is a pure function of a stack ``deltas`` of shape ``(W, *shape)``, the pseudo-gradients ``theta - theta_w``
of one parameter in worker order, and returns ``(*shape)`` in float32 (float64 for float64 input), computed in that
precision or better. Rules know no parameter names: a non-finite entry raises ``ValueError`` with the worker's index,
and the caller adds the name. A rule that works on matrices averages every parameter that is not exactly 2-D, as the
paper does, unless ``flatten=True`` makes ``(out, prod(rest))`` of the larger ones.

``needs(rule)`` says what a rule must see of the workers, ``takes_generator(rule)`` whether it draws random masks,
``try_out(rule)`` whether it takes its options.
"""

from lowcomm.outer.aggregate.elementwise import dare, keyed_generator, mean, sparsify, ties, trim
from lowcomm.outer.aggregate.matrices import clip, iso_c, iso_cts, tsv
from lowcomm.outer.aggregate.stack import needs, takes_generator, try_out

__all__ = [
    "clip",
    "dare",
    "iso_c",
    "iso_cts",
    "keyed_generator",
    "mean",
    "needs",
    "sparsify",
    "takes_generator",
    "ties",
    "trim",
    "try_out",
    "tsv",
]
