// Uses a kernel through @jupyterlab/services: services.mjs URL TOKEN KERNEL_ID CODE. Prints what it saw as JSON.
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const { ServerConnection, KernelManager, KernelSpecManager, SessionManager } = require("@jupyterlab/services");
const [url, token, kernelId, code] = process.argv.slice(2);
const serverSettings = ServerConnection.makeSettings({
  baseUrl: url, wsUrl: url.replace(/^http/, "ws"), token, appendToken: true, WebSocket: require("ws"), fetch, Request, Headers,
});

const specs = new KernelSpecManager({ serverSettings });
await specs.ready;
const kernels = new KernelManager({ serverSettings });
await kernels.ready;
const running = [...kernels.running()].map((each) => each.id);
const kernel = kernels.connectTo({ model: { id: kernelId, name: "python3" } });
const info = await kernel.info;
const future = kernel.requestExecute({ code });
const outputs = [];
future.onIOPub = (message) => outputs.push(message.header.msg_type);
const reply = await future.done;
const sessions = new SessionManager({ serverSettings, kernelManager: kernels });
await sessions.ready;
const session = await sessions.startNew(
  { path: "a.ipynb", name: "a.ipynb", type: "notebook", kernel: { name: "python3" } });
const started = await session.kernel.requestExecute({ code: "1 + 1" }).done;
await session.kernel.restart();
await session.kernel.info;
const restarted = await session.kernel.requestExecute({ code: "2 + 2" }).done;
const found = [...sessions.running()].map((each) => each.path);
await session.changeKernel({ id: kernelId });
await session.setPath("b.ipynb");
await sessions.refreshRunning();
const moved = [...sessions.running()].map((each) => [each.path, each.kernel.id === kernelId]);
let refused = 0;
const wrong = ServerConnection.makeSettings({ ...serverSettings, token: "wrong" });
await fetch(`${url}/api/kernels?token=wrong`).then((response) => { refused = response.status; });
console.log(JSON.stringify({
  default: specs.specs.default, running, language: info.language_info.name, outputs,
  statuses: [reply, started, restarted].map((each) => each.content.status), found, moved, refused,
}));
process.exit(0);
