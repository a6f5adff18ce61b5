// Charts. Each is a function of a specification and a width that gives a drawing and its targets: places that a pointer,
// a finger or the arrow keys can ask about. `Plot` holds one and does the asking, so that all charts behave alike.

const reading = "Arrow keys read values.";

class Plot {
  constructor() {
    this.tip = element("div", { className: "tip", hidden: true });
    this.legend = element("ul", { className: "legend", hidden: true });
    this.node = element("div", { className: "plot", tabIndex: 0, role: "group" }, this.tip);
    this.rows = element("div", { className: "scroll" });
    this.data = element("details", { className: "data" }, element("summary", {}, "Data as a table"), this.rows);
    this.whole = element("div", {}, this.legend, this.node, this.data);
    this.width = 0;
    this.node.plot = this;
    this.data.addEventListener("toggle", () => this.fillTable());
    this.node.addEventListener("pointermove", (event) => this.seek(event));
    this.node.addEventListener("pointerdown", (event) => this.seek(event));
    this.node.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && this.ask(null));
    this.node.addEventListener("keydown", (event) => this.press(event));
    this.node.addEventListener("blur", () => this.ask(null));
    new ResizeObserver(() => this.node.clientWidth !== this.width && this.draw()).observe(this.node);
  }

  show(specification) {
    this.specification = specification;
    this.node.setAttribute("aria-label", `Chart. ${specification.label} ${reading}`);
    this.data.hidden = !specification.table;
    this.draw();
    if (this.data.open) this.fillTable();
  }

  draw() {
    this.width = this.node.clientWidth;
    if (!this.width || !this.specification) return;
    const { drawing, targets, height, legend } = this.specification.chart(this.specification, this.width);
    this.targets = targets;
    const svg = shape("svg", {
      viewBox: `0 0 ${this.width} ${height}`,
      width: this.width,
      height,
      role: "img",
      "aria-label": this.specification.label,
    });
    this.cursor = shape("g", { class: "cursor" });
    svg.append(...drawing, this.cursor);
    this.svg?.remove();
    this.svg = svg;
    this.height = height;
    this.node.prepend(svg);
    this.legend.hidden = !legend?.length;
    this.legend.replaceChildren(...(legend ?? []).map((item) => element("li", {}, swatch(item), item.name)));
    const still =
      this.asked && targets.find((target) => target.row === this.asked.row && target.column === this.asked.column);
    this.ask(still ?? null);
  }

  seek(event) {
    const box = this.svg.getBoundingClientRect();
    const zoom = this.width / box.width;
    const x = (event.clientX - box.left) * zoom;
    const y = (event.clientY - box.top) * zoom;
    const weight = this.specification.across ? 0.05 : 1;
    let best = null,
      least = Infinity;
    for (const target of this.targets) {
      const far = (target.x - x) ** 2 + weight * (target.y - y) ** 2;
      if (far < least) [best, least] = [target, far];
    }
    this.ask(best);
  }

  press(event) {
    const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    if (event.key === "Escape") return this.ask(null);
    const move = moves[event.key];
    if (!move || !this.targets.length) return;
    event.preventDefault();
    const now = this.asked;
    if (!now) return this.ask(this.targets[0], true);
    if (move[1]) {
      const beside = this.targets.filter(
        (target) => target.row === now.row && (target.column - now.column) * move[1] > 0,
      );
      if (beside.length)
        this.ask(
          beside.reduce((a, b) => (Math.abs(a.column - now.column) <= Math.abs(b.column - now.column) ? a : b)),
          true,
        );
      return;
    }
    const rows = [...new Set(this.targets.map((target) => target.row))];
    const row = rows[rows.indexOf(now.row) + move[0]];
    const there = this.targets.filter((target) => target.row === row);
    if (there.length)
      this.ask(
        there.reduce((a, b) => (Math.abs(a.x - now.x) <= Math.abs(b.x - now.x) ? a : b)),
        true,
      );
  }

  ask(target, aloud = false) {
    this.asked = target;
    this.tip.hidden = !target;
    this.cursor?.replaceChildren();
    if (!target) return;
    if (target.trace)
      this.cursor.append(shape("path", { d: target.trace, class: "curve", stroke: "var(--ink)", fill: "none" }));
    if (this.specification.across)
      this.cursor.append(shape("line", { x1: target.x, x2: target.x, y1: 24, y2: this.height - 40, class: "rule" }));
    this.cursor.append(
      target.box
        ? shape("rect", { ...target.box, fill: "none", stroke: "var(--ink)", "stroke-width": 2 })
        : shape("circle", {
            cx: target.x,
            cy: target.y,
            r: 5,
            fill: "none",
            stroke: "var(--ink)",
            "stroke-width": 1.6,
          }),
    );
    const { title, lines } = this.specification.tell(target, this.targets);
    this.tip.replaceChildren(
      element("p", {}, title),
      ...lines.map((line) =>
        element("div", {}, line.look ? swatch(line.look) : null, line.name ?? "", element("b", {}, line.value)),
      ),
    );
    const zoom = this.node.clientWidth / this.width;
    const x = target.x * zoom;
    const y = target.y * zoom;
    const room = this.node.clientWidth - this.tip.offsetWidth;
    const side = x + 16 <= room ? x + 16 : x - 16 - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(side < 0 ? x - this.tip.offsetWidth / 2 : side, room))}px`;
    this.tip.style.top = `${Math.max(-8, side < 0 ? y + 16 : y - this.tip.offsetHeight - 10)}px`;
    if (aloud)
      document.getElementById("spoken").textContent = [
        title,
        ...lines.map((line) => [line.name, line.value].filter(Boolean).join(" ")),
      ].join(", ");
  }

  fillTable() {
    if (!this.data.open || !this.specification?.table) return this.rows.replaceChildren();
    this.rows.replaceChildren(tableOf(this.specification.table()));
  }
}

function swatch({ color, dash, solid }) {
  const inner = solid
    ? shape("rect", { x: 6, y: 1, width: 12, height: 9, fill: color })
    : shape("line", { x1: 0, x2: 24, y1: 5.5, y2: 5.5, stroke: color, "stroke-width": 2.2, "stroke-dasharray": dash });
  return shape("svg", { class: "swatch", viewBox: "0 0 24 11", "aria-hidden": "true" }, inner);
}

function tableOf({ head, rows, numeric = 1 }) {
  const side = (at) => (at >= numeric ? "number" : "name");
  return element(
    "table",
    {},
    element(
      "thead",
      {},
      element("tr", {}, ...head.map((text, at) => element("th", { scope: "col", className: side(at) }, text))),
    ),
    element(
      "tbody",
      {},
      ...rows.map((row) =>
        element(
          "tr",
          {},
          ...row.map((text, at) =>
            element("td", { className: side(at) }, text === null || text === undefined ? "–" : String(text)),
          ),
        ),
      ),
    ),
  );
}

const ruler = document.createElement("canvas").getContext("2d");
ruler.font = "12px system-ui, sans-serif";
const textWidth = (text) => ruler.measureText(text).width + 2;

// Ticks with as many decimals as tell them apart.
function decimals(values) {
  const step = values.length > 1 ? values[1] - values[0] : 1;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return (value) => value.toFixed(digits).replace("-", "−");
}

// The frame of a chart with two axes: scales, ticks, titles and rules.
function frame({ x, y, height = 290, rules = [], diagonal = false }, width, right = 14) {
  const bottom = height - 40;
  const top = 24;
  const yScale = makeScale(y.domain, [bottom, top], y.log);
  const yTicks = yScale.ticks(Math.max(2, Math.floor((bottom - top) / 46)));
  const yText = y.write ?? decimals(yTicks);
  const left = Math.max(...yTicks.map((value) => textWidth(yText(value)))) + 12;
  const xScale = makeScale(x.domain, [left, width - right], x.log);
  const xTicks = xScale.ticks(Math.max(2, Math.floor((width - left - right) / 74)));
  const drawing = [];
  for (const value of yTicks)
    drawing.push(
      shape("line", { x1: left, x2: width - right, y1: yScale(value), y2: yScale(value), class: "axis" }),
      shape("text", { x: left - 8, y: yScale(value) + 4, "text-anchor": "end" }, yText(value)),
    );
  for (const value of xTicks)
    drawing.push(shape("text", { x: xScale(value), y: bottom + 18, "text-anchor": "middle" }, x.write(value)));
  drawing.push(
    shape("text", { x: 0, y: 11, class: "strong" }, y.title),
    shape("text", { x: width - right, y: height - 5, "text-anchor": "end", class: "strong" }, x.title),
  );
  if (diagonal) {
    const low = Math.max(x.domain[0], y.domain[0]);
    const high = Math.min(x.domain[1], y.domain[1]);
    drawing.push(
      shape("line", { x1: xScale(low), y1: yScale(low), x2: xScale(high), y2: yScale(high), class: "rule" }),
      shape("text", { x: xScale(low ** 0.2 * high ** 0.8) + 8, y: yScale(low ** 0.2 * high ** 0.8) + 14 }, diagonal),
    );
  }
  for (const rule of rules) {
    if (rule.y !== undefined && rule.y >= y.domain[0] && rule.y <= y.domain[1])
      drawing.push(
        shape("line", { x1: left, x2: width - right, y1: yScale(rule.y), y2: yScale(rule.y), class: "rule" }),
        shape("text", { x: left + 4, y: yScale(rule.y) - 5 }, rule.name),
      );
    if (rule.x !== undefined && rule.x >= x.domain[0] && rule.x <= x.domain[1]) {
      const at = xScale(rule.x);
      const late = at > left + 0.6 * (width - left - right);
      drawing.push(
        shape("line", { x1: at, x2: at, y1: top, y2: bottom, class: "rule" }),
        shape("text", { x: at + (late ? -5 : 5), y: top + 10, "text-anchor": late ? "end" : "start" }, rule.name),
      );
    }
  }
  return { drawing, xScale, yScale, left, top, bottom, height };
}

function trace(points) {
  let path = "",
    open = false;
  for (const point of points) {
    if (!point) {
      open = false;
      continue;
    }
    path += `${open ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    open = true;
  }
  return path;
}

const drawable = (value, log) => value !== null && value !== undefined && Number.isFinite(value) && (!log || value > 0);

// Lines: series of points {x, y, low, high}; names at their ends where there is room, in a legend where there is not.
function lines(specification, width) {
  const { series, x, y } = specification;
  const named = series.filter((one) => one.name && !one.many);
  const longest = Math.max(0, ...named.map((one) => textWidth(one.name)));
  const direct =
    specification.direct !== false && named.length > 0 && named.length <= 6 && width >= 560 && longest < 0.24 * width;
  const made = frame(specification, width, direct ? longest + 16 : 14);
  const { drawing, xScale, yScale } = made;
  const targets = [];
  const ends = [];
  const place = (point, value) =>
    drawable(point.x, x.log) && drawable(value, y.log) ? [xScale(point.x), yScale(value)] : null;
  series.forEach((one, row) => {
    const spots = one.points.map((point) => place(point, point.y));
    if (one.points.some((point) => drawable(point.low, y.log))) {
      const around = one.points.filter((point) => place(point, point.low) && place(point, point.high));
      const edge = [
        ...around.map((point) => place(point, point.high)),
        ...around.map((point) => place(point, point.low)).reverse(),
      ];
      if (edge.length) drawing.push(shape("path", { d: trace(edge) + "Z", fill: one.color, opacity: 0.14 }));
    }
    const path = trace(spots);
    drawing.push(
      shape("path", {
        d: path,
        class: one.many ? "curve many" : "curve",
        stroke: one.many ? null : one.color,
        "stroke-dasharray": one.dash,
        "stroke-width": one.strong ? 2.4 : null,
      }),
    );
    spots.forEach((spot, column) => {
      if (!spot) return;
      const point = one.points[column];
      if (one.marks) drawing.push(shape("circle", { cx: spot[0], cy: spot[1], r: one.marks, fill: one.color }));
      if (point.ring)
        drawing.push(
          shape("circle", { cx: spot[0], cy: spot[1], r: 7, fill: "none", stroke: one.color, "stroke-width": 2 }),
        );
      targets.push({
        x: spot[0],
        y: spot[1],
        row,
        column,
        point,
        series: one,
        trace: one.many || specification.bold ? path : null,
      });
    });
    const last = spots.findLast((spot) => spot);
    if (direct && last && one.name && !one.many) ends.push({ at: last[1], x: last[0], one });
  });
  ends.sort((a, b) => a.at - b.at);
  ends.forEach((end, at) => {
    end.y = Math.max(end.at, made.top + 4, at ? ends[at - 1].y + 15 : -Infinity);
  });
  const over = ends.length ? ends.at(-1).y - made.bottom : 0;
  if (over > 0)
    ends.reduceRight((limit, end) => {
      end.y = Math.min(end.y, limit);
      return end.y - 15;
    }, made.bottom);
  for (const end of ends) {
    const label = shape(
      "text",
      {
        x: Math.min(end.x + 8, width - longest - 8),
        y: end.y + 4,
        fill: `color-mix(in oklab, ${end.one.color} 65%, var(--ink))`,
      },
      end.one.name,
    );
    drawing.push(label);
  }
  return {
    drawing,
    targets,
    height: made.height,
    legend: direct || named.length < 2 || specification.legend === false ? [] : named,
  };
}

// Bars with whiskers, {x, y, low, high}, from zero.
function bars(specification, width) {
  const {
    series: [one],
  } = specification;
  const made = frame(specification, width);
  const { drawing, xScale, yScale } = made;
  const targets = [];
  const step = xScale(1) - xScale(0);
  const half = Math.max(1, 0.36 * step);
  one.points.forEach((point, column) => {
    const x = xScale(point.x);
    const [top, bottom] = [yScale(Math.max(0, point.y)), yScale(Math.min(0, point.y))];
    drawing.push(
      shape("rect", {
        x: x - half,
        y: top,
        width: 2 * half,
        height: Math.max(bottom - top, 0.5),
        fill: one.color,
        opacity: point.strong ? 1 : 0.62,
      }),
    );
    if (drawable(point.low))
      drawing.push(
        shape("line", { x1: x, x2: x, y1: yScale(point.low), y2: yScale(point.high), stroke: "var(--ink)" }),
      );
    targets.push({
      x,
      y: top,
      row: 0,
      column,
      point,
      series: one,
      box: { x: x - half, y: top, width: 2 * half, height: Math.max(bottom - top, 1) },
    });
  });
  return { drawing, targets, height: made.height };
}

// Differences with their intervals, one a line, {name, x, low, high}.
function forest(specification, width) {
  const { rows, x } = specification;
  const longest = Math.max(...rows.map((row) => textWidth(row.name)));
  const above = longest > 0.4 * width;
  const left = above ? 4 : longest + 16;
  const each = above ? 44 : 30;
  const height = rows.length * each + 46;
  const bottom = height - 40;
  const scale = makeScale(x.domain, [left, width - 14], false);
  const drawing = [];
  const targets = [];
  for (const value of scale.ticks(Math.max(2, Math.floor((width - left) / 90))))
    drawing.push(
      shape("line", { x1: scale(value), x2: scale(value), y1: 0, y2: bottom, class: "axis" }),
      shape("text", { x: scale(value), y: bottom + 18, "text-anchor": "middle" }, x.write(value)),
    );
  drawing.push(
    shape("line", { x1: scale(0), x2: scale(0), y1: 0, y2: bottom, stroke: "var(--soft)" }),
    shape("text", { x: width - 14, y: height - 5, "text-anchor": "end", class: "strong" }, x.title),
  );
  rows.forEach((row, at) => {
    const y = at * each + (above ? 30 : 16);
    drawing.push(
      shape(
        "text",
        {
          x: above ? 4 : left - 16,
          y: above ? y - 13 : y + 4,
          "text-anchor": above ? "start" : "end",
          class: "strong",
        },
        row.name,
      ),
      shape("line", {
        x1: scale(row.low),
        x2: scale(row.high),
        y1: y,
        y2: y,
        stroke: row.color,
        "stroke-width": 3,
        opacity: 0.5,
      }),
      shape("circle", { cx: scale(row.x), cy: y, r: 5, fill: row.color }),
    );
    targets.push({ x: scale(row.x), y, row: at, column: 0, point: row });
  });
  return { drawing, targets, height };
}

// A grid of cells, {value, share, text}: share from 0 to 1 is the depth of the colour.
function heat(specification, width) {
  const { columns, rows, cells, x, y } = specification;
  const left = Math.max(...rows.map(textWidth)) + 14;
  const top = 24;
  const wide = (width - left) / columns.length;
  const tall = Math.max(18, Math.min(26, wide));
  const height = top + rows.length * tall + 40;
  const bottom = height - 40;
  const drawing = [shape("text", { x: 0, y: 11, class: "strong" }, y.title)];
  const targets = [];
  rows.forEach((name, row) => {
    drawing.push(shape("text", { x: left - 8, y: top + (row + 0.5) * tall + 4, "text-anchor": "end" }, name));
    columns.forEach((_, column) => {
      const cell = cells[row][column];
      if (!cell) return;
      const box = { x: left + column * wide, y: top + row * tall, width: wide - 1, height: tall - 1 };
      const share = Math.max(0, Math.min(1, cell.share));
      drawing.push(
        shape("rect", { ...box, fill: `color-mix(in oklab, var(--heat) ${(100 * share).toFixed(0)}%, var(--panel))` }),
      );
      if (wide >= 34)
        drawing.push(
          shape(
            "text",
            {
              x: box.x + wide / 2,
              y: box.y + tall / 2 + 4,
              "text-anchor": "middle",
              fill: share > 0.62 ? "var(--paper)" : "var(--ink)",
            },
            cell.text,
          ),
        );
      targets.push({ x: box.x + wide / 2, y: box.y + tall / 2, row, column, cell, box });
    });
  });
  const every = Math.ceil(Math.max(...columns.map(textWidth)) / wide + 0.15);
  columns.forEach(
    (name, column) =>
      column % every === 0 &&
      drawing.push(shape("text", { x: left + (column + 0.5) * wide, y: bottom + 18, "text-anchor": "middle" }, name)),
  );
  drawing.push(shape("text", { x: width, y: height - 5, "text-anchor": "end", class: "strong" }, x.title));
  return { drawing, targets, height };
}

// From blue by way of purple to orange, for a share from 0 to 1.
function distanceColor(share) {
  const [from, to, part] = share < 0.5 ? ["heat", "purple", 2 * share] : ["purple", "far", 2 * share - 1];
  return `color-mix(in oklab, var(--${to}) ${(100 * part).toFixed(0)}%, var(--${from}))`;
}

// Phasors as dots on a disc, coloured by distance, and their resultant as an arrow.
function polar(specification, width) {
  const { points, resultant, color } = specification;
  const radius = Math.min(width, 300) / 2 - 22;
  const middle = [width / 2, radius + 22];
  const height = 2 * radius + 44;
  const drawing = [];
  const targets = [];
  for (const share of [0.5, 1])
    drawing.push(
      shape("circle", { cx: middle[0], cy: middle[1], r: share * radius, fill: "none", stroke: "var(--line)" }),
    );
  for (const [x, y] of [
    [1, 0],
    [0, 1],
  ])
    drawing.push(
      shape("line", {
        x1: middle[0] - x * radius,
        x2: middle[0] + x * radius,
        y1: middle[1] - y * radius,
        y2: middle[1] + y * radius,
        class: "axis",
      }),
    );
  [
    ["0°", radius + 5, 4, "start"],
    ["180°", -radius - 5, 4, "end"],
    ["90°", 0, -radius - 7, "middle"],
    ["−90°", 0, radius + 16, "middle"],
  ].forEach(([text, x, y, anchor]) =>
    drawing.push(shape("text", { x: middle[0] + x, y: middle[1] + y, "text-anchor": anchor }, text)),
  );
  points.forEach((point, column) => {
    const x = middle[0] + point.real * radius;
    const y = middle[1] - point.imaginary * radius;
    drawing.push(
      shape("circle", {
        cx: x,
        cy: y,
        r: 3,
        opacity: 0.85,
        fill: distanceColor(point.far),
      }),
    );
    targets.push({ x, y, row: 0, column, point });
  });
  const end = [
    middle[0] + Math.cos(resultant.direction) * resultant.coherence * radius,
    middle[1] - Math.sin(resultant.direction) * resultant.coherence * radius,
  ];
  drawing.push(
    shape("line", {
      x1: middle[0],
      y1: middle[1],
      x2: end[0],
      y2: end[1],
      stroke: color,
      "stroke-width": 3,
      "stroke-linecap": "round",
    }),
    shape("circle", { cx: end[0], cy: end[1], r: 5, fill: color, stroke: "var(--paper)", "stroke-width": 1.5 }),
  );
  targets.push({ x: end[0], y: end[1], row: 1, column: 0, resultant });
  return { drawing, targets, height };
}
