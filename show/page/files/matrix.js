// Who has sent how much to whom: between ranks as their traces have it, else between guests as the controller added it up.

import { el, show, table } from "./dom.js";
import { bytes, causes, count, took, where } from "./words.js";

const spelt = 16; // with more ranks the matrix is a picture
const most = 2048; // ranks of a picture
const flows = 20; // that are listed below a picture

// matrix is a section that keeps its picture.
export function matrix() {
  const canvas = el("canvas", { class: "matrix", role: "img" });
  return {
    fill(section, traces, traffic) {
      const pairs = !traces.length, cells = pairs ? ofGuests(traffic ?? []) : ofRanks(traces);
      const n = 1 + cells.reduce((m, c) => Math.max(m, c.from, c.to), -1), what = pairs ? "guest" : "rank";
      if (!cells.length) {
        show(section, el("h2", {}, "Communication"), el("p", { class: "none" }, "No messages are known."));
        return;
      }
      const top = cells.reduce((m, c) => Math.max(m, c.bytes), 1);
      if (n <= spelt) {
        show(section, spelled(cells, n, what, top, pairs));
        return;
      }
      cells.sort((a, b) => b.bytes - a.bytes);
      const all = cells.reduce((s, c) => s + c.bytes, 0);
      show(section, el("h2", {}, "Communication"), el("div", { id: "matrix-picture" }),
        table(`The largest of ${count(cells.length, pairs ? "pair" : "flow")}`, [...(pairs ? ["Between", "And"] : ["Sent by", "To"]), "Bytes", "Messages", "Of all"], cells.slice(0, flows).map((c) => ({ key: `${c.from}-${c.to}`, cells: [`${what} ${c.from}`, `${what} ${c.to}`, bytes(c.bytes), String(c.messages), `${(100 * c.bytes / (all || 1)).toFixed(1)} %`] })), ""));
      const place = section.querySelector("#matrix-picture");
      if (canvas.parentNode !== place) place.replaceChildren(canvas);
      canvas.setAttribute("aria-label", `Bytes sent between ${n} ${what}s: the largest ${pairs ? "pairs" : "flows"} are listed below`);
      paint(canvas, cells, Math.min(n, most), top);
    },
  };
}

function ofRanks(traces) {
  const out = [];
  for (const t of traces) for (const s of t.sent ?? []) if (s.rank >= 0) out.push({ from: t.rank, to: s.rank, bytes: s.bytes, messages: s.messages });
  return out;
}

// ofGuests has a cell for each pair: what is known of guests is what both sent to each other together.
const ofGuests = (traffic) => traffic.map((t) => ({ from: Math.min(t.a, t.b), to: Math.max(t.a, t.b), bytes: t.bytes, messages: t.messages }));

// share is how strong a cell is: flows differ by orders of magnitude.
const share = (n, top) => (n > 0 ? Math.max(0.08, Math.log2(1 + n) / Math.log2(1 + top)) : 0);

function spelled(cells, n, what, top, pairs) {
  const of = new Map(cells.map((c) => [`${c.from} ${c.to}`, c])), all = [...Array(n).keys()];
  return [el("h2", {}, "Communication"), el("div", { class: "scroll" }, el("table", { class: "grid-table" }, el("caption", {}, pairs ? `Bytes sent, and messages, between ${what}s, both ways together` : `Bytes sent, and messages, from ${what} (row) to ${what} (column)`),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, what), all.map((to) => el("th", { scope: "col" }, to)))),
    el("tbody", {}, all.map((from) => el("tr", {}, el("th", { scope: "row" }, from), all.map((to) => {
      const c = of.get(`${from} ${to}`);
      return el("td", { "data-heat": c ? Math.ceil(8 * share(c.bytes, top)) : 0 }, c ? [bytes(c.bytes), el("br", {}), el("span", { class: "small" }, c.messages)] : pairs && to <= from ? "" : "-");
    }))))))];
}

function paint(canvas, cells, n, top) {
  const scale = Math.max(1, Math.floor(512 / n));
  if (canvas.width !== n * scale) canvas.width = canvas.height = n * scale;
  const g = canvas.getContext("2d"), [r, gr, b] = matchMedia("(prefers-color-scheme: dark)").matches ? [255, 160, 80] : [170, 60, 0];
  g.clearRect(0, 0, canvas.width, canvas.height);
  for (const c of cells) {
    g.fillStyle = `rgba(${r}, ${gr}, ${b}, ${share(c.bytes, top)})`;
    g.fillRect(c.to * scale, c.from * scale, scale, scale);
  }
}

const gapsMost = 10, ranksMost = 256;

// ranks shows the ranks' time in MPI, and their longest gaps with the causes.
export function ranks(traces, traced) {
  if (!traces.length) return [el("h2", {}, "Ranks"), el("p", { class: "none" }, traced ? "No rank has called MPI_Init yet, or the program does not use MPI." : "There are no traces of its ranks: it runs with --no-trace.")];
  const gaps = traces.flatMap((t) => t.gaps ?? []).sort((a, b) => b.took_ns - a.took_ns).slice(0, gapsMost);
  return [el("h2", {}, "Ranks"),
    table("Time of each rank", ["Rank", "Guest", "Elapsed", "In MPI", "Calls", "Normal gap"], traces.slice(0, ranksMost).map((t) => {
      const calls = Object.values(t.calls ?? {}), inside = calls.reduce((s, c) => s + c.took_ns, 0), all = inside + (t.outside_ns ?? 0);
      return { key: String(t.rank), cells: [String(t.rank), t.guest, took(t.elapsed_ns), all ? `${(100 * inside / all).toFixed(0)} %` : "-", String(calls.reduce((s, c) => s + c.count, 0)), `< ${took(t.normal_ns)}`] };
    }), ""),
    traces.length > ranksMost ? el("p", {}, `and ${traces.length - ranksMost} ranks more`) : "",
    table("The longest gaps, and their causes", ["Gap", "Rank", "Began", "Where", "Why"], gaps.map((g) => ({ key: `${g.rank} ${g.at}`, cells: [took(g.took_ns), String(g.rank), new Date(g.at).toLocaleTimeString(), where(g), causes(g.why)] })), "No gaps.")];
}
