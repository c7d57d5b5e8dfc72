// Arrows on one circle, and the arc between the first two; those that have a control can be dragged round.
"use strict";
((milepost) => {
  const { make, svg } = milepost;
  const R = 100;
  const point = (turns, radius) => [radius * Math.sin(2 * Math.PI * turns), -radius * Math.cos(2 * Math.PI * turns)];
  const at = (turns, radius) => point(turns, radius).map((each) => each.toFixed(2)).join(" ");

  milepost.figures.arrows = (first, context, body) => {
    let figure = first;
    const drawing = svg("svg.circle", { viewBox: "-132 -128 264 256", role: "group", "aria-label": milepost.say(first.title) });
    const key = make("ul.key");
    const between = svg("path.between", {});
    drawing.append(svg("circle.axis", { r: R }), between, svg("circle.hub", { r: 3 }));
    body.append(drawing, key);
    const made = [];

    const arrow = (n) => {
      const line = svg("path.shaft", {}), tip = svg("path.tip", {}), grip = svg("circle.grip", { r: 14 });
      const name = svg("text.middle", {});
      const element = svg("g.arrow", {}, line, tip, name, grip);
      let own = null, dragged = null;
      const control = () => (own?.control ? context.control?.(own.control) : null);
      element.addEventListener("pointerdown", (event) => {
        if (!control() || !own.turns_per_step) return;
        event.preventDefault();
        element.focus();
        element.setPointerCapture(event.pointerId);
        dragged = { turns: own.turns, value: context.state()[own.control] };
      });
      element.addEventListener("pointermove", (event) => {
        if (!dragged) return;
        const box = drawing.getBoundingClientRect();
        const turns = Math.atan2(event.clientX - box.left - box.width / 2, -(event.clientY - box.top - box.height * 128 / 256)) / (2 * Math.PI);
        // The nearest way round, from where the arrow was last.
        let by = turns - dragged.turns;
        by -= Math.round(by);
        dragged.turns += by;
        dragged.value += by / own.turns_per_step;
        context.set(own.control, milepost.held(control(), dragged.value));
      });
      for (const end of ["pointerup", "pointercancel"]) element.addEventListener(end, () => { dragged = null; });
      element.addEventListener("keydown", (event) => {
        const steps = milepost.steps(event);
        if (!steps || !control()) return;
        event.preventDefault();
        context.set(own.control, milepost.stepped(control(), context.state()[own.control], steps));
      });
      drawing.append(element);
      return {
        element,
        show: (next) => {
          own = next;
          const held = control();
          element.setAttribute("class", `arrow c${n % 9} d${n % 3}${held ? " moves" : ""}`);
          if (held) for (const [key_, value] of Object.entries({ tabindex: 0, role: "slider", "aria-label": milepost.say(own.name), "aria-valuemin": held.low, "aria-valuemax": held.high, "aria-valuenow": context.state()[own.control], "aria-valuetext": `${milepost.say(own.name)}, ${milepost.word("turns", { n: milepost.number(own.turns) })}` })) element.setAttribute(key_, value);
          line.setAttribute("d", `M0 0L${at(own.turns, R - 8)}`);
          tip.setAttribute("d", `M${at(own.turns, R)}L${at(own.turns - 0.018, R - 13)}L${at(own.turns + 0.018, R - 13)}Z`);
          const [x, y] = point(own.turns, R + 14);
          name.setAttribute("x", x.toFixed(1));
          name.setAttribute("y", (y + 4).toFixed(1));
          name.textContent = String(n + 1);
          const [gx, gy] = point(own.turns, R - 8);
          grip.setAttribute("cx", gx.toFixed(2));
          grip.setAttribute("cy", gy.toFixed(2));
        },
      };
    };
    const draw = (next) => {
      figure = next;
      while (made.length < figure.arrows.length) made.push(arrow(made.length));
      while (made.length > figure.arrows.length) made.pop().element.remove();
      figure.arrows.forEach((each, n) => made[n].show(each));
      key.replaceChildren(...figure.arrows.map((each, n) => make(`li.c${n % 9}`, {}, make("b", {}, String(n + 1)), " ", milepost.say(each.name))));
      if (figure.arrows.length > 1) {
        const [from, to] = [figure.arrows[0].turns, figure.arrows[1].turns];
        let by = to - from;
        by -= Math.round(by);
        between.setAttribute("d", `M0 0L${at(from, 34)}A34 34 0 0 ${by > 0 ? 1 : 0} ${at(from + by, 34)}Z`);
      } else between.setAttribute("d", "");
    };
    draw(figure);
    return { update: draw };
  };
})((globalThis.milepost ??= {}));
