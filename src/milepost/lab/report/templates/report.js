// The page is whole without this script. It puts the views behind tabs, lets rows be switched off, and tells values
// where the pointer stands. All it knows it reads off the drawings.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (name, attributes = {}, text = "") => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  };
  document.documentElement.classList.add("js");

  // Views behind tabs
  const views = all(".view");
  if (views.length > 1) {
    const tabs = make("div", { class: "tabs", role: "tablist", "aria-label": "Way of judging" });
    const choose = (chosen, focus) => views.forEach((view, n) => {
      view.classList.toggle("away", n !== chosen);
      tabs.children[n].setAttribute("aria-selected", n === chosen);
      tabs.children[n].tabIndex = n === chosen ? 0 : -1;
      if (focus && n === chosen) tabs.children[n].focus();
    });
    views.forEach((view, n) => {
      const title = view.querySelector("h3").textContent;
      const tab = make("button", { type: "button", role: "tab", "aria-controls": view.id }, title);
      view.setAttribute("role", "tabpanel");
      view.setAttribute("aria-label", title);
      tab.addEventListener("click", () => choose(n));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) choose((n + step + views.length) % views.length, true);
      });
      tabs.append(tab);
    });
    views[0].before(tabs);
    choose(0);
  }

  // Rows that are switched off, everywhere at once
  const off = new Set();
  const flip = (row) => {
    off.has(row) ? off.delete(row) : off.add(row);
    all(`[data-row="${row}"]`).forEach((each) => {
      each.classList.toggle("off", off.has(row));
      if (each.matches("input")) each.checked = !off.has(row);
      if (each.matches(".name")) each.setAttribute("aria-checked", !off.has(row));
    });
  };
  const light = (row) => all(".drawing").forEach((drawing) => {
    const shown = row !== null && !off.has(row) && drawing.querySelector(`.curve[data-row="${row}"]`) !== null;
    drawing.classList.toggle("dimmed", shown);
    all(".curve, .name", drawing).forEach((each) => each.classList.toggle("lit", shown && each.dataset.row === row));
  });
  all(".key input").forEach((input) => input.addEventListener("change", () => flip(input.dataset.row)));
  all(".name").forEach((name) => {
    name.setAttribute("role", "checkbox");
    name.setAttribute("aria-checked", "true");
    name.setAttribute("aria-label", name.querySelector("title").textContent);
    name.tabIndex = 0;
    name.addEventListener("click", () => flip(name.dataset.row));
    name.addEventListener("keydown", (event) => {
      if (event.key !== " " && event.key !== "Enter") return;
      event.preventDefault();
      flip(name.dataset.row);
    });
    for (const begin of ["pointerenter", "focus"]) name.addEventListener(begin, () => light(name.dataset.row));
    for (const end of ["pointerleave", "blur"]) name.addEventListener(end, () => light(null));
  });
  if (views.length) {
    const hint = "Point at a picture for its values, at a name for its line; press a name to hide or show it.";
    views[0].parentElement.append(make("p", { class: "hint" }, hint));
  }

  // Values at the pointer, or at the arrow keys
  const tooltip = make("div", { class: "tooltip", "aria-live": "polite", hidden: "" });
  document.body.append(tooltip);
  const tell = (plot, n, height) => {
    const { pixels, keys, cursor } = plot.known;
    const found = all(".curve:not(.off)", plot)
      .map((curve) => ({ name: curve.dataset.name, value: curve.dataset.values.split("|")[n], curve }))
      .filter((each) => each.value)
      .sort((a, b) => parseFloat(b.value) - parseFloat(a.value));
    if (!found.length) return;
    cursor.setAttribute("d", `M${pixels[n]} ${plot.dataset.top}V${plot.dataset.bottom}`);
    tooltip.replaceChildren(make("b", {}, `${plot.dataset.name}: ${keys[n]}`));
    const lines = tooltip.appendChild(make("div"));
    for (const { name, value, curve } of found) {
      const colour = [...curve.classList].find((each) => /^c.$/.test(each));
      lines.append(make("span", { class: colour }, name), make("span", {}, value));
    }
    tooltip.hidden = false;
    const box = plot.getBoundingClientRect();
    const x = box.left + (pixels[n] / plot.viewBox.baseVal.width) * box.width;
    const left = x + 14 + tooltip.offsetWidth > document.documentElement.clientWidth ? x - 14 - tooltip.offsetWidth : x + 14;
    const top = Math.max(4, Math.min(height - tooltip.offsetHeight / 2, innerHeight - tooltip.offsetHeight - 4));
    tooltip.style.left = `${Math.max(4, left) + scrollX}px`;
    tooltip.style.top = `${top + scrollY}px`;
  };
  const hush = (plot) => {
    tooltip.hidden = true;
    plot.known.cursor.setAttribute("d", "");
  };
  all(".plot").forEach((plot) => {
    const cursor = plot.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
    cursor.setAttribute("class", "cursor");
    plot.known = { pixels: plot.dataset.x.split(" ").map(Number), keys: plot.dataset.keys.split("|"), cursor };
    plot.tabIndex = 0;
    // The browser's own bubbles would stand in front of ours.
    all("title", plot).forEach((title) => title.remove());
    const follow = (event) => {
      const box = plot.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * plot.viewBox.baseVal.width;
      const gaps = plot.known.pixels.map((each) => Math.abs(each - x));
      tell(plot, gaps.indexOf(Math.min(...gaps)), event.clientY);
    };
    plot.addEventListener("pointermove", follow);
    plot.addEventListener("pointerdown", follow);
    plot.addEventListener("pointerleave", () => hush(plot));
    plot.addEventListener("blur", () => hush(plot));
    let at = -1;
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") hush(plot);
      if (!step) return;
      event.preventDefault();
      at = Math.max(0, Math.min(plot.known.pixels.length - 1, at + step));
      const box = plot.getBoundingClientRect();
      tell(plot, at, box.top + box.height / 2);
    });
  });
})();
