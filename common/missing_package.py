"""A package of an extra that is not installed: said in one line, with the extra that brings it."""

from __future__ import annotations

from common.errors import ConfigError

EXTRAS_OF = {
    "jinja2": ("gateway",),
    "tokenizers": ("gateway",),
    "transformers": ("gateway",),
    "redis": ("scheduler", "kv-store"),
    "numpy": ("worker",),
    "safetensors": ("worker",),
    "torch": ("worker",),
    "xxhash": ("worker",),
    "ucxx": ("ucx",),
    "matplotlib": ("plots",),
}
"""Packages that not every installation has, and the extras of this project that install each."""


def missing_package(error: ModuleNotFoundError, service: str = "") -> ConfigError:
    """What a user is told of it: the extra of `service` ("kv_store") if that brings the package, else the first one.

    Raises `error` itself when it is about no package of an extra: then it is a bug.
    """
    package = (error.name or "").partition(".")[0]
    extras = EXTRAS_OF.get(package)
    if extras is None:
        raise error
    own = service.replace("_", "-")
    extra = own if own in extras else extras[0]
    return ConfigError(f"{package} is not installed; install it with: pip install 'sangam[{extra}]'")
