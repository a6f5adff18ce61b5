// Charts without axes: grids of cells, and phasors on a disc.

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

// From blue via purple to orange, for a share from 0 to 1.
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
