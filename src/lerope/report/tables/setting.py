"""What was trained: the ladder, the recipe, and the learning rates."""

import math

from lerope.core.grouping import grouped
from lerope.core.ladder import LADDER, LEARNING_RATE_INDEX, block_parameters, plan, total_parameters
from lerope.paper import numbers as paper
from lerope.report.collect import Bundle, RunFiles
from lerope.report.groups import by_rung, learning_rate_runs, main_study, method, rung, rungs_beside_paper
from lerope.report.measured import validation_loss
from lerope.report.style import method_label
from lerope.report.tables.table import NO_VALUE, OURS, PAPER, Cell, Column, Table


def ladder_sizes(bundle: Bundle) -> Table:
    """Shapes and sizes of the ladder's rungs, by its rule."""
    rows: list[list[Cell]] = []
    for place, model in LADDER.items():
        if place == "demo":
            continue
        costs, printed = plan(model), paper.SIZES.get(place, (None, None))
        rows.append([place, model.num_layers, model.num_heads, model.width, model.mlp_width])
        rows[-1] += [block_parameters(model) / 1e6, printed[0], total_parameters(model) / 1e6, printed[1]]
        rows[-1] += [costs.tokens / 1e9, float(costs.compute)]
    columns = [Column("rung"), *(Column(title, ",d") for title in ("layers", "heads", "width", "MLP width"))]
    columns += [Column("parameters without embeddings, M", ",.2f"), Column("paper's")]
    columns += [Column("all parameters, M", ",.2f"), Column("paper's"), Column("tokens, billions", ".2f")]
    columns += [Column("compute, FLOPs", ".3e")]
    caption = "The ladder with the vocabulary of 32,000 tokens; head dimension 64, 20 tokens per parameter."
    return Table("ladder", caption, columns, rows)


def recipe(bundle: Bundle) -> Table:
    """How runs were trained, beside the paper's hyperparameters."""
    study = main_study(bundle)
    largest = list(by_rung(study).values())[-1] if study else []
    rows: list[list[Cell]] = []
    for field, printed in paper.RECIPE.items():
        values = {_short(_recipe_field(files, field)) for files in largest}
        rows.append([field, " or ".join(sorted(values)) or None, printed])
    where = f" of our largest rung, {rung(largest[0])}," if largest else ""
    columns = [Column("field"), Column(OURS), Column(PAPER)]
    return Table("recipe", f"Recipe{where} beside the paper's.", columns, rows)


def learning_rates(bundle: Bundle) -> Table:
    """The best learning rate by rung."""
    rows: list[list[Cell]] = []
    swept = learning_rate_runs(bundle)
    for place in [name for name in rungs_beside_paper(bundle.runs) if name in swept or name in paper.LEARNING_RATES]:
        for name, runs in grouped(swept.get(place, []), method).items():
            best = min(runs, key=lambda files: validation_loss(files) or math.inf)
            rate = best.run.recipe.learning_rate
            rates = sorted({files.run.recipe.learning_rate for files in runs})
            between = rates[0] < rate < rates[-1]
            found = "swept, best between worse" if between else "swept, best at an end"
            rows.append([place, method_label(name), OURS, rate, -2 * math.log2(rate), len(rates), found])
        if place in paper.LEARNING_RATES:
            how = "swept" if place in paper.SWEPT else "extrapolated"
            rows.append([place, "all", PAPER, paper.LEARNING_RATES[place], LEARNING_RATE_INDEX[place], None, how])
    columns = [Column("rung"), Column("method"), Column("source"), Column("learning rate", ".2e")]
    columns += [Column("index i of 2^(-i/2)", ".4g"), Column("rates tried", "d"), Column("determination")]
    return Table("learning-rates", "Best peak learning rates.", columns, rows)


def _recipe_field(files: RunFiles, field: str) -> object:
    recipe = files.run.recipe
    return recipe.model.vocab_size if field == "vocab_size" else getattr(recipe, field)


def _short(value: object) -> str:
    if value is None:
        return NO_VALUE
    if isinstance(value, list | tuple):
        return ", ".join(f"{item:g}" for item in value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
