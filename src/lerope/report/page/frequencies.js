// Wavelengths against RoPE's, through training.

// The record of a run's frequencies at a share of its training.
function recordAt(run, share) {
  const { steps } = run.frequencies;
  const total = run.finished ? steps.at(-1) : run.progress.steps || steps.at(-1);
  const last = run.finished ? total : steps.at(-1);
  const wanted = share * (share === 1 ? last : total);
  let best = 0;
  steps.forEach((step, at) => {
    if (Math.abs(step - wanted) < Math.abs(steps[best] - wanted)) best = at;
  });
  return best;
}

function buildFrequencies(host) {
  const slider = element("input", {
    type: "range",
    min: "0",
    max: "1",
    step: "0.005",
    "aria-label": "Share of training",
    id: "slider",
  });
  const play = element("button", { type: "button", id: "play" }, "Play");
  const output = element("output", { for: "slider" });
  const plot = new Plot();
  const note = element("p", { className: "quiet" });
  const says = element("div");
  const controls = element(
    "div",
    { className: "controls" },
    play,
    element("label", { className: "slide" }, "Training", slider),
    output,
  );
  host.append(controls, plot.whole, says, note);
  let timer = null;
  const stop = () => {
    clearTimeout(timer);
    timer = null;
    play.textContent = "Play";
  };
  slider.addEventListener("input", () => {
    stop();
    page.change({ at: Number(slider.value) }, fillIn);
  });
  play.addEventListener("click", () => {
    if (timer !== null) return stop();
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const [part, pause] = calm ? [0.25, 1200] : [0.01, 45];
    let at = page.state.at >= 1 ? 0 : page.state.at;
    const advance = () => {
      page.change({ at: Number(at.toFixed(3)) }, fillIn);
      if (at >= 1) return stop();
      at = Math.min(1, at + part);
      timer = setTimeout(advance, pause);
    };
    play.textContent = "Pause";
    advance();
  });
  return fillIn;

  function fillIn() {
    const runs = shown().filter((run) => run.frequencies);
    nothing(
      note,
      (run) => run.frequencies,
      (some) => some[0].provenance.command ?? "lerope train",
    );
    plot.whole.hidden = controls.hidden = says.hidden = !runs.length;
    if (!runs.length) return;
    const learns = runs.filter((run) => run.frequencies.steps.length > 1);
    slider.disabled = play.disabled = !learns.length;
    slider.value = String(page.state.at);
    const now = new Map(runs.map((run) => [run.id, recordAt(run, page.state.at)]));
    const steps = unique(learns.map((run) => run.frequencies.steps[now.get(run.id)]));
    const totals = unique(learns.map((run) => run.progress.steps));
    output.textContent = !learns.length
      ? "nothing here learns"
      : steps.length === 1 && totals.length === 1
        ? `step ${write.count(steps[0])} of ${write.count(totals[0] ?? steps[0])}`
        : `${write.percent(page.state.at)} of training`;
    slider.setAttribute("aria-valuetext", output.textContent);
    const series = runs.map((run) => {
      const { frequencies: found } = run;
      const at = now.get(run.id);
      return {
        ...named(run),
        marks: 2.6,
        run,
        points: found.rope.map((rope, band) => ({
          x: rope,
          y: found.wavelengths[at][band],
          band,
          low: found.low?.[at][band],
          high: found.high?.[at][band],
          ring: band === found.dominantBand,
        })),
      };
    });
    const all = runs.flatMap((run) =>
      [run.frequencies.wavelengths, run.frequencies.low ?? [], run.frequencies.high ?? []].flat(2),
    );
    const across = extent(runs.flatMap((run) => run.frequencies.rope));
    const lengths = unique(runs.map((run) => run.trainLength).filter(Boolean));
    plot.show({
      chart: lines,
      label: `Wavelength of each band against RoPE's, ${output.textContent}.`,
      height: 440,
      series,
      direct: false,
      bold: true,
      x: {
        domain: padded(across, true, 0.02),
        log: true,
        title: "RoPE's wavelength at the same base, tokens",
        write: write.short,
      },
      y: {
        domain: padded(extent([...all, ...across]), true, 0.03),
        log: true,
        title: "wavelength, tokens",
        write: write.short,
      },
      diagonal: "as RoPE",
      rules: lengths.map((length) => ({ y: length, name: `train length ${write.count(length)}` })),
      tell: ({ point, series: one }) => ({
        title: `${one.name}, band ${point.band}${point.ring ? ", dominant" : ""}`,
        lines: [
          { name: "wavelength", value: write.tokens(point.y) },
          { name: "RoPE's", value: write.tokens(point.x) },
          { name: "log-scale", value: write.signed(Math.log(point.x / point.y), 2) },
        ],
      }),
      table: () => ({
        head: ["run", "band", "RoPE's wavelength", "wavelength"],
        rows: series.flatMap((one) =>
          one.points.map((point) => [
            one.name,
            point.band,
            write.digits(point.x, 4),
            point.y === null ? "does not turn" : write.digits(point.y, 4),
          ]),
        ),
      }),
    });
    const sentences = [];
    for (const run of runs) {
      const still = run.frequencies.wavelengths[now.get(run.id)].filter((value) => value === null).length;
      // Bands that were never to turn are said to be still, not suppressed.
      const last = run.frequencies.wavelengths.at(-1);
      if (run.frequencies.suppressedFrom !== null && last[run.frequencies.suppressedFrom] !== null)
        sentences.push(
          `${run.id}: bands from ${run.frequencies.suppressedFrom} on are suppressed, slowed until they hardly turn within a row.`,
        );
      if (still)
        sentences.push(
          `${run.id}: ${still} band${still === 1 ? " does" : "s do"} not turn and ${still === 1 ? "is" : "are"} not drawn.`,
        );
    }
    if (runs.some((run) => run.frequencies.dominantBand !== null)) sentences.unshift("A ring marks the dominant band.");
    says.replaceChildren(...sentences.map((text) => element("p", { className: "quiet" }, text)));
  }
}
