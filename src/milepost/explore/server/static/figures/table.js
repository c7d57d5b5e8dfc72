// Rows of words and numbers.
"use strict";
((milepost) => {
  const { make } = milepost;
  milepost.figures.table = (first, context, body) => {
    const table = make("table");
    body.append(make("div.scroller", {}, table));
    const cell = (each) => (typeof each === "number" || each === null ? make("td.number", {}, milepost.number(each)) : make("td", {}, milepost.say(each)));
    const draw = (figure) => {
      table.replaceChildren(
        make("thead", {}, make("tr", {}, figure.head.map((each) => make("th", { scope: "col" }, milepost.say(each))))),
        make("tbody", {}, figure.rows.map((row) => make("tr", {}, row.map((each, n) => (n ? cell(each) : make("th", { scope: "row" }, typeof each === "number" ? milepost.number(each) : milepost.say(each))))))),
      );
    };
    draw(first);
    return { update: draw };
  };
})((globalThis.milepost ??= {}));
