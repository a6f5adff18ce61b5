// Curves of training, and the gap to the baseline by position.

function lossSpecification(title, field, runs) {
  const series = runs.map((run) => ({
    ...named(run),
    marks: field === "validation" && run[field].steps.length < 30 ? 2.6 : 0,
    points: run[field].steps.map((step, at) => ({ x: step, y: run[field].values[at] })),
  }));
  // The first steep fall is left out, so that the rest can be told apart.
  const late = series
    .flatMap((one) => one.points.filter((point) => point.x >= 0.04 * one.points.at(-1).x))
    .map((point) => point.y);
  const [bottom, top] = extent(late) ?? [0, 1];
  for (const one of series) for (const point of one.points) if (point.y > top) point.y = null;
  return {
    chart: lines,
    label: `${title}, by step.`,
    height: 280,
    across: true,
    series,
    direct: false,
    legend: false,
    x: {
      domain: [0, extent(series.flatMap((one) => one.points.map((point) => point.x)))[1]],
      title: "step",
      write: write.short,
    },
    y: { domain: padded([bottom, top]), title: `${title}, nats per token` },
    tell: (target, targets) => ({
      title: `step ${write.count(target.point.x)}`,
      lines: nearest(target, targets).map(({ series: one, point }) => ({
        look: one,
        name: one.name,
        value: write.loss(point.y),
      })),
    }),
    table: () => ({
      head: ["run", "step", "loss"],
      rows: series.flatMap((one) =>
        one.points
          .filter((point) => point.y !== null)
          .map((point) => [one.name, write.count(point.x), write.loss(point.y)]),
      ),
    }),
  };
}

// The loss of a run less that of the baseline on the same batches, smoothed.
function fillThrough(host, plot) {
  const runs = shown().filter((run) => run.gap);
  host.hidden = !runs.length;
  if (!runs.length) return;
  const series = runs.map((run) => ({
    ...named(run),
    points: run.gap.steps.map((step, at) => ({ x: step, y: run.gap.values[at] })),
  }));
  // The first steps, where losses fall by nats, would hide what comes after.
  const late = series.flatMap((one) => one.points.filter((point) => point.x >= 0.04 * one.points.at(-1).x));
  const baseline = methodLabel(runs[0].gap.baseline);
  plot.show({
    chart: lines,
    label: `Training loss less that of ${baseline}, by step.`,
    height: 260,
    across: true,
    series: series.map((one) => ({ ...one, points: one.points.filter((point) => late.includes(point)) })),
    direct: false,
    x: {
      domain: [0, extent(late.map((point) => point.x))[1]],
      title: "step",
      write: write.short,
    },
    y: {
      domain: padded(extent([0, ...late.map((point) => point.y)])),
      title: `training loss less that of ${baseline}, nats`,
    },
    rules: [{ y: 0, name: "" }],
    tell: (target, targets) => ({
      title: `step ${write.count(target.point.x)}`,
      lines: nearest(target, targets).map(({ series: one, point }) => ({
        look: one,
        name: one.name,
        value: write.signed(point.y),
      })),
    }),
    table: () => ({
      head: ["run", "step", "difference"],
      rows: series.flatMap((one) => one.points.map((point) => [one.name, write.count(point.x), write.signed(point.y)])),
    }),
  });
}

const baselineMethod = () => page.data.comparison?.baseline ?? "rope";

// A run's loss on some documents less that of the baseline of its size and seed, where that was scored on them too.
function againstBaseline(run, one) {
  const baseline = baselineMethod();
  const other = page.data.runs
    .filter((base) => base.method === baseline && base.rungs[1] === run.rungs[1] && base.seed === run.seed)
    .flatMap((base) => base.evaluations)
    .find((found) => found.on === one.on && found.fingerprint === one.fingerprint);
  return run.method === baseline || !other || one.loss === null || other.loss === null ? null : one.loss - other.loss;
}

// Evaluations besides the usual one: texts from outside, other windows.
function fillDocuments(host, table, fold) {
  const found = shown().flatMap((run) =>
    run.evaluations.filter((one) => !one.usual).map((one) => ({ run, one, key: `${one.on}\n${one.fingerprint}` })),
  );
  host.hidden = !found.length;
  found.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0));
  table.replaceChildren(
    tableOf({
      head: [
        "documents",
        "run",
        "loss",
        `less ${page.data.methods[baselineMethod()]?.label ?? "RoPE"}'s`,
        "perplexity",
        "bits/byte",
        "number",
        "tokens",
      ],
      numeric: 2,
      rows: found.map(({ run, one }) => [
        one.on,
        run.id,
        write.loss(one.loss),
        write.signed(againstBaseline(run, one)),
        write.fixed(one.perplexity, 3),
        write.loss(one.bits_per_byte),
        write.count(one.num_documents),
        write.count(one.num_tokens),
      ]),
    }),
  );
  fold.fill(table.querySelectorAll("tbody tr"));
}

function buildLosses(host) {
  const training = new Plot();
  const validation = new Plot();
  const through = new Plot();
  const gap = new Plot();
  const note = element("p", { className: "quiet" });
  const middle = element("div", {}, element("h3", { className: "group" }, "Gap through training"), through.whole);
  const below = element("div", {}, element("h3", { className: "group" }, "Gap by position"), gap.whole);
  const gapNote = element("p", { className: "quiet" });
  const documents = element("div", { className: "scroll" });
  const fold = folding();
  const others = element(
    "div",
    {},
    element("h3", { className: "group" }, "On other documents"),
    documents,
    fold.button,
  );
  const legend = element("ul", { className: "legend" });
  const grid = element("div", { className: "grid" }, training.whole, validation.whole);
  for (const part of [middle, below, others]) part.style.marginTop = "2.4rem";
  host.append(legend, grid, note, middle, below, gapNote, others);
  return () => {
    fillDocuments(others, documents, fold);
    fillThrough(middle, through);
    const fill = (plot, title, field) => {
      const runs = shown().filter((run) => run[field].steps.length);
      plot.whole.hidden = !runs.length;
      if (runs.length) plot.show(lossSpecification(title, field, runs));
    };
    legend.replaceChildren(...shown().map((run) => element("li", {}, swatch(look(run)), run.id)));
    fill(training, "Training loss", "training");
    const read = shown().map((run) => run.validationTokens);
    const tokens = unique(read.filter((count) => count !== null));
    const some = tokens.length === 1 ? `the first ${write.short(tokens[0])} tokens` : "the first tokens";
    fill(validation, `Validation in training, ${some}`, "validation");
    nothing(
      note,
      (run) => run.training.steps.length,
      (runs) => runs[0].provenance.command ?? "lerope train",
    );
    const { comparison } = page.data;
    const bins = (comparison?.byPosition ?? []).filter((bin) => isShown(bin.rung, bin.method));
    below.hidden = !bins.length;
    const finished = shown().filter((run) => run.finished);
    quiet(
      gapNote,
      bins.length || !finished.length
        ? null
        : "There is no gap by position; it comes with a comparison of scored runs:",
      `lerope eval ${paths(finished)}`,
    );
    if (!bins.length) return;
    const rungs = unique(bins.map((bin) => bin.rung));
    const methods = unique(bins.map((bin) => bin.method));
    const series = [];
    for (const rung of rungs)
      for (const method of methods) {
        const own = bins.filter((bin) => bin.rung === rung && bin.method === method);
        if (!own.length) continue;
        series.push({
          name: rungs.length > 1 ? `${rung} ${methodLabel(method)}` : methodLabel(method),
          color: methodColor(method),
          dash: dashes[
            (rungs.indexOf(rung) + methods.filter((other) => family(other) === family(method)).indexOf(method)) %
              dashes.length
          ],
          marks: 2.4,
          points: own.map((bin) => ({
            x: (bin.start + bin.stop) / 2,
            y: bin.difference,
            bin,
            low: bin.standard_error === null ? null : bin.difference - bin.standard_error,
            high: bin.standard_error === null ? null : bin.difference + bin.standard_error,
          })),
        });
      }
    const points = series.flatMap((one) => one.points);
    gap.show({
      chart: lines,
      label: `Loss less that of ${methodLabel(comparison.baseline)}, by position in the window.`,
      across: true,
      series,
      height: 290,
      x: {
        domain: [extent(points.map((point) => point.x))[0] * 0.9, Math.max(...bins.map((bin) => bin.stop))],
        log: true,
        title: "position in the window, tokens",
        write: write.short,
      },
      y: {
        domain: padded(extent(points.flatMap((point) => [point.low, point.high, point.y, 0]))),
        title: `nats per token against ${methodLabel(comparison.baseline)}, ± 1 standard error`,
      },
      rules: [{ y: 0, name: "" }],
      tell: (target, targets) => ({
        title: `positions ${write.count(target.point.bin.start)} to ${write.count(target.point.bin.stop - 1)}`,
        lines: nearest(target, targets).map(({ series: one, point }) => ({
          look: one,
          name: one.name,
          value: write.signed(point.y) + (point.low === null ? "" : ` ± ${write.loss(point.high - point.y)}`),
        })),
      }),
      table: () => ({
        head: ["method", "from", "to", "tokens", "difference", "standard error"],
        rows: series.flatMap((one) =>
          one.points.map(({ bin }) => [
            one.name,
            bin.start,
            bin.stop,
            write.count(bin.num_tokens),
            write.signed(bin.difference),
            bin.standard_error === null ? "–" : write.loss(bin.standard_error),
          ]),
        ),
      }),
    });
  };
}
