// The page: who reads it, what it shows, and the line to the controller.

import { call, token, watch } from "./api.js";
import { listen, tell } from "./actions.js";
import { ClusterPage } from "./cluster.js";
import { GuestPage, HostPage, JobPage, MovePage } from "./details.js";
import { el, show } from "./dom.js";
import { JobsPage, OwnersPage } from "./lists.js";
import { Model, isOver, phaseWord } from "./model.js";
import { MovesPage } from "./moves.js";
import { age } from "./words.js";

const by = (id) => document.getElementById(id);
const main = by("main"), nav = by("nav"), line = by("line"), who = by("who"), leave = by("leave");
const model = new Model();
const told = 3; // moves of which readers are told at once
let page, watching, cut, since, arrived = new Map();

const lists = { jobs: JobsPage, moves: MovesPage, owners: OwnersPage };
const things = { host: HostPage, guest: GuestPage, job: JobPage, move: MovePage };

// route shows the page that the address names.
function route() {
  if (!watching) return;
  let [kind = "", id = ""] = location.hash.replace(/^#\/?/, "").split("/");
  try {
    id = decodeURIComponent(id);
  } catch {
    id = "";
  }
  page?.unmount();
  if (Object.hasOwn(things, kind) && id) page = new things[kind](model, id);
  else page = new (Object.hasOwn(lists, kind) ? lists[kind] : ClusterPage)(model);
  document.title = `${page.title} - Pagurus`;
  for (const a of nav.children) {
    if (a.getAttribute("href") === `#/${page.title === "Cluster" ? "" : page.title.toLowerCase()}`) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  if (model.ready) page.mount(main);
  else main.replaceChildren(el("p", { class: "none" }, "Asking the controller…"));
  page.mounted = model.ready;
  if (document.activeElement === document.body || main.contains(document.activeElement)) main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

// login asks for a token.
function login(why) {
  stop();
  document.title = "Log in - Pagurus";
  const field = el("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const wrong = el("p", { role: "alert", class: "bad" }, why ?? "");
  main.replaceChildren(el("form", { class: "login", submit: async (e) => {
    e.preventDefault();
    if (!token.set(field.value)) return show(wrong, "That is no token: it is one line of letters, digits and dots.");
    try {
      await start();
    } catch (problem) {
      token.forget();
      show(wrong, problem.message);
    }
  } }, el("h1", {}, "Log in"),
    el("p", {}, el("label", { for: "token" }, "Token "), field, " ", el("button", { type: "submit", class: "main" }, "Log in")), wrong,
    el("p", { class: "small" }, "Make one where pagurus works, with ", el("code", {}, "pagurus page"), ". It acts as you, as a user; an administrator adds ", el("code", {}, "--role admin"), ". This tab keeps it until it is closed.")));
  field.focus();
}

// start finds out who reads, and begins to watch.
async function start() {
  const me = await call("whoAmI");
  stop();
  watching = new AbortController();
  nav.hidden = leave.hidden = false;
  show(who, me.cluster ? `${me.cluster}: ` : "", me.user || `user ${me.uid}`, me.admin ? " (administrator)" : "");
  route();
  watch("host,guest,job,move,policy", { heard: (name, data) => model.heard(name, data), line: connection, signal: watching.signal });
}

function stop() {
  watching?.abort();
  watching = undefined;
  clearInterval(cut);
  since = undefined;
  page?.unmount();
  page = undefined;
  model.ready = false;
  model.forget();
  by("dialog").close();
  nav.hidden = leave.hidden = true;
  show(who);
  show(line);
  document.body.classList.remove("stale");
}

// connection says whether what is shown is what is.
function connection(state, why) {
  clearInterval(cut);
  document.body.classList.toggle("stale", state !== "live");
  if (state === "live") {
    since = undefined;
    show(line, el("span", { class: "badge good" }, "live"));
    return;
  }
  since ??= Date.now();
  const says = () => show(line, el("span", { class: "badge bad", title: why }, "not live"), el("span", { class: "small", "aria-hidden": "true" }, ` for ${age(Date.now() - since)}: ${why}`));
  says();
  cut = setInterval(says, 1000);
}

// arrivals tells of moves that have ended.
function arrivals(news) {
  const ended = [];
  for (const id of news.move) {
    const parts = model.moves.get(id)?.parts ?? [];
    for (const p of parts) {
      if (isOver(p) && arrived.get(p.id) === false) ended.push(p);
      if (isOver(p)) arrived.delete(p.id);
      else arrived.set(p.id, false);
    }
  }
  if (ended.length) tell(ended.slice(0, told).map((p) => (p.phase === "finished" ? `${p.guest} has moved to ${p.to}. ` : `${p.guest}: ${phaseWord(p.phase)}. `)), ended.length > told ? `And ${ended.length - told} more.` : "");
}

model.listeners.add((news) => {
  if (!page) return;
  if (!page.mounted) {
    page.mount(main);
    page.mounted = true;
  } else {
    page.update(news);
  }
  arrivals(news);
});
addEventListener("hashchange", route);
document.addEventListener("unknown", (e) => {
  token.forget();
  login(e.detail);
});
leave.addEventListener("click", () => {
  token.forget();
  login();
});
by("skip").addEventListener("click", () => main.focus());
listen(model);
if (token.get()) start().catch((problem) => problem.status === 401 || login(problem.message));
else login();
