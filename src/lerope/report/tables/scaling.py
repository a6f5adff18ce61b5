"""What methods save in compute, and the fits it is read from."""

import math

from lerope.core.encoding import EncodingSpec
from lerope.paper import numbers as paper
from lerope.report.collect import Bundle
from lerope.report.groups import main_study, rungs_beside_paper
from lerope.report.measured import ladder
from lerope.report.style import method_label, order
from lerope.report.tables.table import OURS, PAPER, Cell, Column, Table
from lerope.results import Multipliers
from lerope.scaling.multipliers import PIECEWISE
from lerope.scaling.study import FITTED, SHARED


def multipliers(bundle: Bundle) -> Table:
    """Compute multipliers under both estimators."""
    rungs = rungs_beside_paper(main_study(bundle))
    found = ladder(bundle)
    rows: list[list[Cell]] = []
    for name in [] if found is None else order(row["method"] for row in found.multipliers):
        assert found is not None
        for estimator in (PIECEWISE, FITTED):
            values = _of(found, name, estimator)
            if values:
                rows.append([method_label(name), estimator, OURS, *(values.get(place) for place in rungs)])
    for estimator, texts in ((PIECEWISE, paper.PIECEWISE_MULTIPLIERS), (FITTED, paper.FITTED_MULTIPLIERS)):
        printed = dict(zip(paper.RUNGS, texts, strict=True))
        rows.append([method_label("lerope"), estimator, PAPER, *(printed.get(place) for place in rungs)])
    columns = [Column("method"), Column("estimator"), Column("source"), *(Column(place, ".3f") for place in rungs)]
    caption = "Compute multipliers against RoPE: piecewise in ln C, and the efficiency gain of a fitted power law."
    return Table("compute-multipliers", caption, columns, rows)


def floors(bundle: Bundle) -> Table:
    """How much the fitted gain depends on the assumed floor E."""
    rungs = rungs_beside_paper(main_study(bundle))
    found = ladder(bundle)
    rows: list[list[Cell]] = []
    if found is not None:
        names = order(row["method"] for row in found.multipliers)
        learned = [name for name in names if EncodingSpec.parse(name).family == "lerope"]
        for (estimator, method), parameters in sorted(
            found.parameters().items(), key=lambda pair: pair[1].get("E", math.inf)
        ):
            if method == found.baseline and estimator not in (SHARED, "hinge"):
                for name in learned:
                    values = _of(found, name, estimator)
                    floor = f"{parameters['E']:.3f}, fitted" if estimator == FITTED else f"{parameters['E']:g}"
                    cells: list[Cell] = [floor, method_label(name), OURS]
                    cells += [parameters["alpha"], parameters["rmse"], *(values.get(place) for place in rungs)]
                    rows.append(cells)
    for held, (alpha, rmse, gains) in paper.SENSITIVITY.items():
        printed = dict(zip(paper.RUNGS, gains, strict=True))
        rows.append([f"{held:g}", "LeRoPE", PAPER, alpha, rmse, *(printed.get(place) for place in rungs)])
    columns = [Column("E"), Column("method"), Column("source"), Column("alpha", ".3f")]
    columns += [Column("RMSE, nats", ".1e"), *(Column(place, ".3f") for place in rungs)]
    caption = "Efficiency gain by rung under an assumed irreducible loss E."
    return Table("sensitivity-to-floor", caption, columns, rows)


def fits(bundle: Bundle) -> Table:
    """Fits of loss against compute: of the baseline alone, and of all methods with one floor."""
    rows: list[list[Cell]] = []
    found = ladder(bundle)
    parameters = {} if found is None else found.parameters()
    names = [*order(name for _, name in parameters if name is not None), None]
    for estimator, name in ((estimator, name) for estimator in (FITTED, SHARED) for name in names):
        if (values := parameters.get((estimator, name))) is not None:
            label = "all" if name is None else method_label(name)
            rows.append([label, estimator, OURS, *(values.get(key) for key in ("E", "A", "alpha", "rmse"))])
    rows.append([method_label("rope"), FITTED, PAPER, *(paper.FIT[key] for key in ("E", "A", "alpha", "rmse"))])
    exponents = f"{paper.JOINT_FIT['smallest alpha']} to {paper.JOINT_FIT['largest alpha']}"
    rows.append(["all", SHARED, PAPER, paper.JOINT_FIT["E"], None, exponents, paper.JOINT_FIT["rmse"]])
    columns = [Column("method"), Column("estimator"), Column("source"), Column("E", ".4f"), Column("A", ".4g")]
    columns += [Column("alpha", ".5f"), Column("RMSE, nats", ".2e")]
    caption = "Least-squares fits of L = E + A C^-alpha; with a shared E, the last row has the error over all methods."
    return Table("fits", caption, columns, rows)


def _of(found: Multipliers, name: str, estimator: str) -> dict[str | None, float | None]:
    """A method's multipliers by rung."""
    rows = [row for row in found.multipliers if (row["method"], row["estimator"]) == (name, estimator)]
    return {row["rung"]: row["multiplier"] for row in rows}
