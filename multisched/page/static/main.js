// The frame of the page: chooses the view, decides when it is read again, and asks for a token.

import { forgetToken, hasToken, NoDocument, read, setToken } from "./api.js";
import { addressOf, el, replace, visible } from "./dom.js";
import { follow, retry } from "./stream.js";
import { decisions } from "./views/decisions.js";
import { find } from "./views/find.js";
import { forecast } from "./views/forecast.js";
import { nodes } from "./views/nodes.js";
import { overview } from "./views/overview.js";
import { pending } from "./views/pending.js";
import { pod } from "./views/pod.js";
import { teams } from "./views/teams.js";
import { tryIt } from "./views/try.js";
import { work } from "./views/work.js";

/**
 * A view: its name in the URL fragment, its title, and the function that builds it. `open(root, args, app)` returns `refresh`, which
 * reads the documents and draws them. `refresh` is called when the overview reports a change, and every OLD_MS, because some documents
 * contain predictions; `every` is the minimum time in ms between two calls. `refresh` may return the age in seconds of a document that
 * the server had computed earlier: if the document is older than the last change, it is read again.
 * `onOverview` is called with each overview. `within`: the view that the navigation marks as current.
 * @typedef {{name: string, title: string, every: number, within?: string,
 *   open: (root: Element, args: string[], app: App) => {refresh: () => Promise<number | void>, onOverview?: (doc: object) => void}}} View
 */
/** @type {View[]} */
const VIEWS = [overview, pending, nodes, decisions, pod, teams, forecast, work, tryIt, find];

/** Delay until a view whose documents could not be read is read again; for instance, the leader may have changed. */
const RETRY_MS = 5_000;
/** Time after which a view is read again although nothing has changed. */
const OLD_MS = 60_000;
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

class App {
  constructor() {
    this.overview = null;
    this.main = document.getElementById("main");
    this.view = null;
    this.shown = null;
    this.readAt = 0;
    this.changedAt = 0;
    this.reading = null;
    this.isAsking = false;
    this.isDue = false;
    this.isWanted = false;
    this.hasFailed = false;
  }

  start() {
    replace(document.getElementById("views"), VIEWS.filter((one) => !one.within)
      .map((one) => el("li", {}, el("a", { href: `#${one.name}`, "data-view": one.name }, one.title))));
    this.fillFind(document.getElementById("find"));
    window.addEventListener("hashchange", () => this.route());
    this.route();
    this.readOverview();
    follow((doc) => this.onOverview(doc), (text, status) => this.onState(text, status));
    setInterval(() => this.readAgain(), 1000);
  }

  /** Builds the field that finds pods and nodes by a part of their names, from every view. */
  fillFind(form) {
    const input = el("input", { type: "search", name: "find", size: "22", "aria-label": "Pod or node", placeholder: "pod or node", spellcheck: "false", autocapitalize: "off" });
    replace(form, input, " ", el("button", {}, "Find"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = input.value.trim();
      if (text) location.hash = addressOf(["find", text]);
    });
  }

  /** Reads the overview once: at the start, and when there is no stream. */
  async readOverview() {
    try {
      this.onOverview(await read(["overview"]));
    } catch (error) {
      this.onError(error);
    }
  }

  route() {
    const [name, ...args] = location.hash.slice(1).split("/").map(decoded);
    if (name === "main") { this.main.focus(); return; }
    this.view = VIEWS.find((one) => one.name === name) ?? VIEWS[0];
    document.title = `${[this.view.title, ...args].map((one) => visible(one, 80)).join(" · ")} - multisched`;
    for (const one of document.querySelectorAll("#views a")) {
      const isCurrent = one.dataset.view === (this.view.within ?? this.view.name);
      if (isCurrent) one.setAttribute("aria-current", "page");
      else one.removeAttribute("aria-current");
    }
    const root = el("div", { class: `view ${this.view.name}` });
    this.main.replaceChildren(root);
    window.scrollTo(0, 0);
    this.shown = this.view.open(root, args, this);
    if (this.overview) this.shown.onOverview?.(this.overview);
    this.read();
  }

  /**
   * Reads the documents of the current view, if there is an overview. Reads of a view do not overlap: a call during a read causes
   * another read after it.
   */
  async read() {
    if (!this.overview) return;
    const shown = this.shown;
    if (this.reading === shown) { this.isWanted = true; return; }
    this.reading = shown;
    do {
      this.isWanted = this.isDue = this.hasFailed = false;
      this.readAt = performance.now();
      try {
        const age = await shown.refresh();
        if (this.shown === shown) this.say("");
        if (age !== undefined && performance.now() - 1000 * age < this.changedAt) this.isDue = true;
      } catch (error) {
        this.hasFailed = true;
        if (this.shown === shown) this.onError(error);
      }
    } while (this.isWanted && this.shown === shown);
    if (this.reading === shown) this.reading = null;
  }

  readAgain() {
    const every = this.hasFailed ? RETRY_MS : this.view.every, since = performance.now() - this.readAt;
    const isDue = this.isDue || this.hasFailed || (since >= OLD_MS && this.view.every < Infinity);
    if (isDue && !this.reading && !document.hidden && !this.isAsking && since >= every) this.read();
  }

  onOverview(doc) {
    const before = this.overview;
    this.overview = doc;
    if (!before || before.changes !== doc.changes) { this.isDue = true; this.changedAt = performance.now(); }
    document.getElementById("about").textContent = `multisched ${visible(doc.version)} · ${visible(doc.identity)} · times are in ${ZONE} unless they name a zone`;
    this.shown?.onOverview?.(doc);
    if (!before) this.read();
  }

  onState(text, status) {
    const state = document.getElementById("state");
    state.textContent = visible(text, 160);
    state.className = status === 200 ? "live" : "lost";
    if (status === 401 || status === 403) this.askToken(text);
    if (status === 429) this.readOverview();
    if (status === 200 && this.isAsking) { this.isAsking = false; this.route(); }
  }

  onError(error) {
    if (error instanceof NoDocument && (error.status === 401 || (error.status === 403 && !hasToken()))) this.askToken(error.message);
    else if (error instanceof NoDocument) this.say(error.message);
    else { this.say("the page failed to show this; reload it"); console.error(error); }
  }

  /** Shows why a document is missing, above the content read before. */
  say(text) {
    this.main.querySelector(":scope > .problem")?.remove();
    if (text) this.main.prepend(el("p", { class: "problem", role: "alert" }, text));
  }

  askToken(why) {
    if (this.isAsking) { this.main.querySelector(".problem")?.replaceChildren(visible(why)); return; }
    this.isAsking = true;
    forgetToken();
    const input = el("input", { type: "password", id: "token", autocomplete: "off", required: true, spellcheck: "false" });
    const onsubmit = (event) => { event.preventDefault(); setToken(input.value); retry(); };
    this.shown = { refresh: async () => {} };
    this.main.replaceChildren(el("form", { class: "token", onsubmit },
      el("h2", {}, "A token is needed"),
      el("p", { class: "problem", role: "alert" }, why),
      el("p", {}, "Create one for an account that has the ClusterRole multisched-reader: ",
        el("code", {}, "kubectl create token ACCOUNT"), ". It is kept in this tab only."),
      el("label", { for: "token" }, "Token"), " ", input, " ", el("button", {}, "Use it")));
    input.focus();
  }
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

new App().start();
