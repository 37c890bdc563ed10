// A reporter of Node's test runner that reports each test. See __init__.py.
import { readFileSync, writeSync } from "node:fs";

const report = Number(process.env.KERNELBROKER_REPORT);
delete process.env.KERNELBROKER_REPORT;

function write(outcome, data) {
  const record = { test: data.name, outcome, seconds: (data.details?.duration_ms ?? 0) / 1000 };
  if (outcome === "failed" || outcome === "error") {
    const error = data.details?.error;
    const cause = error?.cause ?? error;
    record.file = data.file ?? "";
    record.line = data.line ?? 0;
    record.message = String(cause?.message ?? cause ?? "failed").slice(0, 2000);
    record.output = String(cause?.stack ?? cause ?? "").slice(0, 8000);
  }
  writeSync(report, JSON.stringify(record) + "\n");
}

// A file whose process exits before its first test ends is one test that passes. If it has tests, they are missing.
function hasTests(file) {
  try {
    const source = readFileSync(file, "utf8");
    return /["']node:test["']/.test(source) && /\b(test|it|describe|suite)\s*[.(]/.test(source);
  } catch {
    return false;
  }
}

export default async function* reporter(source) {
  let finished = true;
  for await (const { type, data } of source) {
    if (type === "test:stdout" || type === "test:stderr") yield data.message;
    if (type !== "test:pass" && type !== "test:fail") continue;
    if (data.details?.type === "suite" && type === "test:pass") continue;
    if (type === "test:pass" && data.nesting === 0 && data.file?.endsWith(data.name) && hasTests(data.file)) {
      finished = false;
      continue;
    }
    const code = data.details?.error?.failureType;
    if (code === "subtestsFailed") continue;
    if (data.skip !== undefined || data.todo !== undefined) write("skipped", data);
    else write(type === "test:pass" ? "passed" : "failed", data);
    yield `${type === "test:pass" ? "ok" : "not ok"} - ${data.name}\n`;
  }
  writeSync(report, JSON.stringify({ finished }) + "\n");
}
