// The page of `tailrace watch`. It asks for what is new, and draws it. Whatever comes from a run goes in as text, never as HTML.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const LETTERS = {
  training: "T", generating: "G", evaluating: "E", pulling: "P", publishing: "U", releasing: "R", lent: "L", starting: "S",
  down: "D", idle: "i", waiting: "w", holding: "·",
};
const THIN = new Set(["idle", "waiting", "holding"]);
const CELLS = { G: "generating", P: "pulling", I: "idle", S: "starting", D: "down", R: "releasing", W: "waiting", "?": "holding" };
const SIGNS = { live: "▶", replay: "▷", done: "■", failed: "✖", gone: "✖", silent: "!", unknown: "…" };
const LANE = 22, NAMES = 104, MOST_SPANS = 6000, AGAIN_MS = 3000, FIND_MS = 10000;

const page = {
  cursor: {}, about: null, frame: null, spans: [], open: [], members: [], marks: [], incidents: [], steps: [],
  lane: 0, at: null, cell: 0, offset: 0, one: "", timer: 0, asking: false, foundAt: 0, reading: false,
};

const $ = (id) => document.getElementById(id);

// What is put there again is read out again.
function say(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const fixed = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });
function number(value) {
  if (value === null || value === undefined) return "not known";
  const size = Math.abs(value);
  return fixed(value, size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}
const unitOf = (value) => [[172800, 86400, "days"], [5400, 3600, "h"], [90, 60, "min"]].find(([least]) => value >= least) || [0, 1, "s"];
function seconds(value, longest = value) {
  const [, size, unit] = unitOf(longest);
  return `${fixed(value / size, size > 1 || value < 10 ? 1 : 0)} ${unit}`;
}
const over = () => ["done", "failed", "gone"].includes(page.frame.life.state) && !page.reading;
const short = (value) => (Math.abs(value) < 1000 ? number(value) : value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 2 }));
const count = (value, one, more) => `${number(value)} ${value === 1 ? one : more || `${one}s`}`;

function table(id, heads, rows) {
  const cell = (kind, value, head) => {
    const made = element(kind, head.startsWith("#") ? { class: "number" } : {});
    if (kind === "th") made.setAttribute("scope", "col");
    made.append(value instanceof Node ? value : String(value));
    return made;
  };
  const body = element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, place) => cell("td", value, heads[place])))));
  const head = element("tr", {}, ...heads.map((name) => cell("th", name.replace("#", ""), name)));
  $(id).replaceChildren(element("thead", {}, head), body);
}

function pairs(id, rows) {
  $(id).replaceChildren(...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
}

// ---- asking

async function ask(path, values) {
  const answer = await fetch(`${path}?${new URLSearchParams(values)}`, { credentials: "same-origin", cache: "no-store" });
  if (answer.status === 401) throw new Error("This page has no token any more: open the address that tailrace watch printed.");
  const found = await answer.json();
  if (found.error) throw new Error(found.error);
  return found;
}

async function look() {
  clearTimeout(page.timer);
  if (page.asking || document.hidden) return;
  page.asking = true;
  let again = AGAIN_MS;
  try {
    const frame = await ask("/api/frame", page.cursor);
    again = Math.max(30, 1000 * frame.again_s);
    take(frame);
  } catch (error) {
    const gone = error instanceof TypeError;
    trouble(gone ? "The server of this page does not answer: tailrace watch has ended. That does nothing to the run. Asking again." : error.message);
  }
  page.asking = false;
  page.timer = setTimeout(look, again);
}

function trouble(text) {
  $("trouble").hidden = !text;
  say("trouble", text);
}

function take(frame) {
  if (frame.about) Object.assign(page, { about: frame.about, spans: [], marks: [], incidents: [], frame: null });
  page.cursor = { ...page.cursor, ...frame.cursor };
  trouble(frame.trouble);
  if (page.reading && !frame.reading) page.foundAt = 0;  // what was listed meanwhile is long past
  page.reading = Boolean(frame.reading);
  showLife(frame);
  if (!frame.progress) return;
  page.frame = frame;
  page.spans = frame.lanes.whole ? frame.lanes.ended : page.spans.concat(frame.lanes.ended);
  if (page.spans.length > MOST_SPANS) page.cursor.spans = 0;  // next time all from the begin, coarser
  page.open = frame.lanes.open;
  page.members = frame.lanes.members;
  page.marks = frame.marks || page.marks;
  const earlier = page.cursor.marks - page.marks.length;
  $("earlier").textContent = earlier > 0 ? ` Of these, ${count(earlier, "earlier one")} ${earlier === 1 ? "is" : "are"} not drawn.` : "";
  page.incidents = page.incidents.concat(frame.incidents).slice(-200);
  page.steps = frame.learning.batches.map((row) => row[6]);
  draw();
}

// ---- what is drawn

function showLife(frame) {
  const about = page.about, life = frame.life, reading = frame.reading;
  if (about) {
    $("eyebrow").textContent = `tailrace watch · ${about.run}${about.simulated ? " · simulated" : ""}`;
    $("title").textContent = `${about.app} on ${about.model}`;
    document.title = `${life.state}: ${about.run}`;
    $("facts").replaceChildren(...[["task", about.task], ["seed", about.seed]].map(([name, value]) => element("span", {}, `${name} `, element("b", {}, String(value)))));
  }
  const left = life.left_s === null ? "" : ` About ${seconds(life.left_s)} left.`;
  const read = reading ? ` Reading the log: ${Math.floor((100 * reading.read) / reading.of)} %.` : "";
  $("life-sign").textContent = SIGNS[life.state] || "…";
  say("life-said", `${life.said}${left}${read}`);
}

function draw() {
  const { frame } = page, { progress } = frame;
  $("progress").value = progress.steps ? progress.step / progress.steps : 0;
  pairs("answers-list", frame.answers.map((one) => [one.asked, one.said]));
  showAlarms(frame.alarms);
  showTrainer(frame);
  pairs("tiles", tiles(frame));
  drawLanes();
  drawFleet();
  showMembers();
  showTokens(frame);
  showLearning(frame.learning, frame.rates);
  showDevices(frame.devices);
  showIncidents(frame);
  if (!page.offset && Date.now() - page.foundAt > FIND_MS && !$("trajectories").contains(document.activeElement)) find(0);
}

function tiles({ progress, rates, learning, now_s }) {
  const last = learning.batches[learning.batches.length - 1];
  const bound = progress.bound === null ? "" : ` of ${progress.bound}`;
  return [
    ["step", `${progress.step} of ${progress.steps}`],
    ["version, published", `${progress.version}, ${progress.published < 0 ? "none" : progress.published}`],
    ["trained tokens/s", number(rates.trained_now)],
    ...(over() ? [] : [["generated tokens/s", number(rates.generated_now)]]),
    ["staleness: mean, most", last ? `${number(last[3])}, ${last[4]}${bound}` : "none yet"],
    ["run's clock", seconds(now_s)],
  ];
}

function showAlarms(alarms) {
  const list = $("alarms-list"), said = alarms.map((one) => `${one.level}${one.kind}${one.said}`).join("\n");
  if (list.dataset.said === said && list.children.length) return;
  list.dataset.said = said;
  if (!alarms.length) {
    list.replaceChildren(element("li", { class: "none" }, "✓ None."));
    return;
  }
  list.replaceChildren(...alarms.map((one) => {
    const sign = one.level === "alarm" ? "▲ Alarm:" : "◇ Advice:";
    const since = one.since_s === null ? "" : ` (since ${seconds(one.since_s)})`;
    return element("li", { class: one.level }, element("b", {}, sign), one.said + since);
  }));
}

function showTrainer({ trainer, now_s }) {
  if (over()) {
    $("trainer").textContent = "Nobody works any more. The lanes show who did what.";
    return;
  }
  if (!trainer) {
    $("trainer").textContent = "The trainer has not been started.";
    return;
  }
  const { buffered, needed } = trainer.numbers;
  const have = needed === undefined ? "" : `: ${buffered} of ${needed} groups are complete`;
  $("trainer").textContent = `The trainer is ${trainer.doing}: ${trainer.said}${have}, for ${seconds(Math.max(0, now_s - trainer.since_s))}.`;
}

function windowed() {
  const steps = Number($("window").value), last = page.frame.now_s;
  const first = steps && page.steps.length > steps ? page.steps[page.steps.length - 1 - steps] : 0;
  return [first, Math.max(last, first + 1e-6)];
}

function legend(names) {
  const items = names.map(([name, letter, css]) => element("li", {}, element("span", { class: `key ${css || name}`, "aria-hidden": "true" }, letter), name));
  const list = $("legend"), said = names.join();
  if (list.dataset.said !== said) {
    list.replaceChildren(...items);
    list.dataset.said = said;
  }
}

function drawLanes() {
  const [first, last] = windowed(), { members } = page, box = $("lanes");
  const fleet = page.frame.fleet.length > page.about.most_lanes, height = members.length * LANE + 26, width = Math.max(260, box.clientWidth - 12);
  const names = width < 480 ? 76 : NAMES, scale = (width - names - 6) / (last - first);
  const x = (at) => names + (Math.max(first, Math.min(last, at)) - first) * scale;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
  const row = new Map(members.map(([role, id], place) => [`${role} ${id}`, place]));
  for (const at of page.steps) if (at > first) svg.append(shape("line", { class: "step", x1: x(at), x2: x(at), y1: 0, y2: height - 20 }));
  members.forEach(([role, id], place) => {
    const name = ["replica", "environment"].includes(role) ? id : role + (id === "0" ? "" : ` ${id}`);
    svg.append(shape("text", { x: 2, y: place * LANE + 15 }, name.length > 15 ? `${name.slice(0, 14)}…` : name));
  });
  for (const span of [...page.spans, ...page.open]) {
    const place = row.get(`${span[0]} ${span[1]}`);
    if (place === undefined || span[4] < first || span[3] > last) continue;
    const left = x(span[3]), wide = Math.max(0.75, x(span[4]) - left), thin = THIN.has(span[2]), y = place * LANE + (thin ? 13 : 3);
    svg.append(shape("rect", { class: span[2], x: left, y, width: wide, height: thin ? 4 : 15, rx: wide > 4 ? 2 : 0 }));
    const dark = ["training", "down"].includes(span[2]);
    if (!thin && wide > 11) svg.append(shape("text", { class: dark ? "in" : "in light", x: left + 3, y: y + 11 }, LETTERS[span[2]]));
  }
  for (const mark of page.marks) {
    const place = row.get(`${mark[0]} ${mark[1]}`);
    if (place === undefined || mark[3] < first || mark[3] > last) continue;
    const at = x(mark[3]), y = place * LANE + 2, down = mark[2] === "down";
    svg.append(shape("path", { class: "mark", d: down ? `M${at - 4} ${y}l8 8m0 -8l-8 8` : `M${at} ${y + 6}l-4 -6h8z` }));
  }
  const [, size, unit] = unitOf(last - first);
  for (const tick of ticksOf(first / size, last / size)) {
    const at = tick * size;
    if (at < first || at > last) continue;
    const anchor = width - x(at) < 24 ? "end" : x(at) < names + 12 ? "start" : "middle";
    svg.append(shape("text", { x: x(at), y: height - 5, "text-anchor": anchor }, `${fixed(tick, 2)} ${unit}`));
  }
  if (box === document.activeElement && members.length) {
    svg.append(shape("rect", { class: "chosen", x: 1, y: page.lane * LANE + 1, width: width - 2, height: LANE - 3, rx: 3 }));
    const span = page.at;
    if (span) svg.append(shape("rect", { class: "chosen", x: x(span[3]), y: page.lane * LANE + 1, width: Math.max(3, x(span[4]) - x(span[3])), height: LANE - 3 }));
  }
  box.replaceChildren(svg);
  const used = new Set([...page.spans, ...page.open].map((span) => span[2]));
  if (!fleet || $("cell").value === "doing") legend(Object.entries(LETTERS).filter(([name]) => used.has(name) || (fleet && Object.values(CELLS).includes(name))).map(([name, letter]) => [name, letter]));
}

function spansOf(place) {
  const [role, id] = page.members[place] || [];
  const [first, last] = windowed();
  return [...page.spans, ...page.open].filter((span) => span[0] === role && span[1] === id && span[4] >= first && span[3] <= last);
}

function sayLane(place, span) {
  const member = page.members[place];
  if (!member || !span) return;
  const label = span[5] && span[5] !== span[2] ? `: ${span[5]}` : "";
  $("lane-said").textContent = `${member[0]} ${member[1]}: ${span[2]}${label}, from ${seconds(span[3])} for ${seconds(span[4] - span[3])}.`;
}

function laneKeys(event) {
  if (!page.frame || !["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
  event.preventDefault();
  if (event.key === "ArrowUp" || event.key === "ArrowDown") {
    page.lane = Math.max(0, Math.min(page.members.length - 1, page.lane + (event.key === "ArrowDown" ? 1 : -1)));
    page.at = null;
  }
  const spans = spansOf(page.lane);
  let place = page.at ? spans.findIndex((span) => span[3] === page.at[3] && span[2] === page.at[2]) : spans.length - 1;
  if (event.key === "ArrowLeft") place -= 1;
  if (event.key === "ArrowRight") place += 1;
  if (event.key === "Home") place = 0;
  if (event.key === "End") place = spans.length - 1;
  page.at = spans[Math.max(0, Math.min(spans.length - 1, place))] || null;
  drawLanes();
  sayLane(page.lane, page.at);
}

function lanePoint(event) {
  if (!page.frame) return;
  const box = $("lanes").getBoundingClientRect(), place = Math.floor((event.clientY - box.top - 7) / LANE), [first, last] = windowed();
  const width = Math.max(260, $("lanes").clientWidth - 12), names = width < 480 ? 76 : NAMES;
  const at = first + ((event.clientX - box.left - 7 - names) / (width - names - 6)) * (last - first);
  const spans = spansOf(place);
  sayLane(place, spans.find((span) => span[3] <= at && at <= span[4]));
}

function drawFleet() {
  const { fleet } = page.frame, shown = fleet.length > page.about.most_lanes, box = $("fleet");
  box.hidden = $("cell-label").hidden = !shown;
  if (!shown) return;
  const what = $("cell").value;
  const looks = (one) => {
    if (what === "behind") return one[3] === null ? ["·", "holding"] : [one[3] > 9 ? "+" : String(one[3]), `lag-${Math.min(4, one[3])}`];
    if (what === "kv") return [String(Math.min(9, Math.floor(10 * one[5]))), `lag-${Math.min(4, Math.floor(5 * one[5]))}`];
    return [one[1], CELLS[one[1]] || "holding"];
  };
  while (box.children.length > fleet.length) box.lastChild.remove();
  while (box.children.length < fleet.length) box.append(element("span", { "aria-hidden": "true" }));
  const chosen = box === document.activeElement ? page.cell : -1;
  fleet.forEach((one, place) => {
    const cell = box.children[place], [letter, css] = looks(one), name = place === chosen ? `${css} chosen` : css;
    if (cell.textContent !== letter) cell.textContent = letter;
    if (cell.className !== name) cell.className = name;
  });
  if (what === "behind") legend([0, 1, 2, 3, 4].map((lag) => [`${lag}${lag === 4 ? " or more" : ""} behind`, String(lag), `lag-${lag}`]));
  if (what === "kv") legend([0, 1, 2, 3, 4].map((part) => [`from ${20 * part} %`, String(2 * part), `lag-${part}`]));
}

function sayCell(one) {
  if (!one) return;
  const behind = one[3] === null ? "no version" : `${count(one[3], "version")} behind`;
  $("lane-said").textContent = `${one[0]}: ${one[2]}, ${behind}, ${count(one[4], "trajectory", "trajectories")}, KV cache ${Math.round(100 * one[5])} % full.`;
}

function fleetKeys(event) {
  const wide = Math.max(1, Math.floor(($("fleet").clientWidth - 14) / 20));
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -wide, ArrowDown: wide }[event.key];
  if (!by || !page.frame) return;
  event.preventDefault();
  page.cell = Math.max(0, Math.min(page.frame.fleet.length - 1, page.cell + by));
  drawFleet();
  $("fleet").children[page.cell].scrollIntoView({ block: "nearest" });
  sayCell(page.frame.fleet[page.cell]);
}

function showMembers() {
  const { fleet, now_s } = page.frame, rows = page.open.map((span) => [`${span[0]} ${span[1]}`, span[2], span[5], seconds(now_s - span[3])]);
  const lanes = new Set(page.open.map((span) => `${span[0]} ${span[1]}`));
  const others = fleet.filter((one) => !lanes.has(`replica ${one[0]}`)).map((one) => [`replica ${one[0]}`, one[2], `${count(one[4], "trajectory", "trajectories")}`, ""]);
  table("members", ["member", "doing", "what or why", "#for"], [...rows, ...others]);
}

// ---- tokens

function showTokens({ whereabouts, buffers, rates, looked_s, now_s }) {
  const heads = ["where", "#trajectories", "#tokens", "#0 behind", "#1", "#2", "#3", "#4 or more", "#no version yet"];
  const late = whereabouts.length > 0 && now_s > looked_s;
  $("whereabouts-none").textContent = late ? `At ${seconds(looked_s)} of the run's clock: these are many, and looked at every few seconds.` : "Nothing is in flight or in queue.";
  $("whereabouts-none").hidden = whereabouts.length > 0 && !late;
  $("whereabouts").hidden = !whereabouts.length;
  table("whereabouts", heads, whereabouts.map((row) => [row.where, number(row.trajectories), number(row.tokens), ...row.behind.map(number), number(row.new)]));
  pairs("buffers", [
    ["complete groups", number(buffers.buffered_groups)],
    ["a batch takes", count(buffers.batch_groups, "group")],
    ["groups being generated", number(buffers.generating_groups)],
    ["open groups, at most", number(buffers.most_open_groups)],
    ["in the pool", count(buffers.pooled, "trajectory", "trajectories")],
    ["cycles that placed nothing", number(buffers.blocked_cycles)],
    ...(buffers.waiting_turns ? [["turns without a session", number(buffers.waiting_turns)]] : []),
    ...Object.entries(buffers.relays).slice(0, 8).map(([id, holds]) => [`relay ${id} holds`, holds]),
  ]);
  chart("chart-rates", rates.ends_s, [{ values: rates.generated, css: "curve" }], { unit: "tokens/s", x: seconds });
  stack("chart-behind", rates.ends_s, rates.behind);
  chart("chart-buffered", rates.buffered.map((one) => one[0]), [{ values: rates.buffered.map((one) => one[1]), css: "curve" }], { unit: "groups", x: seconds });
}

// ---- charts

function ticksOf(low, high) {
  const rough = (high - low || 1) / 4, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((times) => times * size).find((one) => one >= rough - 1e-12);
  const ticks = [];
  for (let at = Math.floor(low / step + 1e-9); at * step <= high + step * (1 - 1e-9); at++) ticks.push(Number((at * step).toPrecision(12)));
  return ticks;
}

function frameOf(id, lowest, highest, first, last, options) {
  const ticks = ticksOf(lowest, highest), low = ticks[0], high = ticks[ticks.length - 1];
  const box = $(id), width = Math.max(240, box.clientWidth - 32), height = 170, left = 54, bottom = 22;
  const y = (value) => 8 + (height - 8 - bottom) * (1 - (value - low) / (high - low || 1));
  const x = (value) => left + ((width - left - 8) * (value - first)) / (last - first || 1);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  for (const value of ticks) {
    svg.append(shape("line", { class: "axis", x1: left, x2: width - 8, y1: y(value), y2: y(value) }));
    svg.append(shape("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, options.y ? options.y(value) : short(value)));
  }
  for (const [place, anchor] of last > first ? [[0, "start"], [0.5, "middle"], [1, "end"]] : [[0, "start"]]) {
    const at = first + (last - first) * place;
    svg.append(shape("text", { x: x(at), y: height - 5, "text-anchor": anchor }, options.x(at, last)));
  }
  return { box, svg, x, y };
}

function put(box, svg, said) {
  svg.setAttribute("aria-label", said);
  const caption = box.querySelector("figcaption"), note = element("p", { class: "note" }, said);
  box.replaceChildren(caption, svg, note);
}

function empty(id, said) {
  const box = $(id);
  box.replaceChildren(box.querySelector("figcaption"), element("p", { class: "note" }, said));
}

function chart(id, xs, lines, options) {
  const known = lines.flatMap((line) => line.values.flatMap((value, place) => (value === null ? [] : [value + (line.errors ? line.errors[place] : 0), value - (line.errors ? line.errors[place] : 0)])));
  if (!xs.length || !known.length) {
    empty(id, "Nothing yet.");
    return;
  }
  let low = Math.min(0, ...known), high = Math.max(...known);
  if (high <= low) high = low + 1;
  if (options.top !== undefined) high = Math.max(low + 1e-9, Math.min(options.top, high * 1.1));
  const { box, svg, x, y } = frameOf(id, low, high, xs[0], xs[xs.length - 1], options);
  for (const line of lines) {
    const points = line.values.map((value, place) => [xs[place], value, line.errors ? line.errors[place] : 0]).filter((one) => one[1] !== null);
    if (line.errors && points.length > 1) {
      const band = [...points.map((one) => [x(one[0]), y(one[1] + one[2])]), ...points.map((one) => [x(one[0]), y(one[1] - one[2])]).reverse()];
      svg.append(shape("polygon", { class: "band", points: band.map((one) => one.join()).join(" ") }));
    }
    svg.append(shape("polyline", { class: line.css, points: points.map((one) => `${x(one[0])},${y(one[1])}`).join(" ") }));
    if (points.length < 25 && line.css === "curve") for (const one of points) svg.append(shape("circle", { class: "dot", cx: x(one[0]), cy: y(one[1]), r: 3 }));
  }
  const told = options.y || number;
  const said = lines.map((line) => {
    const values = line.values.filter((value) => value !== null), last = values.length - 1;
    const error = line.errors && line.errors[line.errors.length - 1] ? ` ± ${told(line.errors[line.errors.length - 1])}` : "";
    return `${line.name ? `${line.name}: ` : ""}${told(values[last])}${error} ${over() ? "at last" : "now"}, ${told(values[0])} at first`;
  });
  put(box, svg, `${said.join("; ")}${options.unit ? ` (${options.unit})` : ""}.`);
}

function stack(id, ends, rows) {
  const sums = ends.map((_, place) => rows.reduce((sum, row) => sum + row[place], 0)), high = Math.max(0, ...sums);
  if (!ends.length || !high) {
    empty(id, "Nothing yet.");
    return;
  }
  const { box, svg, x, y } = frameOf(id, 0, high, ends[0], ends[ends.length - 1], { x: seconds });
  const below = ends.map(() => 0);
  rows.forEach((row, lag) => {
    const low = ends.map((at, place) => `${x(at)},${y(below[place])}`).reverse();
    row.forEach((value, place) => { below[place] += value; });
    const top = ends.map((at, place) => `${x(at)},${y(below[place])}`);
    svg.append(shape("polygon", { class: `lag-${lag}`, points: [...top, ...low].join(" ") }));
  });
  const last = ends.length - 1;
  put(box, svg, `${over() ? "At last" : "Now"}: ${rows.map((row, lag) => `${fixed(row[last], 0)} at ${lag}${lag === 4 ? " or more" : ""}`).join(", ")}. Darker is further behind.`);
}

function showLearning({ batches, held_out, quantity }) {
  const steps = batches.map((row) => row[0]), step = (at) => `step ${Math.round(at)}`;
  chart("chart-reward", steps, [{ values: batches.map((row) => row[1]), errors: batches.map((row) => row[2]), css: "curve" }], { x: step });
  chart("chart-staleness", steps, [
    { name: "mean", values: batches.map((row) => row[3]), css: "curve" }, { name: "most, dashed", values: batches.map((row) => row[4]), css: "second" },
  ], { x: step, unit: "versions" });
  const percent = (value) => `${fixed(100 * value, 1)} %`;
  if (held_out.length) {
    const estimates = held_out.map((one) => one[quantity]), accuracy = quantity === "accuracy";
    chart("chart-held-out", held_out.map((one) => one.step), [{ name: quantity, values: estimates.map((one) => one.value), errors: estimates.map((one) => one.error), css: "curve" }],
      { x: step, y: accuracy ? percent : number, top: accuracy ? 1 : undefined });
  } else empty("chart-held-out", page.about.simulated ? "A simulated run learns nothing." : "Nothing has been measured on held-out problems yet.");
  const last = batches.slice(-30).reverse();
  table("batches", ["#step", "#mean reward", "#standard error", "#staleness, mean", "#most", "#response tokens", "#done at"],
    last.map((row) => [row[0], row[1] === null ? "none" : number(row[1]), number(row[2]), number(row[3]), row[4], number(row[5]), seconds(row[6])]));
}

function showDevices({ rows, left_out, replicas, replica_devices }) {
  table("devices-table", ["machine", "device", "who holds it"], rows.map((row) => {
    const holders = row.holders.map(([name, share, state]) => `${name}${share < 1 ? ` (${share})` : ""}${state ? `, ${state}` : ""}`);
    return [row.machine, `${row.kind} ${row.index}`, holders.join("; ")];
  }));
  $("devices-table").hidden = !rows.length;
  const none = replicas ? `${count(replicas, "replica")} with ${count(replica_devices, "device")} in all; nobody has told on which machine.` : "No process has told that it holds a device.";
  $("devices-note").textContent = rows.length ? (left_out ? `${left_out} more devices are left out.` : "") : none;
}

function showIncidents({ counts }) {
  const items = page.incidents.slice(-40).reverse().map(([at, said]) => element("li", {}, element("time", {}, seconds(at)), said));
  if (!items.length) items.push(element("li", {}, "None."));
  const list = $("incidents-list"), known = items.findIndex((item) => list.firstChild && item.textContent === list.firstChild.textContent);
  list.prepend(...items.slice(0, Math.max(0, known)));
  while (list.children.length > items.length) list.lastChild.remove();
  if (known < 0 || list.children.length < items.length) list.replaceChildren(...items);
  $("counts").textContent = `Prompts: ${counts}.`;
}

// ---- trajectories

async function find(offset) {
  page.foundAt = Date.now();
  try {
    const found = await ask("/api/trajectories", { fate: $("fate").value, like: $("like").value, offset });
    page.offset = offset;
    const heads = ["name", "fate", "what became of it", "#begun at", "replica", "#tokens", "#reward"];
    table("found", heads, found.rows.map((row) => {
      const button = element("button", { type: "button", "aria-label": `Explain ${row.name}` }, row.name);
      button.addEventListener("click", () => open(row.name));
      const tokens = row.tokens === null ? "" : `${number(row.tokens)}${row.cut ? " (cut)" : ""}`;
      return [button, row.fate, row.said, seconds(row.at_s), row.replica, tokens, row.reward === null ? "" : number(row.reward)];
    }));
    $("newer").disabled = !offset;
    $("older").disabled = !found.more;
    const forgotten = found.forgotten ? ` ${number(found.forgotten)} older ones are not listed; tailrace explain tells of them.` : "";
    say("found-note", `${found.rows.length ? `${offset + 1} to ${offset + found.rows.length}` : "None"} of ${number(found.known)} known.${forgotten}`);
  } catch (error) {
    $("found-note").textContent = error.message;
  }
}

async function open(name) {
  page.one = name;
  const card = $("one");
  card.hidden = false;
  $("one-title").textContent = `Trajectory ${name}`;
  $("one-facts").textContent = "Reading the log for it.";
  for (const id of ["one-story", "one-prompt", "one-response"]) $(id).replaceChildren();
  card.focus();
  card.scrollIntoView({ block: "nearest" });
  try {
    const { entry, story, text, why } = await ask("/api/trajectory", { name });
    if (page.one !== name) return;
    const facts = entry ? [`prompt ${entry.prompt}`, entry.said, entry.reward === null ? null : `reward ${number(entry.reward)}`] : [];
    if (text) facts.push(count(text.tokens, "token"), count(text.turns, "turn"), `versions ${text.versions.join(", ") || "none"}`, text.finish);
    $("one-facts").textContent = facts.filter(Boolean).join(" · ");
    $("one-story").replaceChildren(...story.map(([at, version, said]) => element("li", {}, element("time", {}, `${fixed(at, 2)} s`), `version ${version}: ${said}`)));
    $("one-prompt").textContent = text ? text.prompt : why;
    if (text) $("one-response").replaceChildren(...text.response.map(([part, observed]) => (observed ? element("span", { class: "told", "aria-label": "the environment's answer" }, part) : document.createTextNode(part))));
    else $("one-response").textContent = why;
  } catch (error) {
    $("one-facts").textContent = error.message;
  }
}

// ---- begin

$("lanes").addEventListener("keydown", laneKeys);
$("lanes").addEventListener("pointermove", lanePoint);
for (const kind of ["focus", "blur"]) $("lanes").addEventListener(kind, () => page.frame && drawLanes());
for (const kind of ["focus", "blur"]) $("fleet").addEventListener(kind, () => page.frame && drawFleet());
$("fleet").addEventListener("keydown", fleetKeys);
$("fleet").addEventListener("pointerover", (event) => {
  const place = [...$("fleet").children].indexOf(event.target);
  if (page.frame && place >= 0) sayCell(page.frame.fleet[place]);
});
for (const id of ["window", "cell"]) $(id).addEventListener("change", () => page.frame && draw());
$("find").addEventListener("submit", (event) => { event.preventDefault(); find(0); });
$("fate").addEventListener("change", () => find(0));
$("older").addEventListener("click", () => find(page.offset + 50));
$("newer").addEventListener("click", () => find(Math.max(0, page.offset - 50)));
let resized = 0;
window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => page.frame && draw(), 150); });
document.addEventListener("visibilitychange", look);
look();
