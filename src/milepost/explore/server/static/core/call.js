// Calls of the server: with the token, one at a time for each view, the newest setting last; stale answers are dropped.
"use strict";
((milepost) => {
  const page = crypto.randomUUID ? crypto.randomUUID() : String(Math.random()).slice(2);
  const kept = "milepost-token";
  const given = new URLSearchParams(location.search).get("token");
  let token = given;
  try {
    if (given) sessionStorage.setItem(kept, given);
    else token = sessionStorage.getItem(kept);
  } catch { /* A page may be kept from remembering; then the cookie does it. */ }
  // The token does not stay where links are copied from.
  if (given) history.replaceState(null, "", location.pathname + location.hash);

  const headers = () => ({ "content-type": "application/json", ...(token ? { "x-milepost-token": token } : {}) });

  milepost.NotPossible = class extends Error {
    constructor(control, why) {
      super(milepost.say(why));
      this.control = control;
      this.why = why;
    }
  };
  milepost.Stale = class extends Error {};

  const read = async (answer) => {
    if (answer.status === 409) throw new milepost.Stale();
    if (answer.status === 422 || answer.status === 403) {
      const { control, why } = await answer.json();
      throw new milepost.NotPossible(control, why);
    }
    if (!answer.ok) throw new Error(milepost.word("failed"));
    return answer.json();
  };
  const fetched = async (address, options) => {
    let answer;
    try {
      answer = await fetch(address, options);
    } catch {
      throw new Error(milepost.word("failed"));
    }
    return read(answer);
  };

  milepost.start = () => fetched("api/start", { headers: headers() });
  milepost.ask = (what, body, view = what) =>
    fetched(`api/${what}`, { method: "POST", headers: headers(), body: JSON.stringify({ ...body, page, view }) });

  // An asker of one view: while an answer is on its way, only the newest of the settings that come meanwhile is kept.
  milepost.asker = (compute, show, fail) => {
    let busy = false, waiting = null;
    const run = async (setting) => {
      busy = true;
      try {
        show(await compute(setting), setting);
      } catch (error) {
        if (!(error instanceof milepost.Stale)) fail(error, setting);
      } finally {
        busy = false;
        if (waiting) {
          const [again] = waiting;
          waiting = null;
          run(again);
        }
      }
    };
    return (setting) => {
      if (busy) waiting = [setting];
      else run(setting);
    };
  };
})((globalThis.milepost ??= {}));
