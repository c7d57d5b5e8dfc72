// A story in a file of its own: every answer lies in it already; between the places the nearest is shown, and said so.
"use strict";
((milepost) => {
  const { make } = milepost;

  const unpacked = async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("data").textContent.trim()), (each) => each.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  };

  // The place in the list of scenes, and by which controls it is not what was asked for.
  const nearest = (data, setting) => {
    let index = 0;
    const off = [];
    for (const control of data.story.controls) {
      const grid = data.grids[control.name], value = setting[control.name];
      let at = grid.indexOf(value);
      if (at < 0) {
        const size = (each) => (control.scale === "doubling" ? Math.log2(each) : each);
        at = control.kind === "slider" && typeof value === "number"
          ? grid.reduce((best, each, n) => (Math.abs(size(each) - size(value)) < Math.abs(size(grid[best]) - size(value)) ? n : best), 0)
          : 0;
        off.push(`${milepost.say(control.label)} ${typeof grid[at] === "number" ? milepost.number(grid[at]) : grid[at]}`);
      }
      index = index * grid.length + at;
    }
    return { scene: data.scenes[index], off };
  };
  milepost.nearest = nearest;

  const begin = async () => {
    const data = await unpacked();
    milepost.exported = data;
    milepost.firstLanguage = data.lang;
    const page = document.getElementById("page");
    let screen = null;
    const open = () => {
      const link = milepost.link.read();
      milepost.setLanguage(link.get("lang") ?? data.lang);
      screen?.remove();
      const { story } = data;
      const set = {};
      for (const each of story.controls) if (link.has(each.name)) set[each.name] = milepost.fromLink(each, link.get(each.name));
      const write = (state, seen) => milepost.link.write([...(seen ? [["seen", "1"]] : []),
        ...story.controls.filter((each) => state[each.name] !== each.start).map((each) => [each.name, milepost.toLink(state[each.name])])]);
      screen = milepost.storyScreen(story, { set, open: data.open || link.has("seen") }, {
        compute: async (name, setting) => {
          for (const each of story.controls) {
            const value = setting[each.name];
            if (each.kind === "slider" && !(typeof value === "number" && value >= each.low && value <= each.high)) {
              const span = `${milepost.number(each.low)} … ${milepost.number(each.high)}`;
              throw new milepost.NotPossible(each.name, { en: `give a number within ${span}`, zh: `请给 ${span} 之间的数` });
            }
          }
          const { scene, off } = nearest(data, setting);
          if (scene.no) throw new milepost.NotPossible(scene.no.control, scene.no.why);
          return { ...scene, note: off.length ? milepost.word("off_grid", { at: off.join(", ") }) : "" };
        },
        axes: async () => data.axes,
      }, {
        changed: write,
        again: data.open ? null : () => { milepost.link.write([]); open(); },
        link: () => location.href,
      });
      const language = make("button.quiet", { type: "button", on: { click: () => {
        const next = milepost.lang === "zh" ? "en" : "zh";
        milepost.setLanguage(next);
        milepost.link.write([...milepost.link.read()].filter(([name]) => name !== "lang"));
        open();
      } } }, milepost.word("language"));
      const names = data.fewer.map((name) => milepost.say(story.controls.find((each) => each.name === name).label)).join(", ");
      page.replaceChildren(make("nav.top", {}, make("span.eyebrow", {}, `${milepost.word("title")} ${data.version}`), make("span.grow"), language),
        make("main", {}, screen.element),
        make("footer", {}, milepost.word("on_grid", { n: milepost.number(data.scenes.length) }), " ", names ? milepost.word("fewer", { names }) : ""),
        make("p.live", { "aria-live": "polite", id: "live" }));
      document.title = `${milepost.say(story.question)} · milepost`;
      screen.begin();
    };
    open();
    milepost.link.onChange(open);
  };
  begin();
})((globalThis.milepost ??= {}));
