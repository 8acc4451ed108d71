"""Jinja templates out of a checkpoint's folder, rendered without trusting them.

Jinja's sandbox keeps a template away from Python's inner workings and from changing what it is given. What the sandbox
leaves open is bounded here: the template's length, the steps of one rendering (loop turns and calls), what it writes,
and products of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from jinja2 import TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEMPLATE_CHARACTERS = 65_536
MAX_STEPS = 100_000
MAX_WRITTEN_CHARACTERS = 262_144

_METER = "sangam_meter"


class TemplateFault(Exception):
    """A template that cannot be compiled or rendered; the text says why, for whoever runs the service."""


class TemplateRefusal(TemplateFault):
    """A template that refused its input in words of its own, by `raise_exception`."""


class SandboxedTemplate:
    """One compiled template; rendering it changes nothing, so that several threads may."""

    def __init__(self, source: str) -> None:
        """Compile `source`. Raises `TemplateFault`."""
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise TemplateFault(f"has {len(source)} characters, at most {MAX_TEMPLATE_CHARACTERS} are allowed")
        environment = _Sandbox()
        try:
            self._template = environment.from_string(environment.metered(source))
        except TemplateSyntaxError as error:
            raise TemplateFault(f"line {error.lineno}: {error.message}") from None
        except Exception as error:  # compiling runs into Python's own limits, of nesting for one
            raise TemplateFault(f"cannot be compiled: {error}") from None

    def render(self, variables: Mapping[str, Any], *, more_characters: int = 0) -> str:
        """What the template writes, at most `MAX_WRITTEN_CHARACTERS` and `more_characters`.

        Raises `TemplateRefusal`, or `TemplateFault` for whatever else goes wrong in it.
        """
        written: list[str] = []
        room = MAX_WRITTEN_CHARACTERS + more_characters
        try:
            for piece in self._template.generate({**variables, _METER: _Meter()}):
                room -= len(piece)
                if room < 0:
                    raise TemplateFault(f"writes more than {MAX_WRITTEN_CHARACTERS} characters")
                written.append(piece)
        except TemplateFault:
            raise
        except Exception as error:  # a template may raise anything
            raise TemplateFault(f"{type(error).__name__}: {error}") from None
        return "".join(written)


class _Meter:
    """Counts the steps of one rendering."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TemplateFault(f"takes more than {MAX_STEPS} steps")


def _meter_of(context: Context) -> _Meter:
    meter = context.parent[_METER]
    assert isinstance(meter, _Meter)
    return meter


@pass_context
def _metered(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    meter = _meter_of(context)
    for value in values:
        meter.step()
        yield value


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


class _Sandbox(ImmutableSandboxedEnvironment):
    """What published chat templates count on (block trimming, loop controls, raise_exception), with meters."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        # Constants are not folded: all that a template does happens while it is rendered, under the meter.
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=["jinja2.ext.loopcontrols"])
        self.filters[_METER] = _metered
        self.globals["raise_exception"] = _raise_exception

    def metered(self, source: str) -> nodes.Template:
        """The parsed template, with a step counted at every turn of its loops."""
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, _METER, [], [], None, None, lineno=loop.lineno, environment=self)
        return tree

    def call(self, context: Context, callee: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something for a template: a step."""
        _meter_of(context).step()
        return super().call(context, callee, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiply numbers; nothing else, and no powers."""
        if operator == "**" or not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise SecurityError(f"{operator} is allowed for the product of two numbers only")
        return left * right
