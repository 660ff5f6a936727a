// Texts whose contrast with what lies behind them is under 4.5 to 1 (WCAG 2.2 AA), as the browser paints them.
() => {
  const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
  const linear = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      const parts = parse(colour);
      if (colour.startsWith("rgb") && (parts.length < 4 || parts[3] === 1)) return parts;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("main *, header *")) {
    const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!hasText || node.closest(".chart, .hidden")) continue;
    const [dark, light] = [luminance(parse(getComputedStyle(node).color)), luminance(ground(node))].sort((a, b) => a - b);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5) found.push([node.textContent.trim().slice(0, 30), ratio]);
  }
  return found;
}
