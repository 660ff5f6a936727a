// Draws the figures that stand in the page as JSON, in the colours of the theme and the reader's time zone.
"use strict";
(() => {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";

  // A custom property as the browser computes it, whatever function it is written with.
  const probe = document.createElement("span");
  probe.hidden = true;
  const colour = (name, opacity = 1) => {
    probe.style.color = `var(--${name})`;
    const computed = getComputedStyle(probe).color;
    const [red, green, blue] = computed.match(/[\d.]+/g).map(Number);
    return `rgba(${red},${green},${blue},${opacity})`;
  };

  // Plotly draws dates in UTC: what it is given is moved, so that it reads as local time.
  const local = (ms) => ms - new Date(ms).getTimezoneOffset() * 60000;

  const painted = (trace) => {
    const { role, opacity, text, shade } = trace.meta || {};
    if (text) trace = { ...trace, textfont: { ...trace.textfont, color: colour(text) } };
    if (!role || role === "none") return trace;
    if (role === "heat") {
      const scale = [[0, colour("raised")], [1, colour("keep")]];
      return { ...trace, colorscale: scale, colorbar: { ...trace.colorbar, tickfont: { color: colour("quiet") } } };
    }
    if (role === "share") {
      const scale = [[0, colour("limit")], [0.6, colour("raised")], [0.8, colour("keep")], [1, colour("median")]];
      const quiet = { color: colour("quiet") };
      const title = { ...trace.colorbar.title, font: quiet };
      return { ...trace, colorscale: scale, colorbar: { ...trace.colorbar, tickfont: quiet, title } };
    }
    if (role === "pale") return { ...trace, colorscale: [[0, colour("raised")], [1, colour("raised")]] };
    if (role === "band") return { ...trace, fillcolor: colour(shade || "band", opacity) };
    if (trace.type === "bar") {
      return { ...trace, marker: { ...trace.marker, color: colour(role) }, textfont: { color: colour(`on-${role}`) } };
    }
    return { ...trace, line: { ...trace.line, color: colour(role) }, marker: { size: 6, ...trace.marker, color: colour(role) } };
  };

  // A drawing without axes shrinks with the window, devices and lines included.
  const smaller = (trace) => {
    const found = { ...trace };
    if (trace.marker?.size) found.marker = { ...trace.marker, size: trace.marker.size * 0.6 };
    if (trace.line?.width) found.line = { ...trace.line, width: Math.max(1, trace.line.width * 0.6) };
    return found;
  };

  // Marks in the cells of a table fit into them, however many there are; on a phone the scale lies below.
  const fitted = (trace, width) => {
    const cells = trace.meta?.cells;
    if (cells && trace.marker) {
      return { ...trace, marker: { ...trace.marker, size: Math.min(16, Math.max(3, (0.36 * width) / cells)) } };
    }
    if (trace.meta?.role !== "share" || width >= 560) return trace;
    const below = { orientation: "h", x: 0.5, xanchor: "center", y: -0.25, yanchor: "top", len: 1, thickness: 10 };
    return { ...trace, colorbar: { ...trace.colorbar, ...below, title: { ...trace.colorbar.title, side: "top" } } };
  };

  const themed = (figure, width) => {
    const ink = colour("ink");
    const narrow = width < 560;
    const dates = figure.layout.xaxis?.type === "date";
    const move = (x) => (dates && typeof x === "number" ? local(x) : x);
    const drawing = figure.layout.xaxis?.visible === false;
    const fit = narrow && drawing ? smaller : (trace) => trace;
    const data = figure.data.map((trace) => ({ ...fitted(fit(painted(trace)), width), x: trace.x.map(move) }));
    const axis = (own) => ({
      ...own, gridcolor: colour("rule"), zerolinecolor: colour("rule-strong"), linecolor: colour("rule-strong"),
      tickcolor: colour("rule-strong"), ticks: "outside", ticklen: 4, automargin: true, tickfont: { color: colour("quiet") },
      title: own?.title?.text ? { ...own.title, standoff: 8, font: { size: 12, color: colour("quiet") } } : undefined,
    });
    const layout = {
      ...figure.layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("rule-strong"), font: { color: ink } },
      xaxis: axis(figure.layout.xaxis), yaxis: axis(figure.layout.yaxis), showlegend: data.length > 1,
      dragmode: narrow || figure.layout.xaxis?.fixedrange ? false : "zoom", separators: ".,",
      shapes: (figure.layout.shapes || []).map((shape) => ({
        ...shape, x0: move(shape.x0), x1: move(shape.x1), line: { ...shape.line, color: colour("held") },
      })),
    };
    layout.legend = { ...layout.legend, font: { size: narrow ? 11 : 12 } };
    if (narrow && dates) Object.assign(layout.xaxis, { nticks: 4, tickangle: 0 });
    if (narrow && !drawing) layout.margin = { ...layout.margin, l: 44, r: figure.layout.yaxis2 ? 40 : 8 };
    if (figure.layout.yaxis2) layout.yaxis2 = axis(figure.layout.yaxis2);
    if (dates) layout.xaxis.title = { ...layout.xaxis.title, text: `time (${zone})` };
    return { data, layout };
  };

  const draw = (node) => {
    const source = document.getElementById(node.dataset.figure);
    if (!source) return;
    const { data, layout } = themed(JSON.parse(source.textContent), node.clientWidth);
    node.querySelector("noscript")?.remove();
    const config = { displayModeBar: false, responsive: true, displaylogo: false, scrollZoom: false };
    if (calm) layout.transition = { duration: 0 };
    Plotly.react(node, data, layout, config).then(() => node.classList.add("drawn"));
  };

  const all = () => {
    document.body.append(probe);
    document.querySelectorAll("[data-figure]").forEach(draw);
    probe.remove();
  };
  for (const event of ["kopt:theme", "kopt:content", "DOMContentLoaded"]) document.addEventListener(event, () => {
    if (window.Plotly && document.body) all();
  });
})();
