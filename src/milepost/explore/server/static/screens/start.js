// What the page shows by its link: the nine questions, a story, the composer, or a sentence.
"use strict";
((milepost) => {
  const { make } = milepost;
  const page = document.getElementById("page");
  let told = null, screen = null;

  const storyOf = (name) => told.stories.find((each) => each.name === name);
  const go = (values) => {
    milepost.link.write(values, true);
    open("h1");
  };
  const inner = (values, words, kind = "a") => make(kind, { href: `#${new URLSearchParams(values)}`, on: { click: (event) => {
    if (event.metaKey || event.ctrlKey) return;
    event.preventDefault();
    go(values);
  } } }, words);

  const top = () => {
    const language = make("button.quiet", { type: "button", lang: milepost.lang === "zh" ? "en" : "zh-CN", on: { click: () => {
      milepost.setLanguage(milepost.lang === "zh" ? "en" : "zh");
      const values = [...milepost.link.read()].filter(([name]) => name !== "lang");
      milepost.link.write(values);
      open(".top button");
    } } }, milepost.word("language"));
    return make("nav.top", { "aria-label": milepost.word("title") },
      inner([], make("span.eyebrow", {}, milepost.word("title"))),
      make("span.grow"),
      inner([["compose", ""]], milepost.word("composer")),
      inner([["words", ""]], milepost.word("reading")),
      language);
  };

  // missing: what a link asks for, and that there is none of, in words.
  const questions = (missing) => ({
    element: make("article.home", {},
      make("div.question", {}, make("h1", { tabindex: "-1" }, milepost.word("questions")), make("p.lead", {}, milepost.word("lede"))),
      missing ? make("p.no", { role: "alert" }, missing) : "",
      make("p.hint", {}, milepost.word("questions_lead")),
      make("ol.stories", {}, told.stories.map((each) => make("li", {}, inner([["story", each.name]], make("span", {}, milepost.say(each.question)))))),
      make("section.block", {}, make("h2", {}, milepost.word("workshop")),
        make("ul.doors", {},
          make("li", {}, inner([["compose", ""]], milepost.word("composer")), make("p", {}, milepost.word("composer_about"))),
          make("li", {}, inner([["words", ""]], milepost.word("reading")), make("p", {}, milepost.word("reading_about")))))),
    begin: () => {},
    remove: () => {},
  });

  const story = (one, link) => {
    const n = told.stories.indexOf(one);
    const set = {};
    for (const each of one.controls) if (link.has(each.name)) set[each.name] = milepost.fromLink(each, link.get(each.name));
    const write = (state, seen) => milepost.link.write([["story", one.name], ...(seen ? [["seen", "1"]] : []),
      ...one.controls.filter((each) => state[each.name] !== each.start).map((each) => [each.name, milepost.toLink(state[each.name])])]);
    const made = milepost.storyScreen(one, { set, open: link.has("seen") }, {
      compute: (name, setting, signal) => milepost.ask("story", { name, set: setting }, name, signal),
      axes: (name, setting, signal) => milepost.ask("axes", { name, set: setting }, `axes-${name}`, signal),
    }, {
      changed: write,
      again: () => go([["story", one.name]]),
      link: () => milepost.link.address(),
      exporting: async (button, state) => {
        button.disabled = true;
        button.parentElement.querySelector(".no")?.remove();
        button.textContent = milepost.word("exporting");
        try {
          milepost.save(await milepost.ask("export", { name: one.name, set: state, lang: milepost.lang }, "export"), `milepost-${one.name}.html`, "text/html");
        } catch (problem) { button.parentElement.append(make("p.no", { role: "alert" }, problem.message)); }
        button.disabled = false;
        button.textContent = milepost.word("export");
      },
      tryOwn: milepost.composer ? (schemes, set) => go([["compose", ""], ...schemes.map((each) => ["s", each]),
        ...new Map([["trained", one.try_trained], ["length", one.try_length], ...set])]) : null,
    });
    const beside = (step, name) => {
      const other = told.stories[n + step];
      return other ? make("span", {}, make("small", {}, milepost.word(name)), inner([["story", other.name]], milepost.say(other.question))) : make("span");
    };
    made.element.append(make("nav.beside", {}, beside(-1, "previous"), beside(1, "next")));
    return made;
  };

  // A link to nothing says so: a question that there is none of, or a misspelled address such as #stroy=clocks.
  const absent = (link) => {
    const short = (text) => text.slice(0, 40);
    if (link.has("story")) return milepost.word("no_question", { name: short(link.get("story")) });
    const [other] = [...link].filter(([name]) => !["lang", "compose", "words"].includes(name));
    return other ? milepost.word("no_address", { name: short(`#${other[0]}${other[1] ? `=${other[1]}` : ""}`) }) : "";
  };

  // focus: where it goes on from, as what was pressed is no more.
  const open = (focus = "") => {
    const link = milepost.link.read();
    milepost.setLanguage(link.get("lang") ?? milepost.firstLanguage);
    screen?.remove();
    const one = link.has("story") ? storyOf(link.get("story")) : null;
    if (one) screen = story(one, link);
    else if (link.has("compose") && milepost.composer) screen = milepost.composer(told, link);
    else if (link.has("words") && milepost.reading) screen = milepost.reading(told, link);
    else screen = questions(absent(link));
    document.title = one ? `${milepost.say(one.question)} · ${milepost.word("title")}` : milepost.word("title");
    page.replaceChildren(top(), make("main", {}, screen.element), make("p.live", { "aria-live": "polite", id: "live" }));
    screen.begin();
    scrollTo(0, 0);
    if (focus) page.querySelector(focus).focus({ preventScroll: true });
    document.body.dataset.screen = one ? one.name : link.has("compose") ? "compose" : link.has("words") ? "words" : "start";
  };

  milepost.go = go;
  milepost.begin = async () => {
    try {
      told = await milepost.start();
      milepost.told = told;
      milepost.firstLanguage = told.lang;
      open();
      milepost.link.onChange(() => open("h1"));
    } catch (problem) {
      page.replaceChildren(make("main", {}, make("p.lead", {}, problem.message)));
    }
  };
  milepost.begin();
})((globalThis.milepost ??= {}));
