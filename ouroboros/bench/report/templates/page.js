const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const letters = new Map(data.sources.map((source) => [source.letter, source]));
const at = Object.fromEntries(data.step.map((name, place) => [name, place]));

// ---- tables: a click on a column's name sorts by it, numbers as numbers ----
const value = (row, place) => row.cells[place].textContent.trim();
const numeric = (text) => Number.parseFloat(text);
function compare(a, b) {
  const [x, y] = [numeric(a), numeric(b)];
  if (Number.isNaN(x) && Number.isNaN(y)) return a.localeCompare(b);
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
  return x - y;
}
function sortBy(head) {
  const body = head.closest("table").tBodies[0];
  const down = head.ariaSort === "ascending";
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...body.rows].sort((a, b) => compare(value(a, head.cellIndex), value(b, head.cellIndex)));
  body.append(...(down ? rows.reverse() : rows));
}
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

// ---- the viewer: `position` is a number of steps, or milliseconds of measured time ----
let panes = [];
let position = 0;
let playing = null;

function element(tag, properties = {}, children = []) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
function fill(select, names, chosen) {
  select.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
  select.value = names.includes(chosen) ? chosen : names[0];
}
const run = () => data.runs[$("run").selectedIndex];
const sample = (decoder) => run().prompts[$("prompt").selectedIndex].samples[decoder];
const byTime = () => $("mode").value === "time";
const last = () => Math.max(0, ...panes.map((pane) => (byTime() ? pane.ends.at(-1) ?? 0 : pane.ends.length)));

function paint(node, source) {
  node.style.backgroundColor = `color-mix(in srgb, ${source.colour} 24%, transparent)`;
  if (source.line !== "none") node.style.borderBottom = `2.5px ${source.line} ${source.colour}`;
}
function token(piece, letter, step) {
  const source = letters.get(letter);
  const node = element("span", { className: "t", title: `${source.name}: ${source.meaning} (step ${step + 1})` });
  for (const part of piece.split(/(\n)/)) {
    if (part === "\n") node.append(element("b", { textContent: "\u21b5" }), "\n");
    else node.append(part);
  }
  paint(node, source);
  node.hidden = piece === "";
  return node;
}
function makePane(decoder) {
  const own = sample(decoder);
  const pane = { decoder, own, ends: [], tokens: [], firsts: [0], letters: new Set() };
  let clock = 0;
  own.steps.forEach((step, index) => {
    clock += step[at.draft_ms] + step[at.verify_ms] + step[at.host_ms];
    pane.ends.push(clock);
    for (let left = step[at.new]; left > 0 && pane.tokens.length < own.pieces.length; left--) {
      const letter = own.sources[pane.tokens.length];
      pane.letters.add(letter);
      pane.tokens.push(token(own.pieces[pane.tokens.length], letter, index));
    }
    pane.firsts.push(pane.tokens.length);
  });
  pane.bars = own.steps.map(() => element("i"));
  pane.total = element("span");
  pane.bar = element("progress", { max: Math.max(1, pane.tokens.length), ariaLabel: "tokens so far" });
  pane.facts = element("dl", { className: "facts" });
  const strip = element("div", { className: "strip", title: "new tokens of each step" }, pane.bars);
  strip.setAttribute("aria-hidden", "true");
  const text = element("div", { className: "completion" }, pane.tokens);
  if (own.error) text.textContent = `failed: ${own.error}`;
  pane.node = element("article", { className: "pane" }, [
    element("h3", {}, [decoder, pane.total]), pane.bar, pane.facts, strip, text,
  ]);
  if (own.trees) pane.tree = treeBox(decoder, own.trees, run().texts);
  return pane;
}
function scaleBars() {
  const most = Math.max(1, ...panes.flatMap((pane) => pane.own.steps.map((step) => step[at.new])));
  for (const pane of panes) {
    pane.bars.forEach((bar, index) => {
      bar.style.height = `${(100 * pane.own.steps[index][at.new]) / most}%`;
    });
  }
}
function stepsDone(pane) {
  if (!byTime()) return Math.min(Math.round(position), pane.ends.length);
  const later = pane.ends.findIndex((end) => end > position + 1e-6);
  return later < 0 ? pane.ends.length : later;
}
function showFacts(pane, done) {
  const step = pane.own.steps[done - 1];
  const known = step && step[at.scored] > 0;
  const show = (name, digits = 0) => (known ? step[at[name]].toFixed(digits) : "-");
  const rows = [
    ["step", `${done} of ${pane.ends.length}`], ["drafted", show("drafted")],
    ["accepted", step ? step[at.accepted] : "-"], ["new tokens", step ? step[at.new] : "-"],
    ["nodes scored", show("scored")], ["draft calls", step ? step[at.draft_calls] : "-"],
    ["draft ms", show("draft_ms", 1)], ["verify ms", show("verify_ms", 1)], ["host ms", show("host_ms", 1)],
    ["repetition", pane.own.repetition === null ? "-" : `${(100 * pane.own.repetition).toFixed(0)} %`],
  ];
  pane.facts.replaceChildren(...rows.map(([name, text]) =>
    element("div", {}, [element("dt", { textContent: name }), element("dd", { textContent: text })])));
}
function showPane(pane) {
  const done = stepsDone(pane);
  const [from, upTo] = [pane.firsts[Math.max(0, done - 1)], pane.firsts[done]];
  pane.tokens.forEach((node, index) => {
    node.classList.toggle("future", index >= upTo);
    node.classList.toggle("now", done > 0 && index >= from && index < upTo);
  });
  pane.bars.forEach((bar, index) => {
    bar.className = index === done - 1 ? "now" : index < done ? "done" : "";
  });
  const spent = done ? pane.ends[done - 1] : 0;
  const rate = spent ? ` \u00b7 ${((1000 * upTo) / spent).toFixed(1)} tokens/s` : "";
  const over = done === pane.ends.length && done ? ` \u00b7 done (${pane.own.finish})` : "";
  const time = run().timed ? ` \u00b7 ${(spent / 1000).toFixed(2)} s${rate}` : "";
  pane.total.textContent = `${upTo} tokens${time}${over}`;
  pane.bar.value = upTo;
  showFacts(pane, done);
  pane.tree?.show(done - 1);
}
// The first position shown: the end or, with trees, the step that shows most: a branching tree
// whose accepted path has several sources.
function opening() {
  const pane = panes.findLast((one) => one.tree && one.own.steps.length);
  if (!pane) return last();
  const worth = pane.own.trees.map(({ path, source, parent }) => {
    const sources = new Set(path.slice(1).map((node) => source[node])).size;
    const leaves = parent.length - new Set(parent).size + 1;
    return 3 * sources + Math.min(path.length, 7) + Math.min(leaves, 14);
  });
  const step = worth.indexOf(Math.max(...worth));
  return byTime() ? pane.ends[step] : step + 1;
}
function show() {
  position = Math.min(Math.max(position, 0), last());
  $("slider").max = last();
  $("slider").value = position;
  $("clock").textContent = byTime()
    ? `${(position / 1000).toFixed(2)} of ${(last() / 1000).toFixed(2)} s`
    : `step ${Math.round(position)} of ${last()}`;
  panes.forEach(showPane);
}
function move(by) {
  if (!byTime()) position = Math.round(position) + by;
  else {
    const ends = [0, ...panes.flatMap((pane) => pane.ends)].sort((a, b) => a - b);
    const next = by > 0 ? ends.find((end) => end > position + 1e-6) : ends.findLast((end) => end < position - 1e-6);
    position = next ?? (by > 0 ? last() : 0);
  }
  show();
}
function stop() {
  if (playing) cancelAnimationFrame(playing.frame);
  playing = null;
  $("play").textContent = "Play";
}
function tick(now) {
  const speed = Number($("speed").value);
  position += (byTime() ? 1 : 1 / 150) * speed * (now - playing.before);
  playing.before = now;
  const ended = position >= last();
  const shown = position;
  show();
  position = Math.min(shown, last());
  if (ended) stop();
  else playing.frame = requestAnimationFrame(tick);
}
function play() {
  if (playing) return stop();
  if (position >= last()) position = 0;
  playing = { before: performance.now() };
  playing.frame = requestAnimationFrame(tick);
  $("play").textContent = "Pause";
}
function rebuild() {
  stop();
  const chosen = [$("first").value, $("second").value].filter((name) => sample(name));
  panes = [...new Set(chosen)].map(makePane);
  scaleBars();
  $("panes").replaceChildren(...panes.map((pane) => pane.node));
  $("trees").replaceChildren(...panes.filter((pane) => pane.tree).map((pane) => pane.tree.node));
  $("tree-note").hidden = !panes.some((pane) => pane.tree);
  const present = data.sources.filter((source) => panes.some((pane) => pane.letters.has(source.letter)
    || pane.own.trees?.some((tree) => tree.source.slice(1).includes(source.letter))));
  $("sources").replaceChildren(...present.map((source) => {
    const name = element("b", { textContent: source.name, className: "t" });
    paint(name, source);
    return element("li", {}, [name, element("span", { textContent: ` ${source.meaning}` })]);
  }));
  position = opening();
  show();
}
function choosePrompt() {
  const names = run().decoders.filter((name) => sample(name));
  const ours = names.find((name) => name.startsWith("ouroboros")) ?? names.at(-1);
  fill($("first"), names, $("first").value || "greedy");
  fill($("second"), ["nothing", ...names], $("second").value || ours);
  rebuild();
}
function chooseRun() {
  const prompts = run().prompts.map((prompt) => prompt.id + (prompt.group ? ` (${prompt.group})` : ""));
  fill($("prompt"), prompts, $("prompt").value);
  $("shown").textContent = run().prompts.length < run().prompts_in_all
    ? `${run().prompts.length} of the run's ${run().prompts_in_all} prompts are in this page.` : "";
  if (run().repeats > 1) $("shown").textContent += ` Shown: the first of ${run().repeats} repeats.`;
  if (run().trees_left_out) $("shown").textContent += " Trees of the later prompts are left out.";
  if (run().as_ids) $("shown").textContent += " Token ids: the run's tokenizer was not found; pass tokenizer=FOLDER to ouroboros report.";
  if (!run().timed) $("mode").value = "step";
  choosePrompt();
}
function onKey(event) {
  const where = event.target.tagName;
  if (event.ctrlKey || event.altKey || event.metaKey || where === "SELECT") return;
  if (event.key === " " && (where === "BUTTON" || where === "SUMMARY")) return;
  const act = { ArrowLeft: () => move(-1), ArrowRight: () => move(1), " ": play }[event.key];
  const inView = $("viewer").getBoundingClientRect();
  if (!act || inView.bottom < 0 || inView.top > innerHeight) return;
  event.preventDefault();
  if (event.key !== " ") stop();
  act();
}
data.runs = data.runs.filter((one) => one.prompts.length);
if (data.runs.length) {
  fill($("run"), data.runs.map((one) => one.label), "");
  $("run-label").hidden = data.runs.length === 1;
  $("run").addEventListener("change", chooseRun);
  $("prompt").addEventListener("change", choosePrompt);
  for (const id of ["first", "second"]) $(id).addEventListener("change", rebuild);
  $("mode").addEventListener("change", () => { stop(); position = last(); show(); });
  $("slider").addEventListener("input", () => { stop(); position = Number($("slider").value); show(); });
  $("start").addEventListener("click", () => { stop(); position = 0; show(); });
  $("end").addEventListener("click", () => { stop(); position = last(); show(); });
  $("back").addEventListener("click", () => { stop(); move(-1); });
  $("forward").addEventListener("click", () => { stop(); move(1); });
  $("play").addEventListener("click", play);
  document.addEventListener("keydown", onKey);
  addEventListener("resize", show);
  $("viewer").hidden = false;
  chooseRun();
}
