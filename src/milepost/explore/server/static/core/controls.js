// What a reader sets: sliders with a field for the number, choices, switches and words; a no stands beside its control.
"use strict";
((milepost) => {
  const { make } = milepost;
  let count = 0;

  // The value of a slider's place: even, or a power of two.
  const scaled = (control) => {
    const doubling = control.scale === "doubling";
    const whole = doubling ? Number.isInteger(control.low) : Number.isInteger(control.step);
    return {
      low: doubling ? Math.log2(control.low) : control.low,
      high: doubling ? Math.log2(control.high) : control.high,
      place: (value) => (doubling ? Math.log2(value) : value),
      value: (place) => {
        const found = doubling ? 2 ** place : place;
        const held = Math.min(control.high, Math.max(control.low, found));
        return whole ? Math.round(held) : Number(held.toPrecision(10));
      },
    };
  };

  const slider = (control, value, set, id) => {
    const scale = scaled(control);
    const range = make("input", {
      type: "range", id, min: scale.low, max: scale.high, step: "any", "aria-valuetext": milepost.number(value),
    });
    range.value = scale.place(value);
    const field = make("input.number", { type: "text", inputmode: "decimal", "aria-label": milepost.say(control.label), value: shown(value) });
    // Steps are kept here: the thumb stands at a typed value that lies between two of them, too.
    const step = (now) => {
      show(now);
      set(now);
    };
    range.addEventListener("input", () => step(milepost.held(control, scale.value(Number(range.value)))));
    range.addEventListener("keydown", (event) => {
      const steps = milepost.steps(event);
      if (!steps) return;
      event.preventDefault();
      const at = (Number(range.value) - scale.low) / control.step;
      const next = steps > 0 ? Math.floor(at + 1e-6) + steps : Math.ceil(at - 1e-6) + steps;
      step(scale.value(Math.min(scale.high, Math.max(scale.low, scale.low + next * control.step))));
    });
    field.addEventListener("change", () => {
      const text = field.value.replace(/[,，\s]/g, "").replace("−", "-").trim();
      const now = text === "" || Number.isNaN(Number(text)) ? field.value : Number(text);
      step(now);
    });
    const show = (now) => {
      if (typeof now === "number") range.value = scale.place(now);
      if (document.activeElement !== field || typeof now === "number") field.value = typeof now === "number" ? shown(now) : now;
      range.setAttribute("aria-valuetext", milepost.number(now));
    };
    return {
      parts: [range, field],
      wide: true,
      show,
      range,
    };
  };
  const shown = (value) => (typeof value === "number" ? Number(value.toPrecision(10)).toLocaleString("en-US", { maximumFractionDigits: 10 }) : String(value));

  const choice = (control, value, set, id) => {
    const menu = make("select", { id }, control.options.map(([name, label]) => make("option", { value: name }, milepost.say(label))));
    menu.value = value;
    menu.addEventListener("change", () => set(menu.value));
    return { parts: [menu], show: (now) => { menu.value = now; } };
  };

  const onOff = (control, value, set, id) => {
    const box = make("input", { type: "checkbox", id, role: "switch" });
    box.checked = value;
    box.addEventListener("change", () => set(box.checked));
    return { parts: [box], before: true, show: (now) => { box.checked = now; } };
  };

  const words = (control, value, set, id) => {
    const field = control.lines > 1 ? make("textarea", { id, rows: control.lines, maxlength: control.most * 2 })
      : make("input.words", { type: "text", id, maxlength: control.most * 2 });
    field.value = value;
    field.addEventListener("input", () => set(field.value));
    return { parts: [field], wide: true, show: (now) => { if (field.value !== now) field.value = now; } };
  };

  const kinds = { slider, choice, switch: onOff, words };

  // One control with its label and a place for a no; set is called with each new value.
  milepost.control = (control, value, set) => {
    const id = `control-${count += 1}`;
    const no = make("p.no", { role: "alert", id: `${id}-no`, hidden: true });
    const made = kinds[control.kind](control, value, set, id);
    const label = make("label", { for: id }, milepost.say(control.label));
    made.parts[0].setAttribute("aria-describedby", no.id);
    const row = made.before ? [...made.parts, label] : [label, ...made.parts];
    const element = make(`div.control.${control.kind}`, { "data-control": control.name }, row, no);
    return {
      element,
      show: made.show,
      no: (why) => {
        no.textContent = why;
        no.hidden = !why;
        for (const each of made.parts) each.setAttribute("aria-invalid", String(Boolean(why)));
      },
    };
  };

  // Controls by name, with one state; change is called after each new value.
  milepost.controls = (list, state, change) => {
    const made = new Map();
    for (const each of list) {
      made.set(each.name, milepost.control(each, state[each.name], (value) => {
        state[each.name] = value;
        change(each.name);
      }));
    }
    return {
      elements: [...made.values()].map((each) => each.element),
      known: (name) => list.find((each) => each.name === name),
      set: (name, value) => {
        state[name] = value;
        made.get(name)?.show(value);
        change(name);
      },
      show: () => { for (const [name, each] of made) each.show(state[name]); },
      no: (name, why) => {
        for (const each of made.values()) each.no("");
        const found = made.get(name);
        found?.no(why);
        return Boolean(found);
      },
      clear: () => { for (const each of made.values()) each.no(""); },
    };
  };

  milepost.starts = (list) => Object.fromEntries(list.map((each) => [each.name, each.start]));

  // Within the ends of a slider, at one of its steps.
  milepost.held = (control, value) => {
    const scale = scaled(control);
    const place = Math.min(scale.high, Math.max(scale.low, scale.place(Math.max(value, control.low))));
    return scale.value(scale.low + Math.round((place - scale.low) / control.step) * control.step);
  };
  milepost.within = (control, value) => scaled(control).value(scaled(control).place(Math.min(control.high, Math.max(control.low, value))));
  milepost.stepped = (control, value, steps) => {
    const scale = scaled(control);
    return scale.value(Math.min(scale.high, Math.max(scale.low, scale.place(value) + steps * control.step)));
  };

  // From a link: what is no value of the control is left where it starts.
  milepost.fromLink = (control, text) => {
    if (control.kind === "slider") return text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : control.start;
    if (control.kind === "switch") return text === "1";
    if (control.kind === "choice") return control.options.some(([name]) => name === text) ? text : control.start;
    return text;
  };
  milepost.toLink = (value) => (value === true ? "1" : value === false ? "0" : String(value));
})((globalThis.milepost ??= {}));
