// What the page shows, in the fragment of its link: #story=clocks&factor=8&lang=zh.
"use strict";
((milepost) => {
  let mine = "";

  milepost.link = {
    read: () => new URLSearchParams(location.hash.slice(1)),
    // Written in place: the way back leads to the screen before, not through every place of a slider.
    write: (values, push = false) => {
      const fragment = new URLSearchParams();
      for (const [key, value] of values) fragment.append(key, value);
      if (milepost.lang !== milepost.firstLanguage) fragment.append("lang", milepost.lang);
      const text = `#${fragment}`;
      if (text === location.hash) return;
      mine = text;
      history[push ? "pushState" : "replaceState"](null, "", text);
    },
    address: () => location.origin === "null" || location.protocol === "file:" ? location.href : location.origin + location.pathname + location.hash,
    onChange: (listener) => {
      addEventListener("popstate", () => listener());
      addEventListener("hashchange", () => { if (location.hash !== mine) listener(); });
    },
  };
})((globalThis.milepost ??= {}));
