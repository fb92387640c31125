// Reads documents of the server. All URLs are relative to the page, so that it works below any prefix. The token is stored
// for this tab only. It is sent as X-Multisched-Token, because the API server's proxy removes Authorization.

const KEY = "multisched-token";
const TIMEOUT_MS = 60_000;

/** An error instead of a document; `status` is the HTTP status, 0 if there was no response. */
export class NoDocument extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const setToken = (token) => sessionStorage.setItem(KEY, token.trim());
export const hasToken = () => Boolean(sessionStorage.getItem(KEY));
export const forgetToken = () => sessionStorage.removeItem(KEY);

/** Returns the headers of a request: `more`, and the token if there is one. */
export function headers(more = {}) {
  const token = sessionStorage.getItem(KEY);
  return token ? { "X-Multisched-Token": token, ...more } : more;
}

/** @param {string[]} parts of the path below api/v1 @param {Record<string, string | number | undefined>} query */
export function address(parts, query = {}) {
  const url = new URL(`api/v1/${parts.map((part) => encodeURIComponent(part)).join("/")}`, document.baseURI.split("#")[0]);
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== "") url.searchParams.set(name, value);
  return url;
}

/** Reads one document. Raises NoDocument. */
export const read = (parts, query = {}, signal = undefined) => call(address(parts, query), { headers: headers(), signal });

/** Sends a POST with a body. The page sends only requests that change nothing. Raises NoDocument. */
export const ask = (parts, query, body) => call(address(parts, query), {
  method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body),
});

async function call(url, options) {
  const signals = [AbortSignal.timeout(TIMEOUT_MS), ...(options.signal ? [options.signal] : [])];
  let response;
  try {
    response = await fetch(url, { cache: "no-store", credentials: "same-origin", ...options, signal: AbortSignal.any(signals) });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new NoDocument(error.name === "TimeoutError" ? "the server does not answer" : "the server cannot be reached", 0);
  }
  if (response.ok) return response.json();
  throw new NoDocument(await reason(response), response.status);
}

/** The message of an error response: the `detail` of a problem+json body, else the body. */
export async function reason(response) {
  const text = (await response.text()).trim();
  if (!(response.headers.get("Content-Type") ?? "").includes("problem+json")) return text || `status ${response.status}`;
  try {
    return JSON.parse(text).detail || text;
  } catch {
    return text;
  }
}
