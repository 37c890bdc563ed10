// Runs the JavaScript cells of a session. Requests and responses are lines of JSON on two pipes. The
// evaluator of Node's REPL runs the code, so that `await` works at the top level and variables last from
// cell to cell. `prepareCell` describes how the code is changed before.
"use strict";

const fs = require("fs");
const net = require("net");
const repl = require("repl");
const util = require("util");
const { PassThrough } = require("stream");

const { process, JSON, Object, Promise, String } = globalThis; // cells may replace them
const MAX_SHOWN = 100_000;
const MAX_VALUE_CHARS = 4_000_000;
const [requestsFd, responsesFd] = process.argv.slice(2).map(Number);
const requests = new net.Socket({ fd: requestsFd, readable: true, writable: false });
const server = repl.start({
  prompt: "",
  input: new PassThrough(),
  output: new PassThrough().resume(),
  terminal: false,
  useGlobal: true,
  breakEvalOnSigint: true,
  // Without a domain of its own, which would take errors away from their cells.
  domain: { bind: (evaluate) => evaluate, on() {} },
});
const evaluate = server.eval;
const parse = parser();

for (const event of ["uncaughtException", "unhandledRejection"]) {
  process.on(event, (error) => console.error(error)); // of code that a cell has left running
}

// acorn 8.19.0, unchanged (MIT licence). Node.js has one of its own, which programs cannot rely on.
function parser() {
  try {
    const { parse } = require("./vendor/acorn.js");
    const options = { ecmaVersion: "latest", allowAwaitOutsideFunction: true };
    return (code) => {
      try {
        return parse(code, options);
      } catch (error) {
        if (!/\bimport\b/.test(code)) throw error;
        return parse(code, { ...options, sourceType: "module" });
      }
    };
  } catch {
    return null;
  }
}

// The value of a cell's last expression, in `value`, once the cell has reached its end.
let ended = null;
Object.defineProperty(globalThis, "__ended", {
  value: (value) => (ended = { value }).value,
});
for (const [name, property] of Object.entries(Object.getOwnPropertyDescriptors(globalThis))) {
  if (property.get && !property.set && property.configurable) {
    // Otherwise a cell could not declare a variable of this name, such as `crypto`.
    const set = (value) =>
      Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
    Object.defineProperty(globalThis, name, { ...property, set });
  }
}

// Change the code in three ways. `let`, `const` and `class` become `var`, so that another cell can declare
// the same names again, also if this one fails before it assigns a value. `import … from` becomes a call of
// `import`, since only files can have the statement. And the code calls `__ended` at its end, since the REPL
// does not tell a thrown null from success.
function prepareCell(code) {
  if (/^\s*\{/.test(code)) {
    try {
      parse(`(${code}\n)`);
      code = `(${code}\n)`; // an object literal, as in the REPL
    } catch {} // a block
  }
  const edits = [];
  const { body } = parse(code);
  for (const node of body) {
    if (node.type === "ImportDeclaration") {
      edits.push([node.start, node.end, importCall(node)]);
    } else if (node.type === "ClassDeclaration") {
      edits.push([node.start, node.start, `var ${node.id.name} = `], [node.end, node.end, ";"]);
    } else if (node.type === "VariableDeclaration" && node.kind !== "var") {
      edits.push([node.start, node.start + node.kind.length, "var".padEnd(node.kind.length)]);
      for (const { id, init, end } of node.declarations) {
        if (init === null) edits.push([end, end, " = undefined"]);
      }
    }
  }
  const last = body.at(-1);
  if (last?.type === "ExpressionStatement" && !last.directive) {
    edits.push([last.start, last.start, "__ended(("]);
    edits.push([code.slice(0, last.end).replace(/;$/, "").length, last.end, "));"]);
  } else {
    edits.push([code.length, code.length, "\n;var __end = __ended();"]);
  }
  edits.reverse(); // from the end, so that earlier positions stay valid
  for (const [start, end, text] of edits) code = code.slice(0, start) + text + code.slice(end);
  return code;
}

function importCall({ source, specifiers }) {
  const module = `(await import(${source.raw}))`;
  if (specifiers.length === 0) return `${module};`;
  const assigned = specifiers.map(({ type, local, imported }) => {
    if (type === "ImportNamespaceSpecifier") return `${local.name} = ${module}`;
    const name = type === "ImportDefaultSpecifier" ? '"default"' : imported.raw ?? `"${imported.name}"`;
    return `${local.name} = ${module}[${name}]`;
  });
  return `var ${assigned.join(", ")};`;
}

function run(code) {
  let text = code;
  try {
    text = prepareCell(code);
  } catch {} // no parser, or a syntax error, which the evaluator reports
  const isPrepared = text !== code;
  ended = null;
  return new Promise((resolve, reject) =>
    evaluate.call(server, text + "\n", server.context, "cell", (error, value) => {
      if (error === null && (ended !== null || !isPrepared)) resolve(value);
      else reject(error instanceof repl.Recoverable ? error.err : error);
    }),
  );
}

function describeError(error) {
  try {
    const isError = util.types.isNativeError(error);
    const trace = isError ? String(error.stack) : `Uncaught ${util.inspect(error)}`;
    // Below the cell's own frames are those of Node.js and of this file.
    const own = trace.split(/\n\s+at .*(?:node:|javascript\.js)/)[0];
    const [name, message] = isError ? [error.name, error.message] : ["Error", util.inspect(error)];
    return Object.fromEntries(
      Object.entries({ name, message, trace: own }).map(([key, text]) => [key, cut(text)]),
    );
  } catch {
    const message = "the thrown value cannot be shown";
    return { name: "Error", message, trace: `Uncaught, and ${message}` };
  }
}

function cut(text) {
  return String(text).slice(0, MAX_SHOWN);
}

async function readVariable(name) {
  // Only an identifier, so that nothing else is evaluated.
  if (!/^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(name)) return {};
  try {
    const value = await run(`(${name})`);
    const json = JSON.stringify(value) ?? "null";
    if (json.length <= MAX_VALUE_CHARS) return { value: JSON.parse(json) };
    const type = Object.prototype.toString.call(value).slice("[object ".length, -1);
    const length = Number.isInteger(value.length) ? value.length : Object.keys(value).length;
    return { summary: { type, length, preview: null, repr: util.inspect(value).slice(0, 1000) } };
  } catch {
    return {};
  }
}

async function runCell({ code, name, cwd, env }) {
  for (const key of Object.keys(process.env)) if (!(key in env)) delete process.env[key];
  Object.assign(process.env, env);
  try {
    if (cwd !== null) process.chdir(cwd);
    const value = await run(code);
    const shown = value === undefined ? null : cut(util.inspect(value));
    return { shown, ...(name === null ? {} : await readVariable(name)) };
  } catch (error) {
    return { error: describeError(error) };
  }
}

let running = false;
async function handle(request) {
  if (request.interrupt) {
    // This is read only if no code is computing: the cell has ended, or it awaits and cannot be stopped.
    respond({ stopped: !running });
    return;
  }
  running = true;
  const response = await runCell(request);
  running = false;
  respond(response);
}

function respond(response) {
  fs.writeFileSync(responsesFd, JSON.stringify(response) + "\n");
}

let text = "";
requests.setEncoding("utf8");
requests.on("data", (data) => {
  text += data;
  for (let end; (end = text.indexOf("\n")) >= 0; text = text.slice(end + 1)) {
    let request;
    try {
      request = JSON.parse(text.slice(0, end));
    } catch {
      continue; // cut off by an interrupt
    }
    handle(request);
  }
});
requests.on("end", () => process.exit());
