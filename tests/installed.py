"""Whether an installed wheel is whole: `ENV/bin/python -I tests/installed.py SOURCES PYTHON`, run by `make package`.

The environment has the wheel and nothing else; dependencies are those of PYTHON, so that no index is asked for torch.
"""

import importlib.metadata
import subprocess
import sys
import sysconfig
from pathlib import Path


def borrow(python: str) -> None:
    """Puts the packages of another interpreter after ours, for this process and those it starts."""
    asked = "import sys; print(*(each for each in sys.path if each.endswith('-packages')), sep='\\n')"
    where = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout
    Path(sysconfig.get_path("purelib"), "borrowed.pth").write_text(where)
    sys.path += where.split()


def check_files(sources: Path, installed: Path) -> int:
    """Every file of the sources is in the package, byte for byte: pages, presets and py.typed too."""
    files = [
        path.relative_to(sources) for path in sources.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    for each in files:
        assert (installed / each).is_file(), f"{each} is not in the wheel"
        assert (installed / each).read_bytes() == (sources / each).read_bytes(), f"{each} differs"
    assert Path("py.typed") in files
    return len(files)


def main() -> None:
    sources, python = Path(sys.argv[1]), sys.argv[2]
    borrow(python)

    import lerope

    installed = Path(lerope.__file__).parent
    assert installed.is_relative_to(sys.prefix), f"lerope comes from {installed}"
    assert importlib.metadata.version("lerope") == lerope.__version__
    number = check_files(sources, installed)
    for words in (["--version"], ["plan", "52M"], ["presets"]):
        subprocess.run([Path(sys.prefix, "bin", "lerope"), *words], check=True, stdout=subprocess.DEVNULL)

    import torch

    q = torch.randn(1, 4, 2, 64)
    assert torch.equal(lerope.LeRoPE(64)(q, None, 0)[0], lerope.RoPE(64)(q, None, 0)[0])
    print(f"the wheel of lerope {lerope.__version__} is whole: {number} files, the command runs")


if __name__ == "__main__":
    main()
