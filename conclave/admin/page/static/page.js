// Refreshes the page's content every 10 seconds while the page is visible. Forms and open sections stay unchanged.
"use strict";
const INTERVAL_MS = 10000;
async function renew() {
  if (document.hidden) return;
  try {
    const answer = await fetch("/", { cache: "no-store", credentials: "same-origin" });
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const selector of ["#live", "header"]) {
      const fresh = page.querySelector(selector), shown = document.querySelector(selector);
      const open = [...shown.querySelectorAll("details[open]")].map((each) => each.id);
      shown.replaceWith(fresh);
      for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    }
    document.title = page.title;
  } catch (error) {
    document.title = "(no answer) Conclave: operations";
  }
}
setInterval(renew, INTERVAL_MS);
