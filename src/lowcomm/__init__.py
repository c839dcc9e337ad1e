"""Low-communication training of language models: GPA, DiLoCo, IsoLoCo and PULSE on one loop."""

__version__ = "0.1.0"
