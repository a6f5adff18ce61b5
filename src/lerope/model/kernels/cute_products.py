"""Matrix products by QuACK, and what they do to a result before it is written, in CuTe.

Epilogues take one number or a pair of them. The formula of GELU is that of triton_gelu.
"""

from typing import Any

import cutlass
from cutlass import cute
from quack.epilogue import gemm_epilogue
from quack.epilogue.math import F2


def _gelu(x: Any) -> tuple[Any, Any]:
    """GELU and its slope."""
    if isinstance(x, tuple):
        values, slopes = zip(*(_gelu(each) for each in x), strict=True)
        return F2(*values), F2(*slopes)
    t = cute.arch.rcp_approx(1.0 + 0.3275911 * 0.7071067811865476 * cute.arch.fmax(x, -x))
    bell = cute.math.exp2(x * x * -0.7213475204444817, fastmath=True)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * tail * bell
    phi = cutlass.select_(x < 0.0, tail, 1.0 - tail)
    return x * phi, phi + x * bell * 0.3989422804014327


@gemm_epilogue()
def product(acc: Any) -> dict[str, Any]:
    """A product."""
    return {"D": acc}


@gemm_epilogue(outputs=("activated",))
def gelu_and_slope(acc: Any) -> dict[str, Any]:
    """The GELU of a product, and its slope there."""
    activated, slope = _gelu(acc)
    return {"D": slope, "activated": activated}


@gemm_epilogue(outputs=("activated",))
def gelu(acc: Any) -> dict[str, Any]:
    """The GELU of a product."""
    activated, _ = _gelu(acc)
    return {"activated": activated}


@gemm_epilogue()
def scaled(acc: Any, c: Any) -> dict[str, Any]:
    """A product times c, element by element."""
    return {"D": acc * c}
