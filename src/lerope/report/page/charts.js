// Charts with axes: lines, bars, and intervals in rows.

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

// Differences with their intervals, one per line, {name, x, low, high}.
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
  for (const value of scale.ticks(Math.max(3, Math.floor((width - left) / 90))))
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
