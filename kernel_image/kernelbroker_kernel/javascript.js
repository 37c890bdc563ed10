// Runs the JavaScript cells of a session: each line of JSON that comes is a cell, each that goes its
// outcome. The REPL's own evaluator is used, so that `await` stands at the top level, and `const`,
// `let` and functions last from cell to cell.
"use strict";

const fs = require("fs");
const net = require("net");
const repl = require("repl");
const util = require("util");
const { PassThrough } = require("stream");

const MAX_SHOWN = 100_000;
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

let giveUp = null; // ends the cell that is awaited
for (const event of ["uncaughtException", "unhandledRejection"]) {
  process.on(event, (error) => console.error(error)); // of what a cell has left behind
}

function run(code) {
  return new Promise((resolve, reject) => {
    giveUp = reject;
    evaluate.call(server, code + "\n", server.context, "cell", (error, value) =>
      error ? reject(error instanceof repl.Recoverable ? error.err : error) : resolve(value),
    );
  }).finally(() => (giveUp = null));
}

function told(error) {
  const isError = util.types.isNativeError(error);
  const trace = isError ? String(error.stack) : `Uncaught ${util.inspect(error)}`;
  // What stands below the cell's own frames are those of Node.js and of this file.
  const own = trace.split(/\n\s+at .*(?:node:|javascript\.js)/)[0];
  return {
    name: isError ? error.name : "Error",
    message: isError ? error.message : util.inspect(error),
    trace: own,
  };
}

async function named(name) {
  // An identifier, and nothing that could be run.
  if (!/^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(name)) return {};
  try {
    const value = JSON.parse(JSON.stringify(await run(`(${name})`)) ?? "null");
    return { named: value };
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
    const shown = value === undefined ? null : util.inspect(value).slice(0, MAX_SHOWN);
    return { shown, ...(name === null ? {} : await named(name)) };
  } catch (error) {
    return { error: told(error) };
  }
}

let pending = Promise.resolve();
let text = "";
asks.setEncoding("utf8");
asks.on("data", (data) => {
  text += data;
  for (let end; (end = text.indexOf("\n")) >= 0; text = text.slice(end + 1)) {
    const asked = JSON.parse(text.slice(0, end));
    if (asked.interrupt) {
      giveUp?.(new Error("interrupted")); // it awaits; code that computes is reached by SIGINT alone
      continue;
    }
    pending = pending.then(async () =>
      fs.writeSync(answersFd, JSON.stringify(await answer(asked)) + "\n"),
    );
  }
});
asks.on("end", () => process.exit());
