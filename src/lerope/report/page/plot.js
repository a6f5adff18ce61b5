// A chart is a function of a specification and a width that returns a drawing and its targets: places that a pointer, a
// finger or the arrow keys can ask about. `Plot` holds one and does the asking, so that all charts behave alike.

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
    const { title, lines: told } = this.specification.tell(target, this.targets);
    this.tip.replaceChildren(
      element("p", {}, title),
      ...told.map((line) =>
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
        ...told.map((line) => [line.name, line.value].filter(Boolean).join(" ")),
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
