// What is known of the cluster: the newest row of each thing, as its events say. Of hosts and guests, of which there may be very many,
// the controller tells only what the cluster's picture needs; pages about one ask for the rest.

import { at } from "./words.js";

const over = new Set(["finished", "aborted", "lost"]);
const gone = new Set(["ended", "lost"]);

// phaseWord is a phase for people.
export const phaseWord = (phase) => (phase === "aborted" ? "cancelled" : phase);
export const isOver = (part) => over.has(part.phase);
export const isGone = (guest) => gone.has(guest.state);

const thin = {
  host: (h) => ({
    id: h.id, state: h.state, site: h.site ?? "", cpus: h.cpus ?? 0, memory: h.memory_bytes ?? 0, free: h.free_memory_bytes ?? 0, load: h.load_cpus ?? 0,
    connected: !!h.connected, silent: h.silent, gone: h.gone, lost: h.lost, forOwner: h.for_owner, forHealth: h.for_health, forNotice: h.for_notice, troubles: h.troubles ?? 0,
    owner: h.owner?.state ? { state: h.owner.state, entered: h.owner.entered, why: h.owner.why, load: h.owner.load_cpus ?? 0, present: h.owner.present } : undefined, policy: h.policy,
  }),
  guest: (g) => ({
    id: g.id, job: g.job, home: g.home, state: g.state, index: g.index ?? 0, migration: g.migration, suspended: g.suspended, kind: g.kind,
    memory: g.memory_bytes, resident: g.resident_bytes, cpus: g.cpus, spent: g.cpu_time_ns ?? 0, address: g.address, since: g.since, cause: g.cause, reason: g.reason,
  }),
  job: (j) => j,
  move: (m) => m,
  policy: (p) => p,
};

export class Model {
  constructor() {
    this.listeners = new Set();
    this.ready = false; // all is there that the controller knows
    this.forget();
  }

  // forget begins from nothing.
  forget() {
    this.kinds = { host: new Map(), guest: new Map(), job: new Map(), move: new Map(), policy: new Map() };
    this.at = new Map(); // host: IDs of the guests whose home it is
    this.moving = new Map(); // guest: its migration that is not over
    this.parts = new Map(); // move: guests that move in it
    this.dirty = { host: new Set(), guest: new Set(), job: new Set(), move: new Set(), policy: new Set() };
    this.all = true; // everything is new
    this.next = undefined; // what a new beginning has so far
    this.came = false; // hosts came, went or changed their site
  }

  get hosts() { return this.kinds.host; }
  get guests() { return this.kinds.guest; }
  get jobs() { return this.kinds.job; }
  get moves() { return this.kinds.move; }

  // heard takes an event. What is shown stays until all of a new beginning is there.
  heard(name, data) {
    if (name === "reset") {
      this.next = new Model();
      return;
    }
    const to = this.next ?? this;
    if (name === "ready") {
      if (this.next) {
        const { kinds, at, moving, parts } = this.next;
        Object.assign(this, { kinds, at, moving, parts, all: true, came: true });
        this.next = undefined;
      }
      this.ready = true;
    } else if (name === "rows") {
      const { gone = [], ...rows } = JSON.parse(data);
      for (const { kind, id } of gone) if (to.kinds[kind]) to.put(kind, id, undefined);
      for (const kind of Object.keys(rows)) if (thin[kind]) for (const row of rows[kind]) to.put(kind, row.id ?? "", thin[kind](row));
    }
    if (!this.next) this.later();
  }

  put(kind, id, row) {
    const rows = this.kinds[kind], had = rows.get(id);
    if (row) rows.set(id, row);
    else rows.delete(id);
    this.dirty[kind].add(id);
    if (kind === "host" && had?.site !== row?.site) this.came = true;
    if (kind === "host" && !had !== !row) this.came = true;
    if (kind === "guest") this.house(id, had, row);
    if (kind === "move") this.set(id, row);
  }

  // house keeps which guests have a home where.
  house(id, had, row) {
    const from = had && !isGone(had) ? had.home : undefined, to = row && !isGone(row) ? row.home : undefined;
    if (from && from !== to) {
      this.at.get(from)?.delete(id);
      this.dirty.host.add(from);
    }
    if (!to) return;
    if (!this.at.has(to)) this.at.set(to, new Set());
    this.at.get(to).add(id);
    this.dirty.host.add(to);
  }

  // set keeps which guests move.
  set(id, row) {
    for (const guest of this.parts.get(id) ?? []) this.unset(guest, id);
    const now = (row?.parts ?? []).filter((p) => !isOver(p));
    this.parts.set(id, now.map((p) => p.guest));
    if (!row) this.parts.delete(id);
    for (const p of now) {
      this.moving.set(p.guest, { move: id, ...p });
      this.touch(p);
    }
  }

  unset(guest, move) {
    const p = this.moving.get(guest);
    if (p?.move !== move) return;
    this.moving.delete(guest);
    this.touch(p);
  }

  touch(p) {
    this.dirty.guest.add(p.guest);
    this.dirty.host.add(p.from).add(p.to);
  }

  // later tells listeners once of many changes, when the browser draws next; the longer that takes, the seldomer.
  later() {
    if (this.waits || !this.ready) return;
    this.waits = true;
    setTimeout(() => requestAnimationFrame(() => this.tell()), this.rest ?? 0);
  }

  tell() {
    this.waits = false;
    const began = performance.now(), news = { ...this.dirty, all: this.all, came: this.came };
    this.dirty = { host: new Set(), guest: new Set(), job: new Set(), move: new Set(), policy: new Set() };
    this.all = this.came = false;
    for (const hears of this.listeners) hears(news);
    this.rest = Math.min(1000, Math.max(100, 4 * (performance.now() - began)));
  }

  // coming are the guests that move to a host and have their home elsewhere.
  coming(host) {
    const out = [];
    for (const p of this.moving.values()) if (p.to === host && this.guests.get(p.guest)?.home !== host) out.push(p);
    return out;
  }

  // happening are migrations that are not over, the oldest first.
  happening() {
    return [...this.moving.values()].sort((a, b) => (at(a.entered?.[0]?.at) ?? 0) - (at(b.entered?.[0]?.at) ?? 0));
  }

  // story are all migrations of the newest moves.
  story(only, most) {
    const out = [];
    for (const m of this.moves.values()) for (const p of m.parts ?? []) if (!only || only(p, m)) out.push({ ...p, move: m.id, why: m.why });
    out.sort((a, b) => isOver(a) - isOver(b) || (at(b.entered?.[0]?.at) ?? 0) - (at(a.entered?.[0]?.at) ?? 0));
    return out.slice(0, most);
  }
}
