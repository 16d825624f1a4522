// Pages about one thing: a host, a guest, a job, a move. What the cluster's events say is shown as it comes, and the rest is asked for
// when something about the thing has changed, at most every few seconds.

import { call } from "./api.js";
import { doing, el, facts, link, show, table } from "./dom.js";
import { matrix, ranks } from "./matrix.js";
import { isGone, isOver } from "./model.js";
import { moveTable, phases, stalled, stopButton } from "./moves.js";
import { ownerWords, policyWords } from "./lists.js";
import { byName, bytes, colourOf, command, count, hostState, since, time, took } from "./words.js";

const every = 4000; // milliseconds between two questions about the same thing
const quiet = 15_000; // and if nothing changes
const guestsMost = 300; // that are listed

// Asked is what an operation says of something.
class Asked {
  constructor(name, path, then) {
    Object.assign(this, { name, path, then, last: -Infinity });
  }

  // ask asks, if it has not just been asked.
  ask() {
    if (this.asks || this.waits || this.over) return;
    const rest = this.last + every - performance.now();
    if (rest > 0) {
      this.waits = setTimeout(() => { this.waits = undefined; this.ask(); }, rest);
      return;
    }
    this.asks = true;
    call(this.name, { path: this.path }).then((value) => ({ value }), (problem) => ({ problem })).then((answer) => {
      this.asks = false;
      this.last = performance.now();
      if (!this.over) this.then(answer);
    });
  }

  stop() {
    this.over = true;
    clearTimeout(this.waits);
  }
}

// Details is a page about one thing.
class Details {
  constructor(model, kind, id) {
    Object.assign(this, { model, kind, id, title: `${kind[0].toUpperCase()}${kind.slice(1)} ${id}`, asked: [] });
    const name = kind[0].toUpperCase() + kind.slice(1);
    this.asked.push(new Asked(`show${name}`, { [kind]: id }, ({ value, problem }) => { this.all = value ?? this.all; this.problem = problem; this.draw(); }));
    this.asked.push(new Asked(`explain${name}`, { [kind]: id }, ({ value }) => { this.lines = value?.lines ?? this.lines; this.draw(); }));
  }

  mount(main) {
    this.head = el("div", {});
    this.body = el("div", {});
    main.replaceChildren(el("h1", {}, this.title), this.head, this.body);
    this.draw();
    for (const a of this.asked) a.ask();
    this.quiet = setInterval(() => this.asked.forEach((a) => a.ask()), quiet);
    this.ticks = setInterval(() => this.draw(), 1000);
  }

  unmount() {
    for (const a of this.asked) a.stop();
    clearInterval(this.quiet);
    clearInterval(this.ticks);
  }

  update(news) {
    if (!news.all && !this.about(news)) return;
    for (const a of this.asked) a.ask();
    this.draw();
  }

  draw() {
    if (this.problem?.status === 404 && !this.row()) {
      show(this.head, el("p", { class: "none" }, this.problem.message));
      show(this.body);
      return;
    }
    const row = this.row() ?? this.all;
    if (row) this.fill(row);
    else show(this.head, el("p", { class: "none" }, this.problem?.message ?? "…"));
  }

  story() {
    return this.lines?.length ? el("section", {}, el("h2", {}, "Why it is so"), el("ul", { class: "story" }, this.lines.map((l) => el("li", {}, l)))) : "";
  }
}

// guestTable lists guests.
function guestTable(model, caption, guests, withJob) {
  const columns = ["Guest", withJob ? "Job" : "Host", "State", "Memory", "CPUs", "Address", "Since", ""];
  return [table(caption, columns, guests.slice(0, guestsMost).map((g) => {
    const p = model.moving.get(g.id);
    return { key: g.id, cells: [
      link("guest", g.id), withJob ? link("job", g.job) : link("host", g.home),
      p ? el("span", {}, el("span", { class: "badge warn" }, "moves"), " to ", link("host", p.to)) : el("span", { class: `badge ${colourOf(g.state)}` }, g.suspended ? "suspended" : g.state),
      bytes(g.resident ?? g.memory), (g.cpus ?? 0).toFixed(2), g.address, since(g.since), g.state === "running" ? doing("migrate", g.id, "Move…") : "",
    ] };
  }), "There are no guests."), guests.length > guestsMost ? el("p", {}, `and ${guests.length - guestsMost} more`) : ""];
}

export class HostPage extends Details {
  constructor(model, id) { super(model, "host", id); }
  row() { return this.model.hosts.get(this.id); }
  about(news) { return news.host.has(this.id) || [...(this.model.at.get(this.id) ?? [])].some((g) => news.guest.has(g)); }

  fill() {
    const h = this.row(), detail = this.all ?? {}, f = detail.facts ?? {};
    if (!h) return;
    const [word, colour] = hostState(h);
    const here = [...(this.model.at.get(this.id) ?? [])].sort(byName).map((g) => this.model.guests.get(g)).filter(Boolean);
    const drains = h.state === "draining", passes = h.forOwner || h.forHealth || h.forNotice; // such a drain ends by itself, a person's does not
    show(this.head, el("p", {}, el("span", { class: `badge ${colour}` }, word)),
      el("p", { class: "actions" }, drains ? doing("undrain", this.id, "Let it run guests again…") : "", !drains || passes ? doing("drain", this.id, "Drain…") : ""),
      facts([
        ["Site", h.site], ["Address", f.address], ["CPUs", `${h.cpus}, ${(f.load_cpus ?? h.load).toFixed(2)} used by guests`], ["Memory", `${bytes(h.memory)}, ${bytes(h.free)} not promised to guests`],
        ["Kinds", Object.entries(f.abilities ?? {}).map(([k, a]) => (a.trouble ? `${k}: ${a.trouble}` : `${k}${a.accelerator ? "/" + a.accelerator : ""}`)).join(", ")],
        ["Owner", h.owner ? ownerWords(h) : ""], ["Policy", policyWords(h.policy)], ["Must be empty by", time(detail.empty_by)], ["Protection", detail.protection], ["State since", time(detail.since)], ["Version", f.version],
      ]), (f.troubles ?? []).map((t) => el("p", { class: "note" }, t)));
    const coming = this.model.coming(this.id);
    show(this.body, el("section", {}, guestTable(this.model, "Guests here", here, true), coming.length ? el("p", {}, "On the way here: ", coming.map((p, i) => [i ? ", " : "", link("guest", p.guest)])) : ""),
      el("section", {}, moveTable("Moves from and to it", this.model.story((p) => p.from === this.id || p.to === this.id, 20), "No guest has moved from or to it.")), this.story());
  }
}

export class GuestPage extends Details {
  constructor(model, id) { super(model, "guest", id); }
  row() { return this.model.guests.get(this.id); }
  about(news) { return news.guest.has(this.id); }

  fill() {
    const g = this.row();
    if (!g) return;
    const detail = this.all ?? {}, seen = detail.facts ?? {}, p = this.model.moving.get(this.id);
    show(this.head, el("p", {}, el("span", { class: `badge ${p ? "warn" : colourOf(g.state)}` }, g.suspended ? "suspended" : g.state), " at ", link("host", g.home), p ? [", moves to ", link("host", p.to)] : ""),
      el("p", { class: "actions" }, g.state === "running" ? doing("migrate", this.id, "Move…") : ""),
      facts([["Job", link("job", g.job)], ["Kind", g.kind], ["Address", g.address], ["Memory", `${bytes(g.memory)}, ${bytes(seen.resident_bytes ?? g.resident)} of its host's`], ["CPUs", `${detail.need?.cpus ?? "-"}, ${(seen.cpus ?? g.cpus ?? 0).toFixed(2)} used`], ["Processor time", took(seen.cpu_time_ns ?? g.spent)], ["State since", time(g.since)], ["Cause", g.cause], ["Reason", g.reason]]),
      (detail.facts?.obstacles ?? []).map((o) => el("p", { class: "note" }, o)));
    show(this.body, el("section", {}, moveTable("Its moves", this.model.story((m) => m.guest === this.id, 50), "It has not moved.")), this.story());
  }
}

export class JobPage extends Details {
  constructor(model, id) { super(model, "job", id); }
  row() { return this.model.jobs.get(this.id); }

  about(news) {
    if (news.job.has(this.id)) return true;
    for (const id of news.guest) if ((this.model.guests.get(id)?.job ?? this.id) === this.id) return true;
    return false;
  }

  fill(j) {
    const spec = j.spec ?? {}, ended = j.state === "ended";
    show(this.head, el("p", {}, el("span", { class: `badge ${colourOf(j.result ?? j.state)}` }, ended ? `ended: ${j.result ?? ""}` : j.state), " ", el("code", {}, command(spec.args))),
      el("p", { class: "actions" }, ended ? "" : doing("cancelJob", this.id, "Cancel the job…", { class: "danger" }), j.state === "running" ? doing("migrateJob", this.id, "Move all guests…") : ""),
      [j.reason, j.cause, j.waits].filter(Boolean).map((t) => el("p", { class: "note" }, t)),
      facts([
        ["Ranks", `${spec.ranks} in ${count(spec.guests, "guest")}`], ["Image", spec.image], ["MPI", j.mpi], ["Kind", spec.kind], ["Directory", spec.dir], ["User ID", String(spec.uid)],
        ["Submitted", time(j.submitted)], ["Started", time(j.started)], [ended ? "Ended" : "State since", time(ended ? j.ended : j.since)], ["Exit", j.exit ? (j.exit.signal ? `signal ${j.exit.signal}` : String(j.exit.code)) : ""],
        ["Newest checkpoint", j.newest_checkpoint], ["Begun again", j.restarted ? count(j.restarted, "time") : ""],
      ]));
    const guests = [];
    for (const g of this.model.guests.values()) if (g.job === this.id && (!isGone(g) || ended)) guests.push(g);
    guests.sort((a, b) => a.index - b.index);
    const parts = this.model.story((p) => p.job === this.id, 50), traces = this.all?.traces ?? [];
    this.matrix ??= matrix();
    show(this.body, el("section", {}, guestTable(this.model, "Guests", guests)), el("section", {}, moveTable("Moves: what came, and what was predicted", parts, "None of its guests has moved.")),
      el("section", { id: "traffic" }), el("section", {}, ranks(traces, spec.trace)), this.story());
    this.matrix.fill(this.body.querySelector("#traffic"), traces, j.traffic ?? this.all?.traffic);
  }
}

export class MovePage extends Details {
  constructor(model, id) { super(model, "move", id); }
  row() { return this.model.moves.get(this.id); }
  about(news) { return news.move.has(this.id); }

  fill(m) {
    const parts = (m.parts ?? []).map((p) => ({ ...p, move: m.id })), over = parts.every(isOver);
    show(this.head, el("p", {}, el("span", { class: `badge ${over ? "calm" : "warn"}` }, over ? "over" : "happens now"), " ", m.why),
      el("p", { class: "actions" }, stopButton(m.id, parts)), facts([["Begun", time(m.begun)], ["Drains", m.drains ? link("host", m.drains) : ""], ["Mode", parts[0]?.mode], ["Chosen because", m.choice]]));
    show(this.body, el("section", {}, moveTable("What came, and what was predicted", parts, "It has no guests.")),
      parts.slice(0, 20).map((p) => el("section", { "data-key": p.id }, phases(p), p.stall ? el("p", {}, "Stall: ", stalled(p)) : "")), this.story());
  }
}

