// How numbers, times and states are written, as the command line writes them.

const ms = 1e6;

// clock is the controller's, as far as its answers tell: a reader's may be wrong.
export const clock = {
  ahead: 0,
  now() { return Date.now() + this.ahead; },
  hear(date) {
    const at = Date.parse(date);
    if (!Number.isNaN(at) && Math.abs(at - this.now()) > 1500) this.ahead = at - Date.now();
  },
};

// took writes a length of time in nanoseconds.
export function took(ns) {
  if (ns === undefined || ns === null) return "-";
  if (ns < 0) return "-" + took(-ns);
  if (ns === 0) return "0 s";
  if (ns < 10 * ms) return (ns / ms).toFixed(1) + " ms";
  if (ns < 1000 * ms) return Math.floor(ns / ms) + " ms";
  if (ns < 60e9) return (ns / 1e9).toFixed(1) + " s";
  return age(ns / 1e6);
}

// age writes roughly how long something has lasted, in milliseconds.
export function age(of) {
  const s = Math.floor(Math.max(of, 0) / 1000);
  const two = (n) => String(n).padStart(2, "0");
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${two(s % 60)}s`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)}h${two(Math.floor(s / 60) % 60)}m`;
  return `${Math.floor(s / 86400)}d`;
}

// at reads a time; undefined: it is none.
export function at(text) {
  const t = Date.parse(text ?? "");
  return Number.isNaN(t) || t < 0 ? undefined : t;
}

export const since = (text) => (at(text) === undefined ? "" : age(clock.now() - at(text)));

export const time = (text) => (at(text) === undefined ? "" : new Date(at(text)).toLocaleString());

export function bytes(n) {
  if (n === undefined || n === null) return "-";
  if (n < 0) return "-" + bytes(-n);
  if (n < 1024) return `${n} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let f = n / 1024, u = 0;
  for (; f >= 999.5 && u < units.length - 1; u++) f /= 1024;
  return (f === Math.trunc(f) || f >= 99.95 ? f.toFixed(0) : f.toFixed(1)) + " " + units[u];
}

export const count = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;

export const percent = (share) => `${(100 * share).toFixed(0)} %`;

// command writes a program with its arguments, so that a shell would read it so.
export const command = (args) => (args ?? []).map((a) => (/^[\w@%+=:,./-]+$/.test(a) ? a : `'${a.replaceAll("'", `'\\''`)}'`)).join(" ");

// byName orders names with numbers in them as people do.
const collator = new Intl.Collator("en", { numeric: true });
export const byName = (a, b) => collator.compare(a, b);

// hostState is a host's state as one word, and a class for its colour.
export function hostState(h) {
  if (h.gone || h.lost) return ["gone", "bad"];
  if (!h.connected) return ["not heard", "bad"];
  if (h.silent) return ["silent", "warn"];
  if (h.state !== "draining") return [h.state, "good"];
  if (h.forOwner) return ["draining for its owner", "warn"];
  if (h.forHealth) return ["draining, may fail", "warn"];
  if (h.forNotice) return ["draining, goes away", "warn"];
  return ["draining", "warn"];
}

export const colourOf = (state) => ({ running: "good", up: "good", finished: "good", ended: "calm", failed: "bad", lost: "bad", aborted: "bad", pending: "calm", suspended: "calm" }[state] ?? "warn");

// causes writes why a rank was stalled.
const reasons = {
  "guest-suspended": (c) => `guest suspended by a move for ${took(c.took_ns)}`,
  "tcp-timeout": (c) => count(c.count, "TCP retransmission time-out"),
  "tcp-probe": (c) => `${count(c.count, "TCP retransmission time-out")} of a last segment (loss probe)`,
  "tcp-resent": (c) => `${count(c.count, "TCP segment")} sent again`,
  "tcp-delayed": (c) => `${count(c.count, "TCP acknowledgement")} held back`,
  "vcpu-stolen": (c) => `host gave the guest's CPUs to other programs for ${took(c.took_ns)}`,
  "cpu-shared": (c) => `ready, but others had the CPU for ${took(c.took_ns)}`,
  "rank-stopped": (c) => `stopped or asleep for ${took(c.took_ns)}`,
  computing: (c) => `computed, or its host was slow, for ${took(c.took_ns)}`,
};
export const known = Object.keys(reasons);
export const causes = (why) => (why ?? []).map((c) => (c.rank !== undefined && c.rank !== null ? `rank ${c.rank}: ` : "") + (reasons[c.what]?.(c) ?? c.what)).join("; ");

export const where = (g) => (g.in_mpi ? `in MPI, ${g.call ?? "-"}` : "between calls") + (g.open ? ", goes on" : "");
