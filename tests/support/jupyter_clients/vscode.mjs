// The calls of VS Code's Jupyter extension to a server that a user has entered: vscode.mjs URL TOKEN AGENTS_KERNEL.
// It asks for kernelspecs, kernels and sessions, wants a file behind the notebook and goes on without one, runs silent
// cells of its own beside the user's, interrupts, restarts, and shuts the session down. Prints what it saw as JSON.
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const { ContentsManager, KernelManager, KernelSpecManager, ServerConnection, SessionManager } =
  require("@jupyterlab/services");
const [url, token, agentsKernel] = process.argv.slice(2);
const authorized = { Authorization: `token ${token}` };
const serverSettings = ServerConnection.makeSettings({
  baseUrl: `${url}/`, wsUrl: `${url.replace(/^http/, "ws")}/`, token, appendToken: true, cache: "no-store",
  init: { credentials: "same-origin" }, WebSocket: require("ws"), fetch, Request, Headers,
});
const said = { version: (await (await fetch(`${url}/api`, { headers: authorized })).json()).version };

const specs = new KernelSpecManager({ serverSettings });
await specs.refreshSpecs();
said.specs = Object.keys(specs.specs.kernelspecs);
const kernels = new KernelManager({ serverSettings });
await kernels.refreshRunning();
said.listed = [...kernels.running()].some((each) => each.id === agentsKernel);
const contents = new ContentsManager({ serverSettings });
said.file = await contents.newUntitled({ type: "notebook" }).then(() => "made", (error) => error.response?.status);

const sessions = new SessionManager({ serverSettings, kernelManager: kernels });
await sessions.ready;
const run = async (kernel, code, options = {}) => {
  const future = kernel.requestExecute({ code, stop_on_error: false, allow_stdin: true, store_history: true, ...options });
  let text = "";
  future.onIOPub = (message) => {
    if (message.header.msg_type === "stream") text += message.content.text;
  };
  return [(await future.done).content.status, text];
};
const agents = await sessions.startNew(
  { path: "agents.ipynb", name: "agents.ipynb", type: "notebook", kernel: { id: agentsKernel, name: "python3" } });
said.agents = await run(agents.kernel, "print(amount)");
const session = await sessions.startNew(
  { path: "x-jvsc-1.ipynb", name: "x-jvsc-1.ipynb", type: "notebook", kernel: { name: "python3" } });
said.silent = await run(session.kernel, "import os as _os\n_os.chdir('.')", { silent: true, store_history: false });
said.first = await run(session.kernel, "print('first')");
said.completion = (await session.kernel.requestComplete({ code: "pri", cursor_pos: 3 })).content.matches.includes("print");
const endless = run(session.kernel, "while True: pass");
while (session.kernel.status !== "busy") await new Promise((resolve) => setTimeout(resolve, 20));
await session.kernel.interrupt();
said.interrupted = (await endless)[0];
await session.kernel.restart();
said.restarted = await run(session.kernel, "print('x' in globals())");
await session.shutdown();
await agents.shutdown();
await kernels.refreshRunning();
said.left = [...kernels.running()].map((each) => each.id);
console.log(JSON.stringify(said));
process.exit(0);
