"""Kinds of options, by what stands for their value in the help; it shows no default that is said in words."""

from pathlib import Path
from typing import Annotated, TypeVar

from tyro.conf import OmitArgPrefixes, Positional, arg

Fields = TypeVar("Fields")

Runs = Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...", help_behavior_hint="")]
Json = Annotated[bool, arg(name="json")]
Whole = Annotated[int | None, arg(metavar="INT", help_behavior_hint="")]
Number = Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")]
Method = Annotated[str | None, arg(metavar="METHOD", help_behavior_hint="")]
File = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
Folder = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]
AsOptions = Annotated[Fields, OmitArgPrefixes, arg(name="")]
"""A dataclass each of whose fields is an option."""
