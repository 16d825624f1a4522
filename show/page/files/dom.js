// What makes and changes elements. Text becomes text and never markup: what jobs, hosts and users are called is other people's.

const present = (c) => c !== undefined && c !== null && c !== false && c !== "";

function dress(e, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") e.addEventListener(name, value);
    else e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.flat(Infinity).filter(present));
  return e;
}

// el makes an element. An attribute that is a function hears the event of that name; elements of show() must not have any, since
// an element of it may come to be about something else. They say what they do by data-do.
export const el = (tag, attributes, ...children) => dress(document.createElement(tag), attributes, children);

// svg makes a drawing's element.
export const svg = (tag, attributes, ...children) => dress(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// link leads to a page about something.
export const link = (kind, id, ...text) => el("a", { href: `#/${kind}/${encodeURIComponent(id)}` }, text.length ? text : id);

// doing is a button for something that actions.js does.
export const doing = (what, id, text, attributes) => el("button", { type: "button", "data-do": what, "data-id": id, ...attributes }, text);

// show has a parent's children be these, and changes only what differs: what has the focus keeps it, and readers are not told
// twice. Children with a data-key stay the same element wherever they are in the order.
export function show(parent, ...children) {
  const want = children.flat(Infinity).filter(present).map((c) => (c instanceof Node ? c : document.createTextNode(String(c))));
  const keyed = new Map();
  for (const c of parent.children) if (c.dataset?.key) keyed.set(c.dataset.key, c);
  const wanted = new Set(want.map((n) => n.dataset?.key).filter(Boolean));
  let at = parent.firstChild;
  for (const node of want) {
    while (at?.dataset?.key && !wanted.has(at.dataset.key)) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
    const key = node.dataset?.key;
    const have = key ? keyed.get(key) : at;
    if (!have || (!key && have.dataset?.key)) {
      parent.insertBefore(node, at);
      continue;
    }
    if (have === at) at = at.nextSibling;
    else parent.insertBefore(have, at);
    become(have, node);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function become(have, want) {
  if (have.nodeType !== want.nodeType || have.nodeName !== want.nodeName) {
    have.replaceWith(want);
    return;
  }
  if (have.nodeType !== Node.ELEMENT_NODE) {
    if (have.data !== want.data) have.data = want.data;
    return;
  }
  if (have.isEqualNode(want)) return;
  for (const { name } of [...have.attributes]) if (!want.hasAttribute(name)) have.removeAttribute(name);
  for (const { name, value } of want.attributes) if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  show(have, ...want.childNodes);
}

// table has rows of cells, which a narrow screen shows below each other with the columns' names.
export function table(caption, columns, rows, empty) {
  if (!rows.length) return el("p", { class: "none" }, empty);
  return el("div", { class: "scroll" },
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col" }, c)))),
      el("tbody", {}, rows.map(({ key, cells }) => el("tr", { "data-key": key }, cells.map((c, i) => el("td", { "data-column": columns[i] }, c === "" || c === undefined ? "-" : c)))))));
}

// facts is a list of names and values; those without a value are left out.
export const facts = (pairs) => el("dl", { class: "facts" }, pairs.filter(([, v]) => present(v)).map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v))));

// bar says how far something is.
export function bar(share, label) {
  return svg("svg", { class: "bar", viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("rect", { class: "bar-all", width: 100, height: 6 }),
    svg("rect", { class: "bar-part", width: Math.round(100 * Math.min(1, Math.max(0, share || 0))), height: 6 }));
}
