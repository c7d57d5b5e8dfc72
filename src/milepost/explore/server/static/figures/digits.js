// Positions as digits, a row for each; where a pair stands at an angle that training never met, its digit has a ring.
"use strict";
((milepost) => {
  const { make } = milepost;
  milepost.figures.digits = (first, context, body) => {
    const table = make("table.odometer"), note = make("p.told");
    body.append(make("div.scroller", {}, table), note);
    const draw = (figure) => {
      table.replaceChildren(
        figure.head.length ? make("thead", {}, make("tr", {}, figure.head.map((each) => make("th", { scope: "col" }, milepost.say(each))))) : "",
        make("tbody", {}, figure.rows.map(([name, digits, unmet]) => make("tr", {}, make("th", { scope: "row" }, milepost.say(name)),
          digits.map((each, n) => make(unmet[n] ? "td.unmet" : "td", unmet[n] ? { title: milepost.word("never_digit") } : {}, milepost.number(Number(each.toFixed(2)))))))),
      );
      note.textContent = figure.rows.some(([, , unmet]) => unmet.some(Boolean)) ? milepost.word("never_digit") : "";
    };
    draw(first);
    return { update: draw };
  };
})((globalThis.milepost ??= {}));
