// Talking to the server: JSON, and answers as server-sent events.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const key = () => sessionStorage.getItem("bitnet.key");
export const setKey = (value) => sessionStorage.setItem("bitnet.key", value);

async function ask(path, options = {}) {
  const headers = { "content-type": "application/json" };
  if (key()) headers.authorization = `Bearer ${key()}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  if (answer.ok) return answer;
  const document = await answer.json().catch(() => ({}));
  throw new ApiError(answer.status, document.error?.message ?? `The server says ${answer.status}.`);
}

export const properties = async () => (await ask("/props")).json();

// Yields the documents of a streamed chat; ends at [DONE], throws ApiError at an error or a broken stream.
export async function* chat(body, signal) {
  const answer = await ask("/v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError(0, "The connection broke off.");
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue;
      if (block === "data: [DONE]") return;
      const document = JSON.parse(block.slice(6));
      if (document.error) throw new ApiError(0, document.error.message);
      yield document;
    }
  }
}
