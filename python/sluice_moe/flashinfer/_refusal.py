# SPDX-License-Identifier: Apache-2.0
"""What is not here says so."""
from __future__ import annotations

from typing import Any, NoReturn

from .. import errors


def refuse(sentence: str) -> NoReturn:
    raise errors.Unsupported(sentence)


def refuse_given(**arguments: Any) -> None:
    """Arguments that only None is accepted for."""
    for name, value in arguments.items():
        if value is not None:
            refuse(f"{name} is given; accepted: None")
