// Where everything comes from.

function definitions(entries) {
  const node = element("dl");
  for (const [name, value] of entries) {
    if (value === null || value === undefined || value === "") continue;
    node.append(element("dt", {}, name), element("dd", {}, value instanceof Node ? value : String(value)));
  }
  return node;
}

function buildProvenance(host) {
  const list = element("div");
  const fold = folding();
  host.append(list, fold.button);
  const fill = keyed(list);
  return () => {
    fill(
      page.data.runs.map((run) => ({ key: run.id, run })),
      () => {
        const summary = element("summary");
        const inside = element("div");
        return { node: element("details", { className: "origin" }, summary, inside), summary, inside };
      },
      ({ summary, inside }, { run }) => {
        const { start, recipe, model, results, ...rest } = run.provenance;
        const flat = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
        const key = JSON.stringify(run.provenance);
        if (inside.dataset.key === key) return;
        inside.dataset.key = key;
        summary.replaceChildren(
          run.id,
          " ",
          element(
            "small",
            {},
            [methodLabel(run.method), run.rung, `seed ${run.seed}`, write.date(rest.created)].join(" · "),
          ),
        );
        inside.replaceChildren(
          definitions([
            ["Command", rest.command ? element("code", {}, rest.command) : null],
            ["Folder", element("code", {}, run.path)],
            ["Begun", rest.created],
            ["Starts", rest.numStarts],
            ["Data fingerprint", element("code", {}, rest.data ?? "–")],
            ["Initial frequencies", rest.initialFrequencies ? element("code", {}, rest.initialFrequencies) : null],
            ...Object.entries(start).map(([name, value]) => [
              name === "date" ? "last start" : name.replaceAll("_", " "),
              value === null ? null : flat(value),
            ]),
          ]),
          element("h3", {}, "Recipe"),
          definitions(
            [...Object.entries(recipe), ...Object.entries(model)].map(([name, value]) => [
              name.replaceAll("_", " "),
              flat(value),
            ]),
          ),
          ...(results.length
            ? [
                element("h3", {}, "Results"),
                definitions(
                  results.map((one) => [
                    one.title,
                    [
                      one.file,
                      one.date,
                      one.lerope && `lerope ${one.lerope}`,
                      one.torch && `torch ${one.torch}`,
                      one.gpu,
                      one.commit?.slice(0, 12),
                    ]
                      .filter(Boolean)
                      .join(" · "),
                  ]),
                ),
              ]
            : []),
        );
      },
    );
    fold.fill(list.children);
  };
}

function buildFiles(host) {
  return () => {
    const { files, missing } = page.data;
    host.parentElement.hidden = !files.length;
    const groups = new Map();
    for (const file of files) {
      const [, stem, ending] = /^(.*?)(?:\.([^./]*))?$/.exec(file);
      groups.set(stem, [...(groups.get(stem) ?? []), [ending ?? "file", file]]);
    }
    host.replaceChildren(
      element(
        "ul",
        { className: "files" },
        ...[...groups].map(([stem, links]) =>
          element(
            "li",
            {},
            `${stem} `,
            ...links.flatMap(([ending, file]) => [
              " ",
              element("a", { href: file.split("/").map(encodeURIComponent).join("/") }, ending),
            ]),
          ),
        ),
      ),
      ...missing.map(({ name, text, command }) =>
        element("p", { className: "quiet" }, `Not drawn, ${name}: ${text}: `, element("code", {}, command)),
      ),
    );
  };
}

function buildNotes(host) {
  const list = element("ul", { className: "notes" });
  const fold = folding();
  host.append(list, fold.button);
  return () => {
    host.parentElement.hidden = !page.data.notes.length;
    list.replaceChildren(...page.data.notes.map((note) => element("li", {}, note)));
    fold.fill(list.children);
  };
}
