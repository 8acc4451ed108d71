"""A package of an extra that is not installed: said in one line, with the extra that brings it."""

from __future__ import annotations

from common.errors import ConfigError

EXTRA_OF = {
    "jinja2": "gateway",
    "tokenizers": "gateway",
    "transformers": "gateway",
    "redis": "scheduler",
    "numpy": "worker",
    "safetensors": "worker",
    "torch": "worker",
    "xxhash": "worker",
    "ucxx": "ucx",
    "matplotlib": "plots",
}
"""Packages that not every installation has, and the extra of this project that installs each."""


def missing_package(error: ModuleNotFoundError) -> ConfigError:
    """What a user is told of it. Raises `error` itself when it is about no package of an extra: then it is a bug."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(package)
    if extra is None:
        raise error
    return ConfigError(f"{package} is not installed; install it with: pip install 'sangam[{extra}]'")
