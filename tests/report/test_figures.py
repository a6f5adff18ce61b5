"""Every figure draws what the files say, says what is missing, and is readable at the size a paper prints it."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from lerope.core.run import read_run
from lerope.paper.numbers import PERPLEXITY
from lerope.report import style
from lerope.report.collect import Bundle, RunFiles, collect
from lerope.report.curves import smooth
from lerope.report.figures import FIGURES, write_figures
from lerope.report.tables import tables
from lerope.results import Ablation, Bands, LearnedFrequencies, Needle, Phasors, SlowestRemovals
from tests.report.example import LENGTH, LOSSES, _Run

pytest.importorskip("matplotlib")

BY_NAME = {figure.NAME: figure for figure in FIGURES}
COMMANDS = {
    "differences": "lerope eval RUN",
    "compute-multipliers": "lerope eval",
    "needle-distractors": "lerope needle RUN",
    "wavelengths": "lerope train RUNG --encoding lerope",
    "band-contributions": "lerope analyze RUN --parts bands",
    "needle-lengths": "--to 32768",
    "phasor-scales": "lerope analyze RUN --parts phasors",
    "gradient-phasors": "lerope analyze RUN --parts phasors",
    "leave-one-out": "lerope analyze RUN --parts ablation",
    "slowest-bands": "lerope analyze RUN --parts slowest",
    "extrapolation": "lerope extrapolate RUN",
    "beyond-the-window": "lerope analyze RUN --parts beyond",
    "code": "lerope analyze RUN",
    "training": "lerope train",
    "frequencies-through-training": "--encoding lerope",
    "loss-gap-by-position": "lerope eval RUN",
    "learning-rates": "lerope sweep",
    "query-key-norms": "lerope analyze RUN --parts bands",
}


@pytest.fixture(scope="module")
def drawn(bundle):
    return {name: figure.draw(bundle) for name, figure in BY_NAME.items()}


def texts(figure) -> list:
    from matplotlib.text import Text

    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


def words(figure) -> str:
    return " ".join(" ".join(text.get_text() for text in texts(figure)).split())


def lines(axes) -> dict:
    """Lines with a label, as arrays of x and y."""
    return {
        line.get_label(): np.array(line.get_data(), float)
        for line in axes.get_lines()
        if not line.get_label().startswith("_")
    }


def run_of(bundle: Bundle, name: str) -> RunFiles:
    (found,) = [files for files in bundle.runs if files.run.name == name and files.run.path.parent.name == "runs"]
    return found


@pytest.mark.parametrize("name", BY_NAME)
def test_a_whole_study_leaves_nothing_missing(drawn, name):
    figure = drawn[name]
    assert any(axes.has_data() for axes in figure.axes)
    assert "lerope " not in words(figure)
    assert figure.get_figwidth() in (style.COLUMN, style.PAGE)


@pytest.mark.parametrize("name", BY_NAME)
def test_text_is_inside_the_figure_and_large_enough(drawn, name):
    figure = drawn[name]
    figure.draw_without_rendering()
    ticks = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for label in axis.get_ticklabels(which="both")
    }
    box = figure.bbox.padded(1)
    for text in texts(figure):
        assert text.get_fontsize() >= 6, text.get_text()
        extent = text.get_window_extent()
        # Labels of ticks beyond an axis' limits exist and are not drawn.
        if text not in ticks and extent.width:
            assert box.x0 <= extent.x0, text.get_text()
            assert extent.x1 <= box.x1, text.get_text()
            assert box.y0 <= extent.y0, text.get_text()
            assert extent.y1 <= box.y1, text.get_text()


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in ("gradient-phasors", "differences")])
def test_axes_with_data_say_what_they_show(drawn, name):
    """Panels share labels, so that the figure as a whole has them along both directions.

    The complex plane has none, and differences have a row for each method.
    """
    figure = drawn[name]
    assert any(axes.get_xlabel() for axes in figure.axes) or figure.get_supxlabel()
    assert any(axes.get_ylabel() for axes in figure.axes) or figure.get_supylabel()


@pytest.mark.parametrize("name", BY_NAME)
def test_without_inputs_it_names_the_command(name):
    with pytest.raises(style.Missing) as found:
        BY_NAME[name].draw(Bundle([]))
    assert COMMANDS[name] in found.value.command
    assert found.value.command in words(style.said(found.value))


@pytest.mark.parametrize("name", BY_NAME)
def test_a_run_without_results_is_no_obstacle(bundle, name, tmp_path):
    """What training alone leaves, under a name that would be a formula."""
    source = run_of(bundle, "52M-lerope-42").run.path
    target = tmp_path / "$x^{ <b>&"
    target.mkdir()
    for file in ("run.json", "metrics.jsonl", "frequencies.jsonl"):
        (target / file).write_bytes((source / file).read_bytes())
    alone = Bundle([RunFiles(read_run(target), {})])
    if name in ("wavelengths", "training", "frequencies-through-training"):
        BY_NAME[name].draw(alone).draw_without_rendering()
    else:
        with pytest.raises(style.Missing):
            BY_NAME[name].draw(alone)


def test_arrays_that_are_gone_count_as_missing(bundle):
    files = run_of(bundle, "52M-lerope-42")
    bare = RunFiles(files.run, files.results)
    object.__setattr__(bare, "arrays", lambda kind, stem=None: {})
    for name in ("band-contributions", "phasor-scales", "gradient-phasors"):
        with pytest.raises(style.Missing):
            BY_NAME[name].draw(Bundle([bare]))
    assert lines(BY_NAME["extrapolation"].draw(Bundle([bare])).axes[0])["LeRoPE"].shape == (2, 64)


def test_differences_are_the_comparisons_with_the_interval_of_the_verdict(bundle, drawn):
    (axes,) = drawn["differences"].axes
    ours = [line for line in axes.get_lines() if line.get_color() != "0.55"]
    dots = {line.get_ydata()[0]: line for line in ours if len(line.get_xdata()) == 1}
    bars = {line.get_ydata()[0]: list(line.get_xdata()) for line in ours if len(set(line.get_xdata())) == 2}
    labels = [label.get_text() for label in axes.get_yticklabels()]
    methods = ["rope,base=500000", "prope", "lerope", "frozen"]
    rungs = ["19M", "52M", "217M"]
    listed = sorted(bundle.comparison.effects, key=lambda e: (rungs.index(e["rung"]), methods.index(e["method"])))
    for row, effect in enumerate(listed):
        assert dots[row].get_xdata()[0] == effect["difference"]
        several = effect["num_seeds"] > 1
        low, high = ("both_low", "both_high") if several else ("documents_low", "documents_high")
        assert bars[row] == [effect[low], effect[high]]
        assert (dots[row].get_markerfacecolor() == "white") is not several
        assert labels[row].startswith(effect["rung"])
    paper = {
        labels[round(line.get_ydata()[0] - 0.3)]: line.get_xdata()[0]
        for line in axes.get_lines()
        if line.get_color() == "0.55"
    }
    assert list(paper) == [
        "52M, p-RoPE (1 seed)",
        "52M, LeRoPE (3 seeds)",
        "217M, p-RoPE (1 seed)",
        "217M, LeRoPE (1 seed)",
    ]
    wanted = np.log(PERPLEXITY["lerope"][1] / PERPLEXITY["rope"][1])
    assert paper["217M, LeRoPE (1 seed)"] == pytest.approx(wanted)


def test_multipliers_stand_beside_the_papers(drawn):
    left, right = drawn["compute-multipliers"].axes
    found = lines(left)
    slope = (LOSSES["52M", "rope", 42] - LOSSES["19M", "rope", 42]) / np.log(32)
    expected = np.exp((LOSSES["19M", "lerope", 42] - LOSSES["19M", "rope", 42]) / slope)
    assert found["LeRoPE"][1][0] == pytest.approx(expected, rel=2e-3)
    assert found["LeRoPE, paper"][1] == pytest.approx([1.071, 1.048, 1.047, 1.032, 1.034], abs=6e-4)
    # The example's gap to RoPE grows with position, and its mean is the gap of the losses.
    gap = lines(right)["LeRoPE"][1]
    assert gap.shape == (LENGTH,)
    assert gap[-50:].mean() < gap[50:100].mean() < gap[:5].mean()


def test_needles_are_the_totals_of_the_result(bundle, drawn):
    result = run_of(bundle, "52M-lerope-42").result(Needle, "needle")
    (axes,) = drawn["needle-distractors"].axes
    containers = {container.get_label(): container for container in axes.containers}
    shown = containers["LeRoPE"].lines[0].get_ydata()
    assert list(shown) == [cell["rate"] for cell in sorted(result.totals, key=lambda cell: cell["num_distractors"])]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "3", "7", "15", "31"]


def test_needles_that_nobody_finds_are_shown_as_log_odds(bundle):
    files = run_of(bundle, "52M-lerope-42")
    result = files.result(Needle, "needle")
    lost = replace(result, totals=[{**cell, "rate": 0.0, "low": 0.0, "high": 0.01} for cell in result.totals])
    (axes,) = BY_NAME["needle-distractors"].draw(Bundle([RunFiles(files.run, {"needle": lost})])).axes
    assert "log-odds" in axes.get_ylabel()


def test_needle_maps_have_depth_up_and_length_right(bundle, drawn):
    result = run_of(bundle, "52M-lerope-42").result(Needle, "needle-long")
    (panel,) = [axes for axes in drawn["needle-lengths"].axes if axes.get_title() == "LeRoPE"]
    values = np.asarray(panel.collections[0].get_array()).reshape(11, 5)
    (cell,) = [cell for cell in result.cells if (cell["length"], cell["depth"]) == (16 * LENGTH, 1.0)]
    assert values[10, 4] == cell["rate"]
    assert values[0, 4] < values[10, 4] < values[10, 0]


def test_wavelengths_vary_in_one_thing_a_panel_and_the_dominant_band_is_circled(bundle, drawn):
    panels = drawn["wavelengths"].axes
    assert set(lines(panels[0])) == {"19M", "52M", "217M"}
    assert set(lines(panels[1])) == {"seed 42", "seed 43", "seed 44"}
    assert set(lines(panels[2])) == {"L = 512", "L = 1,024", "L = 2,048"}
    bands = run_of(bundle, "52M-lerope-42").result(Bands)
    circles = [line.get_ydata()[0] for line in panels[1].get_lines() if line.get_markersize() == 7]
    assert len(circles) == 3
    assert bands.dominant_wavelength in circles
    crosses = [line.get_ydata()[0] for line in panels[2].get_lines() if line.get_marker() == "x"]
    assert crosses == pytest.approx([2.205 * length for length in (512, 1024, 2048)])


def test_contributions_show_the_dominant_band_and_few_others(bundle, drawn):
    files = run_of(bundle, "52M-lerope-42")
    band = files.result(Bands).dominant_band
    shown = lines(drawn["band-contributions"].axes[0])
    (dominant,) = [values for label, values in shown.items() if label.startswith(f"{band}:")]
    # 511 distances of a row of 512, without the last sixteenth, which few pairs have.
    assert dominant[0].tolist() == list(range(1, 481))
    assert dominant[1] == pytest.approx(files.arrays(Bands)["mean"][band][1:481])
    assert len(shown) == 5
    (shade,) = drawn["band-contributions"].axes[0].collections
    mean, spread = (files.arrays(Bands)[name][band][1:481] for name in ("mean", "std"))
    assert shade.get_datalim(drawn["band-contributions"].axes[0].transData).y0 == pytest.approx((mean - spread).min())


def test_few_documents_are_smoothed_more_and_many_as_much_as_the_paper():
    from lerope.report.figures.extrapolation import _deviation

    assert _deviation(np.full(4096, 500.0), 2048) == 20
    assert _deviation(np.full(1024, 10.0), 256) == 1024 / 40
    assert _deviation(np.full(4096, 25.0), 2048) == 40
    assert _deviation(np.full(8, 100_000.0), 4) == 0.5


@pytest.mark.parametrize("name", ["gradient-phasors", "phasor-scales"])
def test_every_band_has_a_panel(drawn, name):
    titles = [axes.get_title().partition(":")[0] for axes in drawn[name].axes if axes.get_title()]
    assert titles == 2 * [str(band) for band in range(32)]


def test_phasors_point_where_the_result_says(bundle, drawn):
    result = run_of(bundle, "52M-lerope-42").result(Phasors)
    titled = [axes for axes in drawn["gradient-phasors"].axes if axes.get_title()]
    for axes, band in zip(titled[32:], result.bands, strict=True):
        (dot,) = [line for line in axes.get_lines() if line.get_marker() == "o"]
        x, y = dot.get_xdata()[0], dot.get_ydata()[0]
        assert np.hypot(x, y) == pytest.approx(band["coherence"])
        assert np.arctan2(y, x) == pytest.approx(band["direction"])
        assert len(axes.collections[0].get_offsets()) == LENGTH - 1


def test_leave_one_out_bars_are_the_increases_and_the_papers_are_marked(bundle, drawn):
    result = run_of(bundle, "52M-lerope-42").result(Ablation)
    axes = drawn["leave-one-out"].axes[0]
    bars = {
        container.get_label(): [bar.get_height() for bar in container]
        for container in axes.containers
        if hasattr(container, "patches")
    }
    assert bars["it does not turn"] == [row["increase"] for row in result.removals if row["meaning"] == "frequency"]
    assert [line.get_xydata()[0].tolist() for line in axes.get_lines() if line.get_marker() == "D"] == [
        [17, 0.762],
        [26, 0.069],
    ]


def test_a_printed_value_above_the_scale_is_said_and_not_in_the_legend(bundle):
    """Axes to 0.23: 0.069 is drawn where it belongs, 0.762 above all bars with its number."""
    files = run_of(bundle, "52M-lerope-42")
    result = files.result(Ablation)
    removals = [{**row, "increase": 0.14 if row["band"] == 11 else 0.01} for row in result.removals]
    less = RunFiles(files.run, {**files.results, "ablation": replace(result, removals=removals)})
    figure = BY_NAME["leave-one-out"].draw(Bundle([less]))
    (axes,) = figure.axes
    marks = {
        line.get_marker(): line.get_xydata()[0].tolist() for line in axes.get_lines() if line.get_color() == "0.55"
    }
    assert marks["D"] == [26, 0.069]
    highest = max(row["increase"] + row["standard_error"] for row in removals)
    assert marks["^"][0] == 17
    assert highest < marks["^"][1] < axes.get_ylim()[1] < 0.25
    figure.draw_without_rendering()
    note, title = (next(text for text in texts(figure) if word in text.get_text()) for word in ("0.762", "LeRoPE, 52M"))
    assert axes.transData.inverted().transform(note.get_window_extent())[0][1] > highest
    assert not note.get_window_extent().overlaps(title.get_window_extent())
    assert "paper, 2.52B: 0.762" in words(figure)
    assert figure.legends[0].get_texts()[-1].get_text() == "paper, 2.52B"


def crossing(path, encoding, band=20):
    """A run of another parametrization, one band of which turns the other way from the middle of training on."""
    run = _Run(path, "52M", encoding, 42)
    run.write(loss=3.4)
    steps = np.linspace(0, run.recipe.steps, 25)
    values = np.tile(run.rope, (25, 1))
    values[:, band] *= np.linspace(1, -0.9, 25)
    records = [{"step": int(step), "frequencies": row.tolist()} for step, row in zip(steps, values, strict=True)]
    (path / "frequencies.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return steps, values[:, band]


def test_a_frequency_that_crosses_zero_has_a_gap_and_a_cross_and_is_dotted_after_it(bundle, tmp_path):
    own = run_of(bundle, "52M-lerope-42").run.path
    steps, values = crossing(tmp_path / "linear", "lerope,parametrization=linear")
    crossing(tmp_path / "direct", "lerope,parametrization=direct")
    figure = BY_NAME["frequencies-through-training"].draw(collect([own, tmp_path]))
    log, linear, direct = (axes for axes in figure.axes if axes.get_xlabel())
    assert [axes.get_title() for axes in (log, linear, direct)] == ["LeRoPE", "LeRoPE, linear", "LeRoPE, direct"]
    last = int(np.flatnonzero(values > 0)[-1])
    for axes in (linear, direct):
        (cross,) = [line for line in axes.get_lines() if line.get_marker() == "x"]
        assert steps[last] < cross.get_xdata()[0] < steps[last + 1]
        (dotted,) = [line for line in axes.get_lines() if line.get_linestyle() == ":"]
        assert dotted.get_xdata().tolist() == steps[last + 1 :].astype(int).tolist()
        before = [line for line in axes.get_lines() if line.get_color() == dotted.get_color() and line != dotted]
        assert [line.get_xdata()[-1] for line in before] == [int(steps[last])]
    assert not [line for line in log.get_lines() if line.get_marker() == "x" or line.get_linestyle() == ":"]
    assert words(figure).count("crosses zero") == 1


def test_curves_without_the_slowest_bands_begin_at_nothing_and_the_suppressed_are_marked(bundle, drawn):
    files = run_of(bundle, "52M-lerope-42")
    result, (frequencies,) = files.result(SlowestRemovals), files.result(LearnedFrequencies).sets
    figure = drawn["slowest-bands"]
    for axes, meaning in zip(figure.axes, ("contribution", "frequency"), strict=True):
        counts, increases = lines(axes)["LeRoPE, 52M"]
        assert counts.tolist() == list(range(33))
        assert increases.tolist() == [0.0, *(row["increase"] for row in result.removals if row["meaning"] == meaning)]
        assert lines(axes)["RoPE, 52M"][1][0] == 0.0
    suppressed = 32 - frequencies["suppressed_from"]
    (mark,) = [line for line in figure.axes[0].get_lines() if line.get_linestyle() == ":"]
    assert mark.get_xdata() == [suppressed, suppressed]
    assert f"{suppressed} bands that LeRoPE suppressed" in words(figure)


def test_naive_losses_rise_beyond_the_train_length_and_yarns_do_not(drawn):
    left, right = drawn["extrapolation"].axes
    naive = lines(left)["LeRoPE"][1]
    assert naive[-1] > naive[LENGTH] + 1
    yarn = lines(right)["LeRoPE"]
    assert yarn[0].min() == LENGTH
    assert yarn[1][-1] < yarn[1][0]


def test_a_line_means_the_same_in_both_panels_of_extrapolation(drawn):
    """Dashes are YaRN's, whatever the method."""
    figure = drawn["extrapolation"]
    left, right = figure.axes
    handles = {handle.get_label(): handle for handle in figure.legends[0].legend_handles}
    dashed = handles["YaRN"]._dash_pattern[1]
    assert handles["naive"].get_linestyle() == "-"
    assert {tuple(line._unscaled_dash_pattern[1]) for line in right.get_lines()} == {(3, 1.5)}, dashed
    assert len([line for line in left.get_lines() if line.get_linestyle() == "--"]) == 4


def test_the_best_learning_rate_is_starred_on_the_papers_line(drawn):
    (axes,) = drawn["learning-rates"].axes
    stars = [line.get_xdata()[0] for line in axes.get_lines() if line.get_marker() == "*"]
    assert stars == [2**-6.5, 2**-6.5]


def test_gaps_by_position_are_the_comparisons(bundle, drawn):
    panel = drawn["loss-gap-by-position"].axes[1]
    rows = [row for row in bundle.comparison.by_position if (row["rung"], row["method"]) == ("52M", "lerope")]
    heights = [container.lines[0].get_ydata().tolist() for container in panel.containers]
    assert [row["difference"] for row in rows] in heights


def test_norm_maps_are_layers_by_bands(bundle, drawn):
    bands = run_of(bundle, "52M-lerope-42").result(Bands)
    (axes,) = [axes for axes in drawn["query-key-norms"].axes if axes.get_title() == "LeRoPE, 52M: keys"]
    values = axes.images[0].get_array()
    assert values.shape == (6, 32)
    (row,) = [row for row in bands.layers if (row["layer"], row["band"]) == (2, 5)]
    assert values[2, 5] == row["key_norm"]


def test_methods_differ_in_colour_marker_and_line():
    methods = ["rope", "prope", "lerope", "frozen", "nope"]
    looks = [style.look(method) for method in methods]
    for field in ("colour", "marker", "line", "label"):
        assert len({str(getattr(look, field)) for look in looks}) == len(methods)
    variants = ["rope,base=2048", "rope,base=500000", "lerope,sharing=layer"]
    looks = [style.look(method, variants) for method in variants]
    assert len({(look.marker, str(look.line)) for look in looks}) == 3
    assert looks[0].colour == looks[1].colour == style.look("rope").colour


def test_smoothing_counts_tokens_alike_and_keeps_a_constant():
    counts = np.array([1.0, 100.0, 0.0, 3.0])
    assert smooth(2.5 * counts, counts, 1.0) == pytest.approx(2.5)
    near = smooth(np.array([1.0, 0.0, 0.0]), np.array([1.0, 1.0, 1.0]), 0.3)
    assert near[0] > 0.9 > 0.1 > near[1] > near[2]


def test_files_are_of_print_quality_and_the_same_every_time(bundle, tmp_path):
    from PIL import Image

    seen = []
    names = ["needle-distractors", "query-key-norms"]
    for folder in ("one", "two"):
        files = write_figures(bundle, tmp_path / folder, names, lambda *step: seen.append(step)).files
    assert [file.name for file in files[:3]] == [f"needle-distractors.{ending}" for ending in ("pdf", "svg", "png")]
    assert seen == 2 * [("needle-distractors", 1, 2), ("query-key-norms", 2, 2)]
    for file in files:
        assert file.read_bytes() == (tmp_path / "one" / file.name).read_bytes()
    assert (tmp_path / "one" / "captions.md").read_text().count("##") == 2
    with Image.open(tmp_path / "one" / "query-key-norms.png") as image:
        assert image.width == round(300 * style.PAGE)


def test_an_unknown_figure_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"figures must be some of differences, .*; got 'nothing'"):
        write_figures(Bundle([]), tmp_path, ["nothing"])


def test_without_matplotlib_it_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'matplotlib"):
        BY_NAME["training"].draw(Bundle([]))


def test_runs_that_were_scored_on_other_tokens_are_not_drawn_beside_others(bundle):
    runs = [run_of(bundle, name) for name in ("52M-rope-42", "52M-prope-p0.75-42", "52M-lerope-42")]
    result = runs[2].results["extrapolation"]
    other = replace(result, ways=[{**way, "num_tokens": 7} for way in result.ways])
    runs[2] = RunFiles(runs[2].run, {**runs[2].results, "extrapolation": other})
    shown = lines(BY_NAME["extrapolation"].draw(Bundle(runs)).axes[0])
    assert set(shown) == {"RoPE", "p-RoPE"}
    assert "left out, measured differently: LeRoPE" in words(BY_NAME["extrapolation"].draw(Bundle(runs)))


def test_a_band_is_called_dominant_only_if_it_stands_out(bundle):
    files = run_of(bundle, "52M-lerope-42")
    even = replace(files.results["bands"], dominance=1.3)
    plain = Bundle([RunFiles(files.run, {**files.results, "bands": even})])
    assert "dominant" in words(BY_NAME["wavelengths"].draw(Bundle([files])))
    for name in ("wavelengths", "leave-one-out", "frequencies-through-training"):
        assert "dominant" not in words(BY_NAME[name].draw(plain))


def test_needle_maps_that_nobody_finds_are_shown_as_log_odds(bundle):
    files = run_of(bundle, "52M-lerope-42")
    result = files.result(Needle, "needle-long")
    lost = replace(result, cells=[{**cell, "rate": 0.0} for cell in result.cells])
    figure = BY_NAME["needle-lengths"].draw(Bundle([RunFiles(files.run, {"needle-long": lost})]))
    assert "log-odds" in words(figure)
    values = np.asarray(figure.axes[0].collections[0].get_array()).reshape(11, 5)
    assert values[0, 0] == lost.cells[0]["margin"]


TWELVE = (
    *("rope", "rope,base=2048", "rope,base=500000", "prope,p=0.25", "prope,p=0.5", "prope", "lerope"),
    *("lerope,parametrization=linear", "lerope,parametrization=direct", "lerope,sharing=layer_head"),
    *("runs/a/model/frequencies.json", "nope"),
)


def test_twelve_methods_stay_readable(tmp_path):
    """Few lines, plain methods first, and no legend on them; the rest is counted, and in the tables."""
    paths = []
    for rung, loss in (("19M", 3.9), ("52M", 3.4)):
        for number, encoding in enumerate(TWELVE):
            run = _Run(tmp_path / f"{rung}-{number}", rung, encoding, 42)
            run.write(loss - 0.001 * number)
            run.evaluation(loss - 0.001 * number)
            paths.append(run.path)
    study = collect(paths)
    for name in ("compute-multipliers", "loss-gap-by-position", "training"):
        figure = BY_NAME[name].draw(study)
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert all(not axes.get_legend() and not axes.bbox.overlaps(box) for axes in figure.axes)
    left, right = BY_NAME["compute-multipliers"].draw(study).axes
    assert list(lines(right)) == ["RoPE, base 2,048", "p-RoPE", "LeRoPE", "Frozen", "NoPE"]
    assert "and 6 more in the tables" in lines(left)
    rows = {table.name: table.rows for table in tables(study)}
    assert len({row[1] for row in rows["gap-by-position"]}) == len({row[0] for row in rows["perplexity"]}) - 1 == 11


def test_one_run_has_one_panel_of_wavelengths(bundle):
    figure = BY_NAME["wavelengths"].draw(Bundle([run_of(bundle, "52M-lerope-42")]))
    (axes,) = figure.axes
    assert list(lines(axes)) == ["52M-lerope-42"]
    assert figure.get_figwidth() == style.COLUMN
    seeds = [run_of(bundle, f"52M-lerope-{seed}") for seed in (42, 43)]
    (axes,) = BY_NAME["wavelengths"].draw(Bundle(seeds)).axes
    assert list(lines(axes)) == ["seed 42", "seed 43"]


def test_what_was_measured_of_other_methods_is_drawn_too(bundle):
    alone = RunFiles(run_of(bundle, "52M-prope-p0.75-42").run, run_of(bundle, "52M-lerope-42").results)
    for name in ("leave-one-out", "slowest-bands"):
        assert "p-RoPE, 52M" in words(BY_NAME[name].draw(Bundle([alone])))


def test_no_panel_is_there_for_a_sentence(bundle):
    """A half without data is not drawn, nor a figure that would show the paper alone or another figure again."""
    one_rung = [files for files in bundle.runs if files.run.recipe.rung == "52M"]
    with pytest.raises(style.Missing) as found:
        BY_NAME["compute-multipliers"].draw(collect([files.run.path for files in one_rung]))
    assert "two rungs" in found.value.text
    without_positions = replace(bundle, runs=[RunFiles(files.run, {}) for files in bundle.runs])
    assert len(BY_NAME["compute-multipliers"].draw(without_positions).axes) == 1
    alone = BY_NAME["band-contributions"].draw(Bundle([run_of(bundle, "52M-lerope-42")]))
    assert [axes.get_title() for axes in alone.axes] == ["LeRoPE, 52M"]


def test_code_without_bands_is_one_panel_beside_text_and_nothing_on_its_own(bundle):
    code = [files for files in bundle.runs if files.run.path.parent.name == "code"]
    bare = [RunFiles(files.run, {}) for files in code]
    with pytest.raises(style.Missing) as found:
        BY_NAME["code"].draw(Bundle(bare))
    assert found.value.command == "lerope analyze RUN --parts bands"
    assert len(BY_NAME["code"].draw(Bundle([*bare, run_of(bundle, "52M-rope-42")])).axes) == 1
    assert len(BY_NAME["code"].draw(Bundle(code)).axes) == 2


def test_a_figure_without_inputs_is_written_only_if_it_is_asked_for(bundle, tmp_path):
    alone = Bundle([RunFiles(run_of(bundle, "52M-lerope-43").run, {})])
    (tmp_path / "code.png").write_text("of an earlier report")
    (tmp_path / "mine.png").write_text("my own")
    written = write_figures(alone, tmp_path)
    names = {file.stem for file in written.files} - {"captions"}
    assert names | set(written.missing) == set(BY_NAME)
    assert not names & set(written.missing)
    assert {"code", "learning-rates", "needle-lengths"} <= set(written.missing)
    assert {file.stem for file in tmp_path.iterdir()} == names | {"captions", "mine"}
    assert written.missing["learning-rates"].command == "lerope sweep RUNG --data DATA"
    asked = write_figures(alone, tmp_path, ["code"])
    assert [file.name for file in asked.files] == ["code.pdf", "code.svg", "code.png"]


def test_needles_in_filler_that_repeats_say_so(bundle):
    files = run_of(bundle, "52M-lerope-42")
    short = {
        name: replace(files.results[name], settings={**files.results[name].settings, "num_filler_tokens": tokens})
        for name, tokens in (("needle", 300), ("needle-long", 3000))
    }
    runs = Bundle([RunFiles(files.run, {**files.results, **short})])
    assert "the filler has 300 tokens" in words(BY_NAME["needle-distractors"].draw(runs))
    figure = BY_NAME["needle-lengths"].draw(runs)
    assert "* the filler has 3,000 tokens" in words(figure)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["512", "1k", "2k", "4k*", "8k*"]
    assert "filler" not in words(BY_NAME["needle-lengths"].draw(bundle))
