// Asks the server. A newer question of the same kind replaces an older one.

const running = new Map();

export class Outdated extends Error {}

export async function ask(question, parameters = new URLSearchParams()) {
  running.get(question)?.abort();
  const controller = new AbortController();
  running.set(question, controller);
  let response;
  try {
    response = await fetch(`api/${question}?${parameters}`, { signal: controller.signal });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  } catch (error) {
    if (controller.signal.aborted) throw new Outdated();
    if (response === undefined) throw new Error("The server has ended: start browse again.");
    throw error;
  }
}
