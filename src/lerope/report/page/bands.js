// What trained bands do: contributions by distance, and gradient phasors.

function dominantSentence(run) {
  const { dominantBand, dominantWavelength, dominance } = run.bands;
  if (dominantBand === null) return `${run.id} has no dominant band: none turns.`;
  const times =
    dominance === null
      ? ""
      : dominance < 1.05
        ? ", hardly more than the next"
        : `, ${dominance.toFixed(1)} times as much as the next`;
  const lengths =
    run.trainLength && dominantWavelength
      ? `, ${write.digits(dominantWavelength / run.trainLength, 3)} train lengths`
      : "";
  return `${run.id}: band ${dominantBand}, of ${write.tokens(dominantWavelength)} per turn${lengths}, varies most with distance${times}${run.bands.standsOut ? "" : "; none stands out"}.`;
}

function buildBands(host) {
  const says = element("div");
  const grid = element("div", { className: "grid" });
  const note = element("p", { className: "quiet" });
  host.append(says, grid, note);
  const fill = keyed(grid);
  return () => {
    const measured = shown().filter((run) => run.bands);
    const runs = measured.filter((run) => run.bands.curves);
    nothing(
      note,
      (run) => run.bands?.curves,
      (some) => `lerope analyze ${paths(some)}`,
    );
    says.replaceChildren(...measured.map((run) => element("p", { className: "say" }, dominantSentence(run))));
    grid.style.marginTop = measured.length ? "1.4rem" : "";
    if (!runs.length) return fill([], null, null);
    const domain = padded(extent(runs.flatMap((run) => run.bands.curves.mean.flat())));
    fill(
      runs.map((run) => ({ key: run.id, run })),
      titledPlot,
      ({ plot, title }, { run }) => {
        const { curves, dominantBand, wavelengths } = run.bands;
        runTitle(title, run);
        const series = curves.mean.map((values, band) => ({
          band,
          many: band !== dominantBand,
          strong: band === dominantBand,
          color: look(run).color,
          points: values.map((value, at) => ({
            x: Math.sqrt(curves.edges[at] * (curves.edges[at + 1] - 1)),
            y: value,
            at,
          })),
        }));
        if (dominantBand !== null) series.push(...series.splice(dominantBand, 1));
        plot.show({
          chart: lines,
          label: `What each band of ${run.id} adds to the logits, by distance.`,
          height: 280,
          series,
          x: { domain: [1, curves.edges.at(-1) - 1], log: true, title: "distance, tokens", write: write.short },
          y: { domain, title: "mean contribution to the logit" },
          rules: [{ y: 0, name: "" }],
          tell: ({ point, series: { band } }) => {
            const [from, to] = [curves.edges[point.at], curves.edges[point.at + 1] - 1];
            return {
              title: `band ${band}${band === dominantBand && run.bands.standsOut ? ", dominant" : ""}`,
              lines: [
                { name: "wavelength", value: write.tokens(wavelengths[band]) },
                {
                  name: from === to ? `distance ${from}` : `distances ${write.count(from)} to ${write.count(to)}`,
                  value: write.signed(point.y, 3),
                },
                { name: "between layers", value: `± ${write.digits(curves.spread[band][point.at], 2)}` },
              ],
            };
          },
          table: () => ({
            head: ["band", "wavelength", "variation with distance"],
            rows: run.bands.rms.map((value, band) => [band, write.tokens(wavelengths[band]), write.digits(value, 3)]),
          }),
        });
      },
    );
  };
}

function buildPhasors(host) {
  const slider = element("input", { type: "range", min: "0", step: "1", id: "band", "aria-label": "Band" });
  const output = element("output", { for: "band" });
  const note = element("p", { className: "quiet" });
  const controls = element(
    "div",
    { className: "controls" },
    element("label", { className: "slide" }, "Band", slider),
    output,
  );
  const grid = element("div", { className: "grid small" });
  host.append(controls, grid, note);
  slider.addEventListener("input", () => page.change({ band: Number(slider.value) }, fillIn));
  const fill = keyed(grid);
  return fillIn;

  function fillIn() {
    const runs = shown().filter((run) => run.phasors);
    nothing(
      note,
      (run) => run.phasors,
      (some) => `lerope analyze ${paths(some)}`,
    );
    controls.hidden = !runs.length;
    if (!runs.length) return fill([], null, null);
    const most = Math.max(...runs.map((run) => run.phasors.real.length)) - 1;
    const band = Math.min(
      most,
      page.state.band ??
        (runs.find((run) => run.bands?.standsOut) ?? runs.find((run) => run.bands))?.bands.dominantBand ??
        0,
    );
    slider.max = String(most);
    slider.value = String(band);
    output.textContent = `${band}; 0 is the fastest`;
    slider.setAttribute("aria-valuetext", output.textContent);
    fill(
      runs.filter((run) => band < run.phasors.real.length).map((run) => ({ key: run.id, run })),
      notedPlot,
      ({ plot, title, text }, { run }) => {
        const { distances, real, imaginary, gradient, direction, coherence, wavelengths, relativeError, numSets } =
          run.phasors;
        runTitle(title, run);
        const longest = Math.log(distances.at(-1)) || 1;
        text.textContent = [
          `Wavelength ${write.tokens(wavelengths[band])}.`,
          `Gradient of the frequency ${write.digits(gradient[band])}${numSets > 1 ? `, the sum over ${numSets} sets` : ""};`,
          `coherence ${write.digits(coherence[band], 2)}, towards ${write.angle(direction[band])}.`,
          `Error against autograd ${write.digits(relativeError, 2)}.`,
        ].join(" ");
        plot.show({
          chart: polar,
          label: `Gradient phasors of band ${band} of ${run.id}, and their resultant.`,
          color: look(run).color,
          points: distances.map((distance, at) => ({
            distance,
            real: real[band][at],
            imaginary: imaginary[band][at],
            far: Math.log(distance) / longest,
          })),
          resultant: { direction: direction[band], coherence: coherence[band] },
          tell: ({ point, resultant }) =>
            resultant
              ? {
                  title: "resultant of all distances",
                  lines: [
                    { name: "coherence", value: write.digits(resultant.coherence, 3) },
                    { name: "angle", value: write.angle(resultant.direction) },
                  ],
                }
              : {
                  title: `distance ${write.count(point.distance)}`,
                  lines: [
                    { name: "of the largest", value: write.percent(Math.hypot(point.real, point.imaginary)) },
                    { name: "angle", value: write.angle(Math.atan2(point.imaginary, point.real)) },
                  ],
                },
          table: () => ({
            head: ["band", "wavelength", "gradient", "coherence", "angle"],
            rows: gradient.map((value, at) => [
              at,
              write.tokens(wavelengths[at]),
              write.digits(value),
              write.digits(coherence[at]),
              write.angle(direction[at]),
            ]),
          }),
        });
      },
    );
  }
}
