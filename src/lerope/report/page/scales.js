// Elements, numbers as text, and scales from values to pixels.

function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (key in node && typeof value !== "string") node[key] = value;
    else node.setAttribute(key === "className" ? "class" : key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function shape(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === "") continue;
    if (key === "fill" || key === "stroke") node.style[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

const write = {
  count: (value) => (value === null ? "–" : Math.round(value).toLocaleString("en-US")),
  short: (value) => {
    for (const [unit, size] of [
      ["T", 1e12],
      ["B", 1e9],
      ["M", 1e6],
      ["k", 1e3],
    ])
      if (Math.abs(value) >= size) return Number((value / size).toPrecision(3)) + unit;
    return String(Number(value.toPrecision(3)));
  },
  length: (value) => (value >= 1024 && value % 1024 === 0 ? `${value / 1024}k` : write.count(value)),
  several: (number, word) => `${write.count(number)} ${word}${number === 1 ? "" : "s"}`,
  loss: (value) => (value === null || value === undefined ? "–" : value.toFixed(4)),
  signed: (value, digits = 4) => {
    if (value === null) return "–";
    const text = Math.abs(value).toFixed(digits);
    return Number(text) === 0 ? text : (value < 0 ? "−" : "+") + text;
  },
  digits: (value, digits = 3) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6))
      return value
        .toExponential(digits - 1)
        .replace("-", "−")
        .replace("e+", "e");
    return Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 10 }).replace("-", "−");
  },
  tokens: (value) => (value === null ? "does not turn" : `${write.digits(value, value < 100 ? 3 : 4)} tokens`),
  angle: (radians) => `${Math.round((radians * 180) / Math.PI)}°`.replace("-", "−"),
  fixed: (value, digits) =>
    value === null
      ? "–"
      : value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
  date: (text) => String(text ?? "").replace(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d).*$/, "$1 $2"),
  percent: (value) => `${Math.round(100 * value)} %`,
  duration: (seconds) => {
    const minutes = Math.floor(Math.round(seconds) / 60);
    const hours = Math.floor(minutes / 60);
    const days = Math.floor(hours / 24);
    if (days) return `${days} d ${hours % 24} h`;
    if (hours) return `${hours} h ${minutes % 60} min`;
    return minutes ? `${minutes} min ${Math.round(seconds) % 60} s` : `${Math.round(seconds)} s`;
  },
};

// A path as a shell would read it.
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

function extent(values) {
  let low = Infinity,
    high = -Infinity;
  for (const value of values)
    if (value !== null && value !== undefined && Number.isFinite(value)) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  return low <= high ? [low, high] : null;
}

// A little room at both ends, on the scale that is drawn.
function padded([low, high], log, share = 0.05) {
  if (log) {
    const room = Math.max(share * Math.log(high / low), 0.02);
    return [low * Math.exp(-room), high * Math.exp(room)];
  }
  const room = share * (high - low) || Math.abs(high) * share || 1;
  return [low - room, high + room];
}

function makeScale([low, high], [from, to], log) {
  const bend = log ? Math.log : (value) => value;
  const start = bend(low);
  const width = bend(high) - start || 1;
  const scale = (value) => from + ((bend(value) - start) / width) * (to - from);
  return Object.assign(scale, {
    domain: [low, high],
    ticks: (most) => (log ? logTicks(low, high, most) : ticks(low, high, most)),
  });
}

function ticks(low, high, most) {
  const rough = (high - low) / Math.max(most, 1);
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((candidate) => candidate >= rough * 0.999);
  const found = [];
  for (let number = Math.ceil(low / step - 1e-9); number * step <= high + 1e-9 * step; number++)
    found.push(Number((number * step).toPrecision(12)));
  return found;
}

function logTicks(low, high, most) {
  const from = Math.floor(Math.log10(low));
  const to = Math.ceil(Math.log10(high));
  const all = (factors, every = 1) => {
    const found = [];
    for (let power = from; power <= to; power++)
      if ((power - from) % every === 0)
        for (const factor of factors) found.push(Number((factor * 10 ** power).toPrecision(6)));
    return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  };
  for (const factors of [[1, 2, 5], [1, 3], [1]]) {
    const found = all(factors);
    if (found.length <= most && found.length > 1) return found;
  }
  for (let every = 2; every < 9; every++) if (all([1], every).length <= most) return all([1], every);
  return all([1, 2, 5]).slice(0, most);
}
