// The parts in order, the state and its place in the address, the theme, and new data from `lerope watch`.

const parts = [
  [
    "runs",
    "Runs",
    "Runs",
    "Tick up to a dozen; every chart follows. A run has the colour of its encoding. The loss is in nats per token over whole validation documents.",
    buildRuns,
  ],
  [
    "losses",
    "Losses",
    "Losses",
    "Training loss is the mean over neighbouring steps. Validation in training reads the first validation documents alone, so it differs from the loss of a run above, which is over all that were scored. The gap through training is on the same batches, averaged over the eighth of steps before each; the gap by position is paired by seed and document, and the band around it is one standard error over documents.",
    buildLosses,
  ],
  [
    "frequencies",
    "Frequencies",
    "Frequencies",
    "One dot per band: how many tokens it takes to turn once, against what RoPE takes. On the diagonal it turns as RoPE does; above, it is slower.",
    buildFrequencies,
  ],
  [
    "bands",
    "Bands",
    "Bands by distance",
    "What each band adds to the attention logit of two tokens, by how far apart they are: the mean over documents, heads and layers.",
    buildBands,
  ],
  [
    "phasors",
    "Phasors",
    "Phasors",
    "Where the gradient of a frequency comes from. A dot is one distance, from blue (near) to orange (far), and the arrow is their resultant, as long as the disc's radius if all pull the same way.",
    buildPhasors,
  ],
  [
    "ablation",
    "Ablation",
    "Without some bands",
    "How much the loss grows when a band is left out of a trained model: each alone, and the slowest together.",
    buildAblation,
  ],
  ["needles", "Needles", "Needles", "A value hidden in long text, asked for at its end.", buildNeedles],
  [
    "extrapolation",
    "Length",
    "Beyond the train length",
    "Loss by position when documents are longer than those of training, for each way of stretching frequencies.",
    buildExtrapolation,
  ],
  [
    "multipliers",
    "Compute",
    "Compute",
    "How much more compute the baseline needs for the same loss.",
    buildMultipliers,
  ],
  [
    "provenance",
    "Provenance",
    "Provenance",
    "Where every number comes from, and how to make it again.",
    buildProvenance,
  ],
  ["files", "Files", "Files", "Every figure and table, beside this page.", buildFiles],
  ["notes", "Notes", "Notes", "What could not be read or compared.", buildNotes],
];

const defaults = () => ({
  ticked: new Set(page.data.ticked),
  at: 1,
  band: null,
  meaning: "contribution",
  measure: null,
  selection: "long",
  theme: null,
});
const updates = [];

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const state = defaults();
  if (given.has("runs")) {
    const known = new Set(page.data.runs.map((run) => run.id));
    state.ticked = new Set(
      given
        .getAll("runs")
        .filter((id) => known.has(id))
        .slice(0, page.data.maxTicked),
    );
  }
  const within = (name, low, high) => {
    const value = Number(given.get(name) ?? NaN);
    if (given.has(name) && value >= low && value <= high) state[name] = value;
  };
  within("at", 0, 1);
  within("band", 0, 10000);
  for (const [name, values] of Object.entries({
    meaning: ["contribution", "frequency"],
    measure: ["rate", "margin"],
    selection: ["all", "long"],
    theme: ["light", "dark"],
  }))
    if (values.includes(given.get(name))) state[name] = given.get(name);
  return { state, section: given.get("section") };
}

function writeAddress(section = null) {
  const { state } = page;
  const usual = defaults();
  const given = new URLSearchParams();
  if (state.ticked.size !== usual.ticked.size || [...state.ticked].some((id) => !usual.ticked.has(id)))
    for (const id of state.ticked.size ? state.ticked : [""]) given.append("runs", id);
  for (const name of ["at", "band", "meaning", "measure", "selection", "theme"])
    if (state[name] !== usual[name]) given.set(name, String(state[name]));
  if (section) given.set("section", section);
  history.replaceState(null, "", given.size ? `#${given}` : location.pathname + location.search);
}

function setTheme() {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  if (page.state.theme) root.dataset.theme = page.state.theme;
  else delete root.dataset.theme;
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
}

const isDark = () =>
  (page.state.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function fillAll() {
  for (const update of updates) update();
}

function go(id) {
  const heading = document.querySelector(`#${id} h2`);
  if (!heading) return;
  heading.scrollIntoView();
  heading.focus({ preventScroll: true });
}

function build() {
  updates.push(buildVerdict(document.getElementById("verdict")), buildKey(document.getElementById("key")));
  const contents = document.getElementById("contents");
  const sections = document.getElementById("sections");
  for (const [id, name, title, lead, make] of parts) {
    const inside = element("div");
    const heading = element("h2", { tabIndex: -1, id: `${id}-title` }, title);
    sections.append(
      element(
        "section",
        { id, className: "part", "aria-labelledby": `${id}-title` },
        heading,
        element("p", { className: "lead" }, lead),
        inside,
      ),
    );
    updates.push(make(inside));
    const link = element("a", { href: `#section=${id}` }, name);
    link.addEventListener("click", (event) => {
      event.preventDefault();
      writeAddress(id);
      go(id);
    });
    contents.append(link);
    updates.push(() => {
      link.hidden = document.getElementById(id).hidden;
    });
  }
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.querySelector("main h2").focus();
  });
  document.getElementById("theme").addEventListener("click", () => page.change({ theme: isDark() ? "light" : "dark" }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", setTheme);
  const made = page.data.made;
  document.getElementById("made").textContent = [
    `Made ${write.date(made.date)} UTC`,
    `lerope ${made.lerope}`,
    made.commit && `commit ${made.commit.slice(0, 12)}`,
    `Python ${made.python}`,
  ]
    .filter(Boolean)
    .join(" · ");
}

// On paper everything is open, and charts are as wide as the page.
function print(printing) {
  document.documentElement.classList.toggle("printing", printing);
  for (const details of document.querySelectorAll("details.origin")) {
    if (printing) {
      details.dataset.was = details.open ? "open" : "";
      details.open = true;
    } else details.open = details.dataset.was === "open";
  }
  for (const node of document.querySelectorAll(".plot")) node.plot.draw();
}

// Newer data, with new runs ticked as they would be at the start and everything else left as it is.
function take(data) {
  const before = new Set(page.data.runs.map((run) => run.id));
  const known = new Set(data.runs.map((run) => run.id));
  const fresh = data.ticked.filter((id) => !before.has(id));
  page.data = data;
  page.state.ticked = new Set([...page.state.ticked, ...fresh].filter((id) => known.has(id)).slice(0, data.maxTicked));
  fillAll();
}

async function follow(seconds) {
  const state = document.getElementById("state");
  const say = (text, kind) => {
    state.className = kind;
    state.textContent = text;
  };
  say("live", "live");
  let last = null;
  for (;;) {
    await new Promise((done) => setTimeout(done, 1000 * seconds));
    let answer, text;
    try {
      answer = await fetch("data.json", { cache: "no-store" });
      text = await answer.text();
    } catch {
      say("lerope watch has ended; this is what it showed last", "lost");
      continue;
    }
    say(answer.ok ? "live" : text, answer.ok ? "live" : "lost");
    if (!answer.ok || text === last) continue;
    last = text;
    take(JSON.parse(text));
  }
}

page.data = JSON.parse(document.getElementById("data").textContent);
page.change = (changes, fill = fillAll) => {
  Object.assign(page.state, changes);
  setTheme();
  fill();
  // A slider that is dragged changes faster than browsers let an address change.
  clearTimeout(page.writing);
  page.writing = setTimeout(writeAddress, 120);
};
const start = readAddress();
page.state = start.state;
build();
setTheme();
fillAll();
if (start.section && parts.some(([id]) => id === start.section)) go(start.section);
addEventListener("hashchange", () => {
  const { state, section } = readAddress();
  page.state = state;
  setTheme();
  fillAll();
  if (section && parts.some(([id]) => id === section)) go(section);
});
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
if (page.data.live) follow(page.data.live.seconds);
