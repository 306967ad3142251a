// Requests to the server: JSON, and answers as server-sent events.

export class ApiError extends Error {
  constructor(status, message, code = null) {
    super(message);
    this.status = status; // 0: the server could not be reached
    this.code = code;
  }
}

const key = () => sessionStorage.getItem("bitnet.key");
export const hasKey = () => Boolean(key());
export const setKey = (value) => sessionStorage.setItem("bitnet.key", value);

async function ask(path, options = {}) {
  const headers = { "content-type": "application/json" };
  if (key()) headers.authorization = `Bearer ${key()}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({}));
  throw new ApiError(answer.status, error?.message ?? `The server answered with status ${answer.status}.`, error?.code);
}

// The server's properties with those of a model; without a name, of the only one.
export async function properties(model) {
  return (await ask(model ? `/props?model=${encodeURIComponent(model)}` : "/props")).json();
}

export const models = async () => (await (await ask("/v1/models")).json()).data;

// Yields the documents of a streamed chat; ends at [DONE], throws ApiError at an error or a broken stream.
export async function* chat(body, signal) {
  const streamed = { ...body, stream: true, stream_options: { include_usage: true } };
  const answer = await ask("/v1/chat/completions", { method: "POST", body: JSON.stringify(streamed), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(broken);
    if (done) throw new ApiError(0, "The connection broke off.");
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue;
      if (block === "data: [DONE]") return;
      const document = JSON.parse(block.slice(6));
      if (document.error) throw new ApiError(0, document.error.message, document.error.code);
      yield document;
    }
  }
}

function broken(error) {
  if (error.name === "AbortError") throw error;
  throw new ApiError(0, "The connection broke off.");
}
