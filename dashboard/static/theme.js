// Loaded before the first paint: a chosen theme must not flash.
"use strict";
(() => {
  const KEY = "kopt-theme";
  const order = ["auto", "light", "dark"];
  let theme = "auto";
  try {
    const stored = localStorage.getItem(KEY);
    if (order.includes(stored)) theme = stored;
  } catch { /* storage may be closed to us */ }
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new CustomEvent("kopt:theme"));
  };
  apply();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme-toggle");
    const word = () => { button.textContent = `Theme: ${theme}`; };
    word();
    button.hidden = false;
    button.addEventListener("click", () => {
      theme = order[(order.indexOf(theme) + 1) % order.length];
      try { localStorage.setItem(KEY, theme); } catch { /* for this page only, then */ }
      word();
      apply();
    });
  });
})();
