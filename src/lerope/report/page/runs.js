// The verdict, the key of runs and their table.

function progressLine(run) {
  const { step, steps, loss, validationLoss, tokensPerSecond, secondsLeft } = run.progress;
  return [
    steps ? `step ${write.count(step)} of ${write.count(steps)}` : `step ${write.count(step)}`,
    loss === null ? null : `loss ${write.loss(loss)}`,
    validationLoss === null ? null : `validation ${write.loss(validationLoss)}`,
    run.stopped || tokensPerSecond === null ? null : `${write.short(tokensPerSecond)} tokens/s`,
    run.stopped ? "stopped" : secondsLeft === null ? null : `${write.duration(secondsLeft)} left`,
  ].filter(Boolean);
}

function bar(run) {
  const inner = element("i");
  const share = run.progress.steps ? Math.min(1, run.progress.step / run.progress.steps) : 0;
  inner.style.width = `${100 * share}%`;
  return element(
    "div",
    {
      className: "bar",
      role: "progressbar",
      "aria-label": `Progress of ${run.id}`,
      "aria-valuemin": "0",
      "aria-valuemax": "100",
      "aria-valuenow": String(Math.round(100 * share)),
    },
    inner,
  );
}

function buildVerdict(host) {
  const eyebrow = element("p", { className: "eyebrow" });
  const sentence = element("p", { className: "sentence" });
  const now = element("div", { className: "now" });
  const plot = new Plot();
  host.append(eyebrow, sentence, now, plot.whole);
  const fillNow = keyed(now);
  return () => {
    const { verdict, comparison, runs } = page.data;
    const training = runs.filter((run) => !run.finished);
    const main = comparison?.effects.find((effect) => effect.verdict === verdict.text && effect.rung === verdict.rung);
    eyebrow.textContent = main
      ? [
          main.rung,
          write.several(main.num_seeds, "seed"),
          write.several(main.num_documents, "document"),
          `${write.short(main.num_tokens)} tokens`,
        ].join(" · ")
      : write.several(runs.length, "run");
    sentence.replaceChildren(
      verdict.text ?? verdict.missing.text,
      ...(verdict.text === null && verdict.missing.command
        ? [element("small", {}, element("code", {}, verdict.missing.command))]
        : []),
    );
    fillNow(
      training.map((run) => ({ key: run.id, run })),
      () => ({ node: element("div") }),
      (made, { run }) =>
        made.node.replaceChildren(
          element("p", {}, element("b", {}, run.id), ...progressLine(run).map((text) => element("span", {}, text))),
          bar(run),
        ),
    );
    now.hidden = !training.length;
    // What the sentence rests on, whatever is ticked: its method at every rung, and every method at its rung.
    const all = comparison?.effects ?? [];
    const effects = all.filter((effect) => effect.method === verdict.method || effect.rung === verdict.rung);
    plot.whole.hidden = !effects.length;
    if (!effects.length) return;
    const [low, high] = extent(effects.flatMap((effect) => [effect.low, effect.high, effect.difference, 0]));
    plot.show({
      chart: forest,
      label: `Differences in loss from ${methodLabel(comparison.baseline)}, with 95 % intervals.`,
      x: {
        domain: padded([low, high]),
        title: `nats per token against ${methodLabel(comparison.baseline)}; below zero is better`,
        write: (value) => (value === 0 ? "0" : write.signed(value, Math.abs(high - low) < 0.004 ? 4 : 3)),
      },
      rows: effects.map((effect) => ({
        name: `${effect.rung}  ${methodLabel(effect.method)}`,
        x: effect.difference,
        low: effect.low,
        high: effect.high,
        color: methodColor(effect.method),
        effect,
      })),
      tell: ({ point: { effect } }) => ({
        title: `${effect.rung} ${methodLabel(effect.method)}, ${write.several(effect.num_seeds, "seed")}`,
        lines: [
          { name: "difference", value: write.signed(effect.difference) },
          { name: "95 %", value: `${write.signed(effect.low)} to ${write.signed(effect.high)}` },
          ...(effect.seed_deviation === null
            ? []
            : [{ name: "deviation between seeds", value: write.loss(effect.seed_deviation) }]),
        ],
      }),
      table: () => ({
        head: [
          "rung",
          "method",
          "seeds",
          "documents",
          "loss",
          methodLabel(comparison.baseline),
          "difference",
          "low",
          "high",
          "deviation between seeds",
        ],
        numeric: 2,
        rows: all.map((e) => [
          e.rung,
          methodLabel(e.method),
          e.num_seeds,
          write.count(e.num_documents),
          write.loss(e.loss),
          write.loss(e.baseline_loss),
          write.signed(e.difference),
          write.signed(e.low),
          write.signed(e.high),
          write.loss(e.seed_deviation),
        ]),
      }),
    });
  };
}

function toggleRun(id) {
  const ticked = new Set(page.state.ticked);
  if (!ticked.delete(id) && ticked.size < page.data.maxTicked) ticked.add(id);
  page.change({ ticked });
}

function buildKey(host) {
  const fill = keyed(host);
  return () => {
    const full = page.state.ticked.size >= page.data.maxTicked;
    fill(
      page.data.runs
        .filter((run) => page.data.runs.length <= page.data.maxTicked || page.state.ticked.has(run.id))
        .map((run) => ({ key: run.id, run })),
      ({ run }) => {
        const node = element("button", { type: "button" });
        node.addEventListener("click", () => toggleRun(run.id));
        return { node };
      },
      ({ node }, { run }) => {
        const ticked = page.state.ticked.has(run.id);
        node.setAttribute("aria-pressed", String(ticked));
        node.disabled = full && !ticked;
        node.title = run.id;
        node.replaceChildren(swatch(look(run)), element("span", {}, run.id));
      },
    );
  };
}

function buildRuns(host) {
  const body = element("tbody");
  const note = element("p", { className: "quiet" });
  const fold = folding();
  const column = (text, kind = "") => element("th", { scope: "col", className: kind }, text);
  host.append(
    element(
      "div",
      { className: "scroll" },
      element(
        "table",
        {},
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            column("run"),
            column("encoding", "minor"),
            column("rung", "minor"),
            column("seed", "number minor"),
            column("steps", "number minor"),
            column("epochs", "number minor"),
            column("loss", "number"),
            column("perplexity", "number minor"),
            column("bits/byte", "number minor"),
          ),
        ),
        body,
      ),
    ),
    fold.button,
    note,
  );
  const fill = keyed(body);
  return () => {
    const { runs, maxTicked } = page.data;
    const full = page.state.ticked.size >= maxTicked;
    fill(
      runs.map((run) => ({ key: run.id, run })),
      ({ run }) => {
        const input = element("input", { type: "checkbox" });
        input.addEventListener("change", () => toggleRun(run.id));
        const sign = element("span");
        const label = element("label", {}, input, sign, element("span", {}, run.id));
        const node = element("tr", {}, element("td", { className: "name" }, label));
        const cells = [
          "minor",
          "minor",
          "number minor",
          "number minor",
          "number minor",
          "number",
          "number minor",
          "number minor",
        ].map((kind) => element("td", { className: kind }));
        node.append(...cells);
        return { node, input, sign, cells };
      },
      ({ input, sign, cells }, { run }) => {
        input.checked = page.state.ticked.has(run.id);
        input.disabled = full && !input.checked;
        sign.replaceChildren(swatch(look(run)));
        const { progress } = run;
        const found = usual(run);
        const texts = [
          methodLabel(run.method),
          run.rung,
          String(run.seed),
          run.finished
            ? write.count(progress.steps ?? progress.step)
            : `${write.count(progress.step)} of ${write.count(progress.steps)}`,
          write.digits(progress.epochs, 2),
          run.loss.of === "validation" && run.loss.value !== null
            ? element("span", {}, element("small", {}, "in training "), write.loss(run.loss.value))
            : write.loss(run.loss.value),
          found ? write.fixed(found.perplexity, 3) : "–",
          write.loss(found?.bits_per_byte),
        ];
        cells.forEach((cell, at) => cell.replaceChildren(texts[at]));
      },
    );
    fold.fill(body.children, (row) => row.querySelector("input").checked);
    const unscored = runs.filter((run) => run.finished && !usual(run));
    if (full && runs.length > maxTicked)
      quiet(note, `${maxTicked} runs are ticked, which is as many as can be compared at once.`);
    else if (unscored.length)
      quiet(
        note,
        `${unscored.length} finished run${unscored.length === 1 ? " has" : "s have"} only the last validation loss of training, and none over whole documents:`,
        unscored.length <= 4 ? `lerope eval ${paths(unscored)}` : `lerope eval ${quoted(unscored[0].path)} ...`,
      );
    else quiet(note, null);
  };
}
