// ---- the tree of a step: a column per depth; the accepted path is the top row ----
const ROW = 27, GAP = 26, CHAR = 7.3, WIDEST = 13;

function visible(text) {
  const shown = text.replaceAll(" ", "\u00b7").replaceAll("\n", "\u21b5").replaceAll("\t", "\u21e5");
  return shown.length > WIDEST ? `${shown.slice(0, WIDEST - 1)}\u2026` : shown;
}
// Nodes with their place, parents first: {text, parent, row, depth, state, letter, percent}.
function layout(tree, texts) {
  const nodes = tree.text.map((place, index) => ({
    text: texts[place], parent: tree.parent[index], letter: tree.source[index], kids: [],
    percent: tree.percent[index], state: "unjudged", depth: 0,
  }));
  const kept = new Set(tree.path);
  nodes.forEach((node, index) => {
    node.depth = index ? nodes[node.parent].depth + 1 : 0;
    node.state = kept.has(index) ? "kept" : kept.has(node.parent) ? "rejected" : "unjudged";
    if (index) nodes[node.parent].kids.push(index);
  });
  const end = tree.path.at(-1);
  const then = texts[tree.then];
  const cut = nodes[end].kids.find((kid) => nodes[kid].text === then);
  if (cut === undefined) {
    nodes[end].kids.push(nodes.length);
    nodes.push({ text: then, parent: end, letter: "", kids: [], state: "own", depth: nodes[end].depth + 1 });
  } else nodes[cut].state = "kept";
  const rank = (node) => (node.state === "kept" || node.state === "own" ? 1000 : node.percent ?? 0);
  place(0, 0, nodes, [], rank);
  return columns({ nodes, rows: 1 + Math.max(...nodes.map((node) => node.row)), end, tree });
}
// Put a node and its chain of first children in one row, at least a column apart from other chains.
// Put each of the other children in the first free row below its parent.
function place(index, row, nodes, taken, rank) {
  const chain = [index];
  for (;;) {
    const kids = nodes[chain.at(-1)].kids.sort((a, b) => rank(nodes[b]) - rank(nodes[a]));
    if (!kids.length) break;
    chain.push(kids[0]);
  }
  const [from, upTo] = [nodes[index].depth, nodes[chain.at(-1)].depth];
  const free = (at) => (taken[at] ?? []).every(([start, stop]) => stop + 1 < from || start > upTo + 1);
  while (!free(row)) row += 1;
  (taken[row] ??= []).push([from, upTo]);
  for (const node of chain) nodes[node].row = row;
  for (const node of chain.reverse()) {
    for (const kid of nodes[node].kids.slice(1)) place(kid, row + 1, nodes, taken, rank);
  }
}
function columns(made) {
  const widths = [];
  for (const node of made.nodes) {
    const number = node.percent === undefined || !node.depth ? 0 : 22;
    const width = Math.max(3, visible(node.text).length) * CHAR + 14 + number;
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, width);
  }
  let left = 2;
  const lefts = widths.map((width) => { const own = left; left += width + GAP; return own; });
  for (const node of made.nodes) {
    [node.x, node.y, node.width] = [lefts[node.depth], 20 + node.row * ROW, widths[node.depth]];
  }
  return { ...made, lefts, width: left - GAP + 4, height: 20 + made.rows * ROW + 4 };
}
const WORDS = {
  kept: "accepted", rejected: "rejected", unjudged: "below a rejected token, so never judged",
  own: "the target's own token",
};
function box(node, index) {
  const source = letters.get(node.letter);
  const text = element("span", { textContent: visible(node.text) });
  const made = element("div", { className: `node ${index ? node.state : "root"}` }, [text]);
  const sure = node.percent === undefined || !index ? "" : `; estimated ${node.percent} %`;
  const who = !index ? "the last token of the text" : source ? `${source.name}: ${source.meaning}` : "";
  made.title = `${JSON.stringify(node.text)} ${who}${sure}${index ? `${who ? "; " : ""}${WORDS[node.state]}` : ""}`;
  Object.assign(made.style, { left: `${node.x}px`, top: `${node.y}px`, width: `${node.width}px` });
  if (index && source) {
    made.style.setProperty("--source", source.colour);
    made.style.setProperty("--sure", `${node.percent ?? 100}%`);
    if (source.line !== "none") made.style.borderBottom = `2.5px ${source.line} ${source.colour}`;
    if (sure) made.append(element("i", { textContent: node.percent }));
  }
  return made;
}
function drawEdges(edges, made) {
  edges.setAttribute("width", made.width);
  edges.setAttribute("height", made.height);
  const order = { unjudged: 0, rejected: 1, kept: 2, own: 2 };
  const lines = made.nodes.slice(1).sort((a, b) => order[a.state] - order[b.state]).map((node) => {
    const from = made.nodes[node.parent];
    const [x, y] = [from.x + from.width, from.y + 11.5];
    const [toX, toY, half] = [node.x, node.y + 11.5, GAP / 2];
    const line = document.createElementNS(edges.namespaceURI, "path");
    line.setAttribute("d", `M${x} ${y}C${x + half} ${y} ${x + half * 0.6} ${toY} ${toX} ${toY}`);
    line.setAttribute("class", node.state);
    const strong = node.state === "kept" || node.state === "own";
    line.setAttribute("stroke-width", strong ? 2.6 : 1 + (1.6 * (node.percent ?? 30)) / 100);
    return line;
  });
  edges.replaceChildren(...lines);
}
// A box for a pane's trees; `show(step)` draws one of them, or nothing before the first step.
function treeBox(decoder, trees, texts) {
  const made = trees.map((tree) => layout(tree, texts));
  const head = element("h3", {}, [decoder, element("span")]);
  const edges = $("edges").cloneNode();
  edges.removeAttribute("id");
  const field = element("div", { className: "field" });
  const frame = element("div", { className: "frame", tabIndex: 0, role: "img" }, [field]);
  const heights = made.map((one) => one.height).sort((a, b) => a - b);
  const most = heights[Math.floor(0.8 * (heights.length - 1))]; // the taller ones scroll
  frame.style.height = `min(${most + 18}px, var(--tall))`;
  const node = element("section", { className: "tree" }, [head, frame]);
  const show = (step) => {
    const one = made[step];
    if (!one) { field.replaceChildren(); head.lastChild.textContent = "nothing proposed yet"; return; }
    drawEdges(edges, one);
    const marks = one.lefts.map((left, depth) => {
      const mark = element("b", { textContent: depth ? `+${depth}` : "text" });
      mark.style.left = `${left}px`;
      return mark;
    });
    Object.assign(field.style, { width: `${one.width}px`, height: `${one.height}px` });
    field.replaceChildren(edges, ...marks, ...one.nodes.map(box));
    const kept = one.nodes.filter((each) => each.state === "kept").length - 1;
    const proposed = one.tree.text.length - 1;
    const deep = Math.max(0, ...one.nodes.filter((each) => each.state !== "own").map((each) => each.depth));
    const summary = `step ${step + 1} \u00b7 ${proposed} proposed, ${deep} deep \u00b7 ${kept} accepted`;
    head.lastChild.textContent = summary;
    frame.setAttribute("aria-label", `${decoder}, ${summary}; then the target's own ${JSON.stringify(texts[one.tree.then])}`);
    const last = one.nodes.filter((each) => each.state === "kept" || each.state === "own").at(-1);
    frame.scrollTop = 0;
    frame.scrollLeft = Math.max(0, last.x + last.width + 24 - frame.clientWidth);
  };
  return { node, show };
}
