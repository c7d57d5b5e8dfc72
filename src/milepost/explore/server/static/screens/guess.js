// The guess: a curve drawn over empty axes by dragging, or point by point with the keyboard; or an answer that is chosen.
"use strict";
((milepost) => {
  const { make } = milepost;
  const FINE = 64, POINTS = 9;

  // Places along an axis, evenly as it is drawn.
  const along = (low, high, log, share) => (log ? low * (high / low) ** share : low + share * (high - low));

  milepost.drawnGuess = (story, axes, done) => {
    const log = axes.x_scale === "log";
    const firstPositive = axes.at.find((each) => !log || each > 0) ?? 1;
    const [low, high] = [firstPositive, axes.at[axes.at.length - 1]];
    const values = Array(FINE + 1).fill(null);
    const at = values.map((_, n) => along(low, high, log, n / FINE));
    const line = { name: { en: milepost.word("guess_name"), zh: milepost.word("guess_name") }, values, scheme: 0, quiet: false, guess: true };
    const figure = () => ({ ...axes, kind: "lines", at, lines: [{ ...line, values: [...values] }], link: "", marks: axes.marks.map((each) => ({ ...each, control: "" })) });
    const place = make("div.drawing-board");
    const element = make("div.guess", {}, make("p.hint", {}, milepost.word("guess_draw")), place);
    const show = make("button.primary", { type: "button", disabled: true, on: { click: () => done(within(), axes.y_range) } }, milepost.word(story.guess.measured ? "guess_show_measured" : "guess_show"));
    const clear = make("button.quiet", { type: "button", on: { click: () => { values.fill(null); points.fill(null); draw(); } } }, milepost.word("guess_clear"));
    const skip = make("button.quiet", { type: "button", on: { click: () => done(null) } }, milepost.word("guess_skip"));
    element.append(make("p.buttons", {}, show, clear, skip));
    const points = Array(POINTS).fill(null);
    let made = null, handles = [];

    const scaleOf = () => made.body.plot;
    const valueAt = (top) => {
      const u = scaleOf();
      const { min, max } = u.scales.y;
      return Math.min(max, Math.max(min, u.posToVal(Math.min(u.over.clientHeight, Math.max(0, top)), "y")));
    };
    // What lies between two drawn places is on a straight line, as it is seen.
    const stretch = (from, to) => {
      const [a, b] = from <= to ? [from, to] : [to, from];
      for (let n = a + 1; n < b; n += 1) {
        const share = (n - a) / (b - a);
        values[n] = axes.y_scale === "log" && values[a] > 0 && values[b] > 0 ? values[a] ** (1 - share) * values[b] ** share : values[a] + share * (values[b] - values[a]);
      }
    };
    const draw = () => {
      made.update(figure());
      if (made.body.plot) placeHandles();
      show.disabled = !values.some((each) => each !== null);
    };
    const placeHandles = () => {
      const u = scaleOf();
      const middle = (u.posToVal(u.over.clientHeight / 2, "y"));
      handles.forEach((each, n) => {
        const index = Math.round(n * FINE / (POINTS - 1));
        const value = values[index] ?? middle;
        each.style.left = `${u.valToPos(at[index], "x")}px`;
        each.style.top = `${u.valToPos(value, "y")}px`;
        each.setAttribute("aria-valuenow", value);
        each.setAttribute("aria-valuetext", milepost.byHand(value));
        each.classList.toggle("set", values[index] !== null);
      });
    };

    // Given to the story: the guess at the places of the axis, straight between where it was drawn.
    const within = () => {
      const known = at.map((x, n) => [x, values[n]]).filter(([, each]) => each !== null);
      return axes.at.map((x) => {
        const after = known.findIndex(([each]) => each >= x);
        if (after < 0 || (after === 0 && x < known[0][0])) return null;
        if (after === 0) return known[0][1];
        const [[x0, y0], [x1, y1]] = [known[after - 1], known[after]];
        const share = log ? Math.log(x / x0) / Math.log(x1 / x0) : (x - x0) / (x1 - x0);
        return y0 + share * (y1 - y0);
      });
    };

    const begin = () => {
      made = milepost.figure(figure(), {});
      place.append(made.element);
      const start = () => {
        const u = scaleOf();
        if (!u) { requestAnimationFrame(start); return; }
        const { min, max } = u.scales.y;
        handles = points.map((_, n) => {
          const index = Math.round(n * FINE / (POINTS - 1));
          const handle = make("div.point", { tabindex: "0", role: "slider", "aria-orientation": "vertical", "aria-valuemin": min, "aria-valuemax": max, "aria-label": milepost.word("guess_point", { x: milepost.byHand(at[index]) }) });
          handle.addEventListener("keydown", (event) => {
            const steps = milepost.steps(event);
            if (!steps || event.key === "ArrowLeft" || event.key === "ArrowRight") {
              if (steps) { event.preventDefault(); handles[Math.max(0, Math.min(POINTS - 1, n + Math.sign(steps)))].focus(); }
              return;
            }
            event.preventDefault();
            event.stopPropagation();
            const top = scaleOf().valToPos(values[index] ?? valueAt(scaleOf().over.clientHeight / 2), "y") - steps * scaleOf().over.clientHeight / 40;
            values[index] = valueAt(top);
            for (const other of [n - 1, n + 1]) {
              const its = Math.round(other * FINE / (POINTS - 1));
              if (other >= 0 && other < POINTS && values[its] !== null) stretch(its, index);
            }
            draw();
          });
          return handle;
        });
        const attach = () => {
          const over = scaleOf().over;
          over.append(...handles);
          over.classList.add("to-draw");
          let last = null;
          const pen = (event) => {
            const box = over.getBoundingClientRect();
            const index = Math.round(FINE * Math.min(1, Math.max(0, shareOf(event.clientX - box.left))));
            values[index] = valueAt(event.clientY - box.top);
            if (last !== null) stretch(last, index);
            last = index;
            draw();
          };
          const shareOf = (left) => {
            const x = scaleOf().posToVal(left, "x");
            return log ? Math.log(x / low) / Math.log(high / low) : (x - low) / (high - low);
          };
          over.addEventListener("pointerdown", (event) => {
            event.preventDefault();
            over.setPointerCapture(event.pointerId);
            last = null;
            pen(event);
          });
          over.addEventListener("pointermove", (event) => { if (over.hasPointerCapture(event.pointerId)) pen(event); });
          placeHandles();
          return over;
        };
        // A new width makes a new plot, to which the points go over.
        let over = attach();
        milepost.sized(place, () => requestAnimationFrame(() => { if (scaleOf() && scaleOf().over !== over) over = attach(); }));
      };
      start();
    };
    return { element, begin, remove: () => made?.remove() };
  };

  milepost.chosenGuess = (story, done) => {
    const name = `answer-${story.name}`;
    const show = make("button.primary", { type: "submit", disabled: true }, milepost.word(story.guess.measured ? "guess_show_measured" : "guess_show"));
    const skip = make("button.quiet", { type: "button", on: { click: () => done(null) } }, milepost.word("guess_skip"));
    const answers = story.guess.answers.map((each, n) => make("label.answer", {},
      make("input", { type: "radio", name, value: n, on: { change: () => { show.disabled = false; } } }), make("span", {}, milepost.say(each))));
    const element = make("form.guess", { on: { submit: (event) => {
      event.preventDefault();
      done(Number(new FormData(element).get(name)));
    } } }, answers, make("p.buttons", {}, show, skip));
    return { element, begin: () => {}, remove: () => {} };
  };

  // How far a drawn guess is off: the mean difference and its share of the axis it was drawn over; over decades a factor.
  milepost.offBy = (guess, figure, line, drawnOver) => {
    const truth = figure.lines[line].values;
    const log = figure.y_scale === "log";
    const found = truth.map((each, n) => [each, guess[n]]).filter(([each, mine]) => each !== null && mine !== null && mine !== undefined && (!log || (each > 0 && mine > 0)));
    if (!found.length) return null;
    const mean = found.reduce((sum, [each, mine]) => sum + Math.abs(each - mine), 0) / found.length;
    const size = (each) => (log ? Math.log(each) : each);
    const height = found.reduce((sum, [each, mine]) => sum + Math.abs(size(each) - size(mine)), 0) / found.length;
    return { mean, factor: log ? Math.exp(height) : null, percent: 100 * height / (size(drawnOver[1]) - size(drawnOver[0])) };
  };
})((globalThis.milepost ??= {}));
