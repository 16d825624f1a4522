// Moves: how far they are, and what was predicted of them beside what came.

import { bar, doing, el, link, show, svg, table } from "./dom.js";
import { call } from "./api.js";
import { isOver, phaseWord } from "./model.js";
import { at, byName, bytes, causes, clock, colourOf, count, percent, since, took, where } from "./words.js";

// far says how far a migration is: a share, and words.
export function far(p) {
  const { remaining_bytes: left = 0, total_bytes: all = 0, sent_bytes: sent = 0, rounds = 0 } = p.progress ?? {};
  switch (p.phase) {
    case "copying": case "ready": case "switching":
      return all ? { share: 1 - left / all, words: `${percent(Math.max(0, 1 - left / all))}, round ${Math.max(rounds, 1)}, ${bytes(left)} left` } : { share: 0, words: "" };
    case "post-copy":
      return { share: all ? 1 - left / all : 0, words: `runs there, ${bytes(left)} to come` };
    case "preparing": case "waiting": case "cancelling": case "discarding": case "reverting":
      return { share: 0, words: "" };
  }
  return { share: 1, words: sent ? `${bytes(sent)} in ${count(Math.max(rounds, 1), "round")}` : "" };
}

// lasted is how long a migration took, or has taken so far, in nanoseconds.
export function lasted(p) {
  const entered = p.entered ?? [];
  const from = at(entered[0]?.at);
  if (from === undefined) return undefined;
  return 1e6 * ((isOver(p) ? at(entered.at(-1).at) : clock.now()) - from);
}

// beside shows what came, with the range that was predicted: a line from its low to its high end, with a mark for the outcome.
export function beside(real, range, words) {
  if (real === undefined && !range) return "-";
  const came = real === undefined ? "" : el("b", {}, words(real));
  if (!range) return came;
  const inside = real !== undefined && real >= range.low && real <= range.high;
  const most = 1.15 * Math.max(range.high, real ?? 0, 1), x = (v) => (100 * v) / most;
  return el("span", { class: "beside" }, came, " ",
    svg("svg", { viewBox: "0 0 100 12", class: "range", role: "img", "aria-label": real === undefined ? "the range that is expected" : inside ? "inside the predicted range" : "outside the predicted range" },
      svg("line", { x1: x(range.low), x2: x(range.high), y1: 6, y2: 6, class: "range-line" }), svg("circle", { cx: x(range.value), cy: 6, r: 2.5, class: "range-value" }),
      real === undefined ? "" : svg("line", { x1: x(real), x2: x(real), y1: 1, y2: 11, class: `range-real ${inside ? "good" : "warn"}` })),
    el("span", { class: "small" }, ` predicted ${words(range.value)} (${words(range.low)} to ${words(range.high)})${real === undefined ? "" : inside ? "" : ", outside"}`));
}

// stalled says what ranks saw of a migration, and why.
export function stalled(p) {
  const s = p.stall;
  if (!s) return "-";
  return el("span", {}, el("b", {}, took(s.took_ns)), el("span", { class: "small" }, ` rank ${s.rank} ${where(s)}${s.why?.length ? ": " + causes(s.why) : ""}${s.undisturbed_ns ? `; undisturbed ${took(s.undisturbed_ns)}` : ""}`));
}

const columns = ["Move", "Guest", "From → to", "Phase", "Total", "Downtime", "Sent", "Stall"];

// moveTable shows migrations.
export function moveTable(caption, parts, empty) {
  return table(caption, columns, parts.map((p) => {
    const f = far(p), ended = isOver(p), arrived = p.phase === "finished", cost = p.progress ?? {};
    return { key: p.id, cells: [
      el("span", {}, link("move", p.move), el("br", {}), el("span", { class: "small" }, since(p.entered?.[0]?.at), " ago")),
      link("guest", p.guest),
      el("span", {}, link("host", p.from), " → ", link("host", p.to)),
      el("span", {}, el("span", { class: `badge ${colourOf(p.phase)}` }, phaseWord(p.phase)), ended ? "" : el("span", {}, bar(f.share, `${p.phase}`), el("span", { class: "small" }, f.words)), p.cause ? el("span", { class: "small" }, " ", p.cause) : ""),
      beside(arrived ? lasted(p) : undefined, p.predicted?.total_ns, took),
      beside(arrived ? cost.downtime_ns : undefined, p.predicted?.downtime_ns, took),
      beside(arrived ? cost.sent_bytes : undefined, p.predicted?.sent_bytes, bytes),
      stalled(p),
    ] };
  }), empty);
}

// forecastTable shows what a request would cost.
export function forecastTable(f) {
  const range = (r, words) => `${words(r.value)} (${words(r.low)} to ${words(r.high)})`;
  const rows = (f.migrations ?? []).slice(0, 50).map((m) => {
    const p = m.prediction;
    return { key: m.guest, cells: [m.guest, m.from, m.to, p.converges ? range(p.total_ns, took) : "does not converge", p.converges ? range(p.downtime_ns, took) : "-", p.converges ? range(p.sent_bytes, bytes) : "-"] };
  });
  const all = f.migrations ?? [];
  if (all.length > 1) rows.push({ key: "all", cells: ["all", "", "", range(f.total_ns, took), range(f.downtime_ns, took), range(f.sent_bytes, bytes)] });
  const notes = [...(f.notes ?? [])];
  for (const m of all) if (!m.prediction.converges && m.prediction.why) notes.unshift(`${m.guest} would be cancelled after ${took(m.prediction.total_ns.value)}: ${m.prediction.why}`);
  return [
    table("What it would cost now", ["Guest", "From", "To", "Total", "Downtime", "Sent"], rows, "Nothing would move."),
    all.length > 50 ? el("p", {}, `and ${all.length - 50} guests more`) : "",
    all.length ? el("p", { class: "small" }, `In brackets: the range that holds nine of ten outcomes, going by ${all[0].prediction.basis}.`) : "",
    notes.slice(0, 20).map((n) => el("p", { class: "note" }, n)),
  ];
}

const most = 100;

// MovesPage lists moves, and how good predictions were.
export class MovesPage {
  constructor(model) {
    this.model = model;
    this.title = "Moves";
  }

  mount(main) {
    this.list = el("section", {});
    this.score = el("section", {});
    main.replaceChildren(el("h1", {}, "Moves"), this.list, this.score);
    this.update({ all: true });
    this.ask();
    this.asks = setInterval(() => this.ask(), 15_000);
    this.ticks = setInterval(() => this.model.moving.size && this.update({ all: true }), 1000);
  }

  unmount() {
    clearInterval(this.asks);
    clearInterval(this.ticks);
  }

  update(news) {
    if (!news.all && !news.move.size) return;
    show(this.list, moveTable("Newest first", this.model.story(undefined, most), "There are no moves."));
  }

  async ask() {
    try {
      const c = await call("showScore");
      const row = (name, fit) => ({ key: name, cells: [name, String(c.moves), percent(fit.median_error), fit.bias.toFixed(2), percent(fit.coverage)] });
      show(this.score, table("How good predictions were", ["Quantity", "Moves", "Median error", "Outcome/predicted", "In 90 % interval"], c.moves ? [row("total time", c.total), row("downtime", c.downtime), row("bytes sent", c.bytes)] : [], "No move has arrived yet that was predicted."),
        c.verdicts ? el("p", { class: "small" }, `Of ${count(c.verdicts, "move")}, ${c.right} converged, or did not, as predicted.`) : "");
    } catch (problem) {
      show(this.score, el("p", { class: "none" }, problem.message));
    }
  }
}

// phases says when a migration entered each phase.
export function phases(p) {
  const entered = p.entered ?? [];
  return table(`${p.id}: ${p.guest}`, ["Phase", "Entered", "For"], entered.map((e, i) => {
    const next = entered[i + 1];
    const until = next ? at(next.at) : clock.now();
    return { key: `${i}`, cells: [phaseWord(e.phase), new Date(at(e.at)).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false, fractionalSecondDigits: 3 }), next || !isOver(p) ? took(1e6 * (until - at(e.at))) : ""] };
  }), "It has not begun.");
}

export const inOrder = (ids) => [...ids].sort(byName);

export const stopButton = (move, parts) => (parts.some((p) => ["preparing", "waiting", "copying", "ready"].includes(p.phase)) ? doing("cancelMove", move, "Cancel the move…") : "");
