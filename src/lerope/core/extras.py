"""How to install what an extra of lerope needs."""

import functools
import re
from importlib import metadata


@functools.cache
def install(extra: str, *only: str) -> str:
    """A command; it names the packages themselves, because an index need not have lerope.

    Args:
        only: the packages of the extra that are needed; all unless given.
    """
    try:
        packages = _packages(extra, metadata.requires("lerope") or [])
    except metadata.PackageNotFoundError:
        packages = []
    if only:
        packages = [package for package in packages if re.split(r"[^\w-]", package.strip("'"))[0] in only]
    return f"pip install {' '.join(packages)}" if packages else f"pip install '.[{extra}]' in a checkout of lerope"


def _packages(extra: str, lines: list[str]) -> list[str]:
    """What pip takes, quoted for a shell; an extra may name others."""
    found: list[str] = []
    for line in lines:
        package, _, marker = (part.strip() for part in line.partition(";"))
        if not re.search(rf"extra == ['\"]{re.escape(extra)}['\"]", marker):
            continue
        others = re.fullmatch(r"lerope\[(.+)\]", package)
        if others is None:
            found.append(f"'{package}'")
        else:
            found += [each for name in others[1].split(",") for each in _packages(name.strip(), lines)]
    return list(dict.fromkeys(found))
