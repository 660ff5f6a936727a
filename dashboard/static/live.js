// Refreshes the page's content in place, words times in the reader's zone, copies text.
"use strict";
(() => {
  const KEY = "kopt-live";
  const every = 1000 * Number(document.documentElement.dataset.refresh || 15);
  let tag = "";
  let live = true;
  try { live = localStorage.getItem(KEY) !== "off"; } catch { /* stays on */ }

  const times = (root) => {
    const format = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
    for (const node of root.querySelectorAll("time[datetime]")) {
      const moment = new Date(node.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      node.title = node.textContent;
      node.textContent = format.format(moment);
    }
  };

  const swap = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("live");
    const old = document.getElementById("live");
    if (!fresh || !old) return;
    // Somebody is typing, choosing or marking text: leave it alone until the next round.
    const active = document.activeElement;
    if (old.contains(active) && active.matches("input, select, textarea")) return;
    if (!getSelection().isCollapsed && old.contains(getSelection().anchorNode)) return;
    for (const node of old.querySelectorAll("details[open][id]")) {
      const twin = fresh.querySelector(`details[id="${CSS.escape(node.id)}"]`);
      if (twin) twin.open = true;
    }
    const scrolled = [...old.querySelectorAll(".scroll")].map((node) => [node.scrollLeft, node.scrollTop]);
    const focused = focusPath(old, active);
    times(fresh);
    // Charts that are drawn stay and are given their new figures.
    for (const node of old.querySelectorAll("[data-figure]")) {
      const twin = fresh.querySelector(`[data-figure="${CSS.escape(node.dataset.figure)}"]`);
      if (twin && node.classList.contains("drawn")) {
        node.setAttribute("aria-label", twin.getAttribute("aria-label"));
        twin.replaceWith(node);
      }
    }
    // What draws itself from data of its own stays as it is.
    for (const node of old.querySelectorAll("[data-keep][id]")) fresh.querySelector(`#${CSS.escape(node.id)}`)?.replaceWith(node);
    old.replaceChildren(...fresh.childNodes);
    [...old.querySelectorAll(".scroll")].forEach((node, i) => {
      if (scrolled[i]) [node.scrollLeft, node.scrollTop] = scrolled[i];
    });
    focused(old);
    document.dispatchEvent(new CustomEvent("kopt:content"));
  };

  // Focus survives a swap: by id, else by the address a link leads to.
  const focusPath = (old, active) => {
    if (!old.contains(active)) return () => {};
    const id = active.id;
    const href = active.getAttribute("href");
    return (now) => {
      const twin = id ? document.getElementById(id)
        : href ? [...now.querySelectorAll("a")].find((a) => a.getAttribute("href") === href) : null;
      twin?.focus({ preventScroll: true });
    };
  };

  const refresh = async () => {
    if (!live || document.hidden || !document.getElementById("live")) return;
    const lost = document.getElementById("lost");
    try {
      const headers = tag ? { "If-None-Match": tag } : {};
      const reply = await fetch(location.href, { headers, cache: "no-store", signal: AbortSignal.timeout(every) });
      lost.hidden = true;
      if (reply.redirected && new URL(reply.url).pathname === "/login") {
        location.assign(reply.url);
        return;
      }
      if (reply.status === 200) {
        tag = reply.headers.get("etag") || "";
        swap(await reply.text());
      }
      soon();
    } catch {
      lost.hidden = false;
    }
  };

  // A part of the page that is being computed says so; it is looked for sooner than the rest.
  const soon = () => { if (document.querySelector("[data-soon]")) setTimeout(refresh, 2000); };

  // Pages of a cluster hear at once that something has changed. Only while they are looked at: a browser keeps few
  // connections to one server.
  const listen = () => {
    const address = document.documentElement.dataset.events;
    if (!address || !window.EventSource) return;
    let stream = null, due = 0;
    const follow = () => {
      if (document.hidden) { stream?.close(); stream = null; return; }
      if (stream) return;
      stream = new EventSource(address);
      stream.onmessage = () => {
        if (live) document.dispatchEvent(new CustomEvent("kopt:changed"));
        due = due || setTimeout(() => { due = 0; refresh(); }, 300);
      };
    };
    document.addEventListener("visibilitychange", follow);
    follow();
  };

  const copy = async (button) => {
    const source = document.getElementById(button.dataset.copy);
    let word = "Copied";
    try {
      await navigator.clipboard.writeText(source.textContent);
    } catch {
      getSelection().selectAllChildren(source);
      word = "Selected: press Ctrl+C";
    }
    // The page may have been renewed meanwhile, and with it the button.
    const shown = document.querySelector(`[data-copy="${CSS.escape(button.dataset.copy)}"]`) || button;
    shown.textContent = word;
    setTimeout(() => { shown.textContent = "Copy"; }, 2500);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
  });
  document.addEventListener("change", (event) => {
    if (event.target.id === "state-filter") event.target.form.requestSubmit();
  });
  document.addEventListener("DOMContentLoaded", () => {
    times(document);
    const button = document.getElementById("live-toggle");
    const word = () => {
      button.setAttribute("aria-pressed", String(live));
      button.querySelector("span").textContent = live ? "Live" : "Paused";
    };
    word();
    button.hidden = !document.getElementById("live");
    button.addEventListener("click", () => {
      live = !live;
      try { localStorage.setItem(KEY, live ? "on" : "off"); } catch { /* for this page only, then */ }
      word();
      refresh();
    });
    setInterval(refresh, every);
    soon();
    listen();
    document.addEventListener("visibilitychange", refresh);
  });
})();
