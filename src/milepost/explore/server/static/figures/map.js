// A grid of numbers as cells: lighter is less, darker is more, blank is hidden; the scale is the house's own.
"use strict";
((milepost) => {
  const { make, svg } = milepost;
  const SCALE = [[222, 231, 239], [170, 199, 224], [96, 149, 196], [38, 95, 158], [12, 36, 74]];
  const shade = (share) => {
    const place = Math.min(1, Math.max(0, share)) * (SCALE.length - 1);
    const low = Math.min(SCALE.length - 2, Math.floor(place)), rest = place - low;
    return SCALE[low].map((each, n) => each + rest * (SCALE[low + 1][n] - each));
  };

  milepost.figures.map = (first, context, body) => {
    let figure = first, low = 0, high = 1, chosen = null, box = null;
    const cells = make("canvas.cells", { "aria-hidden": "true" });
    const bar = make("canvas.bar", { "aria-hidden": "true", width: 1, height: 64 });
    const over = svg("svg.over", { "aria-hidden": "true" });
    const stage = make("div.map-stage", { tabindex: "0", role: "img" }, cells, over);
    const told = make("p.told");
    const scaleTop = make("span"), scaleEnd = make("span"), scaleUnit = make("p.axis-name.unit");
    const scale = make("div.scale", {}, scaleTop, bar, scaleEnd);
    const yName = make("p.axis-name"), xName = make("p.axis-name.x");
    const blank = make("p.blank", {}, make("i"), milepost.word("hidden"));
    const head = make("div.map-head", {}, yName, blank, scaleUnit), row = make("div.map-row", {}, stage, scale);
    body.append(head, row, xName, told);
    const label = (value) => (typeof value === "string" ? value : milepost.number(value));

    const paint = () => {
      const rows = figure.values.length, columns = figure.values[0]?.length ?? 0;
      low = Infinity; high = -Infinity;
      let hides = false;
      for (const row of figure.values) for (const each of row) {
        if (each === null) hides = true;
        else { low = Math.min(low, each); high = Math.max(high, each); }
      }
      if (low > high) [low, high] = [0, 1];
      if (figure.limits) [low, high] = figure.limits;
      const span = high - low || 1;
      cells.width = Math.max(1, columns);
      cells.height = Math.max(1, rows);
      const image = new ImageData(cells.width, cells.height);
      figure.values.forEach((row, i) => row.forEach((each, j) => {
        if (each === null) return;
        const at = 4 * (i * columns + j);
        image.data.set([...shade((each - low) / span), 255], at);
      }));
      cells.getContext("2d").putImageData(image, 0, 0);
      const ramp = new ImageData(1, 64);
      for (let n = 0; n < 64; n += 1) ramp.data.set([...shade(1 - n / 63), 255], 4 * n);
      bar.getContext("2d").putImageData(ramp, 0, 0);
      blank.classList.toggle("away", !hides);
    };

    const words = () => {
      yName.textContent = milepost.say(figure.y);
      xName.textContent = milepost.say(figure.x);
      scaleTop.textContent = milepost.number(high);
      scaleEnd.textContent = milepost.number(low);
      scaleUnit.textContent = milepost.say(figure.unit);
      stage.setAttribute("aria-label", `${milepost.say(figure.title)}: ${milepost.say(figure.y)}, ${milepost.say(figure.x)}, ${milepost.number(low)} – ${milepost.number(high)} ${milepost.say(figure.unit)}`);
    };

    // Axes: a few numbers, or every word where they fit.
    const ticks = (list, size, most) => {
      if (typeof list[0] === "string") return list.map((each, n) => [n, each]);
      // Round numbers where the cells are evenly apart.
      const low = list[0], high = list[list.length - 1], middle = list[list.length >> 1];
      const even = low < high && Math.abs(middle - low - (list.length >> 1) / (list.length - 1) * (high - low)) < 0.02 * (high - low);
      if (even) {
        const least = list.every(Number.isInteger) ? 1 : 0;
        return milepost.evenTicks(low, high, Math.floor(size / most), least).map((each) => [placed(list, each), label(each)]);
      }
      const count = Math.min(list.length, Math.max(2, Math.floor(size / most)));
      return Array.from({ length: count }, (_, n) => Math.round(n * (list.length - 1) / Math.max(1, count - 1))).map((n) => [n, label(list[n])]);
    };

    const draw = (room) => {
      const width = room - (figure.small ? 0 : 70);
      paint();
      words();
      const rows = figure.values.length, columns = figure.values[0]?.length ?? 1;
      const byWords = typeof figure.xs[0] === "string";
      const cut = (name) => (left > 0 && name.length * 6.2 > left - 8 ? `${name.slice(0, Math.max(1, Math.floor((left - 8) / 6.2) - 1))}…` : name);
      const letters = (list) => Math.max(1, ...list.map((each) => label(each).length));
      const small = figure.small;
      const left = small ? 2 : Math.min(width * 0.3, 10 + 6.4 * letters(typeof figure.ys[0] === "string" ? figure.ys : [figure.ys[figure.ys.length - 1]]));
      const foot = small ? 2 : byWords ? Math.min(90, 16 + 5.2 * letters(figure.xs)) : 20;
      const side = Math.max(40, width - left - 8);
      const cell = Math.min(side / columns, small ? 400 : 380 / Math.max(1, rows));
      const wide = byWords || small ? cell * columns : Math.min(side, 420), tall = byWords || small ? cell * rows : wide * Math.min(1, rows / columns);
      box = { left, wide, tall, rows, columns };
      stage.style.height = `${tall + foot}px`;
      stage.style.width = `${left + wide}px`;
      xName.style.width = `${left + wide}px`;
      head.style.width = `${left + wide + 70}px`;
      Object.assign(cells.style, { left: `${left}px`, top: "0", width: `${wide}px`, height: `${tall}px` });
      over.setAttribute("viewBox", `0 0 ${width} ${tall + foot}`);
      over.setAttribute("width", width);
      over.setAttribute("height", tall + foot);
      const parts = [svg("rect.axis", { x: left, y: 0, width: wide, height: tall })];
      if (!small) {
        const every = Math.ceil(13 / (tall / rows));
        for (const [n, name] of ticks(figure.ys, tall, 60)) {
          if (typeof figure.ys[0] === "string" && n % every) continue;
          parts.push(svg("text.end", { x: left - 6, y: (n + 0.5) * tall / rows + 4 }, cut(name)));
        }
        for (const [n, name] of ticks(figure.xs, wide, 80)) {
          const x = left + (n + 0.5) * wide / columns;
          if (byWords) {
            if (n % Math.ceil(12 / (wide / columns))) continue;
            parts.push(svg("text.end", { transform: `translate(${x + 4} ${tall + 12}) rotate(-55)` }, name.length > 16 ? `${name.slice(0, 15)}…` : name));
          } else {
            const last = x > left + wide - 20, firstOne = n === 0;
            parts.push(svg(`text.${last ? "end" : firstOne ? "start" : "middle"}`, { x: last ? Math.min(x + 20, left + wide) : firstOne ? left : x, y: tall + 15 }, name));
          }
        }
      }
      parts.push(svg("path.pointer", {}));
      over.replaceChildren(...parts);
      scale.style.height = `${Math.max(60, tall)}px`;
    };

    // Cells of one distance lie on a diagonal; so its rule is drawn cell by cell where axes are uneven.
    const mark = (value) => {
      const rule = over.querySelector(".pointer");
      if (!rule || !box) return;
      if (value === null) { rule.setAttribute("d", ""); return; }
      const points = [];
      for (let i = 0; i < box.rows; i += 1) {
        const key = figure.ys[i] - value, j = placed(figure.xs, key);
        if (j === null) continue;
        points.push(`${points.length ? "L" : "M"}${(box.left + (j + 0.5) * box.wide / box.columns).toFixed(1)} ${((i + 0.5) * box.tall / box.rows).toFixed(1)}`);
      }
      rule.setAttribute("d", points.join(""));
    };
    const placed = (list, value) => {
      if (typeof list[0] === "string" || value < list[0] || value > list[list.length - 1]) return null;
      let n = list.findIndex((each) => each >= value);
      if (n > 0) n -= (list[n] - value) / (list[n] - list[n - 1]);
      return n < 0 ? null : n;
    };
    const listen = (value) => mark(value);

    const tell = (i, j) => {
      chosen = [i, j];
      const value = figure.values[i][j];
      const rule = over.querySelector(".pointer");
      const [w, h] = [box.wide / box.columns, box.tall / box.rows];
      rule.setAttribute("d", `M${box.left + j * w} ${i * h}h${w}v${h}h${-w}Z`);
      told.textContent = `${milepost.say(figure.y)} ${label(figure.ys[i])} · ${milepost.say(figure.x)} ${label(figure.xs[j])} · ${value === null ? milepost.word("hidden") : `${milepost.number(value)} ${milepost.say(figure.unit)}`}`;
      if (figure.link === "distance") milepost.linked.tell("distance", figure.ys[i] - figure.xs[j], listen);
      else if (figure.link) milepost.linked.tell(figure.link, figure.ys[i], listen);
    };
    const hush = () => {
      told.textContent = "";
      mark(null);
      if (figure.link) milepost.linked.tell(figure.link, null, listen);
    };
    stage.addEventListener("pointermove", (event) => {
      const at = stage.getBoundingClientRect();
      const j = Math.floor((event.clientX - at.left - box.left) / box.wide * box.columns), i = Math.floor((event.clientY - at.top) / box.tall * box.rows);
      if (i >= 0 && j >= 0 && i < box.rows && j < box.columns) tell(i, j);
    });
    stage.addEventListener("pointerleave", hush);
    stage.addEventListener("blur", hush);
    stage.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (event.key === "Escape") hush();
      if (!step) return;
      event.preventDefault();
      const [i, j] = chosen ?? [0, -step[1]];
      tell(Math.min(box.rows - 1, Math.max(0, i + step[0])), Math.min(box.columns - 1, Math.max(0, j + step[1])));
      milepost.announce(told.textContent);
    });

    const leave = milepost.linked.join(figure.link, listen);
    const stop = milepost.sized(body, draw);
    return {
      update: (next) => {
        figure = next;
        if (body.clientWidth) draw(body.clientWidth);
        stage.dispatchEvent(new CustomEvent("drawn", { bubbles: true }));
      },
      remove: () => {
        leave();
        stop();
      },
    };
  };
})((globalThis.milepost ??= {}));
