// One question on one screen: the guess, then what is computed, with the guess beside it.
"use strict";
((milepost) => {
  const { make } = milepost;

  // compute(name, set) and axes(name, set) answer as the server does; an exported page has its own.
  // around: { previous, next, tryOwn, exporting, link } where the page has them.
  milepost.storyScreen = (story, given, sources, around = {}) => {
    const state = { ...milepost.starts(story.controls), ...given.set };
    let guess = null, drawnOver = null, guessed = "", scene = null, left = false, asked = false, last = "";
    const section = (name, ...inside) => make("section.block", {}, make("h2", {}, milepost.word(name)), ...inside);

    const panels = make("div.figures.panels");
    const said = make("p.said"), off = make("p.off", { role: "status" }), note = make("p.note", { role: "status" });
    const codeSection = section("code");
    const codePlace = make("div");
    codeSection.append(codePlace);
    const error = make("p.no", { role: "alert", hidden: true });
    const own = milepost.controls(story.controls, state, (name) => { last = name; changed(); });
    const context = { set: own.set, control: own.known, state: () => state };
    const drawing = milepost.scene(panels, context);
    const reset = make("button.quiet", { type: "button", on: { click: () => {
      Object.assign(state, milepost.starts(story.controls));
      own.show();
      changed();
    } } }, milepost.word("reset"));
    const again = around.again === null ? null : make("button.quiet", { type: "button", on: { click: () => around.again?.() } }, milepost.word("guess_again"));

    const settings = make("div.controls", { role: "group", "aria-label": milepost.word("controls") }, own.elements,
      error, make("p.buttons", {}, reset, again));
    const asking = make("section.block.ask");
    const result = make("div.result", { hidden: true, role: "region", tabindex: "-1", "aria-label": milepost.word("result") },
      make("div.side", {}, settings, off, section("look_for", make("p", {}, milepost.say(story.look_for)))),
      make("div.shown", {}, note, panels, section("says", said), codeSection));
    // Quiet until something is computed: before that, the guess is what to do.
    const tryOwn = around.tryOwn && story.try_own.length ? make("button.quiet", { type: "button", on: {
      click: () => around.tryOwn(scene?.try_own ?? story.try_own, scene?.try_set ?? []),
    } }, milepost.word("try_own")) : null;
    const links = make("p.buttons.ends", {},
      tryOwn,
      around.link ? milepost.copyButton("copy_link", around.link) : null,
      around.exporting ? make("button.quiet", { type: "button", on: { click: (event) => around.exporting(event.currentTarget, state) } }, milepost.word("export")) : null);
    // On a narrow window, once something is drawn, the lead is cut to two lines.
    const lead = make("p.lead", {}, milepost.say(story.lead));
    const unfold = make("button.quiet.small.unfold", { type: "button", on: { click: () => lead.classList.add("whole") } }, milepost.word("more"));
    const element = make("article.story", {},
      make("div.question", {}, make("h1", { tabindex: "-1" }, milepost.say(story.question)), lead, unfold),
      asking, result, links);

    const fail = (problem) => {
      // What the library says of no control by name is about the one that was moved last.
      const control = problem.control || last;
      error.hidden = own.no(control, problem.message);
      error.textContent = error.hidden ? "" : problem.message;
    };
    // A guess is about one curve, or one answer: where a setting gives another, the guess and its verdict go.
    const about = () => {
      const figure = scene.figures[story.guess.figure];
      return JSON.stringify(figure?.kind === "lines" ? [figure.at, figure.lines[story.guess.line].values] : figure);
    };
    const stands = () => guess !== null && about() === guessed;
    const drawn = () => {
      const figures = scene.figures.map((each, n) => {
        if (n !== story.guess.figure || !stands() || !Array.isArray(guess) || each.kind !== "lines") return each;
        return { ...each, lines: [...each.lines, { name: { en: milepost.word("guess_name"), zh: milepost.word("guess_name") }, values: guess, scheme: 8, quiet: false, guess: true }] };
      });
      drawing.show(figures);
      milepost.shown = drawing;
    };
    const ask = milepost.asker(
      (setting, signal) => sources.compute(story.name, setting, signal),
      (found) => {
        const first = scene === null;
        scene = found;
        own.clear();
        error.hidden = true;
        result.hidden = false;
        element.classList.add("computed");
        if (tryOwn) {
          tryOwn.className = "primary";
          // Nothing of it that the composer draws.
          tryOwn.hidden = found.try_own?.length === 0;
        }
        unfold.hidden = lead.scrollHeight <= lead.clientHeight;
        note.textContent = found.note ? milepost.say(found.note) : "";
        said.textContent = milepost.say(found.says);
        codeSection.hidden = !found.code;
        if (codePlace.textContent !== found.code) codePlace.replaceChildren(milepost.code(found.code));
        if (first) guessed = about();
        drawn();
        offBy();
        // What had the focus is hidden: it goes on to what was computed.
        if (first && left && document.activeElement === document.body) result.focus({ preventScroll: true });
        element.dispatchEvent(new CustomEvent("computed", { bubbles: true }));
      },
      fail,
    );
    const offBy = () => {
      const figure = scene.figures[story.guess.figure];
      let text = "";
      if (guess === null) {
        // Nothing is said of it.
      } else if (!stands()) {
        text = milepost.word("guess_of_other");
      } else if (Array.isArray(guess) && figure?.kind === "lines") {
        const found = milepost.offBy(guess, figure, story.guess.line, drawnOver);
        const short = (each) => milepost.number(Number(each.toPrecision(2)));
        if (found?.factor) text = found.factor < 1.1 ? milepost.word("guess_off_close", { p: Math.max(1, Math.ceil(100 * (found.factor - 1))) })
          : milepost.word("guess_off_factor", { f: short(found.factor) });
        else if (found) text = milepost.word(found.percent < 1 ? "guess_off_little" : "guess_off", { d: short(found.mean), p: Math.round(found.percent), y: milepost.say(figure.y) });
      } else if (typeof guess === "number") {
        text = guess === story.guess.right ? milepost.word("guess_right") : milepost.word("guess_wrong", { answer: milepost.say(story.guess.answers[story.guess.right]) });
      }
      if (off.textContent !== text) off.textContent = text;
    };
    const changed = () => {
      if (!asked) return;
      around.changed?.(state, true);
      ask({ ...state });
    };
    const done = (made, over = null) => {
      guess = made;
      drawnOver = over;
      left = asking.contains(document.activeElement);
      asked = true;
      asking.hidden = true;
      around.changed?.(state, true);
      ask({ ...state });
    };

    const askAxes = milepost.asker(
      (setting, signal) => sources.axes(story.name, setting, signal),
      (axes) => {
        if (axes === null) { done(null); return; }
        const board = milepost.drawnGuess(story, axes, done);
        asking.append(board.element);
        board.begin();
      },
      (problem) => {
        asked = true;
        result.hidden = false;
        fail(problem);
      },
    );
    const begin = () => {
      if (given.open) { done(null); return; }
      asking.replaceChildren(make("h2", {}, milepost.word("guess_title")), make("p.ask-for", {}, milepost.say(story.guess.question)));
      if (story.guess.answers.length) {
        asking.append(milepost.chosenGuess(story, done).element);
        return;
      }
      askAxes({ ...state });
    };
    return { element, begin, remove: () => { for (const each of [ask, askAxes]) each.stop(); drawing.remove(); } };
  };
})((globalThis.milepost ??= {}));
