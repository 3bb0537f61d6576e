"""Reads exceptions that a worker raised: the one place that touches their class, text and traceback.

The class of such an exception belongs to the user. `str()`, `repr()`, an attribute and even `isinstance()` may run code
of that class, which may raise anything. The functions here never raise, and return objects of built-in types.
"""

from __future__ import annotations

import traceback
from types import GetSetDescriptorType, WrapperDescriptorType
from typing import Any

# Descriptors of built-in types: reading through them runs no code of a user's class or metaclass.
_name_of: Any = type.__dict__["__name__"].__get__
_mro_of: Any = type.__dict__["__mro__"].__get__
_members_of: Any = type.__dict__["__dict__"].__get__
_traceback_of: Any = BaseException.__dict__["__traceback__"].__get__


def type_name(exc: BaseException) -> str:
    """Return the name of the exception's class."""
    name: str = _name_of(type(exc))
    return name


def text(exc: BaseException) -> str:
    """Return `str(exc)`; if that raises, a text that says so."""
    try:
        return str.__str__(str(exc))  # a plain `str` of what may be an object of a subclass
    except BaseException as error:
        return f"{type_name(exc)}, str() raised {type_name(error)}"


def representation(exc: BaseException) -> str:
    """Return `repr(exc)`; if that raises, its class and its text."""
    try:
        return str.__str__(repr(exc))
    except BaseException:
        return f"{type_name(exc)}: {text(exc)}"


def trace(exc: BaseException) -> str:
    """Return the formatted traceback, with causes and notes; if reading these raises, without them."""
    try:
        return "".join(traceback.format_exception(exc))
    except BaseException:
        frames = "".join(traceback.format_tb(_traceback_of(exc)))
        return f"Traceback (most recent call last):\n{frames}{type_name(exc)}: {text(exc)}\n"


def attribute(thing: Any, name: str) -> Any:
    """Return an attribute; None if it is missing or if reading it raises."""
    try:
        return getattr(thing, name, None)
    except BaseException:
        return None


def has_own_lookup(exc: BaseException) -> bool:
    """Return whether the class replaces `__getattribute__` or `__class__`: then `isinstance()` may raise."""
    return not (
        isinstance(_definition(exc, "__getattribute__"), WrapperDescriptorType)
        and isinstance(_definition(exc, "__class__"), GetSetDescriptorType)
    )


def _definition(exc: BaseException, name: str) -> Any:
    """Return what the exception's class defines or inherits under this name. `object` defines both names."""
    return next(members[name] for cls in _mro_of(type(exc)) if name in (members := _members_of(cls)))
