// Lists of jobs and of owners.

import { doing, el, link, show, table } from "./dom.js";
import { byName, colourOf, command, count, percent, since, took } from "./words.js";

const most = 200; // rows of a list

export class JobsPage {
  constructor(model) {
    this.model = model;
    this.title = "Jobs";
  }

  mount(main) {
    this.ended = el("input", { type: "checkbox", id: "ended", change: () => this.update({ all: true }) });
    this.find = el("input", { type: "search", id: "find-job", autocomplete: "off", spellcheck: "false", input: () => this.update({ all: true }) });
    this.list = el("section", {});
    main.replaceChildren(el("h1", {}, "Jobs"), el("p", { class: "find" }, el("label", { for: "find-job" }, "Find "), this.find, " ", el("label", {}, this.ended, " ended ones, too")), this.list);
    this.update({ all: true });
  }

  unmount() {}

  update(news) {
    if (!news.all && !news.job.size) return;
    const q = this.find.value.trim().toLowerCase(), rank = { running: 0, starting: 0, stopping: 0, suspended: 1, pending: 1, ended: 2 };
    const all = [...this.model.jobs.values()].filter((j) => (this.ended.checked || j.state !== "ended") && (!q || `${j.id} ${j.state} ${j.result ?? ""} ${command(j.spec?.args)} ${j.spec?.image}`.toLowerCase().includes(q)));
    all.sort((a, b) => (rank[a.state] ?? 0) - (rank[b.state] ?? 0) || byName(b.id, a.id));
    const columns = ["Job", "Program", "State", "Ranks", "Guests", "Hosts", "Submitted", ""];
    show(this.list, table(count(all.length, "job"), columns, all.slice(0, most).map((j) => {
      const homes = [...new Set((j.guest_ids ?? []).map((g) => this.model.guests.get(g)?.home).filter(Boolean))].sort(byName);
      return { key: j.id, cells: [
        link("job", j.id), el("code", { class: "clip" }, command(j.spec?.args)),
        el("span", {}, el("span", { class: `badge ${colourOf(j.result ?? j.state)}` }, j.state === "ended" ? j.result ?? j.state : j.state), j.reason && j.state === "pending" ? el("span", { class: "small" }, " ", j.reason) : ""),
        String(j.spec?.ranks ?? "-"), String(j.spec?.guests ?? "-"), el("span", {}, homes.slice(0, 4).map((h, i) => [i ? ", " : "", link("host", h)]), homes.length > 4 ? ` and ${homes.length - 4} more` : ""), `${since(j.submitted)} ago`,
        j.state === "ended" ? "" : doing("cancelJob", j.id, "Cancel…", { "aria-label": `Cancel job ${j.id}` }),
      ] };
    }), "No job is like that."), all.length > most ? el("p", {}, `and ${all.length - most} more: find them by their names`) : "");
  }
}

// ownerWords says in a sentence whether a host's owner is there.
export function ownerWords(h) {
  const o = h.owner;
  if (!o) return "";
  return `${o.state}${o.entered && o.state !== "absent" ? ` for ${since(o.entered)}` : ""}${o.why && o.state !== "absent" ? ` (${o.why})` : ""}; the owner's programs use ${(o.load ?? 0).toFixed(2)} CPUs`;
}

// policyWords says what a host's owner agreed to.
export function policyWords(p) {
  if (!p || !Object.keys(p).length) return "";
  const clock = (ns) => `${String(Math.floor(ns / 3600e9)).padStart(2, "0")}:${String(Math.floor(ns / 60e9) % 60).padStart(2, "0")}`;
  return [p.claimed && "claimed by its owner", p.owned && (p.preset || "owned"), p.vacate && `guests: ${p.vacate}`, p.nowhere && `if there is no other host: ${p.nowhere}`, p.cap && `${percent(p.cap)} of the CPUs at most`,
    p.hours && (p.hours.from_ns || p.hours.to_ns) && `only from ${clock(p.hours.from_ns)} to ${clock(p.hours.to_ns)}`, p.idle_after_ns && `absent after ${took(p.idle_after_ns)}`].filter(Boolean).join("; ");
}

export class OwnersPage {
  constructor(model) {
    this.model = model;
    this.title = "Owners";
  }

  mount(main) {
    this.head = el("div", { class: "glance" });
    this.list = el("section", {});
    main.replaceChildren(el("h1", {}, "Owners"), this.head, this.list);
    this.update({ all: true });
  }

  unmount() {}

  update(news) {
    if (!news.all && !news.host.size) return;
    const all = [...this.model.hosts.values()].filter((h) => h.owner || h.policy?.owned || h.policy?.claimed), sums = {};
    for (const h of all) sums[h.owner?.state ?? "unknown"] = (sums[h.owner?.state ?? "unknown"] ?? 0) + 1;
    const rank = { present: 0, returning: 1, leaving: 2, absent: 3 };
    all.sort((a, b) => (rank[a.owner?.state] ?? 4) - (rank[b.owner?.state] ?? 4) || byName(a.id, b.id));
    show(this.head, Object.entries(sums).map(([state, n]) => el("div", { class: "cell", "data-key": state }, el("b", {}, n), " ", state)));
    const columns = ["Host", "Owner", "For", "Because", "Owner's CPUs", "Guests there", "What happens", "Policy"];
    show(this.list, table(count(all.length, "host"), columns, all.slice(0, most).map((h) => {
      const o = h.owner, n = this.model.at.get(h.id)?.size ?? 0, there = o && o.state !== "absent";
      return { key: h.id, cells: [
        link("host", h.id), el("span", { class: `badge ${!o || o.state === "absent" ? "calm" : "warn"}` }, o?.state ?? "unknown"), there ? since(o.entered) : "", there ? o.why : "", o ? (o.load ?? 0).toFixed(2) : "", String(n),
        h.forOwner ? "guests leave" : there && n ? "guests get what CPU time the owner leaves" : there ? "it takes no guests" : "",
        policyWords(h.policy),
      ] };
    }), "No host tells of its owner."), all.length > most ? el("p", {}, `and ${all.length - most} more`) : "");
  }
}
