// Drives LLM APIs with the official TypeScript SDKs of OpenAI and Anthropic and
// prints a JSON line for each check: {"check", "ok", "detail"}.
//
//   node llm.mjs URL
//
// At URL is a proxy whose upstreams are a replayed model. Its conversation
// "trip" looks up the weather of two cities at once and then sums up; "busy"
// answers with an error; "broken" fails in the middle of a stream.
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const [url] = process.argv.slice(2);
const openai = new OpenAI({ apiKey: 'key-of-openai', baseURL: `${url}/v1`, maxRetries: 0 });
const anthropic = new Anthropic({ apiKey: 'key-of-anthropic', baseURL: `${url}/anthropic`, maxRetries: 0 });

const prompt = 'Is it warmer in Oslo or in Rome?';
const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const same = (got, want) => {
  if (JSON.stringify(got) !== JSON.stringify(want)) throw new Error(`got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
};
const failing = async (run, status, words) => {
  let error;
  await run().catch((e) => { error = e; });
  if (!error) throw new Error('no error');
  if (status) same(error.status, status);
  if (!String(error.message).includes(words)) throw new Error(`got ${error.message}`);
};

// talk has the conversation: ask gives an answer of {text, calls: [{id, name, args}], turn},
// and results are the items that tell what the calls returned.
const talk = async (ask, begin, results) => {
  const history = [begin];
  const first = await ask(history);
  same(first.text, 'I will look up both cities.');
  same(first.calls.map((c) => [c.name, JSON.parse(c.args)]), [['weather__now', { city: 'Oslo' }], ['weather__now', { city: 'Rome' }]]);
  history.push(...first.turn, ...results(first.calls));
  const second = await ask(history);
  same(second.text, 'It is warmer in Rome.');
  same(second.calls, []);
};

const user = { role: 'user', content: prompt };
const degrees = { Oslo: '4', Rome: '15' };
const told = (c) => degrees[JSON.parse(c.args).city];

// Chat Completions.

const chat = (model) => ({ model, tools: [{ type: 'function', function: { name: 'weather__now', description: 'The weather now.', parameters: schema } }] });
const chatAnswer = ({ choices: [{ message }] }) => ({
  text: message.content,
  calls: (message.tool_calls ?? []).map((c) => ({ id: c.id, name: c.function.name, args: c.function.arguments })),
  turn: [message],
});
const chatResults = (calls) => calls.map((c) => ({ role: 'tool', tool_call_id: c.id, content: told(c) }));

// Responses.

const responses = (model) => ({ model, tools: [{ type: 'function', name: 'weather__now', description: 'The weather now.', parameters: schema, strict: false }] });
const responsesAnswer = (r) => ({
  text: r.output_text ?? r.output.filter((i) => i.type === 'message').flatMap((i) => i.content).map((p) => p.text).join(''),
  calls: r.output.filter((i) => i.type === 'function_call').map((c) => ({ id: c.call_id, name: c.name, args: c.arguments })),
  turn: r.output,
});
const responsesResults = (calls) => calls.map((c) => ({ type: 'function_call_output', call_id: c.id, output: told(c) }));

// Messages.

const messages = (model) => ({ model, max_tokens: 1000, tools: [{ name: 'weather__now', description: 'The weather now.', input_schema: schema }] });
const messagesAnswer = (m) => ({
  text: m.content.filter((b) => b.type === 'text').map((b) => b.text).join(''),
  calls: m.content.filter((b) => b.type === 'tool_use').map((b) => ({ id: b.id, name: b.name, args: JSON.stringify(b.input) })),
  turn: [{ role: 'assistant', content: m.content }],
});
const messagesResults = (calls) => [{ role: 'user', content: calls.map((c) => ({ type: 'tool_result', tool_use_id: c.id, content: told(c) })) }];

const trip = 'replay/trip';
const all = async (stream) => { for await (const _ of stream); };
const checks = {
  'chat, whole': () => talk(async (m) => chatAnswer(await openai.chat.completions.create({ ...chat(trip), messages: m })), user, chatResults),
  'chat, streaming': () => talk(async (m) => chatAnswer(await openai.chat.completions.stream({ ...chat(trip), messages: m }).finalChatCompletion()), user, chatResults),
  'responses, whole': () => talk(async (input) => responsesAnswer(await openai.responses.create({ ...responses(trip), input })), user, responsesResults),
  'responses, streaming': () => talk(async (input) => responsesAnswer(await openai.responses.stream({ ...responses(trip), input }).finalResponse()), user, responsesResults),
  'messages, whole': () => talk(async (m) => messagesAnswer(await anthropic.messages.create({ ...messages(trip), messages: m })), user, messagesResults),
  'messages, streaming': () => talk(async (m) => messagesAnswer(await anthropic.messages.stream({ ...messages(trip), messages: m }).finalMessage()), user, messagesResults),
  'chat, an error': () => failing(() => openai.chat.completions.create({ ...chat('replay/busy'), messages: [user] }), 429, 'slow down'),
  'messages, an error': () => failing(() => anthropic.messages.create({ ...messages('replay/busy'), messages: [user] }), 429, 'slow down'),
  'chat, an error in the stream': () => failing(async () => all(await openai.chat.completions.create({ ...chat('replay/broken'), messages: [user], stream: true })), 0, 'out of order'),
  'messages, an error in the stream': () => failing(async () => all(await anthropic.messages.create({ ...messages('replay/broken'), messages: [user], stream: true })), 0, 'out of order'),
  'no upstream has the model': () => failing(() => openai.chat.completions.create({ ...chat('gpt-none'), messages: [user] }), 404, 'no upstream of SpecBox has the model'),
  'the upstream is not there': () => failing(() => anthropic.messages.create({ ...messages('gone'), messages: [user] }), 502, 'gave no answer'),
  models: async () => {
    const names = [];
    for await (const m of openai.models.list()) names.push(m.id);
    if (!names.includes(trip)) throw new Error(`got ${names}`);
  },
};

for (const [check, run] of Object.entries(checks)) {
  let detail = '';
  try {
    await run();
  } catch (e) {
    detail = String(e?.stack ?? e);
  }
  console.log(JSON.stringify({ check, ok: detail === '', detail }));
}
