// Elements, numbers as they are read, and colours of the house.
"use strict";
((milepost) => {
  // make("p.lead", { id: "x", on: { click } }, "text", child): an element with classes, attributes, listeners, children.
  milepost.make = (kind, attributes = {}, ...children) => {
    const [name, ...classes] = kind.split(".");
    const made = document.createElement(name || "div");
    return fill(made, classes, attributes, children);
  };
  milepost.svg = (kind, attributes = {}, ...children) => {
    const [name, ...classes] = kind.split(".");
    return fill(document.createElementNS("http://www.w3.org/2000/svg", name), classes, attributes, children);
  };
  const fill = (made, classes, attributes, children) => {
    if (classes.length) made.classList.add(...classes);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
      else if (value === true) made.setAttribute(key, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
    }
    made.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
    return made;
  };

  // 131,072 and 0.0312 and 4.6e-7: few digits, as people read them.
  milepost.number = (value) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    if (value === 0) return "0";
    const size = Math.abs(value);
    let text;
    if (Number.isInteger(value) && size < 1e9) text = value.toLocaleString("en-US");
    else if (size >= 1e6 || size < 1e-3) text = Number(value.toPrecision(3)).toExponential().replace("e+", "e");
    else text = Number(value.toPrecision(size >= 1000 ? 6 : 4)).toLocaleString("en-US", { maximumFractionDigits: 6 });
    return text.replace("-", "−");
  };

  // A number that was drawn by hand: whole, or three digits.
  milepost.byHand = (value) => milepost.number(value === null ? null : Math.abs(value) >= 100 ? Math.round(value) : Number(value.toPrecision(3)));

  milepost.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  // How lines differ for who sees no colours.
  milepost.dashes = [[], [7, 4], [2, 3], [10, 3, 2, 3], [14, 5], [4, 2], [1, 5], [12, 3, 2, 3, 2, 3]];

  milepost.announce = (text) => {
    const live = document.getElementById("live");
    if (live) live.textContent = text;
  };

  // A button that copies, and says so.
  milepost.copyButton = (name, text) => {
    const button = milepost.make("button.quiet", { type: "button" }, milepost.word(name));
    button.addEventListener("click", async () => {
      const given = typeof text === "function" ? text() : text;
      try {
        await navigator.clipboard.writeText(given);
      } catch {
        // Pages that are not from this machine may not write there; an old way may.
        const area = milepost.make("textarea", { "aria-hidden": "true" });
        area.value = given;
        document.body.append(area);
        area.select();
        document.execCommand("copy");
        area.remove();
      }
      button.textContent = milepost.word("copied");
      setTimeout(() => { button.textContent = milepost.word(name); }, 1600);
    });
    return button;
  };

  milepost.save = (text, name, type) => {
    const link = milepost.make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };

  milepost.code = (text) => milepost.make("div.code", {}, milepost.make("pre", { tabindex: "0" }, text), milepost.copyButton("copy", text));
})((globalThis.milepost ??= {}));
