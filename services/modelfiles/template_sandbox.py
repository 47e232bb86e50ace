"""The jinja2 environment of chat templates: what transformers gives them, inside a sandbox.

A template comes with the model and is code of a stranger: it gets no attribute that begins with an underscore, changes
nothing it is given, and cannot build a huge value by multiplying. What a chat template may use is described at
https://huggingface.co/docs/transformers/chat_templating_writing
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_LONGEST_PRODUCT = 1_000_000
_LARGEST_EXPONENT = 64


class TemplateRaised(jinja2.TemplateError):
    """The template itself refused the conversation (`raise_exception`)."""


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "**" and not (isinstance(right, int) and right <= _LARGEST_EXPONENT):
            raise SecurityError("exponent too large")
        for sized, times in ((left, right), (right, left)):
            if (
                isinstance(sized, str | list | tuple)
                and isinstance(times, int)
                and len(sized) * times > _LONGEST_PRODUCT
            ):
                raise SecurityError("product too large")
        return super().call_binop(context, operator, left, right)


class _Namespace(Namespace):
    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise SecurityError("a namespace holds no name that begins with an underscore")
        super().__setitem__(name, value)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_pass_through"), [], [], body).set_lineno(line)

    def _pass_through(self, caller: Macro) -> str:
        return caller()


def template_environment(now: Callable[[], datetime]) -> jinja2.Environment:
    """`now` is what the template's `strftime_now` formats."""

    def strftime_now(form: str) -> str:
        return now().strftime(form)

    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": strftime_now,
        "namespace": _namespace,
        "dict": _dict,
    }
    return environment


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRaised(str(message))


def _namespace(**values: object) -> _Namespace:
    namespace = _Namespace()
    for name, value in values.items():
        namespace[name] = value
    return namespace


def _dict(**values: object) -> dict[str, object]:
    """A function and not the class, which would lead to other classes."""
    return values


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own escapes HTML, which a model never saw."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
