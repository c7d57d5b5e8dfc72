// Curves over one axis, by uPlot: gaps, dashes, log axes, marks to drag, values at the pointer.
"use strict";
((milepost) => {
  const { make, svg } = milepost;
  const TALL = 264, SHORT = 228, TOP = 30;

  // The look of each line: one colour for a scheme, and a dash for who sees no colours.
  const looks = (lines) => {
    const seen = new Map();
    return lines.map((line) => {
      const nth = seen.get(line.scheme) ?? 0;
      seen.set(line.scheme, nth + 1);
      // A broad band, which no dash is like.
      if (line.guess) return { colour: "accent", dash: [], width: 6, alpha: 0.35 };
      // One dash in every setting of a figure.
      if (line.quiet) return { colour: "cx", dash: milepost.dashes[(line.scheme + nth) % 8], width: 1.2, alpha: 0.75 };
      return { colour: `c${line.scheme % 9}`, dash: milepost.dashes[(line.scheme + nth) % 8], width: nth ? 1.6 : 2.1 };
    });
  };

  const swatch = (look) => svg("svg.swatch", { viewBox: "0 0 26 10", "aria-hidden": "true" },
    svg("path", { d: "M1 5H25", fill: "none", stroke: `var(--${look.colour})`, "stroke-width": look.width, "stroke-dasharray": look.dash.join(" ") || null, opacity: look.alpha ?? 1 }));

  const ready = (figure) => {
    const log = figure.x_scale === "log";
    const kept = figure.at.map((x, n) => [x, n]).filter(([x]) => !log || x > 0);
    const low = figure.y_scale === "log";
    const value = (each) => (each === null || each === undefined || (low && each <= 0) ? null : each);
    return [kept.map(([x]) => x), ...figure.lines.map((line) => kept.map(([, n]) => value(line.values[n])))];
  };

  const spanned = (figure, data) => {
    if (figure.y_range) return figure.y_range;
    let low = Infinity, high = -Infinity;
    for (const line of data.slice(1)) for (const each of line) if (each !== null) { low = Math.min(low, each); high = Math.max(high, each); }
    if (low > high) return figure.y_scale === "log" ? [0.1, 1] : [0, 1];
    // What is a billion times less than the most is off the axis.
    if (figure.y_scale === "log") return [Math.max(low * 0.8, high * 1e-9), low === high ? high * 2 : high * 1.25];
    const room = 0.06 * (high - low || Math.abs(high) || 1);
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  };

  // Places of a log axis that are round numbers, so many as there is room for: powers of ten; in a short range 1, 2 and 5
  // of each; in a very short one even steps.
  const logTicks = (low, high, room) => {
    const most = Math.max(2, Math.floor(room));
    const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
    const inside = (digits) => {
      const found = [];
      for (let exponent = from; exponent <= to; exponent += 1) for (const digit of digits) found.push(Number(`${digit}e${exponent}`));
      return found.filter((each) => each >= low * (1 - 1e-9) && each <= high * (1 + 1e-9));
    };
    const decades = inside([1]);
    if (decades.length > 2) {
      const every = Math.ceil(decades.length / most);
      return decades.filter((each) => Math.round(Math.log10(each)) % every === 0);
    }
    for (const digits of [[1, 2, 5], [1, 2, 3, 5, 7]]) {
      const found = inside(digits);
      if (found.length > 2) return found.length > most ? (decades.length > 1 ? decades : found.filter((_, n) => n % Math.ceil(found.length / most) === 0)) : found;
    }
    return evenTicks(low, high, most);
  };
  // Round numbers at even steps, no more of them than five or so; least is the smallest step.
  const evenTicks = (low, high, most, least = 0) => {
    const size = 10 ** Math.floor(Math.log10((high - low) / 2));
    const step = Math.max(least, size * [1, 2, 5, 10].find((each) => (high - low) / (size * each) <= Math.max(2, Math.min(5, most))));
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, n) => Number(((first + n) * step).toPrecision(12)));
  };
  milepost.evenTicks = evenTicks;
  milepost.logTicks = logTicks;

  // An axis reaches as far as its marks do, and a little further where one of them can be dragged.
  const acrossOf = (figure, at) => {
    const log = figure.x_scale === "log";
    let low = at[0] ?? (log ? 1 : 0), high = at[at.length - 1] ?? 1;
    for (const mark of figure.marks) {
      if (log && mark.at <= 0) continue;
      low = Math.min(low, mark.at);
      if (mark.at > high || (mark.control && mark.at >= high)) high = mark.control ? (log ? mark.at * 1.25 : mark.at * 1.06) : mark.at;
    }
    return low < high ? [low, high] : [low, low + 1];
  };

  milepost.figures.lines = (first, context, body) => {
    let figure = first, plot = null, data = ready(figure), names = [], telling = false, at = null;
    const key = make("ul.key.values");
    const yName = make("span"), xName = make("p.axis-name.x");
    // On a line that is there anyway, so that pointing moves nothing.
    const place = make("span.place", { "aria-hidden": "true" });
    const stage = make("div.stage", { tabindex: "0", role: "group" });
    const marks = make("div.marks");
    // Beside the plot, not in it: a new plot must not end a drag or take the focus away.
    stage.append(marks);
    body.append(key, make("p.axis-name.y", {}, yName, place), stage, xName);

    const drawKey = () => {
      const styles = looks(figure.lines);
      names = figure.lines.map((line, n) => {
        const value = make("span.at");
        key.append(make("li", {}, swatch(styles[n]), make("span.of", {}, milepost.say(line.name)), value));
        return value;
      });
    };

    const words = () => {
      yName.textContent = milepost.say(figure.y);
      xName.textContent = milepost.say(figure.x);
      stage.setAttribute("aria-label", `${milepost.say(figure.title)}. ${milepost.say(figure.x)}: ${milepost.say(figure.y)}. ${figure.lines.map((each) => milepost.say(each.name)).join("; ")}`);
    };

    const options = (width) => {
      const styles = looks(figure.lines);
      const font = "11.5px Inter, system-ui, sans-serif";
      const log = (scale) => (scale === "x" ? figure.x_scale : figure.y_scale) === "log";
      const axis = (scale) => ({
        scale, font, stroke: milepost.colour("soft"), size: scale === "x" ? 28 : 52, gap: 4,
        space: scale === "x" ? 62 : 34,
        grid: { stroke: milepost.colour("hair"), width: 1 },
        ticks: { stroke: milepost.colour("rule"), width: 1, size: 4 },
        ...(log(scale) ? { filter: (u, splits) => splits, splits: (u, n, low, high) => logTicks(low, high, (scale === "x" ? u.bbox.width / 46 : u.bbox.height / 22) / devicePixelRatio) } : {}),
        values: (u, splits) => splits.map((each) => (log(scale) ? power(each) : tick(each))),
      });
      return {
        width, height: width < 460 ? SHORT : TALL, pxAlign: 0.5, padding: [TOP, 14, 0, 0],
        scales: {
          x: { time: false, distr: figure.x_scale === "log" ? 3 : 1, range: () => acrossOf(figure, data[0]) },
          y: { distr: figure.y_scale === "log" ? 3 : 1, range: () => spanned(figure, data) },
        },
        axes: [axis("x"), axis("y")],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6, fill: (u, n) => milepost.colour(styles[n - 1].colour) }, bind: { dblclick: () => null } },
        series: [{}, ...figure.lines.map((line, n) => ({
          label: milepost.say(line.name), stroke: milepost.colour(styles[n].colour), width: styles[n].width, dash: styles[n].dash,
          alpha: styles[n].alpha ?? 1, spanGaps: false,
          points: { show: true, size: 5, width: 0, fill: milepost.colour(styles[n].colour), filter: dots },
        }))],
        hooks: { setCursor: [pointed], draw: [() => drawMarks()] },
      };
    };
    // A stretch between two gaps that is too short to be seen as a line is drawn as dots.
    const dots = (u, n) => {
      const found = [], line = data[n];
      for (let from = 0, to; line && from < line.length; from = to + 1) {
        to = from;
        if (line[from] === null) continue;
        while (to + 1 < line.length && line[to + 1] !== null) to += 1;
        if (u.valToPos(data[0][to], "x") - u.valToPos(data[0][from], "x") < 3) for (let each = from; each <= to; each += 1) found.push(each);
      }
      return found;
    };
    const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";
    const raised = (n) => `${n < 0 ? "⁻" : ""}${String(Math.abs(n)).replace(/\d/g, (digit) => RAISED[digit])}`;
    const tick = (value) => {
      const size = Math.abs(value);
      if (size >= 1e6) return `${milepost.number(value / 1e6)}M`;
      return size >= 10_000 && Number.isInteger(value / 1000) ? `${milepost.number(value / 1000)}k` : milepost.number(value);
    };
    // 10⁻⁸, where it is a power of ten with many digits.
    const power = (value) => {
      const exponent = Math.round(Math.log10(value));
      const far = (exponent > 5 || exponent < -3) && Math.abs(value / 10 ** exponent - 1) < 1e-9;
      return far ? `10${raised(exponent)}` : tick(Number(value.toPrecision(12)));
    };

    const tellValues = (index) => {
      names.forEach((each, n) => { each.textContent = index === null ? "" : (figure.lines[n].guess ? milepost.byHand : milepost.number)(data[n + 1][index]); });
      place.textContent = index === null ? "" : `${milepost.say(figure.x)}: ${milepost.number(data[0][index])}`;
    };

    function pointed(u) {
      const index = u.cursor.left >= 0 ? u.cursor.idx : null;
      tellValues(index ?? null);
      at = index ?? at;
      if (telling || !figure.link) return;
      milepost.linked.tell(figure.link, index === null || index === undefined ? null : data[0][index], listen);
    }
    const listen = (value) => {
      if (!plot) return;
      telling = true;
      const inside = value !== null && value >= plot.scales.x.min && value <= plot.scales.x.max;
      plot.setCursor(inside ? { left: plot.valToPos(value, "x"), top: 10 } : { left: -10, top: -10 });
      telling = false;
    };

    stage.addEventListener("keydown", (event) => {
      if (event.target !== stage || !plot) return;
      const steps = milepost.steps(event);
      if (event.key === "Escape") plot.setCursor({ left: -10, top: -10 });
      if (!steps) return;
      event.preventDefault();
      at = Math.max(0, Math.min(data[0].length - 1, (at ?? -1) + steps));
      plot.setCursor({ left: plot.valToPos(data[0][at], "x"), top: 10 });
      milepost.announce(`${milepost.say(figure.x)} ${milepost.number(data[0][at])}: ${figure.lines.map((line, n) => `${milepost.say(line.name)} ${milepost.number(data[n + 1][at])}`).join(", ")}`);
    });
    stage.addEventListener("blur", () => plot?.setCursor({ left: -10, top: -10 }));

    // Marks: handles over the axes, moved by the pointer or the arrow keys.
    const handles = [];
    const drawMarks = () => {
      if (!plot) return;
      const { left: start, top, width, height } = plot.over.style;
      Object.assign(marks.style, { left: start, top, width, height });
      while (handles.length < figure.marks.length) handles.push(handle(handles.length));
      while (handles.length > figure.marks.length) handles.pop().element.remove();
      let before = [];
      const wide = plot.over.clientWidth;
      figure.marks.map((mark, n) => [mark, n, placeOf(mark)]).sort((a, b) => a[2] - b[2]).forEach(([mark, n, where]) => {
        const inside = figure.x_scale !== "log" || where > 0;
        const left = inside ? plot.valToPos(where, "x") : -100;
        // What can be dragged goes no further than the axis, until that has grown.
        handles[n].show(mark, controlOf(mark) && inside ? Math.min(wide, Math.max(0, left)) : left, wide, before, where);
      });
    };
    const controlOf = (mark) => (mark?.control ? context.control?.(mark.control) : null);
    // Where its control stands now; the answer to that may be on its way.
    const placeOf = (mark) => {
      const value = controlOf(mark) ? context.state()[mark.control] : null;
      return Number.isFinite(value) ? value : mark.at;
    };
    const handle = (n) => {
      const label = make("span.mark-name");
      const element = make("div.mark", {}, label);
      let mark = null, dragged = null;
      const known = () => controlOf(mark);
      const move = (value) => {
        context.set(mark.control, value);
        drawMarks();
      };
      element.addEventListener("pointerdown", (event) => {
        if (!known()) return;
        event.preventDefault();
        event.stopPropagation();
        element.focus();
        element.setPointerCapture(event.pointerId);
        // The axis may grow while it is dragged; the hand moves along the one that it began with.
        const { min, max } = plot.scales.x;
        const log = figure.x_scale === "log", box = plot.over.getBoundingClientRect();
        dragged = (x) => {
          const share = (x - box.left) / box.width;
          return log ? min * (max / min) ** share : min + share * (max - min);
        };
      });
      element.addEventListener("pointermove", (event) => {
        if (dragged) move(milepost.held(known(), dragged(event.clientX)));
        else plot?.setCursor({ left: event.clientX - plot.over.getBoundingClientRect().left, top: 10 });
      });
      element.addEventListener("pointerleave", () => plot?.setCursor({ left: -10, top: -10 }));
      for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) element.addEventListener(end, () => { dragged = null; });
      element.addEventListener("mousedown", (event) => event.stopPropagation());
      element.addEventListener("keydown", (event) => {
        const steps = milepost.steps(event), control = known();
        if (!control || !(steps || event.key === "Home" || event.key === "End")) return;
        event.preventDefault();
        event.stopPropagation();
        const now = context.state()[mark.control];
        move(event.key === "Home" ? control.low : event.key === "End" ? control.high : milepost.stepped(control, typeof now === "number" ? now : mark.at, steps));
      });
      marks.append(element);
      return {
        element,
        show: (now, left, width, before, where) => {
          mark = now;
          const control = known();
          element.classList.toggle("moves", Boolean(control));
          if (control) {
            for (const [name, value] of Object.entries({ tabindex: "0", role: "slider", "aria-label": milepost.say(mark.name), "aria-valuemin": control.low, "aria-valuemax": control.high, "aria-valuenow": where, "aria-valuetext": milepost.number(where), "aria-orientation": "horizontal" })) element.setAttribute(name, value);
          }
          element.hidden = left < -1 || left > width + 1;
          element.style.left = `${left}px`;
          label.textContent = milepost.say(mark.name);
          // Beside the rule on the side with more room; a line lower where it would run into another name.
          const right = left > width * 0.6;
          label.classList.toggle("left", right);
          const wide = label.offsetWidth + 8, from = right ? left - wide : left, to = from + wide;
          let level = 0;
          while (before.some((each) => each.level === level && each.from < to && from < each.to)) level += 1;
          before.push({ from, to, level });
          // Its rule reaches up to the name.
          const top = -TOP + 2 + 14 * (1 - Math.min(level, 1)) + (level > 1 ? 14 * level : 0), above = Math.min(0, top);
          element.style.top = `${above}px`;
          label.style.top = `${top - above}px`;
        },
      };
    };

    const draw = (width) => {
      plot?.destroy();
      plot = null;
      stage.querySelectorAll(".uplot").forEach((each) => each.remove());
      key.replaceChildren();
      drawKey();
      words();
      plot = new uPlot(options(width), data, stage);
      drawMarks();
    };
    const leave = milepost.linked.join(figure.link, listen);
    const stop = milepost.sized(stage, draw);
    const uncolour = milepost.onColours(() => draw(stage.clientWidth));

    // What can change without a new plot: the numbers, the axes, the marks.
    const shape = (each) => JSON.stringify([each.x_scale, each.y_scale, each.lines.map((line) => [line.name, line.scheme, line.quiet, line.guess]), each.x, each.y, milepost.lang]);
    let known = shape(figure);
    return {
      update: (next) => {
        figure = next;
        data = ready(figure);
        const now = shape(figure);
        if (now !== known || !plot) {
          known = now;
          if (stage.clientWidth) draw(stage.clientWidth);
        } else {
          plot.setData(data);
          drawMarks();
        }
        stage.dispatchEvent(new CustomEvent("drawn", { bubbles: true }));
      },
      get plot() { return plot; },
      stage,
      across: () => acrossOf(figure, data[0]),
      remove: () => {
        leave();
        stop();
        uncolour();
        plot?.destroy();
        plot = null;
      },
    };
  };
})((globalThis.milepost ??= {}));
