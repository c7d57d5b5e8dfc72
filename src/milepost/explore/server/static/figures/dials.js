// A clock for each pair of channels: the arc that training met, the arc met for the first time, and a hand.
"use strict";
((milepost) => {
  const { make, svg } = milepost;
  const R = 19;
  let count = 0;
  const point = (turns, radius) => [radius * Math.sin(2 * Math.PI * turns), -radius * Math.cos(2 * Math.PI * turns)].map((each) => each.toFixed(2)).join(" ");
  const arc = (from, to) => {
    if (to - from <= 1e-6) return "";
    if (to - from >= 1 - 1e-6) return `M0 ${-R}A${R} ${R} 0 1 1 0 ${R}A${R} ${R} 0 1 1 0 ${-R}Z`;
    return `M0 0L${point(from, R)}A${R} ${R} 0 ${to - from > 0.5 ? 1 : 0} 1 ${point(to, R)}Z`;
  };

  milepost.figures.dials = (first, context, body) => {
    const hatch = `new-${count += 1}`;
    const key = () => {
      const hand = figure.dials.some((each) => each.hand !== null);
      return make("ul.key", {},
        make("li", {}, svg("svg.swatch", { viewBox: "0 0 14 12" }, svg("rect.seen-arc", { width: 14, height: 12 })), milepost.word("seen")),
        make("li", {}, svg("svg.swatch", { viewBox: "0 0 14 12" }, svg("rect.new-arc", { width: 14, height: 12, fill: `url(#${hatch})` })), milepost.word("first_met")),
        make("li", {}, svg("svg.swatch", { viewBox: "0 0 14 12" }, svg("rect.axis", { width: 14, height: 12 })), milepost.word("never_met")),
        hand ? make("li", {}, svg("svg.swatch", { viewBox: "0 0 14 12" }, svg("path.hand", { d: "M2 10 12 2" })), milepost.word("hand")) : null);
    };
    let figure = first;
    const grid = make("div.clocks"), foot = make("div");
    const pattern = svg("svg.definitions", { width: 0, height: 0, "aria-hidden": "true" },
      svg("defs", {}, svg("pattern", { id: hatch, width: 4, height: 4, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("path.new-line", { d: "M0 0V4" }))));
    const told = make("p.told");
    body.append(pattern, grid, foot, told);
    const draw = (next) => {
      figure = next;
      grid.replaceChildren(...figure.dials.map((dial) => {
        const seen = Math.min(1, dial.seen), reached = Math.min(1, dial.reached);
        const words = `${dial.name}: ${milepost.word("seen")} ${milepost.word("turns", { n: milepost.number(dial.seen) })}, ${reached > seen ? `${milepost.word("first_met")} ${milepost.word("turns", { n: milepost.number(reached - seen) })}` : "–"}`;
        const clock = svg("svg.clock", { viewBox: "-22 -22 44 58", role: "img", "aria-label": words, tabindex: "-1" },
          svg("path.seen-arc", { d: arc(0, seen) }),
          reached > seen ? svg("path.new-arc", { d: arc(seen, reached), fill: `url(#${hatch})` }) : null,
          svg("circle.axis", { r: R }),
          dial.hand === null ? null : svg("path.hand", { d: `M0 0L${point(dial.hand, R - 2)}` }),
          svg("text.middle.faint", { y: R + 13 }, dial.name));
        clock.addEventListener("pointerenter", () => { told.textContent = words; });
        return clock;
      }));
      foot.replaceChildren(key());
    };
    draw(figure);
    return { update: draw };
  };
})((globalThis.milepost ??= {}));
