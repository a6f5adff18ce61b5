// What it costs to leave bands out: one at a time, and the slowest together.

// Increases below this are drawn at the bottom of a logarithmic scale.
const leastIncrease = 1e-4;

function fillSlowest(host, plot, note) {
  const runs = shown().filter((run) => run.slowest?.meanings[page.state.meaning]?.length);
  const without = shown().filter((run) => run.finished && run.ablation && !run.slowest);
  host.hidden = !runs.length;
  quiet(
    note,
    without.length ? "Not measured, without the slowest bands:" : null,
    `lerope analyze ${paths(without)} --parts slowest`,
  );
  if (!runs.length) return;
  const series = runs.map((run) => ({
    ...named(run),
    marks: 2.2,
    points: run.slowest.meanings[page.state.meaning].map(([count, increase, error]) => ({
      x: count,
      y: Math.max(increase, leastIncrease),
      increase,
      error,
    })),
  }));
  const points = series.flatMap((one) => one.points);
  const suppressed = runs.filter((run) => run.slowest.suppressed);
  plot.show({
    chart: lines,
    label: "Increase in loss without the slowest bands, by their number.",
    height: 280,
    across: true,
    series,
    x: {
      domain: [0, Math.max(...points.map((point) => point.x)) + 0.5],
      title: "slowest bands left out",
      write: (value) => String(value),
    },
    y: {
      domain: [leastIncrease, 1.5 * Math.max(10 * leastIncrease, ...points.map((point) => point.y))],
      log: true,
      title: "increase in loss, nats per token",
      write: (value) => String(value),
    },
    rules: unique(suppressed.map((run) => run.slowest.suppressed)).map((count) => ({
      x: count,
      name: `${count} suppressed`,
    })),
    tell: (target, targets) => ({
      title: `without the ${write.several(target.point.x, "slowest band")}`,
      lines: nearest(target, targets).map(({ series: one, point }) => ({
        look: one,
        name: one.name,
        value: write.signed(point.increase) + (point.error === null ? "" : ` ± ${write.loss(point.error)}`),
      })),
    }),
    table: () => ({
      head: ["run", "bands left out", "increase", "standard error"],
      rows: series.flatMap((one) =>
        one.points.map((point) => [
          one.name,
          point.x,
          write.signed(point.increase),
          point.error === null ? "–" : write.loss(point.error),
        ]),
      ),
    }),
  });
}

function buildAblation(host) {
  const meaning = choice(
    "meaning",
    "Left out",
    [
      ["contribution", "the term of the logits"],
      ["frequency", "the turning"],
    ],
    fillIn,
  );
  const controls = element("div", { className: "controls" }, meaning.node);
  const grid = element("div", { className: "grid" });
  const note = element("p", { className: "quiet" });
  const slowest = new Plot();
  const slowestNote = element("p", { className: "quiet" });
  const heading = element("h3", { className: "group" }, "Without the slowest bands ");
  heading.append(element("small", {}, "increases of 0.0001 and less lie at the bottom"));
  const below = element("div", {}, heading, slowest.whole);
  below.style.marginTop = "2.4rem";
  host.append(controls, grid, note, below, slowestNote);
  const fill = keyed(grid);
  return fillIn;

  function fillIn() {
    const runs = shown().filter((run) => run.ablation?.meanings[page.state.meaning]);
    nothing(
      note,
      (run) => run.ablation,
      (some) => `lerope analyze ${paths(some)} --parts ablation`,
    );
    controls.hidden = !shown().some((run) => run.ablation ?? run.slowest);
    meaning.fill(page.state.meaning);
    fillSlowest(below, slowest, slowestNote);
    if (!runs.length) return fill([], null, null);
    const bars_ = (run) => run.ablation.meanings[page.state.meaning];
    const domain = padded(
      extent(
        runs.flatMap((run) =>
          bars_(run).flatMap(([, increase, error]) => [increase + (error ?? 0), increase - (error ?? 0), 0]),
        ),
      ),
    );
    fill(
      runs.map((run) => ({ key: run.id, run })),
      titledPlot,
      ({ plot, title }, { run }) => {
        runTitle(
          title,
          run,
          `loss ${write.loss(run.ablation.loss)} over ${write.count(run.ablation.numDocuments)} documents`,
        );
        const found = bars_(run);
        plot.show({
          chart: bars,
          label: `Loss of ${run.id} without one band less the loss of the whole model.`,
          height: 240,
          across: true,
          x: {
            domain: [Math.min(...found.map(([band]) => band)) - 0.6, Math.max(...found.map(([band]) => band)) + 0.6],
            title: "band, fast to slow",
            write: (value) => String(value),
          },
          y: { domain, title: "increase in loss, nats per token" },
          series: [
            {
              color: look(run).color,
              points: found.map(([band, increase, error, wavelength]) => ({
                x: band,
                y: increase,
                low: error === null ? null : increase - error,
                high: error === null ? null : increase + error,
                error,
                wavelength,
                strong: run.bands?.standsOut && band === run.bands.dominantBand,
              })),
            },
          ],
          tell: ({ point }) => ({
            title: `without band ${point.x}`,
            lines: [
              {
                name: "loss",
                value: write.signed(point.y) + (point.error === null ? "" : ` ± ${write.loss(point.error)}`),
              },
              { name: "wavelength", value: write.tokens(point.wavelength) },
            ],
          }),
          table: () => ({
            head: ["band", "wavelength", "increase", "standard error"],
            rows: found.map(([band, increase, error, wavelength]) => [
              band,
              write.tokens(wavelength),
              write.signed(increase),
              error === null ? "–" : write.loss(error),
            ]),
          }),
        });
      },
    );
  }
}
