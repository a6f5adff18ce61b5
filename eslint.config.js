// The page's JavaScript. Its files are put into one function (src/lerope/report/page.py), so that what one declares at
// its top others may use.
import { readdirSync, readFileSync } from "node:fs";
import js from "@eslint/js";
import globals from "globals";

const folder = new URL("src/lerope/report/page/", import.meta.url);
const files = readdirSync(folder).filter((name) => name.endsWith(".js"));
const texts = new Map(files.map((name) => [name, readFileSync(new URL(name, folder), "utf8")]));
const declared = (text) =>
  [...text.matchAll(/^(?:async )?(?:function|const|let|class) (\w+)/gm)].map(([, name]) => name);
const uses = (text, name) => new RegExp(`\\b${name}\\b`).test(text);

export default files.map((file) => {
  const others = files.filter((other) => other !== file).map((other) => texts.get(other));
  const shared = declared(texts.get(file)).filter((name) => others.some((text) => uses(text, name)));
  return {
    files: [`src/lerope/report/page/${file}`],
    languageOptions: {
      ecmaVersion: 2023,
      sourceType: "script",
      globals: {
        ...globals.browser,
        ...Object.fromEntries(others.flatMap(declared).map((name) => [name, "readonly"])),
      },
    },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      ...js.configs.recommended.rules,
      "no-unused-vars": ["error", { varsIgnorePattern: `^(${shared.join("|") || "-"})$` }],
      "no-redeclare": ["error", { builtinGlobals: false }],
      "no-shadow": ["error", { builtinGlobals: false }],
      "no-var": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      eqeqeq: "error",
      "no-implicit-globals": "off",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-restricted-properties": [
        "error",
        ...["innerHTML", "outerHTML", "insertAdjacentHTML"].map((property) => ({
          property,
          message: "text stays text: use element() or textContent.",
        })),
      ],
    },
  };
});
