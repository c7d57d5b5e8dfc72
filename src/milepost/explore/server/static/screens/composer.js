// Up to four schemes side by side, each computed anew at every change; views of one distance are linked.
"use strict";
((milepost) => {
  const { make } = milepost;
  const SLOW = new Set(["weights", "maps"]);
  const START = ["Rope(64), causal", "Rope(64, stretch=Yarn(8, 4096)), causal"];

  milepost.composer = (told, link) => {
    const state = milepost.starts(told.settings);
    for (const each of told.settings) if (link.has(each.name)) state[each.name] = milepost.fromLink(each, link.get(each.name));
    let texts = link.getAll("s").slice(0, told.most);
    if (!texts.length) texts = [...START];
    const shownViews = new Set(link.has("views") ? link.get("views").split(",").filter((each) => told.views.includes(each)) : ["score", "weights", "maps", "angles", "distances"]);
    let last = "", readings = [], cards = [];

    const write = () => {
      const values = [["compose", ""], ...texts.map((each) => ["s", each])];
      for (const each of told.settings) if (state[each.name] !== each.start) values.push([each.name, milepost.toLink(state[each.name])]);
      if (shownViews.size !== told.views.length) values.push(["views", [...shownViews].join(",")]);
      milepost.link.write(values);
    };

    // The views, each asked for by itself: curves do not wait for maps.
    const error = make("p.no", { role: "alert", hidden: true });
    const own = milepost.controls(told.settings, state, (name) => {
      last = name;
      write();
      compute();
      // A scheme may hold another trained length, which its card says.
      if (name === "trained") readAll(false);
    });
    const context = { set: own.set, control: own.known, state: () => state };
    const setting = () => ({ schemes: [...texts], state: { ...state } });
    const views = told.views.map((name) => {
      const figures = make("div.figures"), note = make("p.note.warn", { role: "status" });
      const drawing = milepost.scene(figures, context);
      const csv = make("button.quiet.small", { type: "button", "aria-label": `${milepost.word("csv")}: ${milepost.word(`view_${name}`)}`, on: { click: async () => {
        try {
          milepost.save(await milepost.ask("csv", { ...setting(), draw: name }, `csv-${name}`), `${name}.csv`, "text/csv");
        } catch (problem) { fail(problem); }
      } } }, milepost.word("csv"));
      const element = make(`section.view-of.${name}`, { "aria-label": milepost.word(`view_${name}`) }, figures, note, make("p.buttons", {}, csv));
      const ask = milepost.asker(
        (given, signal) => milepost.ask("compose", { ...given, draw: name }, name, signal),
        (scene) => {
          element.classList.toggle("nothing", !scene.figures.length);
          drawing.show(scene.figures);
          note.textContent = milepost.say(scene.says);
          own.clear();
          error.hidden = true;
          element.dispatchEvent(new CustomEvent("computed", { bubbles: true, detail: name }));
        },
        (problem) => fail(problem),
      );
      return { name, element, ask, drawing };
    });

    const fail = (problem) => {
      if (problem instanceof milepost.Stale) return;
      const at = /^scheme-(\d)$/.exec(problem.control ?? "");
      if (at) { cards[Number(at[1])]?.no(problem.message); return; }
      const control = problem.control || last;
      error.hidden = own.no(control, problem.message);
      error.textContent = error.hidden ? "" : problem.message;
    };

    // What the texts are: the server reads them, and answers with controls, Python and the equation.
    let settling = new Set();
    const readAsk = milepost.asker(
      (given, signal) => milepost.ask("read", { schemes: given.texts, state: given.state }, "read", signal),
      (found, given) => {
        let fine = true;
        found.forEach((each, n) => {
          if (!cards[n]) return;
          cards[n].no(each.no ? milepost.say(each.no) : "");
          if (each.no) { fine = false; return; }
          readings[n] = each;
          // The text as the library writes it, unless it was changed meanwhile.
          if (texts[n] === given.texts[n]) {
            texts[n] = each.text;
            cards[n].show(each, settling.has(n));
            settling.delete(n);
          }
        });
        write();
        printed();
        if (fine && given.compute) compute();
      },
      fail,
    );
    const readAll = (andCompute) => readAsk({ texts: [...texts], state: { ...state }, compute: andCompute });

    // What reads every key is asked for last: the server computes in this order.
    const quickFirst = [...views].sort((a, b) => SLOW.has(a.name) - SLOW.has(b.name));
    const compute = () => {
      for (const each of quickFirst) if (shownViews.has(each.name)) each.ask(setting());
      askTerm();
    };

    const set = (n, text, settle) => {
      texts[n] = text;
      if (settle) settling.add(n);
      write();
      // A slider's value is sure to be read: curves need not wait for the card.
      if (!settle) compute();
      readAll(settle);
    };

    // Cards
    const board = make("div.cards");
    const add = make("button.quiet", { type: "button", on: { click: () => {
      if (texts.length >= told.most) return;
      texts.push(texts[texts.length - 1]);
      build();
      readAll(true);
    } } }, milepost.word("add_scheme"));
    const build = () => {
      readings = [];
      settling = new Set(texts.keys());
      cards = texts.map((text, n) => milepost.schemeCard(n, told.menus, (now, settle) => set(n, now, settle), texts.length > 1 ? () => {
        texts.splice(n, 1);
        leaveTerm();
        build();
        readAll(true);
      } : null));
      cards.forEach((card, n) => { card.text.value = texts[n]; });
      board.replaceChildren(...cards.map((each) => each.element));
      add.hidden = texts.length >= told.most;
    };

    // The equations, with what one part contributes beneath.
    const equations = make("div.equations-of"), python = make("div.pythons");
    const alone = make("div.alone", { "aria-live": "polite" });
    const aloneNote = make("p.note.warn");
    const aloneDrawing = milepost.scene(alone, {});
    let pressed = null;
    const press = (on) => {
      if (pressed) equations.children[pressed.scheme]?.querySelectorAll(".term")[pressed.part]?.setAttribute("aria-pressed", String(on));
    };
    const leaveTerm = () => {
      press(false);
      pressed = null;
      aloneDrawing.show([]);
      aloneNote.textContent = "";
    };
    const termAsk = milepost.asker(
      (given, signal) => milepost.ask("term", given, "term", signal),
      (scene) => {
        if (!pressed) return;
        aloneDrawing.show(scene.figures);
        aloneNote.textContent = milepost.say(scene.says);
        alone.dispatchEvent(new CustomEvent("computed", { bubbles: true, detail: "term" }));
      },
      // What was drawn is of another setting.
      (problem) => {
        aloneDrawing.show([]);
        aloneNote.textContent = problem.message;
      },
    );
    const askTerm = () => { if (pressed) termAsk({ ...setting(), ...pressed }); };
    const printed = () => {
      equations.replaceChildren(...readings.filter(Boolean).map((each, n) => milepost.equation(each, n, (part) => {
        if (pressed?.scheme === n && pressed.part === part) return;
        press(false);
        pressed = { scheme: n, part };
        press(true);
        askTerm();
      }, leaveTerm)));
      // A part that is no more contributes nothing.
      if (pressed && !(pressed.part < (readings[pressed.scheme]?.terms.length ?? 0))) leaveTerm();
      press(true);
      python.replaceChildren(...readings.filter(Boolean).map((each) => milepost.code(each.python)));
    };

    const toggles = make("fieldset.toggles", {}, make("legend", {}, milepost.word("views")), views.map((each) => {
      const box = make("input", { type: "checkbox", id: `view-${each.name}` });
      box.checked = shownViews.has(each.name);
      each.element.hidden = !box.checked;
      box.addEventListener("change", () => {
        if (box.checked) shownViews.add(each.name);
        else shownViews.delete(each.name);
        each.element.hidden = !box.checked;
        write();
        if (box.checked) each.ask(setting());
      });
      return make("label", {}, box, " ", milepost.word(`view_${each.name}`));
    }));

    const exporting = make("button.quiet", { type: "button", on: { click: async () => {
      exporting.disabled = true;
      exporting.textContent = milepost.word("exporting");
      try {
        milepost.save(await milepost.ask("export", { ...setting(), lang: milepost.lang }, "export"), "milepost-schemes.html", "text/html");
      } catch (problem) { fail(problem); }
      exporting.disabled = false;
      exporting.textContent = milepost.word("export");
    } } }, milepost.word("export"));

    // Cards that are higher than the window scroll with the page until their end is seen, and stay.
    const column = make("div.schemes", {}, board, make("p.buttons", {}, add));
    const hold = () => { column.style.top = `${Math.min(10, innerHeight - column.offsetHeight - 10)}px`; };
    const watcher = new ResizeObserver(hold);
    watcher.observe(column);
    addEventListener("resize", hold);

    const element = make("article.composer", {},
      make("div.question", {}, make("h1", { tabindex: "-1" }, milepost.word("composer")), make("p.lead", {}, milepost.word("composer_about"))),
      make("div.bench", {},
        column,
        make("div.shown", {},
          make("div.settings", { role: "group", "aria-label": milepost.word("controls") }, own.elements), error,
          make("div.above", {}, toggles, make("p.buttons", {}, milepost.copyButton("copy_link", () => milepost.link.address()), exporting)),
          make("div.views", {}, views.map((each) => each.element)),
          make("p.hint", {}, milepost.word("pointer_hint")))),
      make("section.block", {}, make("h2", {}, milepost.word("equation")), make("p.hint", {}, milepost.word("equation_hint")),
        make("div.equation-row", {}, equations, make("div.alone-of", {}, alone, aloneNote))),
      make("section.block", {}, make("h2", {}, milepost.word("python")), python));
    build();
    milepost.shownViews = Object.fromEntries(views.map((each) => [each.name, each.drawing]));
    return {
      element,
      begin: () => readAll(true),
      remove: () => {
        watcher.disconnect();
        removeEventListener("resize", hold);
        for (const each of [...views.map((view) => view.ask), readAsk, termAsk]) each.stop();
        for (const each of views) each.drawing.remove();
        aloneDrawing.remove();
      },
    };
  };
})((globalThis.milepost ??= {}));
