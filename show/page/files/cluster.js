// The cluster at a glance: hosts as tiles by site, guests as shells on them. Only the tiles that can be seen are there: a site of
// thousands of hosts is as tall as it would be, and its rows are made as they come into view.

import { bar, el, link, show, svg } from "./dom.js";
import { isOver } from "./model.js";
import { byName, bytes, count, hostState } from "./words.js";
import { far } from "./moves.js";

const unfolded = 400; // with more hosts, sites are folded until somebody opens one
const height = 128; // of a row of tiles, as in style.css
const width = 225; // of a tile at the least
const shells = 12; // that a tile shows; of more it says how many
const moves = 12; // that are listed as they happen
const margin = 2; // rows beyond what is seen
const still = matchMedia("(prefers-reduced-motion: reduce)");

// hue is a job's colour.
export function hue(job) {
  let h = 0;
  for (const c of String(job)) h = (h * 31 + c.codePointAt(0)) >>> 0;
  return (h * 137) % 360;
}

const spiral = "M3 23C3 11 10 4 18 4c7 0 11 5 11 11 0 5-3 9-8 9-4 0-7-3-7-6 0-3 2-5 5-5";

// shell draws a guest. A ghost is where it will be.
function shell(guest) {
  return el("a", { class: "shell", href: `#/guest/${encodeURIComponent(guest)}` },
    svg("svg", { viewBox: "0 0 32 28", "aria-hidden": "true" }, svg("path", { class: "shell-body", d: spiral + "L29 26H3z" }), svg("path", { class: "shell-line", d: spiral })),
    el("span", {}));
}

export class ClusterPage {
  constructor(model) {
    this.model = model;
    this.title = "Cluster";
    this.sites = new Map(); // name: Site
    this.query = "";
    this.tiles = new Map(); // host: Tile, of those that are there
    this.places = new Map(); // guest: the element of its shell
  }

  mount(main) {
    this.glance = el("div", { class: "glance", id: "glance" });
    this.now = el("section", { class: "now", "aria-label": "Moves that happen now" });
    this.find = el("input", { type: "search", id: "find", placeholder: "host, site, state, guest or job", autocomplete: "off", spellcheck: "false", input: () => this.search() });
    this.found = el("span", { role: "status", id: "found" });
    this.none = el("p", { class: "none" });
    this.all = el("div", { id: "sites" });
    main.replaceChildren(el("h1", { class: "quiet" }, "Cluster"), this.glance, this.now, el("p", { class: "find" }, el("label", { for: "find" }, "Find "), this.find, " ", this.found), this.none, this.all);
    this.draws = () => this.soon();
    addEventListener("scroll", this.draws, { passive: true });
    addEventListener("resize", this.draws, { passive: true });
    this.all.addEventListener("keydown", (e) => this.arrows(e));
    this.update({ all: true, came: true, host: new Set(), guest: new Set() });
  }

  unmount() {
    removeEventListener("scroll", this.draws);
    removeEventListener("resize", this.draws);
    clearTimeout(this.types);
  }

  search() {
    clearTimeout(this.types);
    this.types = setTimeout(() => {
      this.query = this.find.value.trim().toLowerCase();
      this.arrange();
      this.draw();
    }, 120);
  }

  update(news) {
    if (news.all || news.came || this.query) this.arrange();
    else this.sum();
    this.draw(news);
    this.happening();
  }

  // wanted reports whether a host is searched for.
  wanted(h) {
    const q = this.query;
    if (!q) return true;
    const says = (text) => String(text ?? "").toLowerCase().includes(q);
    if (says(h.id) || says(h.site) || says(hostState(h)[0]) || says(h.owner && `owner ${h.owner.state}`)) return true;
    for (const id of this.model.at.get(h.id) ?? []) if (says(id) || this.model.guests.get(id)?.job.toLowerCase() === q) return true;
    return false;
  }

  // arrange has a section for each site.
  arrange() {
    const bySite = new Map();
    for (const [id, h] of this.model.hosts) {
      if (!this.wanted(h)) continue;
      if (!bySite.has(h.site)) bySite.set(h.site, []);
      bySite.get(h.site).push(id);
    }
    const names = [...bySite.keys()].sort(byName);
    const fold = this.model.hosts.size > unfolded && !this.query && names.length > 1;
    for (const [name, site] of this.sites) {
      if (bySite.has(name)) continue;
      for (const id of site.drawn) this.drop(id);
      site.section.remove();
      this.sites.delete(name);
    }
    let at = this.all.firstChild;
    for (const name of names) {
      if (!this.sites.has(name)) this.sites.set(name, new Site(this, name, names.length === 1));
      const site = this.sites.get(name);
      site.hosts = bySite.get(name);
      site.sorted = false;
      site.alone(names.length === 1 && !name);
      site.open = site.chosen ?? !fold;
      if (site.section === at) at = at.nextSibling;
      else this.all.insertBefore(site.section, at);
    }
    let n = 0;
    for (const hosts of bySite.values()) n += hosts.length;
    show(this.found, this.query ? (n ? count(n, "host") : "No host is like that.") : "");
    show(this.none, this.model.ready && !this.model.hosts.size ? "There are no hosts." : "");
    this.sum();
  }

  // sum counts: for the glance all hosts, whatever is searched for, and for sites those that are shown.
  sum() {
    const all = new Sum(), { model } = this;
    for (const [id, h] of model.hosts) all.add(h, model.at.get(id)?.size ?? 0);
    for (const site of this.sites.values()) {
      const of = new Sum();
      for (const id of site.hosts) {
        const h = model.hosts.get(id);
        if (h) of.add(h, model.at.get(id)?.size ?? 0);
      }
      site.head(of);
    }
    const jobs = { running: 0, pending: 0, suspended: 0 };
    for (const j of model.jobs.values()) if (j.state in jobs) jobs[j.state]++;
    const cell = (value, words, href) => el(href ? "a" : "div", { href, class: "cell" }, el("b", {}, value), " ", words);
    show(this.glance,
      cell(`${all.up}/${all.hosts}`, "hosts up"), all.draining ? cell(all.draining, "draining") : "", all.away ? el("div", { class: "cell bad" }, el("b", {}, all.away), " not heard") : "",
      all.owners ? cell(all.owners, `${all.owners === 1 ? "owner" : "owners"} there`, "#/owners") : "",
      cell(all.guests, all.guests === 1 ? "guest" : "guests"), cell(model.moving.size, model.moving.size === 1 ? "guest moves" : "guests move", "#/moves"),
      cell(jobs.running, jobs.running === 1 ? "job runs" : "jobs run", "#/jobs"), jobs.pending ? cell(jobs.pending, jobs.pending === 1 ? "job waits" : "jobs wait", "#/jobs") : "", jobs.suspended ? cell(jobs.suspended, "suspended", "#/jobs") : "");
  }

  happening() {
    const now = this.model.happening();
    show(this.now, now.slice(0, moves).map((p) => el("p", { "data-key": p.id, class: "going" }, link("guest", p.guest), " ", link("host", p.from), " → ", link("host", p.to), " ", bar(far(p).share, `${p.guest}: ${p.phase}`), " ", link("move", p.move, p.phase), " ", far(p).words)),
      now.length > moves ? el("p", {}, el("a", { href: "#/moves" }, `and ${now.length - moves} more`)) : "");
  }

  soon() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      this.draw();
    });
  }

  // draw makes the tiles that can be seen, and fills those that changed. Shells that are there before and after move from where
  // they were.
  draw(news) {
    const before = news && !still.matches ? this.whereMoved(news) : new Map();
    const fresh = new Set();
    for (const site of this.sites.values()) site.lay(fresh);
    for (const [id, tile] of this.tiles) if (!news || news.all || news.host.has(id) || fresh.has(id) || tile.guests.some((g) => news.guest.has(g))) tile.fill();
    for (const [guest, was] of before) this.glide(guest, was);
  }

  // whereMoved says where the shells are whose guests now have another home.
  whereMoved(news) {
    const out = new Map();
    for (const id of news.guest) {
      const place = this.places.get(id), home = this.model.guests.get(id)?.home;
      if (place?.isConnected && home && home !== place.dataset.host) out.set(id, place.getBoundingClientRect());
    }
    return out;
  }

  glide(guest, was) {
    const place = this.places.get(guest);
    if (!place?.isConnected) return;
    const is = place.getBoundingClientRect();
    const x = was.left - is.left, y = was.top - is.top;
    if (!x && !y) return;
    const tile = place.closest(".tile");
    tile.classList.add("above");
    place.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: `translate(${x / 2}px, ${y / 2 - 24}px) scale(1.3)` }, { transform: "none" }], { duration: 900, easing: "ease-in-out" })
      .finished.catch(() => {}).then(() => tile.classList.remove("above"));
  }

  drop(host) {
    const tile = this.tiles.get(host);
    if (!tile) return;
    tile.root.remove();
    this.tiles.delete(host);
    for (const g of tile.guests) if (this.places.get(g)?.dataset.host === host) this.places.delete(g);
  }

  // arrows move the focus from tile to tile.
  arrows(e) {
    const tile = e.target.closest?.(".tile");
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: "up", ArrowDown: "down" };
    if (!tile || !(e.key in steps) || e.ctrlKey || e.metaKey || e.altKey) return;
    const site = this.sites.get(tile.dataset.site), from = site.hosts.indexOf(tile.dataset.host);
    const step = { up: -site.columns, down: site.columns }[steps[e.key]] ?? steps[e.key];
    const to = site.hosts[from + step];
    if (to === undefined) return;
    e.preventDefault();
    const top = site.grid.getBoundingClientRect().top + Math.floor((from + step) / site.columns) * height;
    if (top < 60 || top + height > innerHeight) scrollBy(0, top < 60 ? top - 80 : top + height - innerHeight + 20);
    this.draw();
    this.tiles.get(to)?.name.focus({ preventScroll: true });
  }
}

class Sum {
  hosts = 0; up = 0; draining = 0; away = 0; owners = 0; guests = 0; cpus = 0; load = 0; memory = 0; free = 0;
  add(h, guests) {
    this.hosts++;
    if (h.gone || h.lost || !h.connected) this.away++;
    else if (h.state === "draining") this.draining++;
    else this.up++;
    if (h.owner && h.owner.state !== "absent") this.owners++;
    this.guests += guests;
    this.cpus += h.cpus;
    this.load += h.load;
    this.memory += h.memory;
    this.free += h.free ?? 0;
  }
}

// Site is a section of the page.
class Site {
  constructor(page, name) {
    Object.assign(this, { page, name, hosts: [], drawn: new Set(), columns: 1 });
    this.toggle = el("button", { type: "button", "aria-expanded": "true", click: () => {
      this.chosen = !this.open;
      this.open = this.chosen;
      this.page.sum();
      this.page.draw();
    } });
    this.words = el("span", { class: "site-words" });
    this.grid = el("div", { class: "grid", role: "list", "aria-label": `Hosts ${name ? "of " + name : ""}` });
    this.title = el("h2", {}, this.toggle, this.words);
    this.section = el("section", { class: "site" }, this.title, this.grid);
  }

  alone(is) { this.title.hidden = is; }

  head(s) {
    show(this.toggle, `${this.open ? "▾" : "▸"} ${this.name || "no site"}`);
    this.toggle.setAttribute("aria-expanded", String(this.open));
    show(this.words, el("span", {}, [count(s.hosts, "host"), s.draining && `${s.draining} draining`, s.away && `${s.away} not heard`, s.owners && `${count(s.owners, "owner")} there`, count(s.guests, "guest")].filter(Boolean).join(", ")),
      bar(s.cpus ? s.load / s.cpus : 0, `${s.load.toFixed(1)} of ${s.cpus} CPUs used by guests`));
  }

  // lay puts tiles where they can be seen.
  lay(fresh) {
    const room = this.grid.clientWidth || this.section.clientWidth;
    this.columns = Math.max(1, Math.floor(room / width));
    if (this.open && !this.sorted) this.hosts.sort(byName); // of folded sites nobody sees the order, and there may be thousands of hosts
    this.sorted ||= this.open;
    const rows = this.open ? Math.ceil(this.hosts.length / this.columns) : 0;
    this.grid.style.height = `${rows * height}px`;
    const top = this.grid.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / height) - margin), last = Math.min(rows, Math.ceil((innerHeight - top) / height) + margin);
    const want = new Map();
    for (let i = first * this.columns; i < Math.min(this.hosts.length, last * this.columns); i++) want.set(this.hosts[i], i);
    const focus = document.activeElement?.closest?.(".tile")?.dataset.host; // a tile with the focus stays
    if (rows && this.drawn.has(focus) && this.hosts.includes(focus)) want.set(focus, this.hosts.indexOf(focus));
    for (const id of this.drawn) {
      if (want.has(id)) continue;
      this.page.drop(id);
      this.drawn.delete(id);
    }
    const order = [...want].sort((a, b) => a[1] - b[1]);
    let at = this.grid.firstChild;
    for (const [id, i] of order) {
      let tile = this.page.tiles.get(id);
      if (tile && !this.drawn.has(id)) { // it was in another site
        this.page.drop(id);
        tile = undefined;
      }
      if (!tile) {
        tile = new Tile(this.page, this, id);
        this.page.tiles.set(id, tile);
        this.drawn.add(id);
        fresh.add(id);
      }
      if (tile.root === at) at = at.nextSibling;
      else this.grid.insertBefore(tile.root, at);
      tile.root.style.width = `${room / this.columns - 8}px`;
      tile.root.style.left = `${(i % this.columns) * (room / this.columns)}px`;
      tile.root.style.top = `${Math.floor(i / this.columns) * height}px`;
      tile.root.setAttribute("aria-setsize", this.hosts.length);
      tile.root.setAttribute("aria-posinset", i + 1);
    }
  }
}

// Tile is a host.
class Tile {
  constructor(page, site, id) {
    Object.assign(this, { page, id, guests: [] });
    this.name = el("a", { class: "tile-name", href: `#/host/${encodeURIComponent(id)}` }, id);
    this.state = el("span", { class: "badge" });
    this.owner = el("span", { class: "owner" });
    this.house = el("div", { class: "shells", role: "group", "aria-label": `Guests of ${id}` });
    this.more = el("span", { class: "more" });
    this.use = el("div", { class: "use" });
    this.root = el("div", { class: "tile", role: "listitem", "data-host": id, "data-site": site.name }, el("div", { class: "tile-head" }, this.name, this.state), this.owner, this.house, this.use);
  }

  fill() {
    const { model } = this.page, h = model.hosts.get(this.id);
    if (!h) return;
    const [word, colour] = hostState(h);
    show(this.state, word);
    this.state.className = `badge ${colour}`;
    show(this.owner, h.owner && h.owner.state !== "absent" ? `owner ${h.owner.state}` : "", h.troubles ? el("b", { class: "bad" }, " ! ", count(h.troubles, "trouble")) : "");
    show(this.use, bar(h.cpus ? h.load / h.cpus : 0, `${h.load.toFixed(1)} of ${h.cpus} CPUs used by guests`), el("span", {}, `${h.load.toFixed(1)}/${h.cpus} CPUs, ${bytes(h.free)} free`));
    this.fillShells(model, h);
  }

  fillShells(model) {
    const here = [...(model.at.get(this.id) ?? [])].sort(byName), coming = model.coming(this.id);
    this.guests = [...here, ...coming.map((p) => p.guest)];
    const want = [...here.map((id) => ({ id })), ...coming.map((p) => ({ id: p.guest, ghost: p }))];
    const shown = want.slice(0, want.length > shells ? shells - 1 : shells);
    const have = new Map([...this.house.children].filter((e) => e.dataset.guest).map((e) => [e.dataset.guest + "/" + (e.dataset.ghost ?? ""), e]));
    const kept = new Set();
    let at = this.house.firstChild;
    for (const { id, ghost } of shown) {
      const key = id + "/" + (ghost ? "yes" : "");
      let e = have.get(key);
      if (!e) {
        e = shell(id);
        e.dataset.guest = id;
        e.dataset.host = this.id;
        if (ghost) e.dataset.ghost = "yes";
      }
      kept.add(e);
      if (!ghost) this.page.places.set(id, e);
      this.dressShell(e, id, ghost);
      if (e === at) at = at.nextSibling;
      else this.house.insertBefore(e, at);
    }
    for (const e of have.values()) {
      if (kept.has(e)) continue;
      e.remove();
      if (this.page.places.get(e.dataset.guest) === e) this.page.places.delete(e.dataset.guest);
    }
    this.more.textContent = want.length > shown.length ? `+${want.length - shown.length}` : "";
    if (this.more.textContent) this.house.append(this.more);
    else this.more.remove();
  }

  dressShell(e, id, ghost) {
    const { model } = this.page, g = model.guests.get(id), p = ghost ?? model.moving.get(id);
    const job = g?.job ?? ghost?.job ?? "";
    e.style.setProperty("--hue", hue(job));
    e.className = `shell${ghost ? " ghost" : ""}${p && !isOver(p) ? " moving" : ""}${g?.suspended ? " asleep" : ""}`;
    e.lastChild.textContent = g?.index ?? "";
    const words = ghost ? `${id} comes from ${ghost.from}: ${ghost.phase}` : p ? `${id} of ${job} moves from ${p.from} to ${p.to}: ${p.phase}` : `${id} of ${job}: ${g?.suspended ? "suspended" : g?.state ?? ""}`;
    if (e.title === words) return;
    e.title = words;
    e.setAttribute("aria-label", words);
    if (ghost) {
      e.setAttribute("aria-hidden", "true"); // it is told at its home
      e.tabIndex = -1;
    }
  }
}
