// Draws the map of GPUs, a strip of squares for each node. Hears of changes by the page's event stream, and fetches only
// the nodes that have changed.
"use strict";
(() => {
  const SQUARE = 9, GAP = 2, BETWEEN = 10, MOST_IN_ROW = 16, IDLE = 5;
  const CLOSED = 3, FREE = 0;
  const map = { epoch: "", version: 0, measured: false, codes: [], nodes: new Map() };
  let box, canvas, here, layout = [], columns = 1, strip = { width: 0, height: 0 }, at = { node: 0, gpu: 0 };
  let colours = {}, busy = false, again = false, planned = 0;

  const probe = document.createElement("span");
  const paint = () => {
    document.body.append(probe);
    for (const role of ["ink", "keep", "median", "limit", "held", "rule-strong", "focus", "raised"]) {
      probe.style.color = `var(--${role})`;
      colours[role] = getComputedStyle(probe).color;
    }
    probe.remove();
  };

  const measure = () => {
    layout = [...map.nodes.values()];
    const most = Math.max(1, ...layout.map((node) => Math.min(node.gpus.length, MOST_IN_ROW)));
    const rows = Math.max(1, ...layout.map((node) => Math.ceil(node.gpus.length / MOST_IN_ROW)));
    strip = { width: most * (SQUARE + GAP) - GAP, height: rows * (SQUARE + GAP) - GAP };
    columns = Math.max(1, Math.floor((box.clientWidth + BETWEEN) / (strip.width + BETWEEN)));
  };

  const corner = (number) => ({
    x: (number % columns) * (strip.width + BETWEEN) + 3,
    y: Math.floor(number / columns) * (strip.height + GAP * 3) + 3,
  });
  const square = (number, gpu) => {
    const { x, y } = corner(number);
    return { x: x + (gpu % MOST_IN_ROW) * (SQUARE + GAP), y: y + Math.floor(gpu / MOST_IN_ROW) * (SQUARE + GAP) };
  };

  // Shapes differ as colours do: an outline is free, a level is how busy it is, a thick frame is idle, a stroke closed.
  const fill = (pen, x, y, [, code, share]) => {
    const frame = (colour, width) => {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.strokeRect(x + width / 2, y + width / 2, SQUARE - width, SQUARE - width);
    };
    if (code === CLOSED || code === FREE) {
      frame(colours["rule-strong"], 1);
      if (code === CLOSED) {
        pen.strokeStyle = colours.held;
        pen.beginPath();
        pen.moveTo(x, y + SQUARE);
        pen.lineTo(x + SQUARE, y);
        pen.stroke();
      }
    } else if (share < 0) {
      pen.fillStyle = colours.keep;
      pen.fillRect(x, y, SQUARE, SQUARE);
    } else if (share < IDLE) {
      frame(colours.limit, 2);
    } else {
      const level = Math.max(1, Math.round(((SQUARE - 2) * share) / 100));
      frame(colours.median, 1);
      pen.fillStyle = colours.median;
      pen.fillRect(x + 1, y + SQUARE - 1 - level, SQUARE - 2, level);
    }
  };

  const draw = () => {
    planned = 0;
    if (!canvas.isConnected) return;
    measure();
    const scale = window.devicePixelRatio || 1;
    const width = box.clientWidth, height = Math.ceil(layout.length / columns) * (strip.height + GAP * 3) + 6;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    layout.forEach((node, number) => node.gpus.forEach((gpu, index) => {
      const { x, y } = square(number, index);
      fill(pen, x, y, gpu);
    }));
    if (document.activeElement === box && layout.length) {
      const { x, y } = square(at.node, at.gpu);
      pen.strokeStyle = colours.focus;
      pen.lineWidth = 2;
      pen.strokeRect(x - 2, y - 2, SQUARE + 4, SQUARE + 4);
    }
    box.dataset.version = map.version;
    box.dispatchEvent(new CustomEvent("kopt:drawn", { bubbles: true }));
  };
  const plan = () => { planned = planned || requestAnimationFrame(draw); };

  const take = (answer) => {
    if (!answer.since) map.nodes.clear();
    for (const [key, name, models, gpus, pods] of answer.nodes) {
      // A node that is new has its position among the others: all of them are asked for.
      if (answer.since && !map.nodes.has(key)) return false;
      map.nodes.set(key, { key, name, models, gpus, pods });
    }
    answer.gone.forEach((key) => map.nodes.delete(key));
    Object.assign(map, { epoch: answer.epoch, version: answer.version, measured: answer.measured, codes: answer.codes });
    return true;
  };

  // One question at a time; what changes meanwhile is asked for afterwards.
  const refresh = async () => {
    if (busy) { again = true; return; }
    busy = true;
    try {
      do {
        again = false;
        const since = map.version ? `?epoch=${map.epoch}&since=${map.version}` : "";
        const reply = await fetch(box.dataset.map + since, { cache: "no-store" });
        if (!reply.ok || reply.redirected) break;
        const answer = await reply.json();
        if (!take(answer)) { map.version = 0; again = true; continue; }
        at.node = Math.min(at.node, Math.max(0, map.nodes.size - 1));
        if (!answer.since || answer.nodes.length || answer.gone.length) plan();
      } while (again);
    } catch { /* the page says that the server is away */ } finally {
      busy = false;
    }
  };

  const words = (node, index) => {
    const [model, code, share, name, holders] = node.gpus[index];
    const pods = holders.map((number) => node.pods[number] || "a pod of another namespace");
    const use = share < 0 ? "" : `, busy ${share} % of the time`;
    return `${node.name}, GPU ${name}, ${node.models[model]}: ${map.codes[code]}${use}${pods.length ? `, ${pods.join(", ")}` : ""}`;
  };
  const say = () => {
    const node = layout[at.node];
    if (node?.gpus[at.gpu]) here.textContent = words(node, at.gpu);
  };

  const hit = (event) => {
    const rect = canvas.getBoundingClientRect();
    const x = event.clientX - rect.left - 3, y = event.clientY - rect.top - 3;
    const column = Math.floor(x / (strip.width + BETWEEN)), row = Math.floor(y / (strip.height + GAP * 3));
    const number = row * columns + column, node = layout[number];
    if (x < 0 || y < 0 || column >= columns || !node) return null;
    const across = Math.floor((x - column * (strip.width + BETWEEN)) / (SQUARE + GAP));
    const down = Math.floor((y - row * (strip.height + GAP * 3)) / (SQUARE + GAP));
    const gpu = down * MOST_IN_ROW + across;
    return across < MOST_IN_ROW && node.gpus[gpu] ? { node: number, gpu } : null;
  };

  const open = () => {
    const node = layout[at.node];
    if (node) location.assign(`/gpus?${new URLSearchParams({ node: node.name, gpu: node.gpus[at.gpu][3] })}#node`);
  };

  const STEPS = {
    ArrowRight: () => { if (at.gpu + 1 < layout[at.node].gpus.length) at.gpu += 1; else go(1); },
    ArrowLeft: () => { if (at.gpu) at.gpu -= 1; else if (at.node) { go(-1); at.gpu = layout[at.node].gpus.length - 1; } },
    ArrowDown: () => go(columns, at.gpu),
    ArrowUp: () => go(-columns, at.gpu),
    Home: () => { at.gpu = 0; },
    End: () => { at.gpu = layout[at.node].gpus.length - 1; },
  };
  const go = (by, gpu = 0) => {
    if (at.node + by < 0 || at.node + by >= layout.length) return;
    at.node += by;
    at.gpu = Math.min(gpu, layout[at.node].gpus.length - 1);
  };
  const reveal = () => {
    const y = square(at.node, at.gpu).y + canvas.getBoundingClientRect().top;
    if (y < 40 || y > innerHeight - 40) scrollBy({ top: y - innerHeight / 2 });
  };

  const start = () => {
    box = document.getElementById("gpu-map");
    here = document.getElementById("gpu-here");
    if (!box) return;
    canvas = box.querySelector("canvas");
    paint();
    refresh();
    box.addEventListener("keydown", (event) => {
      if (!layout.length || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Enter") { open(); return; }
      if (!STEPS[event.key]) return;
      event.preventDefault();
      STEPS[event.key]();
      reveal();
      say();
      plan();
    });
    box.addEventListener("focus", () => { say(); plan(); });
    box.addEventListener("blur", plan);
    canvas.addEventListener("mousemove", (event) => {
      const over = hit(event);
      canvas.style.cursor = over ? "pointer" : "";
      canvas.title = over ? words(layout[over.node], over.gpu) : "";
    });
    canvas.addEventListener("click", (event) => {
      const over = hit(event);
      if (over) { at = over; open(); }
    });
    new ResizeObserver(plan).observe(box);
  };
  document.addEventListener("DOMContentLoaded", start);
  document.addEventListener("kopt:changed", () => { if (box?.isConnected) refresh(); });
  // A page that hears nothing is renewed every now and then; where the map came only now, it begins.
  document.addEventListener("kopt:content", () => { if (box?.isConnected) refresh(); else start(); });
  document.addEventListener("kopt:theme", () => { if (box?.isConnected) { paint(); plan(); } });
})();
