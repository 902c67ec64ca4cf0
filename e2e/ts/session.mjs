// Runs one session with the TypeScript SDK's client and prints a JSON line for
// each check: {"check", "ok", "detail"}.
//
//   node session.mjs URL PREFIX [NASTY]
//
// PREFIX stands before the names of server-everything's tools and prompts. NASTY
// stands before those of a nasty server, if there is one at URL.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema,
  LoggingMessageNotificationSchema, ResourceUpdatedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';

const [url, prefix, nasty] = process.argv.slice(2);

const client = new Client({ name: 'ts', version: '1.0.0' }, {
  capabilities: { sampling: {}, elicitation: { form: {} }, roots: { listChanged: true } },
});
client.setRequestHandler(CreateMessageRequestSchema, (request) => ({
  model: 'none', role: 'assistant',
  content: { type: 'text', text: `sampled: ${request.params.messages[0].content.text}` },
}));
client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'accept', content: { name: 'Ada Lovelace' } }));
client.setRequestHandler(ListRootsRequestSchema, () => ({ roots: [{ uri: 'file:///srv/root-of-ts', name: 'root-of-ts' }] }));

// inbox keeps notifications and lets a check wait for one.
const inbox = (schema) => {
  const got = [], waiting = [];
  client.setNotificationHandler(schema, ({ params }) => {
    got.push(params);
    for (const w of waiting) w();
  });
  return (match) => within(20_000, 'no notification came', new Promise((resolve) => {
    const look = () => { const p = got.find(match); if (p) resolve(p); };
    waiting.push(look);
    look();
  }));
};
const updated = inbox(ResourceUpdatedNotificationSchema);
const logged = inbox(LoggingMessageNotificationSchema);

const within = (ms, what, promise) => {
  let timer;
  return Promise.race([promise, new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(what)), ms); })])
    .finally(() => clearTimeout(timer));
};
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const call = (name, args = {}, options) => client.callTool({ name, arguments: args }, undefined, options);
const text = (result) => result.content.map((c) => c.text ?? '').join('\n');
const must = (ok, what) => { if (!ok) throw new Error(`got ${typeof what === 'string' ? what : JSON.stringify(what)}`); };

const checks = {
  async initialize() {
    await client.connect(new StreamableHTTPClientTransport(new URL(url)));
    must(client.getServerVersion()?.name, client.getServerVersion());
    must(client.getInstructions()?.includes('Everything'), client.getInstructions());
  },
  async tools() {
    const names = (await client.listTools()).tools.map((t) => t.name);
    for (const name of ['get-sum', 'trigger-sampling-request', 'trigger-elicitation-request', 'get-roots-list']) {
      must(names.includes(prefix + name), names);
    }
  },
  async call() {
    const result = await call(prefix + 'get-sum', { a: 2, b: 40 });
    must(text(result).includes('42'), result);
  },
  async structured() {
    const { structuredContent: s } = await call(prefix + 'get-structured-content', { location: 'Chicago' });
    must(s?.temperature === 36 && s.humidity === 82, s);
  },
  async progress() {
    const steps = [];
    await call(prefix + 'trigger-long-running-operation', { duration: 0.5, steps: 5 }, { onprogress: (p) => steps.push(p.progress) });
    must(steps.join() === '1,2,3,4,5', steps);
  },
  async cancellation() {
    const abort = new AbortController();
    let begun, steps = 0;
    const first = new Promise((resolve) => { begun = resolve; });
    const done = call(prefix + 'trigger-long-running-operation', { duration: 20, steps: 200 },
      { signal: abort.signal, onprogress: () => { steps++; begun(); } });
    await within(20_000, 'no progress', first);
    abort.abort('enough');
    let refused;
    await done.catch((e) => { refused = e; });
    must(refused, 'an answer after the cancellation');
    const seen = steps;
    await wait(500);
    must(steps === seen, `${steps - seen} steps after the cancellation`);
  },
  async 'cancellation stops the server'() {
    const running = async () => text(await call(nasty + 'processes')).includes('-sleeper 123s');
    const abort = new AbortController();
    const done = call(nasty + 'child', { seconds: 123 }, { signal: abort.signal });
    for (const until = Date.now() + 20_000; !await running();) must(Date.now() < until, 'no child');
    abort.abort('enough');
    await done.catch(() => {});
    for (const until = Date.now() + 20_000; await running();) must(Date.now() < until, 'a child that lives on');
    const cancelled = JSON.parse(text(await call(nasty + 'cancelled')));
    must(cancelled.length === 1 && cancelled[0].call === 'child', cancelled);
  },
  async sampling() {
    const result = await call(prefix + 'trigger-sampling-request', { prompt: 'who are you' });
    must(text(result).includes('sampled: Resource trigger-sampling-request context: who are you'), result);
  },
  async elicitation() {
    const result = await call(prefix + 'trigger-elicitation-request');
    must(text(result).includes('Ada Lovelace'), result);
  },
  async roots() {
    const result = await call(prefix + 'get-roots-list');
    must(text(result).includes('file:///srv/root-of-ts'), result);
  },
  async resource() {
    const { resources } = await client.listResources();
    const r = resources.find((r) => r.uri.startsWith('demo://resource/static/'));
    must(r, resources);
    const { contents } = await client.readResource({ uri: r.uri });
    must(contents[0].uri === r.uri && contents[0].text, contents);
  },
  async template() {
    const { resourceTemplates } = await client.listResourceTemplates();
    must(resourceTemplates.some((t) => t.uriTemplate === 'demo://resource/dynamic/text/{resourceId}'), resourceTemplates);
    const { contents } = await client.readResource({ uri: 'demo://resource/dynamic/text/7' });
    must(contents[0].text.startsWith('Resource 7:'), contents);
  },
  async subscription() {
    const uri = 'demo://resource/dynamic/text/1';
    await client.subscribeResource({ uri });
    await call(prefix + 'toggle-subscriber-updates');
    await updated((p) => p.uri === uri);
    await call(prefix + 'toggle-subscriber-updates');
    await client.unsubscribeResource({ uri });
  },
  async prompt() {
    const { prompts } = await client.listPrompts();
    must(prompts.some((p) => p.name === prefix + 'args-prompt'), prompts);
    const { messages } = await client.getPrompt({ name: prefix + 'args-prompt', arguments: { city: 'Paris' } });
    must(messages[0].content.text.includes('Paris'), messages);
  },
  async completion() {
    const { completion } = await client.complete({
      ref: { type: 'ref/prompt', name: prefix + 'completable-prompt' }, argument: { name: 'department', value: 'S' },
    });
    must(completion.values.join() === 'Sales,Support', completion);
  },
  async logging() {
    await client.setLoggingLevel('debug');
    await call(prefix + 'toggle-simulated-logging');
    await logged((p) => /level|message/i.test(String(p.data)));
    await call(prefix + 'toggle-simulated-logging');
  },
  async close() {
    await client.transport.terminateSession();
    await client.close();
  },
};

if (nasty === undefined) delete checks['cancellation stops the server'];
for (const [check, run] of Object.entries(checks)) {
  let detail = '';
  try {
    await within(60_000, 'not done within a minute', run());
  } catch (e) {
    detail = String(e?.stack ?? e);
  }
  console.log(JSON.stringify({ check, ok: detail === '', detail }));
}
process.exit(0);
