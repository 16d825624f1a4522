// What a person may have done: each asks first, and shows what the controller expects it to cost.

import { call, key } from "./api.js";
import { el, link, show } from "./dom.js";
import { isGone } from "./model.js";
import { forecastTable } from "./moves.js";
import { byName, bytes, count, since, took } from "./words.js";

const dialog = document.getElementById("dialog");
const news = document.getElementById("news");
const offered = 200; // hosts that a field offers
const told = 4; // things that are said at once
const heard = 12_000; // milliseconds for which each is

// tell says something that has happened, for some seconds.
export function tell(...words) {
  const said = el("p", {}, words);
  news.append(said);
  while (news.children.length > told) news.firstChild.remove();
  setTimeout(() => said.remove(), heard);
}

// confirm opens a dialog: what it is about, what it costs, and two buttons. cost makes what is shown of the cost, of what was chosen;
// act does it and gives what is told then. Nothing is done before its cost is shown, or that it is not known: the button waits for
// that, and a key that is held, or pressed twice, does nothing.
function confirm({ title, says, fields, cost, yes, danger, act }) {
  const said = el("div", { id: "dialog-cost", "aria-live": "polite" });
  const wrong = el("p", { role: "alert", class: "bad" });
  const does = el("button", { type: "submit", class: danger ? "danger" : "main", id: "dialog-yes", disabled: true }, yes);
  let once = key(), newest = 0, weighed = false, acts = false, later;
  const allow = () => { does.disabled = !weighed || acts; };
  const weigh = async () => {
    const mine = ++newest;
    if (cost) show(said, el("p", {}, "Asking what it would cost…"));
    const shown = await Promise.resolve(cost?.()).catch((problem) => el("p", { class: "note" }, problem.message));
    if (mine !== newest) return;
    if (cost) show(said, shown);
    weighed = true;
    allow();
  };
  // changed: what is chosen now is another request, of which the cost is not known yet.
  const changed = () => {
    newest++;
    once = key();
    weighed = false;
    allow();
    clearTimeout(later);
    later = setTimeout(weigh, 300);
  };
  const form = el("form", { method: "dialog", keydown: (e) => { if (e.key === "Enter" && e.repeat) e.preventDefault(); }, submit: async (e) => {
    e.preventDefault();
    if (does.disabled) return;
    acts = true;
    allow();
    show(wrong);
    try {
      const done = await act(once);
      if (dialog.firstChild === form) dialog.close(); // else it was left, and another one is open
      tell(done);
    } catch (problem) {
      if (dialog.open && dialog.firstChild === form) show(wrong, problem.message);
      else tell(problem.message);
    }
    acts = false;
    allow();
  } },
    el("h2", { id: "dialog-title" }, title), el("p", {}, says),
    fields ? el("p", { input: changed }, fields) : "", said, wrong,
    el("p", { class: "actions" }, does, " ", el("button", { type: "button", autofocus: !fields, id: "dialog-no", click: () => dialog.close() }, "Do nothing")));
  dialog.replaceChildren(form);
  dialog.showModal();
  weigh();
}

const moved = (answer, otherwise) => [...((answer.moves ?? []).length ? ["Begun: ", answer.moves.map((m, i) => [i ? ", " : "", link("move", m)]), ". "] : [otherwise, " "]), (answer.notes ?? []).join(" ")];

function whereTo(model, not) {
  const hosts = [...model.hosts.values()].filter((h) => h.id !== not && h.connected && h.state === "up").map((h) => h.id).sort(byName).slice(0, offered);
  const to = el("input", { id: "to", list: "hosts", autofocus: true, autocomplete: "off", spellcheck: "false", placeholder: "the controller chooses" });
  return [to, [el("label", { for: "to" }, "To host "), to, el("datalist", { id: "hosts" }, hosts.map((h) => el("option", { value: h })))]];
}

function migrate(model, title, says, body, from) {
  const [to, fields] = whereTo(model, from);
  const asked = () => ({ ...body, ...(to.value.trim() ? { to: to.value.trim() } : {}) });
  confirm({
    title, says, fields, yes: "Move",
    cost: async () => forecastTable(await call("predictMove", { body: asked() })),
    act: async (once) => moved(await call("migrate", { body: asked(), headers: { "Idempotency-Key": once } }), "Nothing has to move."),
  });
}

// actions are what elements with data-do do.
const actions = {
  drain(model, host) {
    const n = model.at.get(host)?.size ?? 0;
    confirm({
      title: `Drain ${host}?`, says: `${n ? `${count(n, "guest")} move${n === 1 ? "s" : ""} to other hosts while ${n === 1 ? "it runs" : "they run"}` : "It has no guests"}, and ${host} takes none until somebody lets it.`, yes: `Drain ${host}`,
      cost: async () => forecastTable(await call("predictDrain", { path: { host } })),
      act: async (once) => moved(await call("drainHost", { path: { host }, headers: { "Idempotency-Key": once } }), `${host} drains.`),
    });
  },

  undrain(model, host) {
    confirm({
      title: `Let ${host} run guests again?`, says: "It takes guests again. None moves back because of that.", yes: "Let it run guests",
      act: async (once) => moved(await call("undrainHost", { path: { host }, headers: { "Idempotency-Key": once } }), `${host} runs guests again.`),
    });
  },

  migrate(model, guest) {
    const g = model.guests.get(guest);
    migrate(model, `Move ${guest}?`, `It is at ${g?.home ?? "a host"} and runs on while it moves.`, { guests: [guest] }, g?.home);
  },

  migrateJob(model, job) {
    migrate(model, `Move all guests of ${job}?`, "They move together: all find room or none goes.", { job });
  },

  cancelJob(model, job) {
    const j = model.jobs.get(job), guests = [...model.guests.values()].filter((g) => g.job === job && !isGone(g));
    const spent = guests.reduce((s, g) => s + (g.spent ?? 0), 0), memory = guests.reduce((s, g) => s + (g.memory ?? 0), 0);
    confirm({
      title: `Cancel ${job}?`, says: "Its program is told to end, and then is ended. This cannot be taken back.", yes: `Cancel ${job}`, danger: true,
      cost: async () => [
        el("p", {}, j?.started && since(j.started) ? `It has run for ${since(j.started)}. ` : "It has not begun to run. ", guests.length ? `Its ${count(guests.length, "guest")} used ${took(spent)} of processor time on the hosts where they are; ${bytes(memory)} of memory become free.` : ""),
        el("p", { class: "note" }, j?.newest_checkpoint ? `What it computed since its checkpoint ${j.newest_checkpoint} is lost.` : "It has no checkpoint: what it computed and did not write is lost."),
      ],
      act: async (once) => moved(await call("cancelJob", { path: { job }, body: {}, headers: { "Idempotency-Key": once } }), `${job} is being cancelled.`),
    });
  },

  cancelMove(model, move) {
    const parts = model.moves.get(move)?.parts ?? [], sent = parts.reduce((s, p) => s + (p.progress?.sent_bytes ?? 0), 0);
    confirm({
      title: `Cancel the move ${move}?`, says: "Its guests stay where they are, if they have not switched yet. They run on.", yes: "Cancel the move", danger: true,
      cost: async () => el("p", {}, sent ? `${bytes(sent)} were sent in vain.` : "Nothing was sent yet."),
      act: async (once) => moved(await call("cancelMove", { path: { move }, headers: { "Idempotency-Key": once } }), `${move} is being cancelled.`),
    });
  },
};

// listen has buttons do what they say.
export function listen(model) {
  document.addEventListener("click", (e) => {
    const button = e.target.closest?.("button[data-do]");
    if (button && actions[button.dataset.do]) actions[button.dataset.do](model, button.dataset.id);
  });
}
