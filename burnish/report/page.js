// The values under the pointer in the charts, and the rollout browser.
// Model text reaches the page only as textContent; nothing here builds HTML from strings.
"use strict";

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") for (const [event, action] of Object.entries(value)) made.addEventListener(event, action);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

// ---- charts -------------------------------------------------------------------------------------------------------

const [LEFT, RIGHT, WIDTH] = [44, 10, 360];

function shown(value, unit) {
  if (value === null) return "missing";
  return unit === "share" ? (100 * value).toPrecision(3) + "%" : String(Number(value.toPrecision(5)));
}

for (const figure of document.querySelectorAll("[data-chart]")) {
  const chart = JSON.parse(figure.dataset.chart);
  const svg = figure.querySelector("svg");
  const xs = [...new Set(chart.lines.flatMap((line) => line.points.map((point) => point[0])))];
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cursor.setAttribute("class", "cursor");
  const tip = element("div", { class: "tip" });
  const leave = () => { cursor.remove(); tip.remove(); };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = box.width / WIDTH;
    const place = (x) => LEFT + ((x - chart.x[0]) / (chart.x[1] - chart.x[0])) * (WIDTH - LEFT - RIGHT);
    const pointer = (event.clientX - box.left) / scale;
    const x = xs.reduce((best, each) => (Math.abs(place(each) - pointer) < Math.abs(place(best) - pointer) ? each : best));
    const values = chart.lines.map((line) => {
      const point = line.points.find((each) => each[0] === x);
      const value = shown(point ? point[1] : null, chart.unit);
      return chart.lines.length > 1 ? `${line.label}: ${value}` : value;
    });
    tip.textContent = `${chart.xTitle} ${x}\n${values.join("\n")}`;
    for (const [key, value] of [["x1", place(x)], ["x2", place(x)], ["y1", 8], ["y2", 164]]) cursor.setAttribute(key, value);
    svg.append(cursor);
    figure.append(tip);
    const frame = figure.getBoundingClientRect();
    const left = box.left - frame.left + place(x) * scale + 8;
    tip.style.top = `${box.top - frame.top + 8}px`;
    tip.style.left = `${left + tip.offsetWidth > figure.offsetWidth ? left - tip.offsetWidth - 16 : left}px`;
  });
  svg.addEventListener("pointerleave", leave);
}

// ---- rollouts -----------------------------------------------------------------------------------------------------

const { sets, prompts, items } = JSON.parse(document.getElementById("rollout-data").textContent);
const SHOWN_AT_ONCE = 200;
const LEVELS = [2, 10, 30, 100]; // hundredths of a nat

function distinct(values) {
  return [...new Set(values)].sort();
}

function responseText(item) {
  return item.tokens ? item.tokens.join("") : item.text;
}

// The end-of-sequence token that a stopped response ends with is no part of what it says.
function said(item) {
  return item.tokens && item.finish === "stop" ? item.tokens.slice(0, -1).join("") : responseText(item);
}

// Chat marks such as <|im_end|> say nothing in a list.
function plain(text) {
  return text.replace(/<\|[^|>]*\|>(system|user|assistant)?/g, " ").replace(/\s+/g, " ").trim();
}

// What tells the prompts of a task apart: templates and instructions that all of them begin with are left out.
function promptTitles() {
  const titles = new Map();
  for (const task of distinct(items.map((item) => item.task))) {
    const own = [...new Set(items.filter((item) => item.task === task).map((item) => item.prompt))];
    const texts = own.map((index) => plain(prompts[index]));
    let common = 0;
    while (own.length > 1 && texts.every((text) => common < text.length && text[common] === texts[0][common])) common++;
    const start = texts[0].lastIndexOf(" ", common - 1) + 1;
    own.forEach((index, place) => titles.set(index, (start > 40 ? "… " + texts[place].slice(start) : texts[place])));
  }
  return titles;
}

function marks(item) {
  return [...(item.flags || []), ...distinct(item.verdicts || []), item.finish];
}

function meanShift(item) {
  const known = (item.shift || []).filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + Math.abs(value), 0) / known.length / 100 : null;
}

const ORDERS = {
  "best and worst of each group": null,
  "highest reward": (item) => -(item.reward ?? -Infinity),
  "lowest reward": (item) => item.reward ?? Infinity,
  "largest logprob shift": (item) => -(meanShift(item) ?? -1),
  longest: (item) => -item.length,
};

function startBrowser(root) {
  const state = { limit: SHOWN_AT_ONCE, open: null };
  const list = element("div", { class: "list" });
  const detail = element("div", { class: "detail" });
  const count = element("small", { role: "status" });
  const controls = {};
  const titles = promptTitles();

  function control(name, title, made) {
    controls[name] = made;
    made.addEventListener("input", () => { state.limit = SHOWN_AT_ONCE; draw(); });
    return element("label", {}, title, made);
  }
  function choice(values) {
    return element("select", {}, ...values.map(([value, text]) => element("option", { value }, text)));
  }
  const every = (values) => [["", "all"], ...values.map((value) => [value, value])];

  root.append(
    element("div", { class: "filters" },
      control("set", "round", choice([["", "all"], ...sets.map((set, index) => [index, set.title])])),
      control("task", "task", choice(every(distinct(items.map((item) => item.task))))),
      control("mark", "verdict or flag", choice(every(distinct(items.flatMap(marks))))),
      control("low", "reward from", element("input", { type: "number", step: "any" })),
      control("high", "to", element("input", { type: "number", step: "any" })),
      control("text", "text", element("input", { type: "search", placeholder: "in prompt or response" })),
      control("order", "order", choice(Object.keys(ORDERS).map((name) => [name, name]))),
      count),
    element("div", { class: "panes" }, list, detail));

  function matches(item) {
    const { set, task, mark, low, high, text } = controls;
    const needle = text.value.toLowerCase();
    return (set.value === "" || item.set === Number(set.value))
      && (task.value === "" || item.task === task.value)
      && (mark.value === "" || marks(item).includes(mark.value))
      && (low.value === "" || (item.reward !== null && item.reward >= Number(low.value)))
      && (high.value === "" || (item.reward !== null && item.reward <= Number(high.value)))
      && (needle === "" || `${prompts[item.prompt]}\n${responseText(item)}`.toLowerCase().includes(needle));
  }

  function row(item) {
    const marked = [...(item.flags || []), ...(item.verdicts || []).filter((verdict) => verdict !== "passed")];
    return element("button", { "aria-current": item === state.open, on: { click: () => { open(item); } } },
      reward(item.reward),
      element("span", { class: "snippet" }, plain(said(item)).slice(0, 200) || "(empty)"),
      marked.length ? element("span", { class: "tag alarm" }, marked[0]) : null);
  }

  function draw() {
    const found = items.filter(matches);
    const key = ORDERS[controls.order.value];
    if (key) found.sort((a, b) => key(a) - key(b));
    if (!found.includes(state.open)) state.open = found[0] || null;
    list.replaceChildren();
    let group = null;
    for (const item of found.slice(0, state.limit)) {
      const name = `${item.set}/${item.group}`;
      if (name !== group && !key) {
        const round = controls.set.value === "" ? `${sets[item.set].title} · ` : "";
        list.append(element("h3", { title: prompts[item.prompt] }, round + titles.get(item.prompt)));
      }
      group = name;
      list.append(row(item));
    }
    if (found.length > state.limit) {
      const more = () => { state.limit += SHOWN_AT_ONCE; draw(); };
      list.append(element("button", { class: "more", on: { click: more } }, `show more of ${found.length}`));
    }
    if (!found.length) list.append(element("p", { class: "empty" }, "No rollout matches."));
    const all = sets.reduce((sum, set) => sum + set.samples, 0);
    count.textContent = `${found.length} of ${items.length} kept, ${all} sampled`;
    show(state.open);
  }

  function open(item) {
    state.open = item;
    for (const button of list.querySelectorAll("button[aria-current]")) button.setAttribute("aria-current", "false");
    draw();
  }

  function show(item) {
    detail.replaceChildren();
    if (!item) return;
    const tags = [sets[item.set].title, item.task, `policy ${item.policy}`, `${item.length} tokens`, `finish: ${item.finish}`];
    detail.append(
      element("div", { class: "tags" }, reward(item.reward), ...tags.map((text) => element("span", { class: "tag" }, text)),
        ...(item.flags || []).map((text) => element("span", { class: "tag alarm" }, text))),
      element("h4", {}, "prompt"), element("pre", {}, prompts[item.prompt]),
      element("h4", {}, "response"), response(item));
    if (item.shift) detail.append(scale(item));
    const parts = Object.entries(item.components || {});
    if (parts.length) {
      detail.append(element("h4", {}, "reward components"), element("table", {}, element("tbody", {}, ...parts.map(([name, value]) =>
        element("tr", {}, element("td", {}, name), element("td", {}, value === null ? "not scored" : String(value)))))));
    }
    if (item.verdicts) {
      const lines = item.verdicts.map((verdict, test) => [verdict, (item.details || [])[test]].filter(Boolean).join(": "));
      detail.append(element("h4", {}, "tests"), element("pre", {}, lines.join("\n") || "none"));
    }
    if (item.stderr) detail.append(element("h4", {}, "stderr"), element("pre", {}, item.stderr));
    detail.append(element("h4", {}, `sample ${item.id}`));
  }

  function openFromAddress() {
    const wanted = decodeURIComponent(location.hash).match(/^#rollout=(.+)$/);
    const item = wanted && items.find((each) => each.id === wanted[1]);
    if (!item) return;
    controls.set.value = String(item.set);
    open(item);
    root.scrollIntoView();
  }

  const lastRound = sets.findLastIndex((set) => set.round !== null);
  if (lastRound >= 0) controls.set.value = String(lastRound);
  draw();
  openFromAddress();
  addEventListener("hashchange", openFromAddress);
}

function reward(value) {
  if (value === null) return element("span", { class: "reward none" }, "none");
  return element("span", { class: `reward ${value >= 1 ? "good" : value <= 0 ? "bad" : ""}` }, String(Number(value.toFixed(3))));
}

function shiftClass(shift) {
  if (shift === null) return "out";
  const level = LEVELS.filter((bound) => Math.abs(shift) >= bound).length;
  return level ? `${shift > 0 ? "m" : "l"}${level}` : "";
}

function response(item) {
  if (!item.tokens) return element("pre", {}, item.text);
  const made = element("pre", { class: "tokens" });
  item.tokens.forEach((text, index) => {
    if (index === item.gap) made.append(`\n… ${item.length - item.tokens.length} tokens left out …\n`);
    const shift = item.shift ? item.shift[index] : undefined;
    if (shift === undefined) made.append(text);
    else made.append(element("i", { class: shiftClass(shift), title: shift === null ? "not trained on" : `${(shift / 100).toFixed(2)} nats` }, text));
  });
  return made;
}

function scale(item) {
  const names = [["l4", "-1"], ["l3", "-0.3"], ["l2", "-0.1"], ["l1", "-0.02"], ["", "0"], ["m1", "0.02"], ["m2", "0.1"], ["m3", "0.3"], ["m4", "1"]];
  const mean = meanShift(item);
  return element("div", { class: "scale tokens" }, "less likely to the trainer",
    ...names.map(([name, text]) => element("i", { class: name }, text)), "more likely (nats)",
    mean === null ? null : element("span", {}, ` · mean shift ${mean.toFixed(3)}`));
}

const root = document.getElementById("browser");
if (root) startBrowser(root);
