// The page of a machine's owner. It asks the program that serves it, which asks the agent of this machine as the owner.

import { el, show, table } from "./dom.js";

const kept = "owner"; // this tab's key, which no other address and no other port can read
const every = 2000;
const main = document.getElementById("main"), line = document.getElementById("line");
const news = el("p", { role: "alert", class: "bad" });
let busy = false, drawn = false, over = false, asked = 0;

class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function post(path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method: "POST", headers: { "Content-Type": "application/json", Authorization: `Bearer ${sessionStorage.getItem(kept) ?? ""}` }, body: JSON.stringify(body),
      credentials: "omit", mode: "same-origin", redirect: "error", cache: "no-store", referrerPolicy: "same-origin", // with no-referrer Origin would be null
    });
  } catch {
    throw new Problem(0, "The program that serves this page does not answer. Type pagurus owner page for another one.");
  }
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Problem(answer.status, said.detail ?? `It answers ${answer.status}.`);
  return said;
}

const lines = (text) => text.split("\n").map((l) => el("p", {}, l));

// draw shows what the agent says.
function draw(said) {
  const button = (what, text, attributes) => el("button", { type: "button", "data-do": what, ...attributes }, text);
  const history = said.history.rows.toReversed();
  show(main,
    el("h1", {}, said.host),
    el("div", { id: "status" }, lines(said.status)),
    el("div", { class: "actions" },
      button("hour", "I need it for 1 hour", { class: said.pause ? undefined : "main" }), button("pause", "Until I say"),
      said.pause ? button("resume", "Guests may come back", { class: "main" }) : ""),
    news,
    el("h2", {}, "What you agreed to"), el("div", { id: "policy" }, lines(said.policy)),
    el("p", { class: "small" }, "To change it: ", el("code", {}, "pagurus owner policy --help")),
    el("h2", {}, "What happened"),
    table("The newest first", ["When", "What"], history.map((cells, i) => ({ key: `${history.length - i}`, cells })), said.history.empty));
  drawn = true;
}

// failed says what went wrong. Without a key there is nothing to be asked any more.
function failed(problem) {
  document.body.classList.add("stale");
  show(line, el("span", { class: "badge bad" }, "not live"));
  if (problem.status === 401) {
    over = true;
    sessionStorage.removeItem(kept);
  }
  if (over || !drawn) show(main, el("h1", {}, "Pagurus on this machine"), news);
  show(news, problem.message);
}

// ask asks, and shows the answer if no later one is there.
async function ask(verb, more) {
  const turn = ++asked;
  try {
    const said = await post("/owner/ask", { verb, ...more });
    if (turn !== asked) return;
    document.body.classList.remove("stale");
    show(line, el("span", { class: "badge good" }, "live"));
    show(news);
    draw(said);
  } catch (problem) {
    if (turn === asked) failed(problem);
  }
}

const actions = {
  hour: () => ask("pause", { for_ns: 3600e9 }),
  pause: () => ask("pause"),
  resume: () => ask("resume"),
};

main.addEventListener("click", async (e) => {
  const act = actions[e.target.closest("button[data-do]")?.dataset.do];
  if (!act || busy) return;
  busy = true;
  await act();
  busy = false;
});

const look = () => busy || over || document.hidden || ask("history");
document.addEventListener("visibilitychange", look);

// begin exchanges the link's secret for this tab's key. The secret is taken out of the address, and is of no use any more.
async function begin() {
  const secret = location.hash.slice(1);
  if (secret) {
    history.replaceState(null, "", "/");
    try {
      sessionStorage.setItem(kept, (await post("/owner/session", { secret })).session);
    } catch (problem) {
      if (!sessionStorage.getItem(kept)) return failed(problem);
    }
  }
  look();
  setInterval(look, every);
}
begin();
