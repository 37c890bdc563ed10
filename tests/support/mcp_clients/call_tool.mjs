// call_tool.mjs URL TOKEN ERA CODE: the TypeScript SDK's client runs code, and prints what it got as JSON.
// Questions are answered with yes.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [url, token, era, code] = process.argv.slice(2);
const asked = [];
const client = new Client(
  { name: "test", version: "1" },
  {
    capabilities: { elicitation: {} },
    versionNegotiation: { mode: era === "legacy" ? "legacy" : { pin: era } },
  },
);
client.setRequestHandler("elicitation/create", async (request) => {
  asked.push(request.params.message);
  return { action: "accept", content: {} };
});
const headers = { Authorization: `Bearer ${token}` };
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const progress = [];
const result = await client.callTool(
  { name: "run_code", arguments: { code } },
  { onprogress: (at) => progress.push(at.message) },
);
console.log(JSON.stringify({ era: client.getNegotiatedProtocolVersion(), tools, asked, progress, result }));
await client.close();
