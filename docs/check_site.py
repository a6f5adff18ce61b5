"""Checks a built site: every public name is in the reference, and no page loads anything from elsewhere.

python docs/check_site.py SITE
"""

import importlib
import re
import sys
from pathlib import Path

from sphinx.util.inventory import InventoryFile

PUBLIC = ("lerope", "lerope.scaling", "lerope.results")
# What a browser fetches by itself when it shows a page or a style sheet; links that people follow are none of these.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=["'](?:https?:)?//[^"']+"""
    r"""|<link\b(?![^>]*rel=["'](?:canonical|license)["'])[^>]*\bhref=["'](?:https?:)?//[^"']+"""
    r"""|@import\s+["'(]*(?:url\()?["']?(?:https?:)?//[^"')]+"""
    r"""|url\(\s*["']?(?:https?:)?//[^"')]+"""
)


def missing_names(site: Path) -> list[str]:
    """Public names that the site's inventory does not have."""
    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, uri: uri)
    known = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    public = (f"{module}.{name}" for module in PUBLIC for name in importlib.import_module(module).__all__)
    return [name for name in public if name not in known]


def loaded_from_elsewhere(site: Path) -> list[str]:
    """What pages and style sheets of the site would fetch from other places."""
    files = [path for path in sorted(site.rglob("*")) if path.suffix in (".html", ".css", ".svg")]
    return [
        f"{path.relative_to(site)}: {found.group()}"
        for path in files
        for found in LOADED.finditer(path.read_text(encoding="utf-8"))
    ]


def main() -> None:
    site = Path(sys.argv[1])
    faults = [f"not in the reference: {name}" for name in missing_names(site)]
    faults += [f"loaded from elsewhere: {each}" for each in loaded_from_elsewhere(site)]
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        sys.exit(1)
    print(f"{site}: every public name is in the reference, and nothing is loaded from elsewhere")


if __name__ == "__main__":
    main()
