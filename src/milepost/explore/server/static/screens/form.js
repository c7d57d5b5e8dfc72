// A scheme as menus and sliders: one card, its parts with their arguments, and the text that says the same.
"use strict";
((milepost) => {
  const { make } = milepost;

  // The text of a part, from what its controls are set to.
  const written = (value) => (value === null ? "None" : value === true ? "True" : value === false ? "False" : typeof value === "string" ? JSON.stringify(value) : String(value));
  const textOf = (form) => form.template.replace(/\{\{|\{(\w+)\}/g, (all, name) => {
    if (all === "{{") return "{";
    const field = form.fields.find((each) => each.name === name);
    return field.menu ? (field.text ?? (field.form ? textOf(field.form) : "None")) : written(field.control.start);
  });

  const optionName = (option) => {
    const title = milepost.say(option.title);
    return title && title !== option.method && option.method[0] === option.method[0].toUpperCase() ? `${title} (${option.method})` : title || option.method;
  };

  // changed(parts' text, settle): a new text; settle where the card has to be read anew, since another method was chosen.
  const fields = (form, menus, changed) => {
    const shown = [], rest = [];
    for (const field of form.fields) {
      const place = field.more ? rest : shown;
      if (field.menu) {
        const menu = menus.find((each) => each.name === field.menu);
        const choose = make("select", { "aria-label": `${form.method} ${field.name}` },
          field.none ? make("option", { value: "" }, milepost.word("none")) : null,
          menu.options.map((each) => make("option", { value: each.method }, optionName(each))));
        const now = field.form?.method ?? "";
        if (now && !menu.options.some((each) => each.method === now)) choose.append(make("option", { value: now }, now));
        choose.value = now;
        choose.addEventListener("change", () => {
          field.text = menu.options.find((each) => each.method === choose.value)?.text ?? "None";
          changed(true);
        });
        place.push(make("label.control.choice.argument", {}, make("span", {}, milepost.say(menu.label)), choose));
        if (field.form) place.push(...fields(field.form, menus, changed));
      } else {
        const label = { en: field.name, zh: field.name };
        const made = milepost.control({ ...field.control, label }, field.control.start, (value) => {
          field.control.start = typeof value === "number" && field.control.whole ? Math.round(value) : value;
          changed(false);
        });
        made.element.classList.add("argument");
        place.push(made.element);
      }
    }
    if (rest.length) shown.push(make("details.more", {}, make("summary", {}, milepost.word("more_of", { name: form.method })), rest));
    return shown;
  };

  // One scheme. told: { menus }; set(text, settle), remove(): what the card asks of the composer.
  milepost.schemeCard = (number, menus, set, remove) => {
    const letter = "ABCD"[number];
    const no = make("p.no", { role: "alert", hidden: true });
    const hint = make("p.note.warn.trained", { role: "status", hidden: true });
    const parts = make("div.parts");
    const text = make("input.words.scheme-text", { type: "text", maxlength: 600, spellcheck: "false", autocomplete: "off", "aria-label": `${milepost.word("scheme", { n: letter })}: ${milepost.word("scheme_text")}` });
    text.addEventListener("change", () => set(text.value, true));
    const add = make("select.add", { "aria-label": `${milepost.word("scheme", { n: letter })}: ${milepost.word("add_part")}` }, make("option", { value: "" }, milepost.word("add_part")),
      menus.filter((each) => !["stretch", "slopes", "inside"].includes(each.name)).map((menu) => make("optgroup", { label: milepost.say(menu.label) },
        menu.options.map((each) => make("option", { value: each.text }, optionName(each))))));
    add.addEventListener("change", () => {
      if (!add.value) return;
      const menu = menus.find((each) => each.options.some((option) => option.text === add.value));
      // One mask is enough: another takes its place.
      const kept = known.parts.filter((each) => menu.name !== "see" || each.menu !== "see").map(textOf);
      const at = kept.length && known.parts[known.parts.length - 1].menu === "see" && menu.name !== "see" ? kept.length - 1 : kept.length;
      kept.splice(at, 0, add.value);
      set(kept.join(", "), true);
    });
    const title = make("h3", {}, make("span.letter", { class: `letter c${number}` }, letter), " ", milepost.word("scheme", { n: letter }));
    // On a phone the pictures come first: what a card is made of opens at a touch.
    const folded = make("details.parts-of", { open: !matchMedia("(max-width: 560px)").matches }, make("summary", {}, milepost.word("parts_of")), parts, add);
    const element = make("section.card", { "aria-label": milepost.word("scheme", { n: letter }) },
      make("div.card-head", {}, title, remove ? make("button.quiet", { type: "button", on: { click: remove } }, milepost.word("remove_scheme")) : null),
      folded, make("label.text-of", {}, milepost.word("scheme_text"), text), hint, no);
    let known = { parts: [] };

    const draw = () => {
      parts.replaceChildren(...known.parts.map((form, n) => {
        const changed = (settle) => set(known.parts.map(textOf).join(", "), settle);
        const menu = menus.find((each) => each.name === form.menu);
        const heading = make("select.method", { "aria-label": menu ? milepost.say(menu.label) : form.method },
          (menu?.options ?? []).map((each) => make("option", { value: each.method }, optionName(each))));
        if (![...heading.options].some((each) => each.value === form.method)) heading.append(make("option", { value: form.method }, form.method || form.template));
        heading.value = form.method;
        heading.addEventListener("change", () => {
          const texts = known.parts.map(textOf);
          texts[n] = menu.options.find((each) => each.method === heading.value)?.text ?? texts[n];
          set(texts.join(", "), true);
        });
        const gone = make("button.gone", { type: "button", "aria-label": milepost.word("remove_part", { name: form.method }), title: milepost.word("remove_part", { name: form.method }), on: { click: () => {
          set(known.parts.filter((_, m) => m !== n).map(textOf).join(", "), true);
        } } }, "×");
        return make("fieldset.part-form", {}, make("legend", {}, menu ? milepost.say(menu.label) : form.method),
          make("div.method-row", {}, heading, known.parts.length > 1 ? gone : null), fields(form, menus, changed));
      }));
    };
    return {
      element,
      // What the server read of the text; parts are drawn anew only where they are others.
      show: (read, settle) => {
        if (document.activeElement !== text) text.value = read.text;
        text.title = read.text;
        if (settle || !known.parts.length) {
          known = read;
          draw();
        }
        hint.textContent = read.hint ? milepost.say(read.hint) : "";
        hint.hidden = !read.hint;
        add.value = "";
      },
      text,
      no: (why) => {
        no.textContent = why;
        no.hidden = !why;
        text.setAttribute("aria-invalid", String(Boolean(why)));
      },
    };
  };
})((globalThis.milepost ??= {}));
