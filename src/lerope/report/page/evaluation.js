// Needles, documents beyond the train length, and compute.

function buildNeedles(host) {
  const measure = choice(
    "measure",
    "Shown is",
    [
      ["rate", "exact match"],
      ["margin", "margin over other values, log-odds"],
    ],
    fillIn,
  );
  const controls = element("div", { className: "controls" }, measure.node);
  const note = element("p", { className: "quiet" });
  const groups = [
    ["within", "Among distractors, within the train length", false],
    ["beyond", "One needle, beyond the train length", true],
  ].map(([key, title, long]) => {
    const grid = element("div", { className: "grid small" });
    const node = element("div", {}, element("h3", { className: "group" }, title), grid);
    node.style.marginBottom = "2rem";
    return { key, long, node, fill: keyed(grid) };
  });
  host.append(controls, ...groups.map((group) => group.node), note);
  return fillIn;

  function fillIn() {
    const runs = shown().filter((run) => run.needles.length);
    nothing(
      note,
      (run) => run.needles.length,
      (some) => `lerope needle ${paths(some)}`,
    );
    controls.hidden = !runs.length;
    const every = runs.flatMap((run) => run.needles);
    const kind = page.state.measure ?? (every.length && every.every((needle) => needle.floor) ? "margin" : "rate");
    measure.fill(kind);
    for (const group of groups) {
      const items = runs.flatMap((run) =>
        run.needles
          .filter((needle) => needle.long === group.long)
          .map((needle) => ({ key: `${run.id}\n${needle.stem}`, run, needle })),
      );
      group.node.hidden = !items.length;
      const most = Math.max(
        1e-9,
        ...items.flatMap(({ needle }) =>
          needle.cells.flat().map((cell) => cell?.[needle.fields.indexOf("margin")] ?? 0),
        ),
      );
      group.fill(items, titledPlot, ({ plot, title }, { run, needle }) => {
        const field = (cell, name) => cell[needle.fields.indexOf(name)];
        const stem = needle.stem.replace(/^needle(-long)?-?/, "");
        runTitle(
          title,
          run,
          [needle.long ? needle.way : null, stem && stem !== needle.way ? stem : null].filter(Boolean).join(", "),
        );
        const columns = needle.columns.map(([length, distractors]) =>
          needle.long ? write.length(length) : String(distractors),
        );
        const share = (cell) => (kind === "rate" ? field(cell, "rate") : Math.max(0, field(cell, "margin")) / most);
        const write_ = (cell) =>
          kind === "rate"
            ? String(Math.round(100 * field(cell, "rate")))
            : field(cell, "margin").toFixed(1).replace("-", "−");
        const unit = kind === "rate" ? "exact match, %" : "margin, log-odds";
        plot.show({
          chart: heat,
          label: `Needles found by ${run.id}: ${unit} by depth and ${needle.long ? "length" : "number of distractors"}.`,
          columns,
          rows: needle.depths.map((depth) => depth.toFixed(1)),
          x: { title: needle.long ? "length, tokens" : "distractors" },
          y: { title: `depth · ${unit}` },
          cells: needle.cells.map((row) => row.map((cell) => cell && { share: share(cell), text: write_(cell), cell })),
          tell: ({ row, column, cell: { cell } }) => ({
            title: [
              write.several(needle.columns[column][0], "token"),
              write.several(needle.columns[column][1], "distractor"),
              `depth ${needle.depths[row]}`,
            ].join(", "),
            lines: [
              { name: "exact match", value: write.percent(field(cell, "rate")) },
              {
                name: "95 %",
                value: `${Math.round(100 * field(cell, "low"))} to ${write.percent(field(cell, "high"))}`,
              },
              { name: "a distractor instead", value: write.percent(field(cell, "distractor_rate")) },
              { name: "margin", value: write.signed(field(cell, "margin"), 2) },
              { name: "prompts", value: String(field(cell, "num_samples")) },
            ],
          }),
          table: () => ({
            head: ["depth", ...columns.map((name) => (needle.long ? `${name} tokens` : `${name} distractors`))],
            rows: needle.cells.map((row, at) => [
              needle.depths[at].toFixed(1),
              ...row.map((cell) => cell && write_(cell)),
            ]),
          }),
        });
      });
    }
  }
}

const wayColors = { none: "grey", pi: "sky", ntk_by_parts: "green", yarn: "blue", dominant_band: "purple" };

function buildExtrapolation(host) {
  const selection = choice(
    "selection",
    "Documents",
    [
      ["all", "all, cut at the longest length"],
      ["long", "only longer ones"],
    ],
    fillIn,
  );
  const controls = element("div", { className: "controls" }, selection.node);
  const legend = element("ul", { className: "legend" });
  const grid = element("div", { className: "grid" });
  const table = element("div", { className: "scroll" });
  const note = element("p", { className: "quiet" });
  const heading = element("h3", { className: "group" });
  const whole = element("div", { className: "scroll" });
  const more = element(
    "details",
    { className: "origin" },
    element("summary", {}, "Perplexity within the train length, beyond it, and over all positions"),
    whole,
  );
  heading.style.marginTop = "2rem";
  host.append(controls, legend, grid, heading, table, more, note);
  const fill = keyed(grid);
  return fillIn;

  function fillIn() {
    const runs = shown().filter((run) => run.extrapolation);
    nothing(
      note,
      (run) => run.extrapolation,
      (some) => `lerope extrapolate ${paths(some)} --to ${2 * (some[0].trainLength ?? 2048)}`,
    );
    controls.hidden = legend.hidden = heading.hidden = table.hidden = more.hidden = !runs.length;
    if (!runs.length) return fill([], null, null);
    const there = unique(runs.flatMap((run) => run.extrapolation.ways.map((way) => way.selection)));
    const chosen = there.includes(page.state.selection) ? page.state.selection : there[0];
    selection.fill(chosen);
    const ways = (run) => run.extrapolation.ways.filter((way) => way.selection === chosen);
    // One look a way and temperature, the same for all runs, whatever band is the dominant one.
    const kinds = unique(runs.flatMap((run) => ways(run).map((way) => `${way.way} ${way.temperature}`)));
    const wayLook = (way) => {
      const alike = kinds.filter((kind) => kind.split(" ")[0] === way.way);
      return {
        color: `var(--${wayColors[way.way] ?? "black"})`,
        dash: dashes[alike.indexOf(`${way.way} ${way.temperature}`) % dashes.length],
      };
    };
    const wayName = (way) =>
      way.way === "dominant_band" ? way.label.replace(/^band \d+/, "dominant band") : way.label;
    const legendItems = new Map(runs.flatMap((run) => ways(run).map((way) => [wayName(way), way])));
    legend.replaceChildren(...[...legendItems].map(([name, way]) => element("li", {}, swatch(wayLook(way)), name)));
    const values = runs
      .flatMap((run) => ways(run).flatMap((way) => way.loss.filter((_, at) => way.edges[at][0] > 0)))
      .filter((value) => value !== null)
      .sort((a, b) => a - b);
    const top = values.length ? Math.min(values.at(-1), values[Math.floor(0.97 * (values.length - 1))] * 1.08) : 1;
    const domain = values.length ? padded([values[0], top]) : [0, 1];
    fill(
      runs.filter((run) => ways(run).some((way) => way.loss.length)).map((run) => ({ key: run.id, run })),
      titledPlot,
      ({ plot, title }, { run }) => {
        runTitle(title, run);
        const series = ways(run).map((way) => ({
          ...wayLook(way),
          label: way.label,
          points: way.edges.map(([start, stop], at) => ({
            x: (start + stop) / 2,
            y: way.loss[at] > top ? null : way.loss[at],
            start,
            stop,
          })),
        }));
        plot.show({
          chart: lines,
          label: `Loss of ${run.id} by position, for each way of going beyond the train length.`,
          height: 270,
          series,
          across: true,
          x: {
            domain: [
              0,
              run.extrapolation.to ?? Math.max(...series.flatMap((one) => one.points.map((point) => point.stop))),
            ],
            title: "position, tokens",
            write: write.count,
          },
          y: { domain, title: "loss, nats per token" },
          rules: run.extrapolation.trainLength ? [{ x: run.extrapolation.trainLength, name: "train length" }] : [],
          tell: (target, targets) => ({
            title: `positions ${write.count(target.point.start)} to ${write.count(target.point.stop - 1)}`,
            lines: nearest(target, targets).map(({ series: one, point }) => ({
              look: one,
              name: one.label,
              value: write.digits(point.y, 4),
            })),
          }),
          table: () => ({
            head: ["way", "from", "to", "loss"],
            rows: ways(run).flatMap((way) =>
              way.edges.map(([start, stop], at) => [way.label, start, stop, write.loss(way.loss[at])]),
            ),
          }),
        });
      },
    );
    const best = new Map(
      runs.map((run) => [run.id, Math.min(...ways(run).map((way) => way.perplexity[1] ?? Infinity))]),
    );
    const rows = [...legendItems.keys()].map((name) =>
      element(
        "tr",
        {},
        element("td", { className: "name" }, name),
        ...runs.map((run) => {
          const value = ways(run).find((way) => wayName(way) === name)?.perplexity[1] ?? null;
          return element(
            "td",
            { className: value !== null && value === best.get(run.id) ? "number best" : "number" },
            write.fixed(value, 3),
          );
        }),
      ),
    );
    const some = ways(runs[0])[0];
    heading.replaceChildren(
      "Perplexity beyond the train length ",
      element(
        "small",
        {},
        some
          ? `${write.count(some.numDocuments)} documents, ${write.short(some.numTokens)} tokens, ${write.percent(some.numExtrapolated / some.numTokens)} of them beyond; each run's best in bold`
          : "",
      ),
    );
    table.replaceChildren(
      element(
        "table",
        {},
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            element("th", { scope: "col" }, "way"),
            ...runs.map((run) => element("th", { scope: "col", className: "number long" }, run.id)),
          ),
        ),
        element("tbody", {}, ...rows),
      ),
    );
    whole.replaceChildren(
      tableOf({
        head: ["run", "way", "within", "beyond", "all"],
        numeric: 2,
        rows: runs.flatMap((run) =>
          ways(run).map((way) => [run.id, way.label, ...way.perplexity.map((value) => write.fixed(value, 3))]),
        ),
      }),
    );
  }
}

function buildMultipliers(host) {
  const plot = new Plot();
  const table = element("div", { className: "scroll" });
  const note = element("p", { className: "quiet" });
  table.style.marginTop = "1.4rem";
  host.append(plot.whole, table, note);
  return () => {
    const found = page.data.multipliers;
    const entries = (found?.multipliers ?? []).filter((entry) => isShown(null, entry.method));
    plot.whole.hidden = table.hidden = !entries.length;
    host.closest("section").classList.toggle("empty", !entries.length);
    quiet(
      note,
      !found
        ? "Nothing here yet; multipliers need scored runs of the same encodings at two rungs or more:"
        : entries.length
          ? null
          : "No ticked run has a multiplier.",
      found ? null : `lerope eval ${paths(shown())}`,
    );
    if (!entries.length) return;
    const methods = unique(entries.map((entry) => entry.method));
    const [estimator] = entries.map((entry) => entry.estimator);
    const series = methods.map((method) => ({
      name: method,
      ...methodLook(method, methods),
      marks: 3.4,
      points: entries
        .filter((entry) => entry.method === method && entry.estimator === estimator)
        .map((entry) => ({ x: entry.compute, y: entry.multiplier, rung: entry.rung }))
        .sort((a, b) => a.x - b.x),
    }));
    const points = series.flatMap((one) => one.points);
    const exponent = (value, digits) => value.toExponential(digits).replace("e+", "e");
    plot.show({
      chart: lines,
      label: `Compute multipliers against ${found.baseline}, ${estimator}.`,
      height: 300,
      across: true,
      series,
      x: {
        domain: padded(extent(points.map((point) => point.x)), true),
        log: true,
        title: "compute, FLOPs",
        write: (value) => exponent(value, 0),
      },
      y: {
        domain: padded(extent([1, ...points.map((point) => point.y)])),
        title: `compute of ${found.baseline} for the same loss, multiple, ${estimator}`,
      },
      rules: [{ y: 1, name: "" }],
      tell: (target, targets) => ({
        title: `${target.point.rung ?? ""} ${exponent(target.point.x, 2)} FLOPs`.trim(),
        lines: nearest(target, targets).map(({ series: one, point }) => ({
          look: one,
          name: one.name,
          value: `${point.y.toFixed(3)} ×`,
        })),
      }),
    });
    const computes = unique(entries.map((entry) => entry.compute)).sort((a, b) => a - b);
    const heading = (compute) => entries.find((entry) => entry.compute === compute).rung ?? compute.toExponential(2);
    const rows = unique(entries.map((entry) => `${entry.method}\n${entry.estimator}`)).map((key) => {
      const [method, estimator] = key.split("\n");
      return [
        method,
        estimator,
        ...computes.map((compute) => {
          const entry = entries.find(
            (other) => other.method === method && other.estimator === estimator && other.compute === compute,
          );
          return entry ? (entry.multiplier === null ? "never" : `${entry.multiplier.toFixed(3)} ×`) : "–";
        }),
      ];
    });
    table.replaceChildren(tableOf({ head: ["method", "estimator", ...computes.map(heading)], rows, numeric: 2 }));
  };
}
