// What methods save in compute.

function buildMultipliers(host) {
  const plot = new Plot();
  const table = element("div", { className: "scroll" });
  const note = element("p", { className: "quiet" });
  table.style.marginTop = "1.4rem";
  const fold = folding(0);
  host.append(plot.whole, table, fold.button, note);
  return () => {
    const found = page.data.multipliers;
    const entries = (found?.multipliers ?? []).filter((entry) => isShown(null, entry.method));
    plot.whole.hidden = table.hidden = fold.button.hidden = !entries.length;
    host.closest("section").classList.toggle("empty", !entries.length);
    const unscored = shown().filter((run) => run.finished && !usual(run));
    quiet(
      note,
      !found
        ? "Nothing here yet; multipliers need scored runs of the same encodings at two rungs or more:"
        : entries.length
          ? null
          : "No ticked run has a multiplier.",
      found
        ? null
        : unscored.length
          ? `lerope eval ${paths(unscored)}`
          : "lerope train RUNG --encoding METHOD --data DATA",
    );
    if (!entries.length) return;
    const methods = unique(entries.map((entry) => entry.method));
    const [estimator] = entries.map((entry) => entry.estimator);
    const series = methods.map((method) => ({
      name: methodLabel(method),
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
      label: `Compute multipliers against ${methodLabel(found.baseline)}, ${estimator}.`,
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
        title: `times the compute, ${estimator}`,
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
    const estimators = unique(entries.map((entry) => entry.estimator));
    const pairs = estimators.flatMap((by) => methods.map((method) => [method, by]));
    const some = pairs.filter(([method, by]) => entries.some((one) => one.method === method && one.estimator === by));
    const rows = some.map(([method, by]) => {
      return [
        methodLabel(method),
        by,
        ...computes.map((compute) => {
          const entry = entries.find(
            (other) => other.method === method && other.estimator === by && other.compute === compute,
          );
          return entry ? (entry.multiplier === null ? "never" : `${entry.multiplier.toFixed(3)} ×`) : "–";
        }),
      ];
    });
    table.replaceChildren(tableOf({ head: ["method", "estimator", ...computes.map(heading)], rows, numeric: 2 }));
    // What the chart shows stays, other estimators fold.
    fold.fill(table.querySelectorAll("tbody tr"), (_, at) => some[at][1] === estimator);
  };
}
