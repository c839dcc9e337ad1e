"""From records to tables and figures. `load_records`, `table` and `figure` are all a notebook needs."""

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowcomm.results.figures import figure
    from lowcomm.results.record import load_records
    from lowcomm.results.tables import table

__all__ = ["figure", "load_records", "table"]

# In a notebook without widgets tqdm falls back to text and says so; nothing here needs widgets.
warnings.filterwarnings("ignore", message="IProgress not found")


def __getattr__(name: str) -> Any:
    """Loaded on first use: a training run needs neither pandas nor matplotlib."""
    import importlib

    where = {"figure": "figures", "load_records": "record", "table": "tables"}
    if name not in where:
        raise AttributeError(f"module 'lowcomm.results' has no attribute '{name}'")
    return getattr(importlib.import_module(f"lowcomm.results.{where[name]}"), name)
