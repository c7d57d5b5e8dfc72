// The printed equation of a scheme: pointing at a part draws what it contributes alone.
"use strict";
((milepost) => {
  const { make } = milepost;

  // A line that is too long goes on a little further right than it began.
  const printed = (line) => {
    const row = make("p", {}, line.trim());
    const indent = Math.min(12, Math.max(0, line.length - line.trimStart().length - 2));
    row.style.paddingLeft = `${indent + 3}ch`;
    row.style.textIndent = "-3ch";
    return row;
  };

  // ask(part): draws the contribution; leave(): takes it away.
  milepost.equation = (read, number, ask, leave) => {
    const rows = read.terms.map((part, n) => {
      const row = make("li.term", { tabindex: "0", role: "button", "aria-pressed": "false" }, part.lines.map(printed));
      const begin = () => ask(n);
      row.addEventListener("pointerenter", begin);
      row.addEventListener("focus", begin);
      row.addEventListener("click", begin);
      row.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); begin(); }
        if (event.key === "Escape") leave();
      });
      return row;
    });
    return make("div.printed", {}, make("h3", {}, make("span", { class: `letter c${number}` }, "ABCD"[number])),
      make("pre.sum", { tabindex: "0" }, read.sum), make("ol.terms", {}, rows));
  };
})((globalThis.milepost ??= {}));
