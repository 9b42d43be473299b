"""Burnish: RL post-training of language models as a pipeline of containerised stages."""

__version__ = "0.1.0"
