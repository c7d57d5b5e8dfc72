// A sentence that a model reads: one head large, before and after a scheme; every head of the layer small, to choose from.
"use strict";
((milepost) => {
  const { make } = milepost;

  milepost.reading = (told, link) => {
    const head = make("div.question", {}, make("h1", { tabindex: "-1" }, milepost.word("reading")), make("p.lead", {}, milepost.word("reading_about")));
    if (!told.model) {
      const element = make("article.reading", {}, head, make("section.block", {}, make("p", {}, milepost.word("no_model")), milepost.code("milepost explore --model FOLDER")));
      return { element, begin: () => {}, remove: () => {} };
    }
    const controls = told.model.controls;
    const state = milepost.starts(controls);
    for (const each of controls) if (link.has(each.name)) state[each.name] = milepost.fromLink(each, link.get(each.name));
    let last = "";
    const write = () => milepost.link.write([["words", ""], ...controls.filter((each) => state[each.name] !== each.start).map((each) => [each.name, milepost.toLink(state[each.name])])]);
    const own = milepost.controls(controls, state, (name) => {
      last = name;
      write();
      ask({ ...state });
    });
    const large = make("div.figures.large"), small = make("div.heads", { role: "group", "aria-label": milepost.word("chosen_head") });
    const said = make("p.said"), error = make("p.no", { role: "alert", hidden: true }), code = make("div");
    // A model takes seconds to load and read: no empty headings meanwhile.
    const busy = make("p.hint", { role: "status" }, milepost.word("computing"));
    const found = make("div", { hidden: true }, large, make("section.block", {}, make("h2", {}, milepost.word("heads")), small),
      make("section.block", {}, make("h2", {}, milepost.word("says")), said), make("section.block", {}, make("h2", {}, milepost.word("code")), code));
    const drawing = milepost.scene(large, {}), heads = milepost.scene(small, {});
    const chosen = () => heads.figures.forEach((each, n) => each.frame.setAttribute("aria-pressed", String(n === state.head)));
    const ask = milepost.asker(
      (setting, signal) => milepost.ask("words", { set: setting }, "words", signal),
      (scene) => {
        own.clear();
        error.hidden = true;
        busy.hidden = true;
        found.hidden = false;
        drawing.show(scene.figures.filter((each) => !each.small));
        heads.show(scene.figures.filter((each) => each.small));
        heads.figures.forEach((each, n) => {
          if (each.frame.dataset.head) return;
          each.frame.dataset.head = n;
          each.frame.setAttribute("role", "button");
          each.frame.setAttribute("tabindex", "0");
          each.frame.setAttribute("aria-label", milepost.word("head", { n }));
          const choose = () => { own.set("head", n); };
          each.frame.addEventListener("click", choose);
          each.frame.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } });
        });
        chosen();
        said.textContent = milepost.say(scene.says);
        if (code.textContent !== scene.code) code.replaceChildren(milepost.code(scene.code));
        element.dispatchEvent(new CustomEvent("computed", { bubbles: true }));
      },
      (problem) => {
        busy.hidden = true;
        const control = problem.control || last;
        error.hidden = own.no(control, problem.message);
        error.textContent = error.hidden ? "" : problem.message;
      },
    );
    const element = make("article.reading", {}, head, make("p.hint", {}, told.model.name),
      make("div.result", {},
        make("div.side", {}, make("div.controls", { role: "group", "aria-label": milepost.word("controls") }, own.elements, error)),
        make("div.shown", {}, busy, found)),
      make("p.buttons.ends", {}, milepost.copyButton("copy_link", () => milepost.link.address())));
    return {
      element,
      begin: () => ask({ ...state }),
      remove: () => {
        ask.stop();
        drawing.remove();
        heads.remove();
      },
    };
  };
})((globalThis.milepost ??= {}));
