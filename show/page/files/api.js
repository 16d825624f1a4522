// What is asked of the controller. Who asks is said by a token in a header, which this tab keeps until it is closed; there are no
// cookies, and certificates of the browser are not shown, so that no other site's page can ask in its reader's name.

import { clock } from "./words.js";

const prefix = "/api/v1";
const kept = "pagurus-token";

// operations are those of the interface that the page uses, by their names in its document. A test compares.
export const operations = {
  whoAmI: ["GET", "/whoami"],
  watchEvents: ["GET", "/events"],
  showHost: ["GET", "/hosts/{host}"],
  explainHost: ["GET", "/hosts/{host}/explanation"],
  predictDrain: ["POST", "/hosts/{host}/drain/prediction"],
  drainHost: ["POST", "/hosts/{host}/drain"],
  undrainHost: ["POST", "/hosts/{host}/undrain"],
  showGuest: ["GET", "/guests/{guest}"],
  explainGuest: ["GET", "/guests/{guest}/explanation"],
  showJob: ["GET", "/jobs/{job}"],
  explainJob: ["GET", "/jobs/{job}/explanation"],
  cancelJob: ["POST", "/jobs/{job}/cancel"],
  predictMove: ["POST", "/moves/prediction"],
  migrate: ["POST", "/moves"],
  showMove: ["GET", "/moves/{move}"],
  explainMove: ["GET", "/moves/{move}/explanation"],
  cancelMove: ["POST", "/moves/{move}/cancel"],
  showScore: ["GET", "/score"],
};

// Problem is what the controller refuses, with its sentence.
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const token = {
  get() { return sessionStorage.getItem(kept) ?? ""; },
  // set keeps a token, and says whether it can be one.
  set(text) {
    text = text.trim();
    if (!/^[\x21-\x7e]+$/.test(text)) return false;
    sessionStorage.setItem(kept, text);
    return true;
  },
  forget() { sessionStorage.removeItem(kept); },
};

async function ask(name, { path = {}, query, body, headers, signal } = {}) {
  const [method, form] = operations[name];
  const where = form.replace(/\{([a-z]+)\}/g, (_, part) => {
    const id = path[part];
    if (!id || id === "." || id === "..") throw new Problem(404, `There is no ${part} of that name.`);
    return encodeURIComponent(id);
  });
  const said = { Authorization: `Bearer ${token.get()}`, ...headers };
  if (body !== undefined) said["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(prefix + where + (query ? "?" + new URLSearchParams(query) : ""), {
      method, headers: said, body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit", mode: "same-origin", redirect: "error", cache: "no-store", referrerPolicy: "same-origin", signal, // with no-referrer Origin would be null, by which Firefox would be refused
    });
  } catch (cause) {
    if (signal?.aborted) throw cause;
    throw new Problem(0, "The controller does not answer.");
  }
  clock.hear(answer.headers.get("Date"));
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401) document.dispatchEvent(new CustomEvent("unknown", { detail: problem.detail }));
  throw new Problem(answer.status, problem.detail ?? `The controller answers ${answer.status}.`);
}

// call asks for an operation that answers with one value.
export async function call(name, options) {
  const answer = await ask(name, options);
  return answer.json();
}

// key names a request, so that one that is sent twice is carried out once.
export const key = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");

const silence = 40_000; // the controller says every 15 seconds that it is there
const share = 15; // milliseconds of reading at once: then what the person does has its turn

// watch hears events until signal ends: heard(name, data) for each, line(state, why) when all is known that the controller knows, and
// when the connection breaks. It connects again by itself and goes on where it was.
export async function watch(kinds, { heard, line, signal }) {
  let last = "", pause = 500;
  const hears = (name, data) => {
    heard(name, data);
    if (name === "ready") line("live"); // before, what is shown may be from before the cut
  };
  while (!signal.aborted) {
    const over = new AbortController();
    const stop = () => over.abort();
    signal.addEventListener("abort", stop);
    let alive;
    const lives = () => {
      clearTimeout(alive);
      alive = setTimeout(stop, silence);
    };
    let why = "The connection has ended.";
    try {
      lives();
      const answer = await ask("watchEvents", { query: { kinds, brief: true }, headers: last ? { "Last-Event-ID": last } : {}, signal: over.signal });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        lives();
        pause = 500;
        rest += value;
        let from = 0, began = performance.now();
        for (let end; !signal.aborted && (end = rest.indexOf("\n\n", from)) >= 0; from = end + 2) {
          last = take(rest.slice(from, end), hears) ?? last;
          if (performance.now() - began > share) {
            await new Promise((go) => setTimeout(go));
            began = performance.now();
          }
        }
        rest = rest.slice(from);
      }
    } catch (cause) {
      if (cause instanceof Problem) {
        if (cause.status === 401) return;
        why = cause.message;
      }
    } finally {
      clearTimeout(alive);
      signal.removeEventListener("abort", stop);
      over.abort();
    }
    if (signal.aborted) return;
    line("cut", why);
    await new Promise((go) => setTimeout(go, pause * (0.5 + Math.random())));
    pause = Math.min(2 * pause, 10_000);
  }
}

// take reads one event, and gives its ID.
function take(text, heard) {
  let id, name, data = "";
  for (const row of text.split("\n")) {
    if (row.startsWith("id: ")) id = row.slice(4);
    else if (row.startsWith("event: ")) name = row.slice(7);
    else if (row.startsWith("data: ")) data += row.slice(6);
  }
  if (name) heard(name, data);
  return id;
}
