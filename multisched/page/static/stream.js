// Reads the stream of overviews (server-sent events). Uses fetch, because EventSource cannot send a token. Each event is a
// whole overview. The stream is closed while the page is hidden, and then resumed after the last event.

import { address, headers, reason } from "./api.js";

const PAUSE_MS = 2_000;
const PAUSE_MAX_MS = 30_000;
/** A stream that ends earlier counts as failed. */
const STREAM_MIN_MS = 10_000;

/**
 * Reads the stream, and connects again after an end or an error, until the page is closed.
 * @param {(overview: object) => void} onOverview
 * @param {(state: string, status: number) => void} onState "live" or an error, and the HTTP status (0: no response)
 */
export async function follow(onOverview, onState) {
  let last = "", pause = PAUSE_MS;
  for (;;) {
    await seen();
    const hidden = new AbortController();
    const onHide = () => document.hidden && hidden.abort();
    document.addEventListener("visibilitychange", onHide);
    try {
      const more = last ? { "Last-Event-ID": last } : {};
      const response = await fetch(address(["overview", "stream"]), { headers: headers(more), cache: "no-store", signal: hidden.signal });
      if (!response.ok) {
        onState(await reason(response), response.status);
      } else {
        onState("live", 200);
        const began = performance.now();
        for await (const event of events(response.body)) {
          last = event.id || last;
          if (event.name === "overview") onOverview(JSON.parse(event.data));
        }
        if (performance.now() - began > STREAM_MIN_MS) { pause = PAUSE_MS; continue; } // the server ends it after some minutes
      }
    } catch (error) {
      if (hidden.signal.aborted) continue;
      onState("the server cannot be reached", 0);
    } finally {
      document.removeEventListener("visibilitychange", onHide);
    }
    await waited(pause);
    pause = Math.min(PAUSE_MAX_MS, pause * 2);
  }
}

let wake = () => {};
/** Connects again at once, after a token was given. */
export const retry = () => wake();

const waited = (time) => new Promise((resolve) => {
  const timer = setTimeout(resolve, time);
  wake = () => { clearTimeout(timer); resolve(); };
});

const seen = () => new Promise((resolve) => {
  if (!document.hidden) { resolve(); return; }
  const onSeen = () => { if (!document.hidden) { document.removeEventListener("visibilitychange", onSeen); resolve(); } };
  document.addEventListener("visibilitychange", onSeen);
});

/** Splits a body into events: https://html.spec.whatwg.org/multipage/server-sent-events.html */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const event = { id: "", name: "message", data: "" };
      for (const line of rest.slice(0, end).split("\n")) {
        if (line.startsWith("id: ")) event.id = line.slice(4);
        else if (line.startsWith("event: ")) event.name = line.slice(7);
        else if (line.startsWith("data: ")) event.data += line.slice(6);
      }
      rest = rest.slice(end + 2);
      if (event.data) yield event;
    }
  }
}
