// Builds the console into ../kernelbroker_server/console/static. The same source gives the same bytes.
import { build } from "esbuild";
import { readFileSync, readdirSync, existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";

const out = process.argv[2] ?? "../kernelbroker_server/console/static";
rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
const result = await build({
  entryPoints: ["src/main.tsx"],
  outdir: out,
  bundle: true,
  minify: true,
  splitting: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  assetNames: "[name]-[hash]",
  loader: { ".woff2": "file" },
  legalComments: "none",
  charset: "utf8",
  metafile: true,
  define: { "process.env.NODE_ENV": '"production"' },
});

const made = Object.entries(result.metafile.outputs);
const entry = made.find(([, each]) => each.entryPoint === "src/main.tsx");
const script = basename(entry[0]);
const style = basename(entry[1].cssBundle);
// What the script imports at once is fetched at the same time as the script.
const needed = new Set();
const need = (path) =>
  result.metafile.outputs[path].imports.forEach((each) => {
    if (each.kind !== "import-statement" || needed.has(each.path)) return;
    needed.add(each.path);
    need(each.path);
  });
need(entry[0]);
const preloads = [...needed].map((path) => `<link rel="modulepreload" href="/console/assets/${basename(path)}">`).join("\n");
const page = readFileSync("src/index.html", "utf8").replace("{{script}}", script).replace("{{style}}", style).replace("{{preloads}}", preloads);
writeFileSync(join(out, "index.html"), page);
writeFileSync(join(out, "frame.html"), readFileSync("src/frame.html"));
writeFileSync(join(out, "icon.svg"), readFileSync("src/icon.svg"));

// The licences of all packages whose code or fonts are in the bundle.
const used = new Set();
for (const path of Object.keys(result.metafile.inputs)) {
  const found = path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (found) used.add(found[1]);
}
const texts = [...used].sort().map((name) => {
  const directory = join("node_modules", name);
  const about = JSON.parse(readFileSync(join(directory, "package.json"), "utf8"));
  const file = readdirSync(directory).find((each) => /^(licen[cs]e|copying)/i.test(each));
  if (!file) throw new Error(`${name} has no licence file`);
  const notice = join(directory, existsSync(join(directory, "NOTICE.txt")) ? "NOTICE.txt" : "NOTICE");
  const more = existsSync(notice) ? `\n${readFileSync(notice, "utf8").trim()}\n` : "";
  return `${name} ${about.version} (${about.license})\n\n${readFileSync(join(directory, file), "utf8").trim()}\n${more}`;
});
writeFileSync(join(out, "licenses.txt"), texts.join(`\n${"-".repeat(80)}\n\n`));
