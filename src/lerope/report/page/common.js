// What the parts of the page share. A part builds its elements once and returns a function that fills them from
// `page`, the data and the state: after a tick, a slide, or new data from a run in training.

const page = { data: null, state: null, change: null };

const families = { rope: "blue", prope: "orange", lerope: "vermillion", frozen: "green", nope: "purple" };
const dashes = ["", "7 4", "2 3", "9 3 2 3", "1 4", "12 4", "5 2 1 2 1 2", "3 6"];
const family = (method) => page.data.methods[method].family;
const methodLabel = (method) => page.data.methods[method].label;
const methodColor = (method) => `var(--${families[family(method)] ?? "black"})`;

// A run has its method's colour, and a dash of its own among runs of that colour.
function look(run) {
  const alike = page.data.runs.filter(
    (other) => methodColor(other.method) === methodColor(run.method) && page.state.ticked.has(other.id),
  );
  const place = Math.max(0, alike.indexOf(run));
  return { color: methodColor(run.method), dash: dashes[place % dashes.length] };
}

function methodLook(method, all) {
  const alike = all.filter((other) => family(other) === family(method));
  return { color: methodColor(method), dash: dashes[alike.indexOf(method) % dashes.length] };
}

const shown = () => page.data.runs.filter((run) => page.state.ticked.has(run.id));
const unique = (values) => [...new Set(values)];
const isShown = (rung, method) =>
  shown().some((run) => run.method === method && (rung === null || run.rungs.includes(rung)));
const named = (run) => ({ name: run.id, ...look(run) });
// A run's loss over its own validation documents, where it was scored.
const usual = (run) => run.evaluations.find((one) => one.usual) ?? null;

// A list of things that come and go: what stays keeps its elements, and with them focus and open tables.
function keyed(host) {
  const held = new Map();
  return (items, make, fill) => {
    for (const [key, made] of held)
      if (!items.some((item) => item.key === key)) {
        made.node.remove();
        held.delete(key);
      }
    items.forEach((item, at) => {
      if (!held.has(item.key)) held.set(item.key, make(item));
      const made = held.get(item.key);
      if (host.children[at] !== made.node) host.insertBefore(made.node, host.children[at] ?? null);
      fill(made, item);
    });
  };
}

// A long list or table: its first rows and those that are kept, and a button for the rest. What is there stays there.
function folding(most = 10) {
  const button = element("button", { type: "button", className: "control more" });
  let open = false;
  let rows = [];
  let kept = () => false;
  let seen = new WeakSet();
  const show = () => {
    const long = rows.length > most + 2;
    const stays = (row, at) => open || seen.has(row) || kept(row, at);
    let room = most - rows.filter(stays).length;
    for (const row of rows.filter((one, at) => !long || stays(one, at) || room-- > 0)) seen.add(row);
    for (const row of rows) row.classList.toggle("folded", !seen.has(row));
    button.hidden = !long;
    button.textContent = open ? "Show fewer" : `Show all ${write.count(rows.length)}`;
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", () => {
    open = !open;
    seen = new WeakSet();
    show();
  });
  return {
    button,
    fill(nodes, keep = () => false) {
      rows = [...nodes];
      kept = keep;
      show();
    },
  };
}

function titledPlot() {
  const plot = new Plot();
  const title = element("h3");
  return { node: element("div", {}, title, plot.whole), plot, title };
}

function notedPlot() {
  const made = titledPlot();
  made.text = element("p", { className: "quiet" });
  made.plot.node.after(made.text);
  return made;
}

function runTitle(node, run, more = "") {
  const sign = swatch({ ...look(run), dash: "" });
  node.replaceChildren(sign, ` ${run.id} `, element("small", {}, more));
}

// One quiet line for what is not there, with the command that makes it.
function quiet(node, text, command) {
  node.hidden = !text;
  node.replaceChildren(text ?? "", ...(command ? [" ", element("code", {}, command)] : []));
}

const paths = (runs) => runs.map((run) => quoted(run.path)).join(" ");

// What a section says where some ticked runs, or all, have nothing for it.
function nothing(node, has, command) {
  const runs = shown();
  const without = runs.filter((run) => !has(run));
  const finished = without.filter((run) => run.finished);
  node.closest("section").classList.toggle("empty", without.length === runs.length);
  if (!runs.length) quiet(node, "No run is ticked.");
  else if (!without.length) quiet(node, null);
  else if (without.length === runs.length)
    quiet(node, "Nothing here yet; this makes it:", command(finished.length ? finished : without));
  else if (finished.length)
    quiet(node, `Not measured: ${finished.map((run) => run.id).join(", ")}. This does it:`, command(finished));
  else quiet(node, `Not finished: ${without.map((run) => run.id).join(", ")}.`);
}

function choice(key, label, options, fill) {
  const inputs = options.map(([value, text]) => {
    const input = element("input", { type: "radio", name: key, value });
    input.addEventListener("change", () => page.change({ [key]: value }, fill));
    return { value, input, node: element("label", { className: "choice" }, input, text) };
  });
  const node = element("fieldset", {}, element("legend", {}, label), ...inputs.map((one) => one.node));
  return {
    node,
    fill(value) {
      for (const one of inputs) {
        one.input.checked = one.value === value;
        one.node.classList.toggle("chosen", one.value === value);
      }
    },
  };
}

// Of every series the target nearest in x.
function nearest(target, targets) {
  const best = new Map();
  for (const other of targets) {
    const now = best.get(other.row);
    if (!now || Math.abs(other.x - target.x) < Math.abs(now.x - target.x)) best.set(other.row, other);
  }
  return [...best.values()].filter((other) => Math.abs(other.x - target.x) < 30).sort((a, b) => a.y - b.y);
}
