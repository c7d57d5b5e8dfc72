// Positions as digits, a row for each; a digit that training never met has a ring.
"use strict";
((milepost) => {
  const { make } = milepost;
  milepost.figures.digits = (first, context, body) => {
    const table = make("table.odometer"), note = make("p.told");
    body.append(make("div.scroller", {}, table), note);
    const draw = (figure) => {
      table.replaceChildren(
        make("tbody", {}, figure.rows.map(([name, digits, unmet]) => make("tr", {}, make("th", { scope: "row" }, milepost.say(name)),
          digits.map((each, n) => make(unmet[n] ? "td.unmet" : "td", unmet[n] ? { title: milepost.word("never_digit") } : {}, milepost.number(Number(each.toFixed(2)))))))),
      );
      note.textContent = figure.rows.some(([, , unmet]) => unmet.some(Boolean)) ? milepost.word("never_digit") : "";
    };
    draw(first);
    return { update: draw };
  };
})((globalThis.milepost ??= {}));
