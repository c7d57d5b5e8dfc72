// A figure by its kind, in its frame; figures of one link mark the same place.
"use strict";
((milepost) => {
  const { make } = milepost;
  milepost.figures = {};

  // Who listens for a place: each is told the value of the axis, or null where the pointer left.
  const linked = new Map();
  milepost.linked = {
    join: (link, listener) => {
      if (!link) return () => {};
      if (!linked.has(link)) linked.set(link, new Set());
      linked.get(link).add(listener);
      return () => linked.get(link).delete(listener);
    },
    tell: (link, value, teller) => {
      for (const each of linked.get(link) ?? []) if (each !== teller) each(value);
    },
  };

  // The figure in a frame with its title; update draws another one of the same kind.
  // context: { set(control, value), control(name), state } of the controls that marks move.
  milepost.figure = (figure, context = {}) => {
    const title = make("figcaption", {}, milepost.say(figure.title));
    const body = make("div.body");
    const element = make(`figure.panel.figure.${figure.kind}`, {}, title, body);
    let kind = figure.kind;
    let made = milepost.figures[kind](figure, context, body);
    return {
      element,
      get body() { return made; },
      update: (next) => {
        title.textContent = milepost.say(next.title);
        if (next.kind !== kind) {
          made.remove?.();
          body.replaceChildren();
          element.className = `panel figure ${next.kind}`;
          kind = next.kind;
          made = milepost.figures[kind](next, context, body);
        } else made.update(next);
      },
      remove: () => {
        made.remove?.();
        element.remove();
      },
    };
  };

  // Figures of a scene, drawn into one place: those that are there already are drawn anew, others come or go.
  milepost.scene = (place, context) => {
    let shown = [];
    return {
      show: (figures) => {
        figures.forEach((each, n) => {
          if (shown[n]) shown[n].update(each);
          else {
            // It has to lie in the page before it can ask how wide it is.
            const frame = make("div.cell");
            place.append(frame);
            const made = milepost.figure(each, context);
            frame.append(made.element);
            made.frame = frame;
            shown[n] = made;
          }
          shown[n].frame.classList.toggle("whole", each.kind === "digits" || each.kind === "table" || each.kind === "dials");
        });
        for (const each of shown.slice(figures.length)) {
          each.remove();
          each.frame.remove();
        }
        shown = shown.slice(0, figures.length);
      },
      get figures() { return shown; },
      remove: () => {
        for (const each of shown) each.remove();
        shown = [];
      },
    };
  };

  // Watches how wide an element is, and draws once now.
  milepost.sized = (element, draw) => {
    let width = 0;
    const look = () => {
      const now = Math.round(element.clientWidth);
      if (now && now !== width) {
        width = now;
        draw(now);
      }
    };
    const watcher = new ResizeObserver(() => requestAnimationFrame(look));
    watcher.observe(element);
    look();
    return () => watcher.disconnect();
  };

  const dark = matchMedia("(prefers-color-scheme: dark)");
  milepost.onColours = (listener) => {
    dark.addEventListener("change", listener);
    return () => dark.removeEventListener("change", listener);
  };

  // Arrow keys as steps: left and down take one away, page keys and shift take ten.
  milepost.steps = (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key] ?? 0;
    return event.shiftKey ? step * 10 : step;
  };
})((globalThis.milepost ??= {}));
