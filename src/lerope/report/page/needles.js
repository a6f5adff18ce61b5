// Needles: maps by depth and distractors or length.

function buildNeedles(host) {
  const measure = choice(
    "measure",
    "Showing",
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
      group.fill(items, notedPlot, ({ plot, title, text }, { run, needle }) => {
        const field = (cell, name) => cell[needle.fields.indexOf(name)];
        runTitle(title, run, needle.asked);
        text.hidden = !needle.repeated.length;
        text.textContent = needle.repeated.length
          ? `* The filler has ${write.count(needle.fillerTokens)} tokens: these prompts repeat sentences.`
          : "";
        const columns = needle.columns.map(
          ([length, distractors]) =>
            (needle.long ? write.length(length) : String(distractors)) + (needle.repeated.includes(length) ? "*" : ""),
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
