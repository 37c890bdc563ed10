// Runs the JavaScript cells of a session: each line of JSON that comes is a cell, each that goes its
// outcome. The REPL's own evaluator is used, so that `await` stands at the top level, and variables
// last from cell to cell; see `prepared` for what it is given.
"use strict";

const fs = require("fs");
const net = require("net");
const repl = require("repl");
const util = require("util");
const { PassThrough } = require("stream");

const { process, JSON, Object, Promise, String } = globalThis; // cells may replace them
const MAX_SHOWN = 100_000;
const MAX_NAMED = 4_000_000;
const [asksFd, answersFd] = process.argv.slice(2).map(Number);
const asks = new net.Socket({ fd: asksFd, readable: true, writable: false });
const server = repl.start({
  prompt: "",
  input: new PassThrough(),
  output: new PassThrough().resume(),
  terminal: false,
  useGlobal: true,
  breakEvalOnSigint: true,
  // None of its own: it would take errors away from the cells that they belong to.
  domain: { bind: (evaluate) => evaluate, on() {} },
});
const evaluate = server.eval;
const parse = parser();
process.execArgv.length = 0; // what follows is not for processes that cells start

for (const event of ["uncaughtException", "unhandledRejection"]) {
  process.on(event, (error) => console.error(error)); // of what a cell has left behind
}

// Node.js's own parser, the one that its REPL has for `await`.
function parser() {
  try {
    const { parse } = require("internal/deps/acorn/acorn/dist/acorn");
    return (code) => parse(code, { ecmaVersion: "latest", allowAwaitOutsideFunction: true });
  } catch {
    return null;
  }
}

// What a cell evaluates to, in `value`, once it has come to its end.
let ended = null;
Object.defineProperty(globalThis, "__ended", {
  value: (value) => (ended = { value }).value,
});
for (const [name, property] of Object.entries(Object.getOwnPropertyDescriptors(globalThis))) {
  if (property.get && !property.set && property.configurable) {
    // Such as `crypto`, which else could not be declared.
    const set = (value) =>
      Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
    Object.defineProperty(globalThis, name, { ...property, set });
  }
}

// The code such that what it declares can be declared again by another cell, also where it fails
// before it has a value: `let`, `const` and `class` become `var`. And such that it tells its end, for
// the REPL passes on what was thrown without telling that it was, which nobody can see of a null.
function prepared(code) {
  if (/^\s*\{/.test(code)) {
    try {
      parse(`(${code}\n)`);
      code = `(${code}\n)`; // an object, as in the REPL
    } catch {} // a block
  }
  const edits = [];
  const { body } = parse(code);
  for (const node of body) {
    if (node.type === "ClassDeclaration") {
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
  edits.reverse(); // so that those before stay where they are
  for (const [start, end, text] of edits) code = code.slice(0, start) + text + code.slice(end);
  return code;
}

function run(code) {
  let text = code;
  try {
    text = prepared(code);
  } catch {} // no parser, or no JavaScript: the evaluator will tell
  const isPrepared = text !== code;
  ended = null;
  return new Promise((resolve, reject) =>
    evaluate.call(server, text + "\n", server.context, "cell", (error, value) => {
      if (error === null && (ended !== null || !isPrepared)) resolve(value);
      else reject(error instanceof repl.Recoverable ? error.err : error);
    }),
  );
}

function told(error) {
  try {
    const isError = util.types.isNativeError(error);
    const trace = isError ? String(error.stack) : `Uncaught ${util.inspect(error)}`;
    // What stands below the cell's own frames are those of Node.js and of this file.
    const own = trace.split(/\n\s+at .*(?:node:|javascript\.js)/)[0];
    const [name, message] = isError ? [error.name, error.message] : ["Error", util.inspect(error)];
    return Object.fromEntries(
      Object.entries({ name, message, trace: own }).map(([key, text]) => [key, cut(text)]),
    );
  } catch {
    const message = "what was thrown cannot be shown";
    return { name: "Error", message, trace: `Uncaught, and ${message}` };
  }
}

function cut(text) {
  return String(text).slice(0, MAX_SHOWN);
}

async function named(name) {
  // An identifier, and nothing that could be run.
  if (!/^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(name)) return {};
  try {
    const value = await run(`(${name})`);
    const json = JSON.stringify(value) ?? "null";
    if (json.length <= MAX_NAMED) return { named: JSON.parse(json) };
    const type = Object.prototype.toString.call(value).slice("[object ".length, -1);
    const length = Number.isInteger(value.length) ? value.length : Object.keys(value).length;
    return { summary: { type, length, preview: null, repr: util.inspect(value).slice(0, 1000) } };
  } catch {
    return {};
  }
}

async function answer({ code, name, cwd, env }) {
  for (const key of Object.keys(process.env)) if (!(key in env)) delete process.env[key];
  Object.assign(process.env, env);
  try {
    if (cwd !== null) process.chdir(cwd);
    const value = await run(code);
    const shown = value === undefined ? null : cut(util.inspect(value));
    return { shown, ...(name === null ? {} : await named(name)) };
  } catch (error) {
    return { error: told(error) };
  }
}

let running = false;
async function take(asked) {
  if (asked.interrupt) {
    // Read between what the code does, so it has ended, or it awaits. That cannot be stopped.
    tell({ stopped: !running });
    return;
  }
  running = true;
  const answered = await answer(asked);
  running = false;
  tell(answered);
}

function tell(answered) {
  fs.writeFileSync(answersFd, JSON.stringify(answered) + "\n");
}

let text = "";
asks.setEncoding("utf8");
asks.on("data", (data) => {
  text += data;
  for (let end; (end = text.indexOf("\n")) >= 0; text = text.slice(end + 1)) {
    let asked;
    try {
      asked = JSON.parse(text.slice(0, end));
    } catch {
      continue; // torn by an interrupt
    }
    take(asked);
  }
});
asks.on("end", () => process.exit());
