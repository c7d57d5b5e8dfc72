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
    if (answer.status === 204) throw new milepost.Stale();
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
      throw options.signal?.aborted ? new milepost.Stale() : new Error(milepost.word("failed"));
    }
    return read(answer);
  };

  milepost.start = () => fetched("api/start", { headers: headers() });
  milepost.ask = (what, body, view = what, signal = null) =>
    fetched(`api/${what}`, { method: "POST", headers: headers(), body: JSON.stringify({ ...body, page, view }), signal });

  // How many answers are on their way.
  let pending = 0;
  milepost.waits = () => pending;

  // An asker of one view: while an answer is on its way, only the newest of the settings that come meanwhile is kept.
  // compute(setting, signal); after stop() nothing is asked, shown or said: the screen is no more.
  milepost.asker = (compute, show, fail) => {
    let busy = false, waiting = null;
    const stopper = new AbortController();
    const run = async (setting) => {
      busy = true;
      pending += 1;
      try {
        const found = await compute(setting, stopper.signal);
        if (!stopper.signal.aborted) show(found, setting);
      } catch (error) {
        // A question of a screen that was left may come after ours, and ours is dropped for it: it is asked again.
        if (error instanceof milepost.Stale) waiting ??= [setting];
        else if (!stopper.signal.aborted) fail(error, setting);
      } finally {
        busy = false;
        pending -= 1;
        if (waiting && !stopper.signal.aborted) {
          const [again] = waiting;
          waiting = null;
          run(again);
        }
      }
    };
    const ask = (setting) => {
      if (busy) waiting = [setting];
      else if (!stopper.signal.aborted) run(setting);
    };
    ask.stop = () => stopper.abort();
    return ask;
  };
})((globalThis.milepost ??= {}));
