// Documents beyond the train length.

// One colour per way, and one per temperature.
const wayColors = {
  none: ["grey"],
  pi: ["sky"],
  ntk_by_parts: ["green"],
  yarn: ["blue", "vermillion", "black", "yellow"],
  slow_bands: ["black"],
  logits: ["yellow", "vermillion"],
  dominant_band: ["purple", "orange"],
};

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
  const cut = element("p", { className: "quiet" });
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
  host.append(controls, legend, grid, cut, heading, table, more, note);
  const fill = keyed(grid);
  return fillIn;

  function fillIn() {
    const runs = shown().filter((run) => run.extrapolation);
    nothing(
      note,
      (run) => run.extrapolation,
      (some) => `lerope extrapolate ${paths(some)} --to ${2 * (some[0].trainLength ?? 2048)}`,
    );
    controls.hidden = legend.hidden = cut.hidden = heading.hidden = table.hidden = more.hidden = !runs.length;
    if (!runs.length) return fill([], null, null);
    const there = unique(runs.flatMap((run) => run.extrapolation.ways.map((way) => way.selection)));
    const chosen = there.includes(page.state.selection) ? page.state.selection : there[0];
    selection.fill(chosen);
    const ways = (run) => run.extrapolation.ways.filter((way) => way.selection === chosen);
    // One look per way and temperature, the same for all runs, whatever band is the dominant one.
    const kinds = unique(runs.flatMap((run) => ways(run).map((way) => `${way.way} ${way.temperature}`)));
    const wayLook = (way) => {
      const alike = kinds.filter((kind) => kind.split(" ")[0] === way.way);
      const place = Math.max(0, alike.indexOf(`${way.way} ${way.temperature}`));
      const colors = wayColors[way.way] ?? ["black"];
      return { color: `var(--${colors[place % colors.length]})`, dash: dashes[place % dashes.length] };
    };
    const wayName = (way) =>
      way.way === "dominant_band" ? way.label.replace(/^band \d+/, "dominant band") : way.label;
    const legendItems = new Map(runs.flatMap((run) => ways(run).map((way) => [wayName(way), way])));
    legend.replaceChildren(...[...legendItems].map(([name, way]) => element("li", {}, swatch(wayLook(way)), name)));
    const losses = (way) => way.loss.filter((value, at) => value !== null && way.edges[at][0] > 0);
    // A way that is worse everywhere than the model as it is ever gets would press all others together.
    const plain = runs.flatMap((run) => ways(run).filter((way) => way.way === "none"));
    const highest = plain.length ? Math.max(...plain.flatMap(losses)) : Infinity;
    const above = (way) => way.loss.length > 0 && Math.min(...losses(way)) > highest;
    const values = runs
      .flatMap((run) => ways(run).flatMap((way) => (above(way) ? [] : losses(way))))
      .sort((a, b) => a - b);
    const top = values.length ? Math.min(values.at(-1), values[Math.floor(0.97 * (values.length - 1))] * 1.08) : 1;
    const domain = values.length ? padded([values[0], top]) : [0, 1];
    const gone = unique(runs.flatMap((run) => ways(run).filter(above).map(wayName)));
    const said = [
      ...(gone.length ? [`Above the charts: ${gone.join(", ")}.`] : []),
      ...(values.at(-1) > top ? ["Lines that leave a chart go on above it."] : []),
    ];
    quiet(cut, said.length ? `${said.join(" ")} The data has every value.` : null);
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
        head: ["run", "way", "within", "beyond", "full"],
        numeric: 2,
        rows: runs.flatMap((run) =>
          ways(run).map((way) => [run.id, way.label, ...way.perplexity.map((value) => write.fixed(value, 3))]),
        ),
      }),
    );
  }
}
